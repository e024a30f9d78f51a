"""The version of a content: a short hash of it, so that equal contents have equal versions in every process. Pure."""

import hashlib
import json
from typing import Any

VERSION_LENGTH = 12
"""How many hexadecimal digits a version has."""


def version_of(content: Any) -> str:
    """The version of a JSON value; the order of the names in an object does not matter.

    version_of({"cron": "0 3 * * *"})   # "3b1f0c9a7e42"
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:VERSION_LENGTH]
