"""Rota for programs: a client that does what the command line does, for plain code and for ``async`` code."""
