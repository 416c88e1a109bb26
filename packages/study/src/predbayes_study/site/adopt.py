r"""Taking the model home: does it serve a site's own rows, and better than what she has?

A study's model is made for all sites; one of them may see other frequencies of the classes, or
another level of the target. `adopt` fits as little as tells them apart, with a prior so weak that a
few dozen rows outweigh it:

    classes   eta_c = log p_c(x) + b_c with b_c ~ N(0, 1.5^2); the penalised likelihood is strictly
              convex, and at its least value sum_c b_c = 0
    numbers   mean + s and k var, minimising
              1/2 sum_i [(r_i - s)^2 / (k v_i) + log k] + 1/2 s^2 / k + 1/2 nu (1 / k + log k):
              the shift s is the mean residual, shrunk by one row of variance 1, and k the mean
              squared residual in its own variances, shrunk to 1 by nu = 8 rows
    survival  log odds of every hazard + s with s ~ N(0, 1.5^2), likewise convex

The standard deviation of 1.5 is what serves the four hospitals of `benchmarks/hospitals.py`, where
1 to 2 differ by less than .001 nats; it makes the odds of a class four times higher with ease and
a hundred times higher only where the rows insist.

Five models are compared on the rows that were held out before training: the model as it came
(*global*), *adopted*, the site's *own*, *half* adopted and half own, and the best *simple* one of
its rows (`predbayes_study.site.simple`). Every row is used as honestly as it can be:

    own, half, simple vs. others   held-out rows alone, for these saw all others
    adopted vs. global             all rows, each predicted with an adjustment fitted without it

The own model may be of any kind, and is not kept. Its half is a network like the study's that was
distilled from what it says of the reference rows, and the half is tried as it is then used. It
takes the place of the adopted model if its mean NLL on the held-out rows is lower: both rest on the
rows of all sites, and to ask for a margin costs more than it saves.

The adopted model is advised unless the rows say that another is better beyond an interval of 95 %.
What a simple model beats, be it the site's own, is not advised. Nothing leaves the site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from predbayes.errors import StudyError
from predbayes.files import write_bytes
from predbayes.learning.distill import distill, without_unseen_inputs
from predbayes.learning.local import NetworkPredictor
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Predictive
from predbayes.predictive.folds import folds, in_row_order
from predbayes.predictive.measures import mean_estimate
from predbayes.seeding import generator
from predbayes_study.plan.models import student_network
from predbayes_study.plan.schema import Plan, Section
from predbayes_study.result.model import CalibratedModel, halved
from predbayes_study.result.schema import Scores
from predbayes_study.result.scoring import row_values, score
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.simple import SimpleModels
from predbayes_study.site.training import Holdout
from predbayes_study.tasks import task_for, task_of

MIN_TO_COMPARE = 10
"""Held-out rows below which no interval of a difference is worth its name."""

COMPARISON_FILE = "comparison.json"

_NUM_PARTS = 10

_NOT_COMPARED = (
    "Your own model was not compared: give --home, the folder that `predbayes site train` wrote."
)

Name = Literal["own", "half", "simple", "adopted", "global"]
"""The models that a site can choose from."""

_WHICH = {
    "own": "own",
    "half": "half adopted, half own",
    "simple": "simple",
    "adopted": "adopted",
    "global": "global",
}  # in a sentence


class Comparison(Section):
    """What a site learns about the models."""

    site: str
    number: int  # of the result that the model belongs to
    num_rows: int  # that the adjustment was fitted on
    num_held_out: int
    scores: dict[Name, Scores]  # on the held-out rows
    minus_own: dict[Name, dict[str, Estimate]]  # mean `losses`, minus those of the own model
    adopted_minus_global: Estimate  # NLL on all rows, cross-validated
    half_minus_adopted: Estimate | None = None  # NLL on the held-out rows; None: nothing to halve
    simple: str = ""  # which simple model it is; empty where held-out rows are too few
    minus_simple: dict[Name, Estimate] = Field(default_factory=dict)  # mean NLL, minus that of it
    choice: Name
    advice: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """A model with the site's adjustment, and how it compares."""

    model: CalibratedModel
    comparison: Comparison

    def save(self, folder: Path) -> None:
        """Write the adopted model, and the comparison beside it."""
        self.model.save(folder)
        text = self.comparison.model_dump_json(indent=1) + "\n"
        write_bytes(folder / COMPARISON_FILE, text.encode())


def adopt(model: CalibratedModel, site: str, rows: SiteRows, own: Holdout | None) -> Adoption:
    """Fit the adjustment on a site's rows, compare, and advise.

    `own` is what its own model predicts for the held-out rows; None where that was not kept.
    """
    require_as_it_came(model)
    plan = model.plan
    held_out = _held_out(plan, site, rows, own)
    if own is not None:
        require_trained_rows(plan, rows, held_out, own)
    predictive = model.predictive(rows.inputs)
    fitted = task_for(predictive).adjust(predictive, rows.targets)
    rng = generator(plan.seed, "adopt", site)
    honest = cross_adjusted(predictive, rows.targets, rng=rng, groups=rows.patients)
    rivals: dict[Name, Predictive] = {"adopted": honest[held_out], "global": predictive[held_out]}
    half = None
    if own is not None:
        half = own_network(plan, site, own)
        if half is not None and len(held_out):
            own_half = half.predict(rows.inputs[held_out])
            rivals = {"half": halved(rivals["adopted"], own_half), **rivals}
        rivals = {"own": own.predictive, **rivals}
    change = losses(plan, honest, rows.targets)["nll"]
    change = change - losses(plan, predictive, rows.targets)["nll"]
    gain = mean_estimate(change)
    targets = rows.targets[held_out]
    comparison = _compared(model, site, rivals, targets, len(rows.targets), gain)
    if len(targets) >= MIN_TO_COMPARE:
        simple = SimpleModels.fit(plan, site, rows, held_out)
        comparison = _with_simple(plan, comparison, rivals, simple, targets)
    adopted = dataclasses.replace(model, adjustment=fitted)
    if comparison.choice == "half":
        adopted = dataclasses.replace(adopted, own=half)
    return Adoption(adopted, comparison)


def _held_out(plan: Plan, site: str, rows: SiteRows, own: Holdout | None) -> Tensor:
    """The rows held out; with those of the blind spot, if training held them out.

    Without what training kept, a few rows may be among these that were trained on, in place of as
    many that reference rows are near to.
    """
    drawn = rows.split(plan, site)[1]
    if own is None or own.taught is None:
        return drawn
    blind = rows.split(plan, site, own.taught[0])[1]
    return blind if torch.equal(own.rows, blind) else drawn


def own_network(plan: Plan, site: str, own: Holdout) -> NetworkPredictor | None:
    """Distil a site's own model from what it says of reference rows; None if that is unknown."""
    if own.taught is None:
        return None
    inputs, said = own.taught
    rng = generator(plan.seed, "adopt", site, "half")
    student = distill(student_network(plan), said, inputs, rng=rng)
    return student if plan.model.module else without_unseen_inputs(student, inputs)


def require_as_it_came(model: CalibratedModel) -> None:
    """Refuse a model that a site has adjusted."""
    if model.adjustment is not None:
        raise StudyError("this model was adopted before; give the one that came from the study")


def require_trained_rows(plan: Plan, rows: SiteRows, held_out: Tensor, own: Holdout) -> None:
    """Refuse rows of which others were held out when the site's own model was trained."""
    if own.plan_digest != plan.digest():
        raise StudyError("the model is of another plan than the one your own model was trained for")
    same = own.data_digest == rows.digest() and torch.equal(own.rows, held_out)
    if not same or len(own.predictive) != len(held_out):
        raise StudyError(
            "the rows are not those that `predbayes site train` saw; give the same table and "
            "site.toml, or leave --home out"
        )


def evaluated_rows(
    plan: Plan, site: str, rows: SiteRows, own: Holdout | None, *, everything: bool = False
) -> Tensor:
    """Places of rows that a model may be tried on: those held out or, with `everything`, all.

    With `own`, which training kept, the rows are known to be the same.
    """
    held_out = _held_out(plan, site, rows, own)
    if own is not None:
        require_trained_rows(plan, rows, held_out, own)
    if everything:
        return torch.arange(len(rows.targets))
    if not len(held_out):
        raise StudyError("the plan holds no row out; --all tries the model on every row")
    return held_out


# Fitting


def cross_adjusted(
    predictive: Predictive, targets: Tensor, *, rng: torch.Generator, groups: Tensor | None = None
) -> Predictive:
    """Each row with an adjustment that was fitted without it, and without rows of its group."""
    parts = folds(len(targets), min(_NUM_PARTS, len(targets)), rng=rng, groups=groups)
    adjusted = [
        task_for(predictive).adjust(predictive[rest], targets[rest]).apply(predictive[out])
        for out, rest in parts
    ]
    return in_row_order(parts, adjusted)


# Comparing


def losses(plan: Plan, predictive: Predictive, targets: Tensor) -> dict[str, Tensor]:
    """Row by row what a site would lose: ``nll``, and ``error``.

    That is a wrong class, the square of a number's error, or the integrated Brier score, which
    there is not where rows were not seen to the horizon.
    """
    values = row_values(plan, predictive, targets)
    errors = task_of(plan).errors(values)
    return {"nll": values["nll"]} | ({} if errors is None else {"error": errors})


def _compared(
    model: CalibratedModel,
    site: str,
    rivals: Mapping[Name, Predictive],
    targets: Tensor,
    num_rows: int,
    adopted_minus_global: Estimate,
) -> Comparison:
    plan = model.plan
    scores: dict[Name, Scores] = {}
    for name, predictive in rivals.items():
        found = score(plan, predictive, targets)
        if found is not None:
            scores[name] = found
    minus_own = _minus_own(plan, rivals, targets) if "own" in scores else {}
    half = _half_minus_adopted(plan, rivals, targets)
    choice, advice = advise(
        len(targets), minus_own if "own" in rivals else None, adopted_minus_global, half
    )
    if scores:
        unsaid = task_of(plan).unsaid({name for s in scores.values() for name in s.metrics})
        advice = f"{advice} {unsaid}".rstrip()
    return Comparison(
        site=site,
        number=model.number,
        num_rows=num_rows,
        num_held_out=len(targets),
        scores=scores,
        minus_own=minus_own,
        adopted_minus_global=adopted_minus_global,
        half_minus_adopted=half,
        choice=choice,
        advice=advice,
    )


def _with_simple(
    plan: Plan,
    found: Comparison,
    rivals: Mapping[Name, Predictive],
    simple: SimpleModels,
    targets: Tensor,
) -> Comparison:
    """Add the simple models to a comparison; they have the last word."""
    beating = simple.beating(rivals[found.choice], targets)
    name = beating or simple.best
    said = simple.predictives[name]
    rows = {key: losses(plan, p, targets)["nll"] for key, p in rivals.items()}
    own = losses(plan, said, targets)["nll"]
    minus: dict[Name, Estimate] = {key: mean_estimate(r - own) for key, r in rows.items()}
    scored = score(plan, said, targets)
    assert scored is not None
    order: list[Name] = ["own", "simple", "half", "adopted", "global"]
    scores = {**found.scores, "simple": scored}
    choice, advice = last_word(found.choice, found.advice, name, minus, beaten=bool(beating))
    return found.model_copy(
        update={
            "scores": {key: scores[key] for key in order if key in scores},
            "simple": name,
            "minus_simple": minus,
            "choice": choice,
            "advice": advice,
        }
    )


def last_word(
    choice: Name, advice: str, simple: str, minus: Mapping[Name, Estimate], *, beaten: bool
) -> tuple[Name, str]:
    """Put what a simple model says against an advice."""
    which = "yours" if choice == "own" else f"the {_WHICH[choice]} model"
    said = f"NLL of {which} minus its: {_said(minus[choice])}"
    if beaten:
        unknown = "" if "own" in minus else f" {_NOT_COMPARED}"
        return "simple", (
            f"Use a {simple} of your own rows, and no model of the study: on the held-out rows it "
            f"is better ({said}). Fit it with any program for statistics; predbayes does not keep "
            f"it.{unknown}"
        )
    return choice, f"{advice} The best simple model of your rows, {simple}, is no better ({said})."


def _half_minus_adopted(
    plan: Plan, rivals: Mapping[Name, Predictive], targets: Tensor
) -> Estimate | None:
    if "half" not in rivals or len(targets) < MIN_TO_COMPARE:
        return None
    half, adopted = (losses(plan, rivals[name], targets)["nll"] for name in ("half", "adopted"))
    return mean_estimate(half - adopted)


def _minus_own(
    plan: Plan, rivals: Mapping[Name, Predictive], targets: Tensor
) -> dict[Name, dict[str, Estimate]]:
    own = losses(plan, rivals["own"], targets)
    found: dict[Name, dict[str, Estimate]] = {}
    for name, predictive in rivals.items():
        if name == "own":
            continue
        rows = losses(plan, predictive, targets)
        found[name] = {loss: mean_estimate(rows[loss] - own[loss]) for loss in own}
    return found


def advise(
    num_held_out: int,
    minus_own: Mapping[Name, Mapping[str, Estimate]] | None,
    adopted_minus_global: Estimate,
    half_minus_adopted: Estimate | None = None,
) -> tuple[Name, str]:
    """Recommend a model, with a sentence that says why; `minus_own` is None if nobody knows it."""
    study: Name = "global" if adopted_minus_global.low > 0 else "adopted"
    if study == "adopted" and half_minus_adopted is not None and half_minus_adopted.value < 0:
        study = "half"
    which = f"the {_WHICH[study]} model"
    if minus_own is None:
        return study, (
            f"Use {which}, as your rows say (NLL of the adopted model minus the global "
            f"one's, cross-validated: {_said(adopted_minus_global)}). {_NOT_COMPARED}"
        )
    if num_held_out < MIN_TO_COMPARE:
        return "own", (
            f"Keep your own model: {num_held_out} held-out rows are too few to tell whether "
            f"{which} is better, and {MIN_TO_COMPARE} are the least."
        )
    nll, error = minus_own[study]["nll"], minus_own[study].get("error")
    rows = f"on {num_held_out} held-out rows"
    said = f"(NLL of {which} minus yours: {_said(nll)})"
    if nll.low > 0:
        return "own", f"Keep your own model: {rows} it is better alone {said}."
    if error is not None and error.low > 0:
        return "own", f"Keep your own model: {rows} {which} errs more {said}."
    if nll.high < 0:
        return study, f"Use {which}: {rows} it is better than your own {said}."
    return study, (
        f"Use {which}: {rows} it cannot be told from your own {said}, and it rests on "
        "the rows of all sites."
    )


def _said(difference: Estimate) -> str:
    low, high = difference.low, difference.high
    return f"{difference.value:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
