"""Rota as an app of a Django project.

    INSTALLED_APPS = [..., "rota.integrations.django"]
    ROTA = {"DATABASE": "default", "TASKS": ["shop.nightly"]}   # both may be left out

An app's ``tasks.py`` says what workers run, and views ask for it:

    from rota.integrations.django import app, client

    @app.task("END_PROMOTION")
    def end_promotion(ctx: NodeContext) -> None: ...

    with transaction.atomic():
        promotion = Promotion.objects.create(product=42)
        client.once("END_PROMOTION", key="product-42", at=promotion.until)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rota.integrations.django.asking import client
    from rota.integrations.django.declaring import app
    from rota.integrations.django.project import database_url

__all__ = ["app", "client", "database_url"]

_HOMES = {
    "app": "rota.integrations.django.declaring",
    "client": "rota.integrations.django.asking",
    "database_url": "rota.integrations.django.project",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use: most of what ``manage.py`` does needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
