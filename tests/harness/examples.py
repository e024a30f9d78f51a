"""How many examples a test of random ones takes: a part in `make test`, all of them in `make test-long`."""

import os

ALL = os.environ.get("ROTA_TEST_EXAMPLES") == "all"
PART = 8
"""`make test` takes one example of so many."""


def examples(number: int) -> int:
    """``number``, or one of `PART`."""
    return number if ALL else max(1, number // PART)
