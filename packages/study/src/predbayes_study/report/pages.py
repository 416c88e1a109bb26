"""What the pages for people have in common: how a page is made.

A page is one HTML file that holds everything that it shows; it has no script, and a policy that
forbids the browser any request. The same values give the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from predbayes.optional import require
from predbayes_study.wording import bytes_readable, counted, plain


def render_page(
    template: str,
    filters: Mapping[str, Callable[..., Any]],
    package: str = "predbayes_study.report",
    **values: Any,
) -> str:
    """Render an HTML page from one of the templates.

    Args:
        template: Its file name.
        filters: What the template calls beside ``plain``, ``size`` and ``counted``.
        package: Whose `templates` have it; those of reports are there beside them.
        values: What it shows.
    """
    require("jinja2", "study")
    page: str = _environment(package, *filters.items()).get_template(template).render(**values)
    return page


@functools.cache
def _environment(package: str, *filters: tuple[str, Callable[..., Any]]) -> Any:
    """Return an environment that keeps its templates: compiling them takes longer than a page."""
    jinja2 = require("jinja2", "study")
    packages = dict.fromkeys((package, "predbayes_study.report"))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, "templates") for one in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, size=bytes_readable, counted=counted, **dict(filters))
    return environment
