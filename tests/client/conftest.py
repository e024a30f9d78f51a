"""Clients over a migrated database, and a cluster that works for them."""

from collections.abc import Iterator

import pytest

from rota import Client
from tests.harness.cluster_fixtures import cluster

__all__ = ["cluster"]


@pytest.fixture
def client(migrated_url: str) -> Iterator[Client]:
    """A client named ``shop``."""
    with Client(migrated_url, name="shop") as made:
        yield made
