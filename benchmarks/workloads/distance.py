"""Distance: a steady load with the database so far away; 1 scheduler and 2 workers with their default settings.

A proxy delays every packet by half a round trip. The tasks have the default overlap policy (``skip``). A fire that is
canceled because the run before it seems to run still is a wrong run.
"""

from functools import partial

from benchmarks.cases import Case, Scale
from benchmarks.workloads.steady import herds, steady

RATE = 500
SECONDS = 20
SHAPES = {"spread": steady, "on the second": herds}
NOTE = f"{RATE} fires/s for {SECONDS} s; a proxy delays each packet by half the round trip that is given."


def cases(scale: Scale) -> list[Case]:
    """A case for each distance, with fires that are spread within the second and with a herd on each second."""
    return [
        Case(
            "distance",
            "rota",
            f"{milliseconds} ms, {shape}",
            scale.rounds,
            partial(run, rate=RATE, seconds=SECONDS, round_trip_seconds=milliseconds / 1000),
            NOTE,
        )
        for milliseconds in scale.distances
        for shape, run in SHAPES.items()
    ]
