"""Rota in web frameworks."""
