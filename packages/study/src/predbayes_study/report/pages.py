"""What the pages for people have in common: how a page is made.

A page is one HTML file that holds everything that it shows; it has no script, and a policy that
forbids the browser any request. The same values give the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from predbayes.optional import require
from predbayes.predictive.estimate import Estimate
from predbayes_study.extra import extras
from predbayes_study.wording import bytes_readable, counted, decimals, plain

MOST_NAMES = 8  # in one cell
_SHOWN_NAMES = 3  # at the begin of a longer list


def render_page(
    template: str, filters: Mapping[str, Callable[..., Any]], words: str = "", **values: Any
) -> str:
    """Render an HTML page from one of the templates, which are those of reports and of extras.

    Args:
        template: Its file name.
        filters: What the template calls beside those that every page has.
        words: Template that extends `page`, and has other words in some of its blocks.
        values: What it shows.
    """
    require("jinja2", "study")
    found = _environment(*filters.items()).get_template(words or template)
    text: str = found.render(page=template, **values)
    return text


@functools.cache
def _environment(*filters: tuple[str, Callable[..., Any]]) -> Any:
    """Return an environment that keeps its templates: compiling them takes longer than a page."""
    jinja2 = require("jinja2", "study")
    packages = ["predbayes_study.report", *(extra.package for extra in extras().values())]
    packages = [one for one in packages if files(one).joinpath("templates").is_dir()]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, "templates") for one in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        plain=plain,
        size=bytes_readable,
        counted=counted,
        listed=listed,
        interval=with_interval,
        **dict(filters),
    )
    return environment


def listed(names: Sequence[str]) -> str:
    """Write names; of many the first and the last, and how many there are.

    Examples:
        >>> listed(["a", "b"])
        'a, b'
        >>> listed([f"code {k}" for k in range(40)])
        'code 0, code 1, code 2, …, code 39 (40 in all)'
    """
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN_NAMES])}, …, {names[-1]} ({len(names):,} in all)"


def with_interval(
    estimate: Estimate, places: int | None = None, *, percent: bool = False
) -> tuple[str, str]:
    """Write a value and its interval in the same decimals.

    Examples:
        >>> with_interval(Estimate(0.412, 0.38, 0.4449))
        ('0.412', '(0.380 to 0.445)')
        >>> with_interval(Estimate(0.9425, 0.92, 0.96), percent=True)
        ('94.2 %', '(92.0 to 96.0)')
    """
    factor, sign, places = (100.0, " %", 1) if percent else (1.0, "", places)
    value, low, high = (factor * v for v in (estimate.value, estimate.low, estimate.high))
    if places is None:
        places = decimals([max(abs(value), abs(low), abs(high))])
    return f"{plain(value, places)}{sign}", f"({plain(low, places)} to {plain(high, places)})"
