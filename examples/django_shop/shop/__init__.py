"""The shop, a Django project."""
