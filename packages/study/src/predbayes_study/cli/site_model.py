"""`predbayes site evaluate` and `adopt`: try a study's model on a site's own rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predbayes.errors import StudyError
from predbayes_study.cli.show import DataArgument, SiteOption, require_place, say
from predbayes_study.cli.site_check import DEFAULT_SITE, site_log
from predbayes_study.cli.site_train import held_back, read_key, read_site

if TYPE_CHECKING:
    from torch import Tensor

    from predbayes.exchange.upload import Upload
    from predbayes.predictive.estimate import Estimate
    from predbayes.predictive.families import Predictive
    from predbayes_study.plan.schema import Plan
    from predbayes_study.result.model import CalibratedModel
    from predbayes_study.result.schema import Scores
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.site.training import Holdout
    from predbayes_study.tables.sitefile import SiteFile

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of the common model.")
]
HomeOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder that `site train` wrote.")
]

_HELD_BACK = "held-back-"


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
    from predbayes_study.result.scoring import score
    from predbayes_study.site.adopt import evaluated_rows, require_as_it_came
    from predbayes_study.site.release import Approvals

    if out is not None and everything:
        raise StudyError("an evaluation is of held-out rows alone: leave --all or --out out")
    if out is not None and home is None:
        raise StudyError("an evaluation is of a study that this site trained for: give --home")
    with site_log(site).during("evaluate", long=True, table=data.name) as what:
        tried, own, rows = _read(model, data, site)
        plan = tried.plan
        what |= {"site": own.name, "model": tried.weights_digest()}
        if out is not None:
            require_as_it_came(tried)
            require_place(out, data)
            Approvals.of(own).require_evaluation(plan)
        inputs, targets = evaluated_rows(plan, own.name, rows, _kept(home), everything=everything)
        predictive = tried.predictive(inputs)
        upload = None if out is None else _upload(model, tried, own, (inputs, predictive, targets))
    scores = score(plan, predictive, targets)
    assert scores is not None  # there are rows
    say(_heading(tried, own, rows, len(targets), "all" if everything else "held out"))
    _show_scores(plan, [("model", scores)])
    _show_risks(plan, predictive, targets)
    if home is None and not everything:
        say("whether these are the rows held out in training was not checked: give --home")
    if out is None or upload is None:
        say("nothing has left this computer")
        return
    _hand_over(plan, own, upload, out, site)


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
    from predbayes_study.report.report import with_interval
    from predbayes_study.result.model import model_folder
    from predbayes_study.result.signed import sign_adoption
    from predbayes_study.site.adopt import adopt

    if out.exists() and out.resolve() == model_folder(model).resolve():
        raise StudyError("--out is the folder of the model; give it another one")
    with site_log(site).during("adopt", long=True, table=data.name) as what:
        came, own, rows = _read(model, data, site)
        what |= {"site": own.name, "model": came.weights_digest()}
        key = None if came.plan.coordinator is None else read_key(own)
        adoption = adopt(came, own.name, rows, _kept(home))
        adoption.save(out)
        if key is not None:
            sign_adoption(model_folder(model), out, own.name, key)
    found = adoption.comparison
    say(_heading(came, own, rows, found.num_held_out, "held out"))
    if found.scores:
        _show_scores(came.plan, found.scores.items())
    if found.simple:
        say(f"simple: the best of the simple models of your rows, {found.simple}")
    change = " ".join(with_interval(found.adopted_minus_global))
    say(f"NLL of adopted minus global on all rows, cross-validated: {change}")
    say(found.advice)
    say(f"global model: {model}; adopted model, with this comparison: {out}")
    say("nothing has left this computer")


def _read(model: Path, data: Path, site: Path) -> tuple[CalibratedModel, SiteFile, SiteRows]:
    import torch

    from predbayes_study.result.model import model_folder
    from predbayes_study.result.signed import load_signed
    from predbayes_study.site.rows import SiteRows
    from predbayes_study.site.secret import secret_for
    from predbayes_study.tables.mapping import read_site_table

    own = read_site(site)
    loaded = load_signed(model_folder(model), own.allow_networks)
    torch.set_num_threads(loaded.plan.learner.threads)
    plan, table = loaded.plan, read_site_table(loaded.plan, own, data)
    return loaded, own, SiteRows.of(plan, table, secret=secret_for(plan, own))


def _kept(home: Path | None) -> Holdout | None:
    from predbayes_study.site.training import Holdout

    return None if home is None else Holdout.load(home)


def _heading(
    model: CalibratedModel, own: SiteFile, rows: SiteRows, num_rows: int, which: str
) -> str:
    return (
        f"{own.name}, model of result {model.number} of {model.plan.name!r}: "
        f"{len(rows.targets):,} rows, {num_rows:,} {which}"
    )


def _show_scores(plan: Plan, scores: Iterable[tuple[str, Scores]]) -> None:
    """Print a line for each model and a column for each measure, with intervals of 95 %."""
    from predbayes.predictive.measures import MEASURES
    from predbayes_study.report.report import with_interval
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
    from predbayes_study.report.report import with_interval
    from predbayes_study.result.scoring import risks

    def told(name: str, estimate: Estimate) -> str:
        measure = MEASURES[name]
        return f"{measure.label} {' '.join(with_interval(estimate, percent=measure.is_share))}"

    found = risks(plan, predictive, targets, rng=generator(plan.seed, "evaluate"))
    for risk in found if len(found) == 1 else ():
        share = " ".join(with_interval(risk.prevalence, percent=True))
        figures = [told(name, risk.metrics[name]) for name in _SAID if name in risk.metrics]
        say("; ".join([f"{plan.target.name} {risk.name!r} in {share}", *figures]))
        for one in risk.at:
            figures = [told(name, estimate) for name, estimate in one.metrics.items()]
            say("; ".join([f"from a risk of {one.threshold:g} on", *figures]))


_SAID = ("slope", "intercept", "observed_expected")


def _upload(
    folder: Path, model: CalibratedModel, own: SiteFile, rows: tuple[Tensor, Predictive, Tensor]
) -> Upload:
    """What would leave, as the site's policy allows it."""
    from predbayes_study.payloads.details import having_seen
    from predbayes_study.result.evaluation import evaluation_upload
    from predbayes_study.result.model import model_folder
    from predbayes_study.result.signed import signed_model
    from predbayes_study.site.policy import Asked, SitePolicy
    from predbayes_study.site.witness import Heads

    inputs, predictive, targets = rows
    SitePolicy.of(own).require(Asked(leaving=("evaluation",), num_evaluated=len(targets)))
    told = model.plan, own.name, predictive, targets, model.weights_digest()
    upload = evaluation_upload(*told, inputs=inputs)
    signed, coordinator = signed_model(model_folder(folder)), model.plan.coordinator
    if signed is None or coordinator is None:
        return upload
    return having_seen(upload, Heads(own.folder).note(signed, coordinator.signing))


def _hand_over(plan: Plan, own: SiteFile, upload: Upload, out: Path, site: Path) -> None:
    """Write the evaluation, signed if it is approved, else held back; print all of it."""
    from predbayes_study.site.release import Approvals, write_upload

    released = Approvals.of(own).may_leave(plan, upload)
    key = read_key(own) if released else None
    path = write_upload(plan, upload, key, out, out.with_name(_HELD_BACK + out.name))
    site_log(site).note("release" if released else "hold back", upload=upload.digest())
    say("all that it says, beside its signature:")
    for line in _lines(upload.info.model_dump(mode="json")):
        say(f"  {line}")
    if released:
        say(f"hand over, if you want to: {path}")
    else:
        say(held_back(path, site))


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
