"""Weights: how many slots of its worker, or threads of its pool, a run takes."""

from typing import Annotated, Any

from pydantic import Field

from rota.shared.domain.pools import MOST_THREADS

MOST_WEIGHT = MOST_THREADS
Weight = Annotated[int, Field(ge=1, le=MOST_WEIGHT)]


def weight_in(value: Any) -> int:
    """The weight that a row has; 1, where SQL has spoiled it.

    weight_in(3) == 3; weight_in(0) == 1; weight_in("many") == 1
    """
    return value if type(value) is int and 1 <= value <= MOST_WEIGHT else 1


def too_heavy(weight: int, most: int, pool: str | None = None) -> str:
    """The sentence for a weight beyond all workers, of which the largest has so many slots, or threads of the pool.

    too_heavy(60, 50)   # "weight 60: no worker has so many slots; the largest has 50"
    """
    what = "slots" if pool is None else f"threads in its pool {pool!r}"
    return f"weight {weight}: no worker has so many {what}; the largest has {most}"
