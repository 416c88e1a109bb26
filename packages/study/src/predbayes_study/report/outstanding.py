"""Of many sites, those that a reader must see; the rest are a distribution and a file.

Up to `MOST_LISTED` sites a report has a line for each in its tables. Of more it has those that are
left out, those that screening found against, and those with the greatest influence, at most
`MOST_SHOWN` together; distributions of all; and beside it `sites.csv` with a line for each site.
So a report has about the same size for a hundred sites and for a million.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from predbayes_study.result.schema import Result, SiteResult

MOST_LISTED = 100
MOST_SHOWN = 40
SITES_FILE = "sites.csv"
_COLUMNS = (
    "number", "site", "rows", "rows_agreed", "rows_counted", "bytes",
    "influence", "influence_low", "influence_high", "left_out", "findings",
)  # fmt: skip


def is_listed(result: Result) -> bool:
    """Whether tables of the report have a line for every site."""
    return len(result.sites) <= MOST_LISTED


def outstanding(result: Result) -> Result:
    """Return the result with the sites that a reader must see, in the order of their names."""
    if is_listed(result):
        return result
    shown = {site.site for site in sorted(result.sites, key=_rank)[:MOST_SHOWN]}
    change: dict[str, object] = {
        "sites": tuple(site for site in result.sites if site.site in shown)
    }
    if result.at_sites is not None:
        change["at_sites"] = result.at_sites.model_copy(
            update={"sites": tuple(one for one in result.at_sites.sites if one.site in shown)}
        )
    return result.model_copy(update=change)


def _rank(site: SiteResult) -> tuple[bool, int, float]:
    """First who was found out, of these first who stays; then by the size of the influence."""
    size = 0.0 if site.influence is None else abs(site.influence.value)
    return not site.findings, int(site.left_out), -size


def site_files(result: Result) -> dict[str, str]:
    """Files about single sites that stand beside a report, by name: none if it lists them all."""
    return {} if is_listed(result) else {SITES_FILE: sites_table(result.sites)}


def sites_table(sites: Sequence[SiteResult]) -> str:
    """Write a line for each site, as CSV; what was not measured is empty."""
    measures = sorted({name for site in sites if site.alone for name in site.alone.metrics})
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow([*_COLUMNS, *measures, "digest"])
    for number, site in enumerate(sites, 1):
        gain = site.influence
        alone = {} if site.alone is None else site.alone.metrics
        told = (None, None, None) if gain is None else (gain.value, gain.low, gain.high)
        table.writerow(
            [
                number,
                _harmless(site.site),
                site.num_rows,
                _cell(site.agreed_rows),
                _cell(site.counted_rows),
                site.num_bytes,
                *map(_cell, told),
                "yes" if site.left_out else "",
                " ".join(finding.kind for finding in site.findings),
                *(_cell(alone[name].value if name in alone else None) for name in measures),
                site.digest,
            ]
        )
    return file.getvalue()


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@\t\r" else name


def _cell(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"
