"""Figures from the records of an experiment: metrics against an axis of it.

Each function builds a figure of its own, without the state that pyplot shares between figures,
writes it in the format that the file's suffix names, and returns it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from predbayes.errors import ExperimentError
from predbayes.optional import require
from predbayes.predictive.measures import MEASURES
from predbayes_lab.decode import require_known
from predbayes_lab.records import Record
from predbayes_lab.statistics import Summary, summarise
from predbayes_lab.tables import DATASET, cell_label, latest, scored, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's colours, which stay apart for colour-blind readers, without the pale yellow. With
# ten markers, and ten no multiple of seven, seventy methods look different.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "os^Dv<>pX*"
_INK, _GRID = "#333333", "#DDDDDD"
_WIDE = 5.0  # ratio of means above which an axis is logarithmic
_FAR = 30.0  # the same of the values that means are drawn against
_CROWDED = 24  # letters under one panel that stand side by side
_SMALL, _MEDIUM = 8, 9  # points


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of all methods on the cells that differ in nothing but the axis shown."""

    group: str  # label of what these cells share
    metric: str
    x: str  # the axis shown
    values: Mapping[str, Mapping[Any, Summary]]  # by method, then by value of the axis


def lines(
    records: Iterable[Record],
    metrics: Sequence[str] | None,
    x: str | None,
    out: Path,
    methods: Sequence[str] | None = None,
) -> Figure:
    """Draw metrics against an axis: one panel per dataset and metric, one line per method.

    Points are means over seeds, bars their standard errors. A metric whose means span more than a
    factor of five along an axis of numbers is drawn logarithmically.

    Args:
        records: Of an experiment; of several with the same cell, method and seed the last counts.
        metrics: Names among the records' scores; the NLL, and the ECE if there is one, if None.
        x: A name among the cells' axes, such as ``partition.heterogeneity``; if None one of
            numbers, where there is one.
        out: Where to write it; the suffix decides the format.
        methods: Which ones; all if not given.
    """
    _require_format(out)
    records = list(records)
    chosen = _chosen(records, methods)
    records = [record for record in records if record.method in chosen]
    if metrics is None:  # the NLL, and the calibration error of a classification
        metrics = ["nll", "ece"] if any("ece" in r.scores for r in records) else ["nll"]
    x = _default_axis(records) if x is None else x
    panels = [panel for metric in metrics for panel in _panels(scored(records, metric), metric, x)]
    if not panels:
        raise ExperimentError("no metric was named to draw")
    return _draw(panels, unique(record.method for record in latest(records)), out)


def side_by_side(
    parts: Mapping[str, tuple[Iterable[Record], str]],
    metric: str,
    out: Path,
    methods: Sequence[str],
) -> Figure:
    """Draw one metric of several experiments: a panel for each, with one legend.

    Args:
        parts: By title, the records of a panel and the axis that it is drawn against.
        metric: A name among the records' scores.
        out: Where to write it; the suffix decides the format.
        methods: Which ones, in this order; a panel has those that its records have.
    """
    _require_format(out)
    panels = []
    for title, (records, x) in parts.items():
        chosen = [record for record in records if record.method in methods]
        found = _panels(scored(chosen, metric), metric, x)
        panels += [replace(panel, group=title) for panel in found]
    return _draw(panels, methods, out)


def _draw(panels: Sequence[Panel], methods: Sequence[str], out: Path) -> Figure:
    metrics = unique(panel.metric for panel in panels)
    num_rows, num_columns, place = _arrange(unique(panel.group for panel in panels), metrics)
    figure = _new_figure(2.6 * num_columns + 0.3, 2.2 * num_rows)
    grid = figure.add_gridspec(num_rows, num_columns)
    for panel in panels:
        row, column = place(panel)
        _draw_panel(figure.add_subplot(grid[row, column]), panel, methods)
    _legend(figure, num_columns)
    _save(figure, out)
    return figure


def _default_axis(records: Sequence[Record]) -> str:
    """An axis of numbers with several values, or any with several values, or any at all."""
    values: dict[str, list[Any]] = {}
    for record in records:
        for axis, value in record.cell.items():
            values.setdefault(axis, []).append(value)
    if not values:
        raise ExperimentError("this experiment has no axes to draw against")
    several = [axis for axis, on_axis in values.items() if len(set(map(str, on_axis))) > 1]
    numbers = [axis for axis in several if _are_numbers(values[axis])]
    return [*numbers, *several, *values][0]


def _chosen(records: Sequence[Record], methods: Sequence[str] | None) -> list[str]:
    """The methods named, or all that there are."""
    known = unique(record.method for record in records)
    require_known("method", methods or (), known)
    return list(methods or known)


# Lines


def _panels(records: Sequence[Record], metric: str, x: str) -> list[Panel]:
    require_known("axis", [x], unique(axis for record in records for axis in record.cell))
    values: dict[str, dict[str, dict[Any, list[float]]]] = {}
    for record in records:
        if x in record.cell:
            group = cell_label({axis: v for axis, v in record.cell.items() if axis != x})
            by_x = values.setdefault(group, {}).setdefault(record.method, {})
            by_x.setdefault(record.cell[x], []).append(record.scores[metric])
    panels = []
    for group, by_method in values.items():
        summaries = {
            method: {value: summarise(scores) for value, scores in by_x.items()}
            for method, by_x in by_method.items()
        }
        panels.append(Panel(group, metric, x, summaries))
    return panels


def _arrange(groups: list[str], metrics: list[str]) -> tuple[int, int, Any]:
    """Rows, columns, and the place of a panel: at most four columns where that is possible."""
    if len(metrics) == 1:
        num = min(4, len(groups))
        num_rows = math.ceil(len(groups) / num)
        return num_rows, num, lambda panel: divmod(groups.index(panel.group), num)
    upright = len(groups) <= 4
    rows, columns = (metrics, groups) if upright else (groups, metrics)

    def place(panel: Panel) -> tuple[int, ...]:
        at = (metrics.index(panel.metric), groups.index(panel.group))
        return at if upright else at[::-1]

    return len(rows), len(columns), place


def _draw_panel(axes: Axes, panel: Panel, methods: Sequence[str]) -> None:
    positions = _positions([value for by_x in panel.values.values() for value in by_x])
    for method, by_x in panel.values.items():
        style = methods.index(method)
        ordered = sorted(by_x.items(), key=lambda item: positions[item[0]])
        # Names have room beside them, so that methods need not stand on each other.
        shift = 0.0 if _are_numbers(positions) else 0.7 * ((style + 0.5) / len(methods) - 0.5)
        axes.errorbar(
            [positions[value] + shift for value, _ in ordered],
            [summary.mean for _, summary in ordered],
            yerr=np.nan_to_num([summary.standard_error for _, summary in ordered]),
            label=method,
            color=_COLOURS[style % len(_COLOURS)],
            marker=_MARKERS[style % len(_MARKERS)],
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.4,
            linewidth=1.3,
            linestyle="-" if _are_numbers(positions) else "none",
            elinewidth=0.9,
            capsize=2,
        )
    means = [summary.mean for by_x in panel.values.values() for summary in by_x.values()]
    if _are_numbers(positions):  # datasets side by side have scales of their own, and zeros
        _scale(axes, means)
    _ticks(axes, positions)
    title = fill(panel.group, 36, break_on_hyphens=False) if panel.group != cell_label({}) else ""
    name = "dataset" if panel.x == DATASET else panel.x.rpartition(".")[2].replace("_", " ")
    _plain(axes, name, metric_name(panel.metric), title)


def metric_name(metric: str) -> str:
    """Return what an axis calls a metric.

    Examples:
        >>> metric_name("nll"), metric_name("coverage_95")
        ('NLL (nats per row)', '95 % coverage')
    """
    if metric not in MEASURES:
        return metric.replace("_", " ")
    measure = MEASURES[metric]
    return f"{measure.label} ({measure.unit})" if measure.unit == "nats per row" else measure.label


def _positions(values: Sequence[Any]) -> dict[Any, float]:
    """Place each value of the axis: numbers where they are, names one after the other."""
    distinct = dict.fromkeys(values)
    numbers = _are_numbers(distinct)
    return {v: float(v if numbers else index) for index, v in enumerate(distinct)}


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _ticks(axes: Axes, positions: Mapping[Any, float]) -> None:
    """Ticks at the values that were run, if there is room; logarithmic where they lie far apart."""
    ticker = require("matplotlib.ticker", "lab")

    places = sorted(positions.values())
    numbers = _are_numbers(positions)
    if numbers and places[0] > 0 and places[-1] / places[0] >= _FAR:
        axes.set_xscale("log")
    if not numbers:
        axes.set_xlim(-0.5, len(places) - 0.5)
    if not numbers or len(places) <= 6:
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        ordered = sorted(positions.items(), key=lambda item: item[1])
        names = [f"{v:g}" if numbers else str(v) for v, _ in ordered]
        axes.set_xticks(places, names)
        if not numbers and sum(map(len, names)) > _CROWDED:
            axes.tick_params(axis="x", labelrotation=30)


def _scale(axes: Axes, means: Sequence[float]) -> None:
    """A logarithmic axis where the means span a wide range, labelled in plain numbers."""
    ticker = require("matplotlib.ticker", "lab")

    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite or min(finite) <= 0 or max(finite) / min(finite) <= _WIDE:
        return
    axes.set_yscale("log")
    decades = math.log10(max(finite) / min(finite))
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _legend(figure: Figure, num_columns: int) -> None:
    """One legend for all panels: below them, or beside a single column. The figure grows by it."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    width, height = figure.get_size_inches()
    entry_width = 0.075 * max(map(len, handles)) + 0.55  # inches at this size of type
    ncols = 1
    if num_columns > 1:
        ncols = min(len(handles), max(1, int(width / entry_width)))
        figure.set_size_inches(width, height + 0.2 * math.ceil(len(handles) / ncols))
    else:
        figure.set_size_inches(width + entry_width, max(height, 0.2 * len(handles)))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center" if num_columns > 1 else "outside right center",
        ncols=ncols,
        fontsize=_SMALL,
        frameon=False,
        labelcolor=_INK,
    )


# Figures and files


def _new_figure(width: float, height: float) -> Figure:
    figure: Figure = require("matplotlib.figure", "lab").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure


def _plain(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels, no frame, a quiet grid, small ticks."""
    axes.set_xlabel(x, fontsize=_SMALL, color=_INK)
    axes.set_ylabel(y, fontsize=_SMALL, color=_INK)
    axes.set_title(title, fontsize=_MEDIUM, color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(labelsize=_SMALL - 1, colors=_INK, width=0.6, length=2.5)
    axes.tick_params(which="minor", length=1.5, width=0.4, colors="#888888")
    axes.grid(color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _require_format(out: Path) -> None:
    if out.suffix.lower() not in FORMATS:
        raise ExperimentError(
            f"cannot draw {out.name!r}: a figure's name ends in {', '.join(FORMATS)}"
        )


def _save(figure: Figure, out: Path) -> None:
    mpl = require("matplotlib", "lab")

    out.parent.mkdir(parents=True, exist_ok=True)
    # Type 42: publishers refuse the default, Type 3. No dates, fixed names: equal data, equal file.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with mpl.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "predbayes"}):
        figure.savefig(out, dpi=200, metadata=dates.get(out.suffix.lower()))
