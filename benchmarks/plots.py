"""The plots of the report as SVG: the same samples give the same bytes. matplotlib is imported at the first use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measures import STEADY_SECONDS
from benchmarks.samples import Samples, Spread
from benchmarks.tables import CEILING, CEILING_KEY, ROTA, Key, in_order, number, numbers, subject_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROTAS_COLOUR = "#0072B2"
CEILINGS_COLOUR = "#999999"
COLOURS = ("#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#882255", "#999933")
"""Okabe and Ito's, and two of Tol's, which the colour-blind tell apart; for the peers, by their names."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rota",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
STEADY = "200/s"
MAIN_VARIANTS = ("1,000", "10,000", STEADY)
"""What is drawn as a full line; Rota at other rates, and a peer with other settings, are dashed."""

LEAST_MS = 0.01
"""Where the axis of lateness begins: what is earlier is drawn there."""


def draw(samples: Samples, folder: Path) -> list[str]:
    """Write every plot that there are samples for, and return the names of the files."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with mpl.rc_context(STYLE):
        for name, plot in PLOTS.items():
            figure = Figure(figsize=(8, 4.5), layout="constrained")
            path = folder / f"{name}.svg"
            path.unlink(missing_ok=True)
            if plot(samples, figure):
                figure.savefig(path, metadata={"Date": None, "Creator": None})
                made.append(path.name)
    return made


def _drain(samples: Samples, figure: "Figure") -> bool:
    keys = [CEILING_KEY, *_keys(samples, "drain")]
    bars = [(key, found) for key in keys if (found := samples.spread(key, "instances/s")) is not None]
    if not bars:
        return False
    bars.sort(key=lambda bar: bar[1].median)
    axes = _axes(figure, "Drain", "instances/s")
    colours = _colours(samples)
    for at, (key, found) in enumerate(bars):
        style: dict[str, Any] = {"hatch": "//", "edgecolor": "white"} if key == CEILING_KEY else {}
        axes.barh(at, found.median, color=colours[_family(key[1])], height=0.7, **style)
        axes.plot([found.low, found.high], [at, at], color="#222222", linewidth=1.2)
        axes.annotate(
            number(found.median), (found.high, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        )
        if key == CEILING_KEY:
            axes.axvline(found.median, color=CEILINGS_COLOUR, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(bars)), [subject_name(key[1]) for key, _ in bars])
    for label, (key, _) in zip(axes.get_yticklabels(), bars, strict=True):
        label.set_fontweight("bold" if key[1] == ROTA else "normal")
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(found.high for _, found in bars) * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    return True


def _herd(samples: Samples, figure: "Figure") -> bool:
    keys = _keys(samples, "herd")
    largest = max((numbers(key[2]) for key in keys), default=[])
    chosen = [key for key in keys if numbers(key[2]) == largest]
    variant = next((key[2] for key in chosen), "")
    return _lateness(samples, figure, f"{variant} tasks due at one second", {key: key[1] for key in chosen})


def _steady(samples: Samples, figure: "Figure") -> bool:
    """200/s for all, and Rota at its other rates."""
    labels = {}
    for key in _keys(samples, "steady"):
        if key[1] == ROTA:
            labels[key] = f"Rota, {key[2]}"
        elif key[2] == STEADY:
            labels[key] = key[1]
    return _lateness(samples, figure, f"A steady load of {STEADY}", labels)


def _lateness(samples: Samples, figure: "Figure", title: str, labels: dict[Key, str]) -> bool:
    """Distributions, each labelled on its line at a height of its own."""
    curves = {key: curve for key in labels if (curve := _median_curve(samples, key))}
    if not curves:
        return False
    axes = _axes(figure, title, "start lateness, ms", "share that has started")
    axes.set_xscale("log")
    colours = _colours(samples)
    ordered = sorted(curves, key=lambda key: curves[key][len(curves[key]) // 2])
    for at, key in enumerate(ordered):
        curve = [max(value, LEAST_MS) for value in curves[key]]
        started = _started(samples, key)
        shares = [step / (len(curve) - 1) * started for step in range(len(curve))]
        colour, is_rota = colours[_family(key[1])], key[1] == ROTA
        style = "--" if "," in key[1] or key[2] not in MAIN_VARIANTS else "-"
        axes.plot(curve, shares, style, color=colour, linewidth=2.6 if is_rota else 1.3, zorder=5 if is_rota else 2)
        height = round((at + 0.5) / len(ordered) * (len(curve) - 1))
        _label(axes, subject_name(labels[key]), curve[height], shares[height], colour, is_bold=is_rota)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=max(LEAST_MS, min(curve[0] for curve in curves.values()) * 0.8), right=axes.get_xlim()[1] * 4)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    return True


def _median_curve(samples: Samples, key: Key) -> list[float]:
    """Point by point, over the rounds."""
    curves = [sample.curve for sample in samples.of(key) if sample.curve]
    return [median(points) for points in zip(*curves, strict=True)] if curves else []


def _fleet(samples: Samples, figure: "Figure") -> bool:
    places = _places(_keys(samples, "fleet"))
    workers = {key: place for key, place in places.items() if key[1] == ROTA and "worker" in key[2]}
    schedulers = {key: place for key, place in places.items() if "scheduler" in key[2]}
    schedulers |= {key: 1 for key in workers if schedulers and key[2] == "2 workers"}  # with one scheduler
    name = "instances/s"
    return _curves(samples, figure, [("Drain by workers", name, workers), ("Drain by schedulers", name, schedulers)])


def _registry(samples: Samples, figure: "Figure") -> bool:
    places = _places(_keys(samples, "registry"))
    return _curves(samples, figure, [("Tick by tasks", "tick ms", places), ("Memory by tasks", "memory MB", places)])


def _history(samples: Samples, figure: "Figure") -> bool:
    places = _places(_keys(samples, "history"))
    return _curves(samples, figure, [("Drain by finished instances", "instances/s", places)])


def _places(keys: Sequence[Key]) -> dict[Key, float]:
    """Where a case is on its axis: at the number in its variant's name."""
    return {key: found[0] for key in keys if (found := numbers(key[2]))}


def _curves(samples: Samples, figure: "Figure", panels: Sequence[tuple[str, str, dict[Key, float]]]) -> bool:
    """A panel for each (title, figure, places of the cases), with a line for each subject."""
    drawn = [panel for panel in panels if any(samples.spread(key, panel[1]) for key in panel[2])]
    colours = _colours(samples)
    for at, (title, name, places) in enumerate(drawn, start=1):
        axes = _axes(figure, title, "", name, at=(1, len(drawn), at))
        ticks = sorted(set(places.values()))
        ends: list[tuple[float, int, str]] = []
        for subject in dict.fromkeys(key[1] for key in places):
            found = [
                (ticks.index(place), samples.spread(key, name)) for key, place in places.items() if key[1] == subject
            ]
            points = sorted(
                ((tick, spread) for tick, spread in found if spread is not None), key=lambda point: point[0]
            )
            if points:
                _curve(axes, points, colours[_family(subject)], is_rota=subject == ROTA)
                ends.append((points[-1][1].median, points[-1][0], subject))
        axes.set_xticks(range(len(ticks)), [number(tick) for tick in ticks])
        axes.set_xlim(-0.3, len(ticks) - 0.3 + 0.5 * (len(ends) > 1))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        _label_ends(axes, ends, colours)
    return bool(drawn)


def _label_ends(axes: "Axes", ends: Sequence[tuple[float, int, str]], colours: dict[str, str]) -> None:
    """Name lines at their last points, above each other where these are close."""
    apart = axes.get_ylim()[1] * 0.045
    lowest: dict[int, float] = {}
    for height, tick, subject in sorted(ends):
        lowest[tick] = max(height, lowest.get(tick, -apart) + apart)
        _label(axes, subject_name(subject), tick, lowest[tick], colours[_family(subject)], is_bold=subject == ROTA)


def _curve(axes: "Axes", points: Sequence[tuple[int, Spread]], colour: str, *, is_rota: bool) -> None:
    axes.errorbar(
        [place for place, _ in points],
        [spread.median for _, spread in points],
        yerr=[
            [spread.median - spread.low for _, spread in points],
            [spread.high - spread.median for _, spread in points],
        ],
        color=colour,
        linewidth=2.6 if is_rota else 1.3,
        marker="o",
        markersize=5 if is_rota else 3,
        capsize=3,
        zorder=5 if is_rota else 2,
    )


def _axes(figure: "Figure", title: str, x: str, y: str = "", at: tuple[int, int, int] = (1, 1, 1)) -> "Axes":
    axes = figure.add_subplot(*at)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _label(axes: "Axes", text: str, x: float, y: float, colour: str, *, is_bold: bool) -> None:
    """Name a line beside one of its points, in its colour, darkened to be read on white."""
    red, green, blue = (round(int(colour[at : at + 2], 16) * 0.7) for at in (1, 3, 5))
    axes.annotate(
        text,
        (x, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        fontweight="bold" if is_bold else "normal",
        color=f"#{red:02x}{green:02x}{blue:02x}",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        zorder=4,
    )


def _started(samples: Samples, key: Key) -> float:
    """The part of what was due that started at all: a peer may miss some."""
    missing = samples.spread(key, "missing")
    due = numbers(key[2])[0] * (STEADY_SECONDS if key[0] == "steady" else 1)
    return 1 - missing.median / due if missing else 1.0


def _keys(samples: Samples, workload: str) -> list[Key]:
    return in_order(sample.key for sample in samples.all if sample.workload == workload)


def _family(subject: str) -> str:
    """The peer, of "peer, with a setting"."""
    return subject.partition(",")[0]


def _colours(samples: Samples) -> dict[str, str]:
    """By family, the same in every plot."""
    peers = sorted({_family(sample.subject) for sample in samples.all} - {ROTA, CEILING})
    colours = {peer: COLOURS[at % len(COLOURS)] for at, peer in enumerate(peers)}
    return {**colours, ROTA: ROTAS_COLOUR, CEILING: CEILINGS_COLOUR}


PLOTS: dict[str, Callable[[Samples, "Figure"], bool]] = {
    "drain": _drain,
    "herd": _herd,
    "steady": _steady,
    "registry": _registry,
    "history": _history,
    "fleet": _fleet,
}
