"""`predbayes predict`, `site evaluate` and `site adopt`: use a study's model on your rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predbayes_study.cli.show import DEFAULT_SITE, DataArgument, SiteOption, say, say_held_back
from predbayes_study.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from predbayes.predictive.estimate import Estimate
    from predbayes.predictive.families import Predictive
    from predbayes_study.plan.schema import Plan
    from predbayes_study.result.schema import Scores
    from predbayes_study.site.site import Adopted, Evaluated
    from predbayes_study.tables.sitefile import SiteFile

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of the common model.")
]
HomeOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder that `site train` wrote.")
]


def predict_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of a result, or of its model.")
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV or Parquet file.")],
    out: Annotated[Path, typer.Option(help="The CSV or Parquet file to write.")],
    level: Annotated[
        float, typer.Option(help="Probability of the interval from low to high.")
    ] = 0.95,
    coverage: Annotated[
        float | None,
        typer.Option(help="Add a set, or lower and upper, that holds the truth so often."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Copy this column of DATA; may be repeated."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read DATA as this site.toml says, if it is a site's table."
        ),
    ] = None,
    allow_network: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this network of a consortium's own."),
    ] = None,
) -> None:
    """Predict each row of a table, with probabilities or intervals."""
    from predbayes_study.site.predict import predict_file
    from predbayes_study.site.site import Site

    own = None if site is None else Site(site)
    written = predict_file(
        model,
        data,
        out,
        level=level,
        coverage=coverage,
        keep=keep or (),
        site=own,
        allow_networks=allow_network or (),
    )
    if written.adopted_by:
        say(
            f"adjusted by the site {written.adopted_by}, and not by the coordinator; at that site "
            "--site compares the key"
        )
    # The model predicted them all the same, so whoever reads the predictions must know.
    odd = f"; odd, but predicted: {'; '.join(written.oddities)}" if written.oddities else ""
    say(f"wrote {counted(len(written.table), 'row')} to {out}{odd}")


def evaluate_command(
    model: ModelArgument,
    data: DataArgument,
    site: SiteOption = DEFAULT_SITE,
    home: HomeOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write an evaluation for the coordinator."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Use every row, not only the held-out rows.")
    ] = False,
) -> None:
    """Score the common model on held-out rows; send nothing."""
    from predbayes_study.site.site import Site

    own = Site(site)
    found = own.evaluate(model, data, home, out, everything=everything)
    plan = found.model.plan
    say(_heading(own.file, found, len(found.targets), "all" if everything else "held out"))
    _show_scores(plan, [("model", found.scores)])
    _show_risks(plan, found.predictive, found.targets)
    if home is None and not everything:
        say("whether these are the rows held out in training was not checked: give --home")
    if found.upload is None or found.path is None:
        say("nothing has left this computer")
        return
    say("all that it says, beside its signature:")
    for line in _lines(found.upload.info.model_dump(mode="json")):
        say(f"  {line}")
    if found.released:
        say(f"hand over, if you want to: {found.path}")
    else:
        say_held_back(found.path, own.option)


def adopt_command(
    model: ModelArgument,
    data: DataArgument,
    site: SiteOption = DEFAULT_SITE,
    home: HomeOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the adopted model.")] = Path(
        "adopted"
    ),
) -> None:
    """Fit the common model to the site; say which model is best."""
    from predbayes_study.report.pages import with_interval
    from predbayes_study.site.site import Site

    own = Site(site)
    adopted = own.adopt(model, data, home, out)
    found = adopted.comparison
    say(_heading(own.file, adopted, found.num_held_out, "held out"))
    if found.scores:
        _show_scores(adopted.model.plan, found.scores.items())
    if found.simple:
        say(f"simple: the best of the simple models of your rows, {found.simple}")
    change = " ".join(with_interval(found.adopted_minus_global))
    say(f"NLL of adopted minus global on all rows, cross-validated: {change}")
    say(found.advice)
    say(f"global model: {model}; adopted model, with this comparison: {out}")
    say("nothing has left this computer")


def _heading(own: SiteFile, tried: Evaluated | Adopted, num_rows: int, which: str) -> str:
    return (
        f"{own.name}, model of result {tried.model.number} of {tried.model.plan.name!r}: "
        f"{len(tried.rows.targets):,} rows, {num_rows:,} {which}"
    )


def _show_scores(plan: Plan, scores: Iterable[tuple[str, Scores]]) -> None:
    """Print a line for each model and a column for each measure, with intervals of 95 %."""
    from predbayes.predictive.measures import MEASURES
    from predbayes_study.report.pages import with_interval
    from predbayes_study.result.scoring import measures_of

    lines = list(scores)
    shown = [m for m in MEASURES.values() if any(m.name in found.metrics for _, found in lines)]
    unit = f" ({plan.target.unit})" if plan.target.unit else ""
    table = [["", *(m.label + (unit if m.in_target_unit else "") for m in shown)]]
    for name, found in lines:
        cells = (with_interval(found.metrics[m.name], percent=m.is_share) for m in shown)
        table.append([name, *(" ".join(cell) for cell in cells)])
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say("  ".join(padded).rstrip())
    untold = [m.label for m in measures_of(plan) if m.is_told is not None and m not in shown]
    if untold:
        say(f"not told, for too few events or rows seen to the horizon: {', '.join(untold)}")


def _show_risks(plan: Plan, predictive: Predictive, targets: Tensor) -> None:
    """Print how well the risk of an event is told, and what the plan's thresholds would do."""
    from predbayes.predictive.measures import MEASURES
    from predbayes.seeding import generator
    from predbayes_study.report.pages import with_interval
    from predbayes_study.tasks import task_of

    def told(name: str, estimate: Estimate) -> str:
        measure = MEASURES[name]
        return f"{measure.label} {' '.join(with_interval(estimate, percent=measure.is_share))}"

    rng = generator(plan.seed, "evaluate")
    found = task_of(plan).risks(plan, predictive, targets, rng=rng)
    for risk in found if len(found) == 1 else ():
        share = " ".join(with_interval(risk.prevalence, percent=True))
        figures = [told(name, risk.metrics[name]) for name in _SAID if name in risk.metrics]
        say("; ".join([f"{plan.target.name} {risk.name!r} in {share}", *figures]))
        for one in risk.at:
            figures = [told(name, estimate) for name, estimate in one.metrics.items()]
            say("; ".join([f"from a risk of {one.threshold:g} on", *figures]))


_SAID = ("slope", "intercept", "observed_expected")


def _lines(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every field of a header, one to a line."""
    import json

    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(place): one for place, one in enumerate(value, 1)}
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {json.dumps(value, ensure_ascii=False)}"
