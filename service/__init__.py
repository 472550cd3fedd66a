"""The rescoring service: HTTP in front of `models`."""
