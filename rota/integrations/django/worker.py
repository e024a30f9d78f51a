"""What the project's workers run, in a process of Rota's: ``manage.py rota worker`` loads it."""

import logging

import django
from django.db import connections

django.setup()

from rota.integrations.django.connections import renewed  # noqa: E402 - Django has to be set up first
from rota.integrations.django.handlers import all_declared  # noqa: E402
from rota.integrations.django.signals import send_from  # noqa: E402

for _name, _logger in logging.root.manager.loggerDict.items():
    if isinstance(_logger, logging.Logger) and _name.partition(".")[0] == "rota":
        _logger.disabled = False  # LOGGING disables all loggers that it does not name, unless it says otherwise

app = all_declared()
app.surround(renewed)
send_from(app)
connections.close_all()  # what an import has opened would be shared by the processes that are forked from this one
