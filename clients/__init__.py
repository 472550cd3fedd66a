"""The command line, the Python client and the evaluation. Light: importing it needs no model library."""
