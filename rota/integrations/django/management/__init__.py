"""The commands of ``manage.py`` that Rota adds."""
