"""Language models, their mixture, and the rescoring of N-best lists. Nothing here knows of HTTP."""
