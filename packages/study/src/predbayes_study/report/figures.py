"""The figures of a study's report, as SVG text to stand inside an HTML page.

No meaning hangs on colour: markers, hatches, line styles and words carry it, so that a grey print
says the same. Text stays text, in the page's own font. Equal data give equal bytes: no dates, no
settings of the user's, and names of parts that depend on what is drawn.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import numpy as np

from predbayes.optional import require
from predbayes.predictive.estimate import Estimate
from predbayes_study.result.schema import Bin, Curves, IntervalCalibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
Style = dict[str, Any]

_NEED = "study"
_INK, _QUIET, _GRID, _BAND, _LINE = "#1A1A1A", "#767676", "#DEDEDE", "#D6D6D6", "#0B4F7D"
_SIZE = 8.5  # points
_EVEN = 0.02  # a curve that begins with a smaller step is drawn on a logarithmic axis
_MOST_KEPT = 100  # drawings
_LONGEST = 30  # letters of a label
_FENCE = 6.0  # spreads from the median beyond which a point lies far off
_WIDE = 5.0  # ratio above which an axis is logarithmic, or leaves out what lies far off
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "predbayes",
    "text.parse_math": False,  # a name with two dollars is not a formula
    "axes.labelcolor": _INK,
    "axes.unicode_minus": True,
    "font.size": _SIZE,
    "legend.fontsize": _SIZE - 1,
    "legend.frameon": False,
    "text.color": _INK,
    "hatch.linewidth": 0.6,
    "hatch.color": _QUIET,
}

_BAR: Style = {"color": "#C9D8E3", "edgecolor": _INK}
_DASHED: Style = {"color": _QUIET, "linestyle": (0, (4, 3))}
_HATCHED: Style = {"edgecolor": _QUIET, "hatch": "////", "label": "95 % range if calibrated"}
_ABOVE: Style = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
_STROKES = (("-", "o"), ((0, (5, 2)), "s"), ((0, (1.5, 1.5)), "^"))
"""Line and marker of the groups of risk, the lowest first."""

Role = Literal["student", "pool", "mixture", "server", "site", "left out"]
_MARKERS: dict[Role, tuple[str, bool]] = {  # and whether it is filled
    "student": ("o", True),
    "pool": ("s", True),
    "mixture": ("^", True),
    "server": ("D", True),
    "site": ("o", False),
    "left out": ("X", False),
}


@dataclass(frozen=True, slots=True)
class Whisker:
    """One line of a figure of estimates: a point and its interval."""

    label: str
    estimate: Estimate
    role: Role = "site"


DRAWN: dict[str, str] = {}
"""What was drawn: the reports for members and for the public have most figures alike."""


def _once(draw: Callable[P, str]) -> Callable[P, str]:
    """Take from `DRAWN` what was drawn of the same data."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str:
        require("matplotlib", _NEED)  # what is kept is no reason to do without
        data = repr((draw, args, options))  # of models and numbers, which says all there is
        if data not in DRAWN:
            if len(DRAWN) >= _MOST_KEPT:
                del DRAWN[next(iter(DRAWN))]
            DRAWN[data] = draw(*args, **options)
        return DRAWN[data]

    return drawn


@_once
def whiskers(
    name: str, entries: Sequence[Whisker], axis: str, description: str, *, zero: bool = False
) -> str:
    """Draw estimates one below the other; what lies far off is at the edge, with its value.

    The name is distinct within a page, the description for readers who cannot see the figure. With
    ``zero`` there is a line at zero that points are compared with.
    """
    with _drawing(4.6, 0.8 + 0.235 * len(entries)) as (figure, (axes,)):
        low, high = _window(entries, zero)
        for place, entry in enumerate(entries):
            value = entry.estimate.value
            if not low <= value <= high:
                _draw_far(axes, place, value, low, high)
                continue
            ends = np.clip((entry.estimate.low, entry.estimate.high), low, high)
            axes.plot(ends, (place, place), color=_INK, linewidth=1.1, zorder=2)
            marker, filled = _MARKERS[entry.role]
            face, edge = (_LINE, _LINE) if filled else ("white", _INK)
            dot: Style = {"markersize": 6.0, "markerfacecolor": face, "markeredgecolor": edge}
            style: Style = {
                "marker": marker,
                "markeredgewidth": 1.0,
                "linestyle": "none",
                "zorder": 3,
            }
            axes.plot(value, place, **dot, **style)
        if zero:  # which side is which
            axes.axvline(0, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            above: Style = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate("← harms", (0, 1), xytext=(-5, 3), ha="right", **above)
            axes.annotate("helps →", (0, 1), xytext=(5, 3), ha="left", **above)
        axes.set(xlim=(low, high), ylim=(len(entries) - 0.4, -0.6), xlabel=axis)
        axes.set_yticks(range(len(entries)), [_tick(entry) for entry in entries])
        _plain(axes, "x")
        axes.tick_params(axis="y", length=0)
        return _svg(figure, name, description)


@_once
def distributions(columns: Mapping[str, Sequence[float]]) -> str:
    """Draw how many sites have how much of each; what lies far off is counted at the edge."""
    known = {axis: values for axis, values in columns.items() if values}
    with _drawing(4.6, 1.5 * len(known), [1.0] * len(known)) as (figure, axes):
        for part, (axis, values) in zip(axes, known.items(), strict=True):
            median, reach = _spread(values)
            low, high = max(min(values), median - reach), min(max(values), median + reach)
            if not low < high:
                low, high = low - 0.5, high + 0.5
            part.hist(np.clip(values, low, high), 40, range=(low, high), linewidth=0.4, **_BAR)
            off = sum(not low <= value <= high for value in values)
            words = f"{axis}\n({off:,} farther out, at the edges)" if off else axis
            part.set(xlabel=words, ylabel="sites")
            part.locator_params(axis="x", nbins=5)
            _plain(part, "y")
        return _svg(figure, "spread", "How figures of single sites are distributed over all sites")


@_once
def pool_curve(curve: Sequence[tuple[float, float]]) -> str:
    """Draw NLL against beta, from the mixture to the product, its lowest point marked."""
    with _drawing(4.6, 2.5) as (figure, (axes,)):
        finite = [(beta, nll) for beta, nll in curve if math.isfinite(nll)]
        betas, nlls = zip(*finite, strict=True)
        axes.plot(betas, nlls, color=_LINE, linewidth=1.6)
        best = min(finite, key=lambda point: point[1])
        axes.plot(*best, marker="o", markersize=6, color=_LINE, clip_on=False, zorder=3)
        least = min((beta for beta in betas if beta > 0), default=1.0)
        place = best[0]
        if least < _EVEN and place > 0:
            place = 1 - math.log(place) / math.log(least)
        side = "left" if place < 0.3 else "right" if place > 0.7 else "center"
        words = f"lowest at beta = {_beta(best[0])}"
        axes.annotate(words, best, xytext=(0, -15), textcoords="offset points", ha=side)
        if min(nlls) > 0 and max(nlls) / min(nlls) > _WIDE:
            ticker = require("matplotlib.ticker", _NEED)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set(xlabel="beta", ylabel="NLL (nats per row)")
        if least < _EVEN:
            axes.set_xscale("symlog", linthresh=least, linscale=0.3)
            places = [10.0**power for power in range(math.ceil(math.log10(least)), 0)]
            axes.set_xticks((0, *places, 1), ("0\nmixture", *map(_beta, places), "1\nproduct"))
            axes.minorticks_off()
        else:
            named = ("0\nmixture", "0.25", "0.5", "0.75", "1\nproduct")
            axes.set_xticks((0, 0.25, 0.5, 0.75, 1), named)
        axes.set_xlim(0, 1)
        axes.margins(y=0.22)
        _plain(axes, "both")
        description = f"NLL of the pool against beta; lowest at beta {_beta(best[0])}"
        return _svg(figure, "curve", description)


def _beta(value: float) -> str:
    return f"{value:.2f}" if value == 0 or value >= 0.095 else f"{value:.2g}"


@_once
def calibration_diagram(bins: Sequence[Bin], event: str = "") -> str:
    """Draw how often what is stated comes true, over the counts of rows.

    With an event the bins are of its risk, otherwise of the confidence in an answer.
    """
    with _drawing(4.6, 4.5, (3.2, 1.0)) as (figure, (upper, lower)):
        bins = [b for b in bins if b.count > 0]
        stated, counts = [b.stated for b in bins], [b.count for b in bins]
        _diagonal(upper, 1.0)
        lows = [b.null_low for b in bins]
        heights = [b.null_high - b.null_low for b in bins]
        upper.bar(stated, heights, 0.04, lows, color=_BAND, linewidth=0.6, zorder=2, **_HATCHED)
        dots: Style = {"color": _LINE, "marker": "o", "markersize": 5.5, "linestyle": "none"}
        upper.plot(stated, [b.observed for b in bins], label="observed", zorder=3, **dots)
        share = "share with the event" if event else "share of predictions that are right"
        upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=share)
        upper.tick_params(labelbottom=False)
        upper.legend(ncols=3, columnspacing=1.2, **_ABOVE)
        _plain(upper, "both")
        bars = lower.bar(stated, counts, 0.028, color="#9A9A9A", edgecolor=_INK, linewidth=0.5)
        said = [f"{count:,}" for count in counts]
        lower.bar_label(bars, said, padding=3, rotation=90, fontsize=_SIZE - 1.5)
        lower.set(xlim=(0, 1), ylim=(0, 1.75 * max(counts, default=1)), yticks=())
        what = "risk" if event else "confidence"
        lower.set(xlabel=f"{what} that the model states", ylabel="rows")
        _plain(lower, "x")
        if event:
            return _svg(figure, "risk", f"Observed share of {event} against the stated risk")
        return _svg(figure, "reliability", "Reliability diagram: accuracy against confidence")


@_once
def decision_curve(
    curve: Sequence[tuple[float, float, float]], thresholds: Sequence[float], event_rate: float
) -> str:
    """Draw the net benefit of following the model, of treating everyone and of treating no one."""
    with _drawing(4.6, 3.0) as (figure, (axes,)):
        places, gained, everybody = (list(column) for column in zip(*curve, strict=True))
        most = max(event_rate, *gained)
        axes.plot(places, gained, color=_LINE, linewidth=1.6, label="follow the model")
        dashes: Style = {"color": _INK, "linewidth": 1.0, "linestyle": (0, (5, 2))}
        axes.plot(places, everybody, label="treat all", **dashes)
        axes.axhline(0, color=_QUIET, linewidth=1.0, linestyle=":", label="treat nobody")
        for threshold in thresholds:
            axes.axvline(threshold, color=_GRID, linewidth=1.2, zorder=0)
        # Above the greatest risk no one is treated: there is nothing to see.
        last = max((t for t, gain in zip(places, gained, strict=True) if gain), default=1.0)
        end = min(1.0, max(0.2, last, *thresholds) + 0.05)
        axes.set(xlim=(0, end), ylim=(-0.25 * most, 1.12 * most))
        axes.set(xlabel="risk from which on one treats", ylabel="net benefit per row")
        axes.legend(loc="upper right")
        _plain(axes, "both")
        return _svg(figure, "decisions", "Net benefit against the threshold of treatment")


@_once
def survival_curves(curves: Curves, unit: str) -> str:
    """Draw predicted curves of groups of risk as lines, and observed ones as dots."""
    with _drawing(4.6, 3.6) as (figure, (axes,)):
        times = (0.0, *curves.times)
        for group, (line, marker) in zip(curves.groups, _STROKES, strict=True):
            stroke: Style = {"color": _LINE, "linewidth": 1.4, "linestyle": line}
            axes.plot(times, (1.0, *group.stated), label=f"{group.name}, stated", **stroke)
            dots: Style = {"color": _INK, "marker": marker, "markersize": 4, "elinewidth": 0.7}
            axes.errorbar(
                curves.times[: len(group.observed)],
                [one.value for one in group.observed],
                _errors(group.observed, 1.0),
                **(dots | {"linestyle": "none", "label": "observed", "zorder": 3}),
            )
        axes.set(xlim=(0, 1.02 * times[-1]), ylim=(0, 1.02))
        axes.set(xlabel=_time_axis(unit), ylabel="share without the event")
        axes.legend(ncols=3, columnspacing=1.0, **_ABOVE)
        _plain(axes, "both")
        return _svg(figure, "survival", "Predicted and observed survival of three groups of risk")


@_once
def brier_over_time(curves: Curves, unit: str) -> str:
    """Draw the Brier score at the end of each interval, beside that of one curve for all."""
    with _drawing(4.6, 2.6) as (figure, (axes,)):
        times, values = curves.times[: len(curves.brier)], [one.value for one in curves.brier]
        dots: Style = {"color": _LINE, "marker": "o", "markersize": 4, "linewidth": 1.4}
        errors = _errors(curves.brier, 1.0)
        axes.errorbar(times, values, errors, elinewidth=0.7, label="the model", **dots)
        axes.plot(times, curves.brier_of_all, linewidth=1.2, label=_ONE_CURVE, **_DASHED)
        axes.set(xlim=(0, 1.02 * curves.times[-1]), xlabel=_time_axis(unit), ylabel="Brier score")
        axes.set_ylim(bottom=0)
        axes.legend(ncols=2, **_ABOVE)
        _plain(axes, "both")
        return _svg(figure, "brier", "Brier score at the end of each interval")


_ONE_CURVE = "one curve for all rows"


def _time_axis(unit: str) -> str:
    return f"time ({unit})" if unit else "time"


@_once
def pit(coverage: IntervalCalibration) -> str:
    """Draw how many targets lie in each tenth of their predictive; equally many if calibrated."""
    with _drawing(4.0, 2.9) as (figure, (axes,)):
        num = len(coverage.pit)
        middles = [place + 0.5 for place in range(num)]
        axes.bar(middles, coverage.pit, 0.86, linewidth=0.6, label="observed", **_BAR)
        band = coverage.null_low, coverage.null_high
        axes.axhspan(*band, facecolor="none", linewidth=0.8, **_HATCHED)
        axes.set(xlim=(0, num), ylim=(0, 1.3 * max(*coverage.pit, coverage.null_high, 1)))
        axes.set_xticks(range(num + 1), [f"{100 * place // num}" for place in range(num + 1)])
        axes.set(xlabel="where the true value lies in its prediction (%)", ylabel="rows")
        axes.legend(loc="upper center", ncols=2)
        _plain(axes, "y")
        return _svg(figure, "pit", "Rows by where the true value lies in its prediction")


@_once
def levels(coverage: IntervalCalibration) -> str:
    """Draw the share of targets inside the interval of each level, against the level."""
    with _drawing(4.0, 2.9) as (figure, (axes,)):
        _diagonal(axes, 100.0)
        stated = [100 * level.level for level in coverage.levels]
        observed = [level.coverage for level in coverage.levels]
        dots: Style = {"color": _LINE, "marker": "o", "markersize": 4.5, "linestyle": "none"}
        bars: Style = {"ecolor": _INK, "elinewidth": 1.0, "capsize": 2.5}
        axes.errorbar(
            stated,
            [100 * share.value for share in observed],
            yerr=_errors(observed, 100),
            label="observed, with interval",
            **dots,
            **bars,
        )
        axes.set(xlim=(0, 101), ylim=(0, 101))
        axes.set(xlabel="level of the interval (%)", ylabel="true values inside (%)")
        axes.legend(loc="upper left")
        _plain(axes, "both")
        return _svg(figure, "levels", "Observed coverage of intervals against their level")


# Whiskers


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and how far from it nearly all values lie."""
    first, median, third = np.quantile(values, (0.25, 0.5, 0.75))
    return median, _FENCE * max(third - median, median - first)


def _window(entries: Sequence[Whisker], zero: bool) -> tuple[float, float]:
    """The part of the axis that is shown: all of it, unless a few points lie far off."""
    known = [entry.estimate for entry in entries]
    if not known:
        return -1.0, 1.0

    def span(estimates: Sequence[Estimate]) -> tuple[float, float]:
        ends = [end for e in estimates for end in (e.low, e.value, e.high)] + zero * [0.0]
        return min(ends), max(ends)

    median, reach = _spread([estimate.value for estimate in known])
    near = [estimate for estimate in known if abs(estimate.value - median) <= reach]
    low, high = span(known)
    if near:
        near_low, near_high = span(near)
        if high - low > _WIDE * (near_high - near_low):
            low, high = near_low, near_high
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def _draw_far(axes: Axes, place: int, value: float, low: float, high: float) -> None:
    """An arrow at the edge, and the value in words."""
    above = not value < low
    inner = 0.985 if above else 0.015
    words = f"{value:.3g} (off the scale)".replace("-", "−")
    axes.annotate(
        f"{words} ▶" if above else f"◀ {words}",
        (low + inner * (high - low), place),
        ha="right" if above else "left",
        va="center",
        fontsize=_SIZE - 1,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _tick(entry: Whisker) -> str:
    """At most `_LONGEST` letters; the middle goes, because names often differ at their ends."""
    label, half = entry.label, (_LONGEST - 1) // 2
    if len(label) > _LONGEST:
        label = f"{label[: _LONGEST - 1 - half]}…{label[-half:]}"
    return label + (", left out" if entry.role == "left out" else "")


# Parts of figures


def _diagonal(axes: Axes, end: float) -> None:
    line: Style = {"linewidth": 1.0, "label": "perfect calibration", "zorder": 1}
    axes.plot((0, end), (0, end), **_DASHED, **line)


def _errors(estimates: Sequence[Estimate], factor: float) -> Any:
    """Lengths of error bars; an interval may lie beside its value, a bar may not."""
    return factor * np.maximum(
        [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]], 0.0
    )


@contextmanager
def _drawing(
    width: float, height: float, ratios: Sequence[float] = (1.0,)
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of one column, in inches, without the state that pyplot shares.

    The settings are the same whatever the user's are; names may be in any script.
    """
    mpl, figures = require("matplotlib", _NEED), require("matplotlib.figure", _NEED)
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph")
        figure: Figure = figures.Figure(figsize=(width, height), layout="constrained")
        grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
        yield figure, [figure.add_subplot(grid[row, 0]) for row in range(len(ratios))]


def _plain(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    """No frame, a quiet grid, small ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_QUIET)
    axes.tick_params(labelsize=_SIZE - 0.5, colors=_INK, width=0.6, length=2.5)
    axes.grid(axis=grid, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an element of a page; its parts' names get the figure's in front."""
    file = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # A page needs no names of name spaces, and an offline one had better have no addresses.
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)
    # Its style sheet would hold for the whole page.
    text = re.sub(
        r"<(metadata|defs)>\s*(<style.*?</style>|<rdf.*?)\s*</\1>\s*", "", text, flags=re.S
    )
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
