"""Huey: enqueue the jobs, one by one. A program of its own, for a task's name begins with that of its module."""

from program import load, run

from benchmarks.load import moment

for key, due in load.entries():
    if load.workload == "drain":
        run(key, due)
    else:
        run.schedule(args=(key, due), eta=moment(due))
