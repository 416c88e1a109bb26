"""Plans and results that look like those of real studies; the numbers are made up."""

from __future__ import annotations

import datetime
import math
import random
from typing import Any

import torch

from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Categorical
from predbayes_study.plan.schema import Plan
from predbayes_study.result.schema import (
    Bin,
    CandidateResult,
    Finding,
    IntervalCalibration,
    Level,
    PoolResult,
    Reliability,
    Result,
    Scores,
    SiteResult,
    StudentResult,
)
from predbayes_study.result.scoring import score
from predbayes_study.tasks import task_of

HOSPITALS = ("Amsterdam", "Bergen", "Coimbra", "Dresden", "Espoo")
JUDGED = "Calibrated: its ECE of 0.021 is what a calibrated model of so many rows would show."
COVERED = "Calibrated: its intervals hold as many true values as they should, within chance."
UNJUDGED = "Calibration cannot be judged: 48 scored rows, and the plan asks for 100."
HARMFUL = "With this site the pool is worse than without it, by more than chance explains."


def classification_plan() -> Plan:
    """Ten classes from 64 columns, as scikit-learn's digits have."""
    pixel = {"type": "number", "range": (0.0, 16.0), "centre": 4.9, "scale": 6.0}
    return Plan.model_validate(
        {
            "format": 1,
            "name": "Digits of five post offices",
            "description": "Reads handwritten digits on forms; a person checks every form.",
            "target": {
                "name": "digit",
                "task": "classification",
                "classes": tuple("0123456789"),
            },
            "columns": {f"pixel_{row}_{col}": pixel for row in range(8) for col in range(8)},
            "reference": {
                "file": "reference.csv",
                "source": "UCI optical recognition of handwritten digits",
                "licence": "CC BY 4.0",
                "legal_basis": "published data without persons",
                "labelled": 150,
                "evaluate": 400,
                "unlabelled": 450,
            },
            "rules": {"quorum": 3, "deadline": datetime.date(2025, 6, 30)},
            "frozen": {"inputs_digest": "a1" * 32, "labels_digest": "b2" * 32, "version": "0.1"},
        }
    )


def regression_plan() -> Plan:
    """Length of stay from columns of every kind."""
    return Plan.model_validate(
        {
            "format": 1,
            "name": "Length of stay",
            "description": "Estimates at admission how long a patient will stay, to plan beds.",
            "target": {
                "name": "stay",
                "task": "regression",
                "unit": "days",
                "centre": 6.2,
                "scale": 4.1,
            },
            "columns": {
                "age": {
                    "type": "number",
                    "unit": "years",
                    "range": (0.0, 110.0),
                    "centre": 61.0,
                    "scale": 18.0,
                },
                "creatinine": {
                    "type": "number",
                    "unit": "µmol/l",
                    "range": (10.0, 2000.0),
                    "missing": "flag",
                    "optional": True,
                    "centre": 88.0,
                    "scale": 40.0,
                },
                "ward": {
                    "type": "category",
                    "categories": ("surgery", "medicine", "paediatrics"),
                    "missing": "impute",
                },
            },
            "reference": {
                "source": "Regional register 2019, a random sample",
                "licence": "data use agreement 17/2024",
                "legal_basis": "Art. 9(2)(j) GDPR",
                "labelled": 200,
                "evaluate": 300,
                "unlabelled": 1500,
            },
            "frozen": {"inputs_digest": "a1" * 32, "labels_digest": "b2" * 32, "version": "0.1"},
        }
    )


def event_plan() -> Plan:
    """Two classes, of which the second is rare, and two thresholds."""
    plan = regression_plan().model_dump()
    target = {"name": "readmitted", "task": "classification", "classes": ("no", "yes")}
    return Plan.model_validate(
        {
            **plan,
            "name": "Readmission",
            "description": "Tells at discharge who will be back within 30 days, to call them.",
            "target": target,
            "measures": {"thresholds": (0.1, 0.2)},
        }
    )


def event_result(
    plan: Plan,
    names: tuple[str, ...] = HOSPITALS,
    *,
    can_judge: bool = True,
    poisoned: bool = False,
) -> Result:
    """A result of `event_plan`, whose figures are of rows that were drawn."""
    num_rows = 800 if can_judge else 48
    rng = torch.Generator().manual_seed(3)
    odds = -2 + 1.1 * torch.randn(num_rows, generator=rng).double()
    targets = torch.bernoulli((0.8 * odds).sigmoid(), generator=rng).long()

    def predicted(noise: float) -> Categorical:
        said = odds + noise * torch.randn(num_rows, generator=rng).double()
        return Categorical(torch.stack([torch.zeros_like(said), said], 1).log_softmax(1))

    def scored(noise: float) -> Scores:
        found = score(plan, predicted(noise), targets)
        assert found is not None
        return found

    draw = random.Random(2)
    sites = tuple(_site(draw, name, scored(0.8), class_rows=(900.0, 120.0)) for name in names)
    student = predicted(0.0)
    task = task_of(plan)
    shown = task.calibration(plan, student, targets, rng=rng)
    return Result.model_validate(
        {
            **_common(plan, sites, can_judge, num_rows),
            "sites": (*sites[:-1], _poisoned(sites[-1])) if poisoned else sites,
            "pool": _pool(plan, ("beta", "temperature", "own and mixture")),
            "pooled": scored(0.1),
            "mixture": scored(0.3),
            "server_only": scored(0.7),
            "student": _student(scored(0.0)),
            "paid": _estimate(0.031, 0.012),
            "class_shares": task.class_shares(plan, targets),
            "risks": task.risks(plan, student, targets, rng=rng),
            "reliability": shown,
        }
    )


def classification_result(
    plan: Plan,
    names: tuple[str, ...] = HOSPITALS,
    *,
    can_judge: bool = True,
    poisoned: bool = False,
) -> Result:
    """A result of `classification_plan`; if poisoned, the last site was found out and left out."""
    draw = random.Random(0)
    num_rows = 400 if can_judge else 48
    sites = tuple(
        _site(
            draw,
            name,
            _class_scores(draw.uniform(0.5, 1.4), draw.uniform(0.7, 0.9), num_rows),
            class_rows=None if index == 1 else tuple(draw.uniform(5, 90) for _ in range(10)),
        )
        for index, name in enumerate(names)
    )
    return Result.model_validate(
        {
            **_common(plan, sites, can_judge, num_rows),
            "sites": (*sites[:-1], _poisoned(sites[-1])) if poisoned else sites,
            "pool": _pool(plan, ("beta", "temperature", "own and mixture")),
            "pooled": _class_scores(0.188, 0.948, num_rows),
            "mixture": _class_scores(0.412, 0.921, num_rows),
            "server_only": _class_scores(0.436, 0.874, num_rows),
            "student": _student(_class_scores(0.203, 0.943, num_rows)),
            "paid": _estimate(0.233, 0.04),
            "class_shares": (0.19, *[0.09] * 9),
            "reliability": _reliability(draw, num_rows),
        }
    )


def regression_result(
    plan: Plan,
    names: tuple[str, ...] = HOSPITALS,
    *,
    can_judge: bool = True,
    poisoned: bool = False,
) -> Result:
    """A result of `regression_plan`."""
    draw = random.Random(1)
    num_rows = 300 if can_judge else 48
    sites = tuple(
        _site(
            draw,
            name,
            _number_scores(draw.uniform(0.9, 1.5), draw.uniform(2.9, 4.2), num_rows),
        )
        for name in names
    )
    return Result.model_validate(
        {
            **_common(plan, sites, can_judge, num_rows),
            "sites": (*sites[:-1], _poisoned(sites[-1])) if poisoned else sites,
            "pool": _pool(plan, ("beta", "trust", "own and trust")),
            "pooled": _number_scores(0.741, 2.41, num_rows),
            "mixture": _number_scores(0.838, 2.55, num_rows),
            "server_only": _number_scores(0.902, 2.77, num_rows),
            "student": _student(_number_scores(0.752, 2.44, num_rows)),
            "paid": _estimate(0.15, 0.04),
            "coverage": _coverage(draw, num_rows),
        }
    )


def without_labels(result: Result) -> Result:
    """The same study where nothing could be scored."""
    sites = tuple(
        site.model_copy(update={"alone": None, "influence": None}) for site in result.sites
    )
    return result.model_copy(
        update={
            "sites": sites,
            "scored_on": "nothing",
            "num_scored": 0,
            "can_judge": False,
            "verdict": "Calibration cannot be judged: there are no labels.",
            "pooled": None,
            "mixture": None,
            "server_only": None,
            "student": result.student.model_copy(update={"scores": None}),
            "paid": None,
            "class_shares": (),
            "risks": (),
            "reliability": None,
            "coverage": None,
            "pool": result.pool.model_copy(update={"candidates": (), "curve": (), "num_labels": 0}),
        }
    )


def _common(
    plan: Plan, sites: tuple[SiteResult, ...], can_judge: bool, num_rows: int
) -> dict[str, Any]:
    return {
        "number": 2,
        "finished": "2025-07-02T09:41:07+00:00",
        "study": plan.name,
        "plan_digest": plan.digest(),
        "ledger_digest": "c3" * 32,
        "withdrawn": 1,
        "scored_on": "evaluate" if can_judge else "cross-fitted",
        "num_scored": num_rows,
        "can_judge": can_judge,
        "verdict": _verdict(plan) if can_judge else UNJUDGED,
        "bytes_in": sum(site.num_bytes for site in sites),
        "bytes_out": 268_431 * len(sites),
        "versions": {"predbayes": "0.1.0", "torch": "2.13.0", "numpy": "2.2.1"},
    }


def _verdict(plan: Plan) -> str:
    return JUDGED if plan.target.classes else COVERED


def _site(
    draw: random.Random,
    name: str,
    alone: Scores,
    kind: str = "predictions",
    class_rows: tuple[float, ...] | None = None,
) -> SiteResult:
    helps = draw.gauss(0.02, 0.015)
    return SiteResult.model_validate(
        {
            "site": name,
            "digest": f"{draw.getrandbits(256):064x}",
            "kind": kind,
            "num_rows": (num_rows := draw.randint(180, 3200)),
            "counted_rows": num_rows,
            "num_bytes": draw.randint(40_000, 90_000),
            "class_rows": class_rows,
            "alone": alone,
            "influence": _estimate(helps, 0.008 + 0.3 * abs(helps)),
            "findings": (),
            "left_out": False,
        }
    )


def _poisoned(site: SiteResult) -> SiteResult:
    assert site.alone is not None
    metrics = {**site.alone.metrics, "nll": _estimate(9.37, 0.9)}
    return site.model_copy(
        update={
            "alone": site.alone.model_copy(update={"metrics": metrics}),
            "influence": _estimate(-0.914, 0.12),
            "findings": (Finding(kind="harmful", text=HARMFUL),),
            "left_out": True,
        }
    )


def _pool(plan: Plan, names: tuple[str, str, str]) -> PoolResult:
    shares = (0.62, 0.38, 0.0)
    return PoolResult(
        method="auto",
        name=f"{names[0]} (62%), {names[1]} (38%)",
        reason="cross-validated NLL 0.1934 with a few weights",
        weights={"mixture": 0.484, "natural": 0.317, "own": 0.161},
        candidates=(
            CandidateResult(name="mixture", num_weights=0, nll=0.4137, share=0.0),
            *(
                CandidateResult(
                    name=name, num_weights=1 + i, nll=0.1934 + 0.0123 * i, share=shares[i]
                )
                for i, name in enumerate(names)
            ),
        ),
        curve=tuple((b / 20, 0.19 + 0.5 * (b / 20 - 0.62) ** 2) for b in range(21)),
        num_labels=plan.reference.labelled,
    )


def _student(scores: Scores) -> StudentResult:
    return StudentResult(scores=scores, gap=0.0134, temperature=1.07, num_parameters=17_610)


def _estimate(value: float, half: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


def _class_scores(nll: float, accuracy: float, num_rows: int) -> Scores:
    return Scores(
        num_rows=num_rows,
        metrics={
            "nll": _estimate(nll, 1.2 * nll / math.sqrt(num_rows) + 0.02),
            "accuracy": _estimate(accuracy, 0.6 / math.sqrt(num_rows)),
            "brier": _estimate(1.6 * (1 - accuracy), 0.5 / math.sqrt(num_rows)),
            "auroc": _estimate(1 - 0.3 * (1 - accuracy), 0.2 / math.sqrt(num_rows)),
        },
    )


def _number_scores(nll: float, rmse: float, num_rows: int) -> Scores:
    return Scores(
        num_rows=num_rows,
        metrics={
            "nll": _estimate(nll, 1.1 / math.sqrt(num_rows)),
            "rmse": _estimate(rmse, 3 / math.sqrt(num_rows)),
            "mae": _estimate(0.8 * rmse, 2.5 / math.sqrt(num_rows)),
            "r2": _estimate(1 - rmse * rmse / 17, 1.5 / math.sqrt(num_rows)),
            "crps": _estimate(0.55 * rmse, 1.5 / math.sqrt(num_rows)),
            "coverage_95": _estimate(0.948 - 0.004 * rmse, 0.4 / math.sqrt(num_rows)),
            "width_95": _estimate(3.9 * rmse, 2 / math.sqrt(num_rows)),
        },
    )


def _reliability(draw: random.Random, num_rows: int) -> Reliability:
    shares = (0, 0, 0, 0.01, 0.01, 0.02, 0.02, 0.03, 0.03, 0.04, 0.05, 0.06, 0.08, 0.13, 0.52)
    bins = []
    for index, share in enumerate(shares):
        count = round(share * num_rows)
        if count == 0:
            bins.append(Bin(count=0, stated=0.0, observed=0.0, null_low=0.0, null_high=0.0))
            continue
        confidence = (index + 0.6) / 15
        error = math.sqrt(confidence * (1 - confidence) / count)
        bins.append(
            Bin(
                count=count,
                stated=confidence,
                observed=min(1.0, max(0.0, draw.gauss(confidence, 0.9 * error))),
                null_low=max(0.0, confidence - 1.96 * error),
                null_high=min(1.0, confidence + 1.96 * error),
            )
        )
    ece = Estimate(value=0.0213, low=0.0112, high=0.0337)
    return Reliability(ece=ece, null=0.0227, bins=tuple(bins))


def _coverage(draw: random.Random, num_rows: int) -> IntervalCalibration:
    mean = num_rows / 10
    spread = math.sqrt(0.9 * mean)
    return IntervalCalibration(
        pit=tuple(round(draw.gauss(mean, spread)) for _ in range(10)),
        null_low=round(mean - 1.96 * spread),
        null_high=round(mean + 1.96 * spread),
        levels=tuple(
            Level(
                level=level,
                coverage=_estimate(
                    level + 0.012,
                    min(0.988 - level, 1.96 * math.sqrt(level * (1 - level) / num_rows)),
                ),
            )
            for level in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
        ),
    )
