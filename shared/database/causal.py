"""Reads that see everything that was committed before them, on whatever server of a cluster."""

from collections.abc import Mapping
from types import MappingProxyType

CAUSAL_OPTION = "rota_causal"
CAUSALLY: Mapping[str, bool] = MappingProxyType({CAUSAL_OPTION: True})
"""The execution options of a SELECT that must not be stale. On a single server they change nothing.

connection.execute(statement, execution_options=CAUSALLY)
"""
