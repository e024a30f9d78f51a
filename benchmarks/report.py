"""The report: samples and facts as docs/benchmarks.md, with its plots beside it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks import facts as facts_of
from benchmarks import plots
from benchmarks.facts import Facts
from benchmarks.goals import verdicts
from benchmarks.peers import LEFT_OUT
from benchmarks.samples import Samples, Spread, spread
from benchmarks.tables import ROTA, Table, brief, failures, shown, subject_name, tables, was_repeated

FOLDER = "benchmarks"
"""Where the plots are, beside the page."""

TITLES = {
    "drain": "Drain, and the ceiling",
    "run_now": "Run now",
}
WHAT = {
    "drain": (
        "Tasks due at once, one node each, a handler that does nothing. The ceiling is the bare writes of an instance's"
        " whole life, by three processes that decide nothing and run nothing: what this database and driver allow."
    ),
    "backlog": (
        "Stored runs of one task that runs one at a time, and whose handler does nothing. The next one starts when the"
        " one before has ended and that is committed: no batch makes that shorter."
    ),
    "herd": "Cron tasks that are all due at the same second. Lateness in ms, from due to the entry of the handler.",
    "different": "Tasks that differ in everything, all due at one moment; each node of each runs once.",
    "steady": "So many fires a second. Lateness in ms, from due to the entry of the handler.",
    "distance": "A steady load with the database so far away: a proxy delays all packets. Lateness in ms.",
    "registry": "Tasks that are registered; what a tick of the scheduler costs, and what it costs to be idle.",
    "edit": "One statement edits many tasks while others fire every second: how late those are, in ms.",
    "flood": (
        "Many instances of one group are stored at once while tasks of another group fire every second: how late those"
        " are, in ms; and how many of the flood run in a second meanwhile."
    ),
    "history": "Finished instances in the table; drain and a steady load (lateness in ms) over them.",
    "fleet": "Drain by so many processes.",
    "run_now": "A run that a program asks for in an idle system: ms from the call, which commits, to the handler.",
    "recovery": "kill -9 of a worker and of a scheduler.",
    "pipeline": (
        "Five nodes for each instance, by executor and by size of a node's result. The ceiling is the bare writes of"
        " such a life."
    ),
    "processes": (
        'Nodes with execution="process": how many in a second where processes are reused, and how late the first is.'
    ),
    "tuning": "One setting at a time is not the default: a drain and a herd, and for some of them runs by hand.",
}
HEAD = """# Benchmarks

`python -m benchmarks report` wrote this page from the samples of a run; no figure is typed. What it means for you:
`docs/performance.md`. A figure is the median over the runs of its row, with the lowest and the highest in brackets. The
rounds of a session are interleaved (runs of different sessions are not; "The run" says how many there were), and ratios
are taken within a round. In each of Rota's runs the handlers write down what ran and when they were entered: a fire
that is missing, that ran twice or that started before it was due fails the run, and its figures do not count. Such
fires fail no peer's run; the tables count them.
"""
AGAIN = """`make bench` runs all of it; interrupted, the same command goes on, and when all is there, it only writes
this page: `rm .bench/results.*` begins anew. `make bench-quick` is a look in under 3 minutes. `python -m benchmarks
run --only drain` runs one workload, `--only drain:rota` what Rota does of it.
"""


def write(results: Path, out: Path) -> Path:
    """Write the page and its plots into a folder, and return the page. Needs matplotlib."""
    samples = Samples(results)
    drawn = plots.draw(samples, out / FOLDER)
    page = out / "benchmarks.md"
    page.write_text(markdown(samples, facts_of.read(facts_of.beside(results)), drawn))
    return page


def markdown(samples: Samples, facts: Sequence[Facts], drawn: Sequence[str] = ()) -> str:
    """The page."""
    parts = [
        HEAD,
        "## Goals\n",
        _grid(("workload", "goal", "measured", "met"), _goals(samples)),
        "## The run\n",
        _grid(("", ""), _run(samples, facts)),
        AGAIN,
        *(part for table in tables(samples) for part in _section(table, drawn)),
        "## What peers were not asked for\n",
        _grid(("peer", "what", "why"), LEFT_OUT),
        "## Failed runs\n",
        *_failures(samples),
    ]
    return "\n".join(parts)


def _goals(samples: Samples) -> Iterator[tuple[str, ...]]:
    for verdict in verdicts(samples):
        yield (_title(verdict.workload), verdict.goal, verdict.measured, f"**{verdict.met}**")


def _run(samples: Samples, facts: Sequence[Facts]) -> Iterator[tuple[str, str]]:
    """The facts of the last session, and with each what was another in an earlier one."""
    if not facts:
        yield ("facts", "none were written beside these samples")
        return
    took = sum(sample.seconds for sample in samples.all) / 60
    sessions = f"{len(facts)} sessions, " if len(facts) > 1 else ""
    yield ("when", f"{facts[0].began} to {facts[-1].ended} ({sessions}{took:,.1f} min of runs)")
    yield ("Rota", " / ".join(dict.fromkeys(f"commit {one.commit}" for one in facts)))
    sizes = ", ".join(f"{name} {_listed(value)}" for name, value in facts[-1].scale.items())
    yield ("size", sizes)
    yield from _of_all([one.machine for one in facts])
    if stolen := spread(sample.stolen * 100 for sample in samples.all if sample.stolen is not None):
        yield ("CPU time that the host gave to others", f"{shown(stolen)} % of all during a run, n={stolen.count}")
    yield from _of_all([one.versions for one in facts])
    for name, value in _of_all([one.settings for one in facts]):
        yield (f"settings: {name}", value)
    seeds = ", ".join(f"{name} {seed}" for name, seed in facts[-1].seeds.items())
    yield ("seeds", seeds or "none: no load is drawn by chance")


def _listed(value: object) -> str:
    if isinstance(value, list | tuple):
        return "/".join(_listed(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _of_all(sessions: Sequence[dict[str, str]]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(name for one in sessions for name in one):
        different = dict.fromkeys(one[name] for one in reversed(sessions) if name in one)
        yield (name, "; in an earlier session: ".join(different))


def _section(table: Table, drawn: Sequence[str]) -> Iterator[str]:
    name = table.workload
    yield f"## {_title(name)}\n"
    if name in WHAT:
        yield f"{WHAT[name]}\n"
    if f"{name}.svg" in drawn:
        yield f"![{_title(name)}]({FOLDER}/{name}.svg)\n"
    notes = list(dict.fromkeys(row.note for row in table.rows if row.note))
    header = ["", "runs", *table.figures]
    if table.has_variants:
        header.insert(0, "variant")
    yield _grid(header, (_row(table, at, notes) for at in range(len(table.rows))))
    for at, note in enumerate(notes, start=1):
        yield f"[^{name}-{at}]: {_cell(note)}"
    if notes:
        yield ""


def _row(table: Table, at: int, notes: Sequence[str]) -> list[str]:
    row = table.rows[at]
    _, subject, variant = row.key
    mark = f"[^{table.workload}-{notes.index(row.note) + 1}]" if row.note else ""
    name = f"**{subject_name(subject)}**" if subject == ROTA else subject_name(subject)
    cells = [name + mark, row.runs, *(_figure(cell, row.good) for cell in row.cells)]
    return [variant, *cells] if table.has_variants else cells


def _figure(cell: Spread | None, good: int) -> str:
    """A cell, with its own count where that is not the row's."""
    return shown(cell, count=cell is not None and cell.count != good)


def _failures(samples: Samples) -> Iterator[str]:
    bad = failures(samples)
    if not bad:
        yield "None.\n"
        return
    yield _grid(
        ("workload", "subject", "variant", "round", "error", "ran well when repeated"),
        (
            (
                _title(one.workload),
                subject_name(one.subject),
                one.variant,
                str(one.round + 1),
                brief(one.error),
                "yes" if was_repeated(samples, one) else "no",
            )
            for one in bad
        ),
    )


def _title(workload: str) -> str:
    return TITLES.get(workload, workload.replace("_", " ").capitalize())


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, with an empty line after it."""
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
