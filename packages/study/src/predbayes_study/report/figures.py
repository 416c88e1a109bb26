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
from predbayes_study.result.schema import Bin, Curves, IntervalCalibration, Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

_NEED = "study"
_INK, _QUIET, _GRID, _BAND, _LINE = "#1A1A1A", "#767676", "#DEDEDE", "#D6D6D6", "#0B4F7D"
_SIZE = 8.5  # points
_EVEN = 0.02  # a curve that begins with a smaller step is drawn on a logarithmic axis
_MOST_KEPT = 16  # drawings of one kind
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


def _once(draw: Callable[P, str]) -> Callable[P, str]:
    """Keep what was drawn: the reports for members and for the public have most figures alike."""
    kept: dict[str, str] = {}

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str:
        require("matplotlib", _NEED)  # what is kept is no reason to do without
        data = repr((args, options))  # of models and numbers, which says all there is
        if data not in kept:
            if len(kept) >= _MOST_KEPT:
                del kept[next(iter(kept))]
            kept[data] = draw(*args, **options)
        return kept[data]

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
            _draw_whisker(axes, place, entry, low, high)
        if zero:
            _draw_zero(axes)
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
            low, high = _middle(values)
            part.hist(
                np.clip(values, low, high),
                40,
                range=(low, high),
                color="#C9D8E3",
                edgecolor=_INK,
                linewidth=0.4,
            )
            off = sum(not low <= value <= high for value in values)
            words = f"{axis}\n({off:,} farther out, at the edges)" if off else axis
            part.set(xlabel=words, ylabel="sites")
            part.locator_params(axis="x", nbins=5)
            _plain(part, "y")
        return _svg(figure, "spread", "How figures of single sites are distributed over all sites")


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Where nearly all values lie."""
    first, median, third = np.quantile(values, (0.25, 0.5, 0.75))
    reach = _FENCE * max(third - median, median - first)
    low, high = max(min(values), median - reach), min(max(values), median + reach)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


@_once
def pool_curve(curve: Sequence[tuple[float, float]]) -> str:
    """Draw NLL against beta, from the mixture to the product, its lowest point marked."""
    with _drawing(4.6, 2.5) as (figure, (axes,)):
        finite = [(beta, nll) for beta, nll in curve if math.isfinite(nll)]
        betas, nlls = zip(*finite, strict=True)
        axes.plot(betas, nlls, color=_LINE, linewidth=1.6)
        best = min(finite, key=lambda point: point[1])
        least = min((beta for beta in betas if beta > 0), default=1.0)
        place = best[0]
        if least < _EVEN and place > 0:
            place = 1 - math.log(place) / math.log(least)
        axes.plot(*best, marker="o", markersize=6, color=_LINE, clip_on=False, zorder=3)
        axes.annotate(
            f"lowest at beta = {_beta(best[0])}",
            best,
            xytext=(0, -15),
            textcoords="offset points",
            ha=_beside(place),
        )
        if min(nlls) > 0 and max(nlls) / min(nlls) > _WIDE:
            _logarithmic(axes)
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


def _beside(place: float) -> str:
    """On which side of a point at this part of the axis words have room."""
    return "left" if place < 0.3 else "right" if place > 0.7 else "center"


@_once
def reliability_diagram(diagram: Reliability) -> str:
    """Draw how often a prediction made with some confidence is right, over the counts of rows."""
    with _drawing(4.6, 4.5, (3.2, 1.0)) as (figure, (upper, lower)):
        bins = [b for b in diagram.bins if b.count > 0]
        _draw_diagram(upper, bins)
        _draw_counts(lower, bins)
        lower.set(xlabel="confidence that the model states", ylabel="rows")
        return _svg(figure, "reliability", "Reliability diagram: accuracy against confidence")


@_once
def risk_diagram(bins: Sequence[Bin], event: str) -> str:
    """Draw how often the event comes at each stated risk, over the counts of rows."""
    with _drawing(4.6, 4.5, (3.2, 1.0)) as (figure, (upper, lower)):
        _draw_diagram(upper, bins)
        upper.set_ylabel("share with the event")
        _draw_counts(lower, bins)
        lower.set(xlabel="risk that the model states", ylabel="rows")
        return _svg(figure, "risk", f"Observed share of {event} against the stated risk")


@_once
def decision_curve(
    curve: Sequence[tuple[float, float, float]], thresholds: Sequence[float], event_rate: float
) -> str:
    """Draw the net benefit of following the model, of treating everybody and of treating nobody."""
    with _drawing(4.6, 3.0) as (figure, (axes,)):
        places, gained, everybody = (list(column) for column in zip(*curve, strict=True))
        most = max(event_rate, *gained)
        axes.plot(places, gained, color=_LINE, linewidth=1.6, label="follow the model")
        axes.plot(
            places, everybody, color=_INK, linewidth=1.0, linestyle=(0, (5, 2)), label="treat all"
        )
        axes.axhline(0, color=_QUIET, linewidth=1.0, linestyle=":", label="treat nobody")
        for threshold in thresholds:
            axes.axvline(threshold, color=_GRID, linewidth=1.2, zorder=0)
        # Above the greatest risk nobody is treated: there is nothing to see.
        last = max((t for t, gain in zip(places, gained, strict=True) if gain), default=1.0)
        end = min(1.0, max(0.2, last, *thresholds) + 0.05)
        axes.set(xlim=(0, end), ylim=(-0.25 * most, 1.12 * most))
        axes.set(xlabel="risk from which on one treats", ylabel="net benefit per row")
        axes.legend(loc="upper right")
        _plain(axes, "both")
        return _svg(figure, "decisions", "Net benefit against the threshold of treatment")


_STROKES = (("-", "o"), ((0, (5, 2)), "s"), ((0, (1.5, 1.5)), "^"))
"""Line and marker of the groups of risk, the lowest first."""


@_once
def survival_curves(curves: Curves, unit: str) -> str:
    """Draw predicted curves of groups of risk as lines, and observed ones as dots."""
    with _drawing(4.6, 3.6) as (figure, (axes,)):
        times = (0.0, *curves.times)
        for group, (line, marker) in zip(curves.groups, _STROKES, strict=True):
            axes.plot(
                times,
                (1.0, *group.stated),
                color=_LINE,
                linewidth=1.4,
                linestyle=line,
                label=f"{group.name}, stated",
            )
            axes.errorbar(
                curves.times[: len(group.observed)],
                [one.value for one in group.observed],
                _errors(group.observed, 1.0),
                color=_INK,
                marker=marker,
                markersize=4,
                linestyle="none",
                elinewidth=0.7,
                label="observed",
                zorder=3,
            )
        axes.set(xlim=(0, 1.02 * times[-1]), ylim=(0, 1.02))
        axes.set(xlabel=_time_axis(unit), ylabel="share without the event")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.0)
        _plain(axes, "both")
        return _svg(figure, "survival", "Predicted and observed survival of three groups of risk")


@_once
def brier_over_time(curves: Curves, unit: str) -> str:
    """Draw the Brier score at the end of each interval, beside that of one curve for all."""
    with _drawing(4.6, 2.6) as (figure, (axes,)):
        times = curves.times[: len(curves.brier)]
        axes.errorbar(
            times,
            [one.value for one in curves.brier],
            _errors(curves.brier, 1.0),
            color=_LINE,
            marker="o",
            markersize=4,
            linewidth=1.4,
            elinewidth=0.7,
            label="the model",
        )
        axes.plot(
            times,
            curves.brier_of_all,
            color=_QUIET,
            linewidth=1.2,
            linestyle=(0, (4, 3)),
            label="one curve for all rows",
        )
        axes.set(xlim=(0, 1.02 * curves.times[-1]), xlabel=_time_axis(unit), ylabel="Brier score")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        _plain(axes, "both")
        return _svg(figure, "brier", "Brier score at the end of each interval")


def _time_axis(unit: str) -> str:
    return f"time ({unit})" if unit else "time"


@_once
def pit(coverage: IntervalCalibration) -> str:
    """Draw how many targets lie in each tenth of their predictive; equally many if calibrated."""
    with _drawing(4.0, 2.9) as (figure, (axes,)):
        num = len(coverage.pit)
        axes.bar(
            [place + 0.5 for place in range(num)],
            coverage.pit,
            0.86,
            color="#C9D8E3",
            edgecolor=_INK,
            linewidth=0.6,
            label="observed",
        )
        axes.axhspan(
            coverage.null_low,
            coverage.null_high,
            facecolor="none",
            edgecolor=_QUIET,
            hatch="////",
            linewidth=0.8,
            label="95 % range if calibrated",
        )
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
        _diagonal(axes)
        stated = [100 * level.level for level in coverage.levels]
        observed = [level.coverage for level in coverage.levels]
        axes.errorbar(
            stated,
            [100 * share.value for share in observed],
            yerr=_errors(observed, 100),
            color=_LINE,
            ecolor=_INK,
            marker="o",
            markersize=4.5,
            linestyle="none",
            elinewidth=1.0,
            capsize=2.5,
            label="observed, with interval",
        )
        axes.set(xlim=(0, 101), ylim=(0, 101))
        axes.set(xlabel="level of the interval (%)", ylabel="true values inside (%)")
        axes.legend(loc="upper left")
        _plain(axes, "both")
        return _svg(figure, "levels", "Observed coverage of intervals against their level")


# Whiskers


def _window(entries: Sequence[Whisker], zero: bool) -> tuple[float, float]:
    """The part of the axis that is shown: all of it, unless a few points lie far off."""
    known = [entry.estimate for entry in entries if _finite(entry)]
    if not known:
        return -1.0, 1.0
    values = np.array([estimate.value for estimate in known])
    first, median, third = np.quantile(values, (0.25, 0.5, 0.75))
    fence = _FENCE * max(third - median, median - first)
    near = [estimate for estimate in known if abs(estimate.value - median) <= fence]
    low, high = _span(known, zero)
    if near:
        near_low, near_high = _span(near, zero)
        if high - low > _WIDE * (near_high - near_low):
            low, high = near_low, near_high
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def _span(estimates: Sequence[Estimate], zero: bool) -> tuple[float, float]:
    ends = [end for e in estimates for end in (e.low, e.value, e.high)] + zero * [0.0]
    return min(ends), max(ends)


def _finite(entry: Whisker) -> bool:
    estimate = entry.estimate
    return all(map(math.isfinite, (estimate.value, estimate.low, estimate.high)))


def _draw_whisker(axes: Axes, place: int, entry: Whisker, low: float, high: float) -> None:
    estimate = entry.estimate
    if not low <= estimate.value <= high:
        _draw_far(axes, place, estimate.value, low, high)
        return
    ends = np.clip((estimate.low, estimate.high), low, high)
    axes.plot(ends, (place, place), color=_INK, linewidth=1.1, zorder=2)
    marker, filled = _MARKERS[entry.role]
    axes.plot(
        estimate.value,
        place,
        marker=marker,
        markersize=6.0,
        markerfacecolor=_LINE if filled else "white",
        markeredgecolor=_LINE if filled else _INK,
        markeredgewidth=1.0,
        linestyle="none",
        zorder=3,
    )


def _draw_zero(axes: Axes) -> None:
    """The line that says nothing was gained or lost, and which side is which."""
    axes.axvline(0, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for words, shift, side in (("← harms", -5, "right"), ("helps →", 5, "left")):
        axes.annotate(
            words,
            (0, 1),
            xycoords=("data", "axes fraction"),
            xytext=(shift, 3),
            textcoords="offset points",
            ha=side,
        )


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


# Calibration


def _draw_diagram(axes: Axes, bins: Sequence[Bin]) -> None:
    _diagonal(axes, 1.0)
    axes.bar(
        [b.stated for b in bins],
        [b.null_high - b.null_low for b in bins],
        0.04,
        [b.null_low for b in bins],
        color=_BAND,
        edgecolor=_QUIET,
        hatch="////",
        linewidth=0.6,
        label="95 % range if calibrated",
        zorder=2,
    )
    axes.plot(
        [b.stated for b in bins],
        [b.observed for b in bins],
        color=_LINE,
        marker="o",
        markersize=5.5,
        linestyle="none",
        label="observed",
        zorder=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="share of predictions that are right")
    axes.tick_params(labelbottom=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2)
    _plain(axes, "both")


def _draw_counts(axes: Axes, bins: Sequence[Bin]) -> None:
    """How many rows each bin has, as bars with their numbers."""
    counts = [b.count for b in bins]
    places = [b.stated for b in bins]
    bars = axes.bar(places, counts, 0.028, color="#9A9A9A", edgecolor=_INK, linewidth=0.5)
    said = [f"{count:,}" for count in counts]
    axes.bar_label(bars, said, padding=3, rotation=90, fontsize=_SIZE - 1.5)
    axes.set(xlim=(0, 1), ylim=(0, 1.75 * max(counts, default=1)), yticks=())
    _plain(axes, "x")


def _diagonal(axes: Axes, end: float = 100.0) -> None:
    axes.plot(
        (0, end),
        (0, end),
        color=_QUIET,
        linewidth=1.0,
        linestyle=(0, (4, 3)),
        label="perfect calibration",
        zorder=1,
    )


def _errors(estimates: Sequence[Estimate], factor: float) -> Any:
    """Lengths of error bars; an interval may lie beside its value, a bar may not."""
    return factor * np.maximum(
        [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]], 0.0
    )


# Figures and text


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


def _logarithmic(axes: Axes) -> None:
    ticker = require("matplotlib.ticker", _NEED)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


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
