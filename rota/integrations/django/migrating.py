"""Rota's tables, and the project's task types in them."""

from rota import migrations
from rota.integrations.django.handlers import all_declared
from rota.shared.database.problems import database_errors
from rota.shared.database.transactions import opened
from rota.shared.store import node_types
from rota.worker_service import builtin


def migrated(url: str) -> str:
    """Migrate the tables, and register what the project declares; returns what was done, in words.

    Raises DatabaseProblem, NameTaken for what two modules declare, and what the import of a tasks module raises.
    """
    report = migrations.upgrade(url)
    if not report.by_newer:
        declared = [node.declaration() for node in all_declared().nodes.values()]
        with opened(url) as database, database_errors(database.url):
            builtin.register(database, by="migrate")
            database.write(lambda connection: node_types.register(connection, declared, "migrate"))
    return str(report)
