"""A program that asks for one-off work and cancels it, at random; run as a process: url, its number, calls, seed.

It prints the error of each call that is refused, but for a cancel that found nothing to cancel. Even keys are asked for
now or within a second, odd ones in hours.
"""

import random
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from rota import Client, RotaError
from rota.shared.domain.errors import NotFound

KEYS = 100
CANCELS = 0.1


def main() -> None:
    """Make the calls."""
    url, number, calls, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed * 1000 + number)
    with Client(url, name=f"caller-{number}") as client:
        for n in range(calls):
            key = chance.randrange(KEYS)
            try:
                if chance.random() < CANCELS:
                    with suppress(NotFound):
                        client.keys.cancel("NOTE", f"key-{key}")
                    continue
                wait = timedelta(hours=chance.uniform(1, 9)) if key % 2 else timedelta(seconds=chance.uniform(-1, 1))
                param = {"key": f"key-{key}", "call": f"{number}-{n}"}
                client.once("NOTE", key=f"key-{key}", at=datetime.now(UTC) + wait, param=param)
            except RotaError as error:
                print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
