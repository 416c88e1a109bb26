"""One malicious site of five in a study without labels: what does it cost, and is it named?

Five invented hospitals of 300 patients each (900 where they send sums), all fitted by the same
logistic regression; the coordinator has 600 reference rows and no label. The last site lies in one
of seven ways, one of them twice. What it sends passes intake as an honest file does.

    constant       says the same small risk of everybody
    inverted       says the opposite of what its model says
    high gate      says "no" at the twentieth of highest risk, where its gate is as high as may be
    careful        the same, but honest elsewhere and with half of its gate there, so that it agrees
                   with the others where they are compared
    copied         sends what another site sent
    claimed rows   says the opposite, and states a thousand million rows
    moments        sends sums over rows with turned labels, multiplied by ten
    survey         tells of a thousand million rows of other patients, before the study

Scores are of the study's model on 4,000 later patients, against the same study with five honest
sites. "Cost" is the AUROC that is lost, and the NLL that is added. "Named" is a site that the first
lines of the report name, or of a survey a doubt of `plan merge`.

    --seeds N      how many draws of patients; 5 by default
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical
from predbayes.predictive.metrics import nll
from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.surveyfile import CategoryTold, NumberTold, Survey
from predbayes_study.extras.survey.synthetic import with_rows
from predbayes_study.extras.survey.take import take_survey
from predbayes_study.kit.kit import Kit, Labels, freeze
from predbayes_study.payload import payload_of
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.report.report import first_lines
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Conclusion, Evidence, ResultMeta
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.sitefile import SiteFile

SITES = ("Alpha", "Beta", "Gamma", "Delta", "Mallory")
LIAR = SITES[-1]
MANY = 10**9
COST = 0.02
"""The AUROC that a site which is not named may cost at most."""

_PLAN = """
format = 1
name = "malicious"
[target]
name = "ill"
task = "classification"
classes = ["no", "yes"]
[columns]
age = {{ type = "number", unit = "years", centre = 60, scale = 10 }}
marker = {{ type = "number", unit = "1", centre = 0, scale = 1 }}
sex = {{ type = "category", categories = ["female", "male"], other = false }}
[reference]
{reference}
[learner]
name = "logistic-regression"
holdout = 0.0
holdout_reason = "invented patients"
[pool]
own = "none"
[model]
hidden = [8]
{sends}
"""
_REFERENCE = """
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
unlabelled = 600
"""
_SUMS = "[moments]\nfeatures = 12\nscales = [1, 2]\nrows_per_feature = 20\n"


def patients(num: int, *seed: int) -> pd.DataFrame:
    """Return invented patients: their columns, and whether they are ill."""
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 10, num).round(1), rng.normal(size=num).round(3)
    sex = rng.choice(["female", "male"], num)
    risk = 2 * ((age - 60) / 10 + np.sin(2 * marker) + 0.5 * (sex == "male"))
    ill = np.where(rng.logistic(size=num) < risk, "yes", "no")
    columns = {"age": age.astype(str), "marker": marker.astype(str), "sex": sex, "ill": ill}
    return pd.DataFrame(columns)


@dataclass(frozen=True, slots=True)
class Study:
    """A frozen plan, and what honest sites would send."""

    kit: Kit
    labels: Labels
    honest: Mapping[str, Upload]

    def outcome(self, lie: Upload | None, later: pd.DataFrame) -> Outcome:
        """Make the model with what the last site sends instead, and score it."""
        found, rows = self.concluded(lie), SiteRows.of(self.kit.plan, later)
        said = found.model.predictive(rows.inputs)
        assert isinstance(said, Categorical)
        first = " ".join(first_lines(self.kit.plan, found.result, public=False))
        return Outcome(
            _auroc(said.log_probs[:, 1], rows.targets), nll(said, rows.targets), LIAR in first
        )

    def mean_risk(self, lie: Upload | None, inputs: Tensor) -> float:
        """Return what the model with that upload says of some patients, on average."""
        said = self.concluded(lie).model.predictive(inputs)
        assert isinstance(said, Categorical)
        return float(said.log_probs[:, 1].exp().mean())

    def risky(self, later: pd.DataFrame) -> Tensor:
        """Return the inputs of the twentieth of highest risk."""
        inputs = SiteRows.of(self.kit.plan, later).inputs
        score = inputs[:, 0] + (2 * inputs[:, 1]).sin()
        return inputs[score >= score.quantile(0.95)]

    def concluded(self, lie: Upload | None) -> Conclusion:
        """Return what comes of the honest uploads, with the last site's lie in place of its own."""
        payload, plan = payload_of(self.kit.plan), self.kit.plan
        uploads = dict(self.honest) | ({} if lie is None else {LIAR: lie})
        accepted = []
        for number, (site, upload) in enumerate(uploads.items()):
            payload.check(plan, upload, "")
            accepted.append(
                AcceptedUpload(
                    site=site,
                    digest=f"{number:064x}",
                    file_digest=f"{number:064x}",
                    num_bytes=1,
                    num_rows=upload.info.num_rows,
                    at="2026-01-01T00:00:00+00:00",
                    number=number,
                    key="",
                    kind=payload.kind,
                )
            )
        meta = ResultMeta(1, "2026-01-01T00:00:00+00:00", "0" * 64)
        read = lambda one: uploads[one.site]  # noqa: E731
        return payload.conclude(Evidence(self.kit, self.labels, accepted, read, meta))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How good a study's model is, and whether the last site is named."""

    auroc: float
    nll: float
    named: bool


def _auroc(scores: Tensor, targets: Tensor) -> float:
    ranks = scores.double().argsort().argsort().double() + 1
    events = targets.bool()
    num, others = int(events.sum()), int((~events).sum())
    return (float(ranks[events].sum()) - num * (num + 1) / 2) / (num * others)


def begun(root: Path, seed: int, plan: Plan | None = None, *, sums: bool = False) -> Study:
    """Freeze a plan, and fit every site's honest model."""
    root.mkdir(parents=True, exist_ok=True)
    if plan is None:
        patients(600, seed, 99).drop(columns="ill").to_csv(root / "reference.csv", index=False)
        sends = _SUMS if sums else "[gate]\n"
        text = _PLAN.format(reference=_REFERENCE, sends=sends)
        (root / "plan.toml").write_text(text)
    kit = freeze(root / "plan.toml", root / "kit", root / "labels.json", salt=bytes(32))
    size = 900 if sums else 300
    honest = {
        site: _sent(kit, site, patients(size, seed, number)) for number, site in enumerate(SITES)
    }
    return Study(kit, Labels.load(root / "labels.json", kit), honest)


def _sent(kit: Kit, site: str, table: pd.DataFrame) -> Upload:
    rows = SiteRows.of(kit.plan, table)
    return make_upload(kit, site, (rows.inputs, rows.targets))


def _said(study: Study, log_probs: Tensor, gate: Tensor | None = None, times: int = 1) -> Upload:
    """What the last site says instead, with as many rows of each class as times its own."""
    own = study.honest[LIAR]
    counts = own.info.class_rows
    made = Upload.of_predictions(
        Categorical(log_probs.float().log_softmax(1)),
        num_rows=own.info.num_rows * times,
        class_rows=None if counts is None else tuple(times * count for count in counts),
        gate=own.gate if gate is None else gate,
        dtype=own.arrays["log_probs"].dtype,
    )
    return made.named(LIAR).for_plan(study.kit.digest, "logistic-regression")


def _log_probs(study: Study, site: str = LIAR) -> Tensor:
    predictive = study.honest[site].predictive()
    assert isinstance(predictive, Categorical)
    return predictive.log_probs


_NO = torch.tensor([0.999, 0.001]).log()


def constant(study: Study) -> Upload:
    """Say the same small risk of everybody."""
    return _said(study, _NO.expand(len(study.kit.inputs), 2))


def inverted(study: Study) -> Upload:
    """Say the opposite."""
    return _said(study, _log_probs(study).flip(1))


def high_gate(study: Study) -> Upload:
    """Say "no" where the risk is highest, with a gate as high as the bounds let it be."""
    said = _log_probs(study).clone()
    few = said[:, 1] >= said[:, 1].quantile(0.95)
    said[few] = _NO
    gate = torch.full((len(said),), -6.0)
    gate[few] = 3.0
    gate[few] -= max(float(gate.double().exp().mean().log()), 0.0) + 1e-3
    return _said(study, said, gate)


def careful(study: Study) -> Upload:
    """Say "no" where the risk is highest, with a gate that leaves room to agree elsewhere."""
    own = study.honest[LIAR].gate
    assert own is not None
    said, gate = _log_probs(study).clone(), own.float() - 0.7
    few = said[:, 1] >= said[:, 1].quantile(0.95)
    said[few], gate[few] = _NO, 2.2
    return _said(study, said, gate - max(float(gate.double().exp().mean().log()), 0.0))


def copied(study: Study) -> Upload:
    """Send what another site sent."""
    return _said(study, _log_probs(study, SITES[0]), study.honest[SITES[0]].gate)


def claimed_rows(study: Study) -> Upload:
    """Say the opposite, and state very many rows."""
    return _said(study, _log_probs(study).flip(1), times=MANY // 300)


def moments(study: Study, seed: int) -> Upload:
    """Send sums over turned labels, as if of ten times the rows."""
    table = patients(900, seed, len(SITES) - 1)
    table["ill"] = table["ill"].map({"no": "yes", "yes": "no"})
    return times(study, table, 10)


def times(study: Study, table: pd.DataFrame, num: int) -> Upload:
    """Return sums of the last site over a table, as if each row were there so many times."""
    made = _sent(study.kit, LIAR, table)
    assert made.info.class_rows is not None
    counts = tuple(num * count for count in made.info.class_rows)
    told = {"num_rows": num * made.info.num_rows, "class_rows": counts}
    arrays = {name: array * num for name, array in made.arrays.items()}
    return replace(made, info=made.info.model_copy(update=told), arrays=arrays)


UPLOADS: Mapping[str, Callable[[Study], Upload]] = {
    "constant": constant,
    "inverted": inverted,
    "high gate": high_gate,
    "careful": careful,
    "copied": copied,
    "claimed rows": claimed_rows,
}


def from_surveys(root: Path, seed: int, *, lies: bool) -> tuple[Study, bool]:
    """Begin a study whose reference rows are drawn from surveys, and say who was doubted."""
    root.mkdir(parents=True, exist_ok=True)
    draft = Plan.loads(_PLAN.format(reference="", sends="[gate]\n[survey]\nmoments = true\n"))
    surveys = []
    for number, site in enumerate(SITES):
        path = root / f"{site}.csv"
        patients(300, seed, number).to_csv(path, index=False)
        own = SiteFile(format=1, name=site)
        key = f"{number + 1:064x}"
        surveys.append(take_survey(draft, own, path, step=5, key=key, moments=True))
    if lies:
        surveys[-1] = _of_others(surveys[-1])
    merged = merge(draft, surveys)
    named = any(LIAR in doubt.sites for doubt in merged.doubts)
    file = "reference.csv"
    plan, rows = with_rows(merged.plan, surveys, 600, seed, folder=root, file=file)
    rows.to_csv(root / file, index=False)
    known = {"licence": "none", "legal_basis": "nobody's"}
    plan = plan.model_copy(update={"reference": plan.reference.model_copy(update=known)})
    (root / "plan.toml").write_bytes(dump(plan).encode())
    return begun(root, seed, plan), named


def _of_others(survey: Survey) -> Survey:
    """The same survey as if of very many patients, who are older and all women."""
    columns: dict[str, NumberTold | CategoryTold] = {}
    for name, told in survey.columns.items():
        if isinstance(told, NumberTold):
            moved = {level: v + 1.5 * told.spread for level, v in told.quantiles.items()}
            columns[name] = told.model_copy(update={"quantiles": moved})
        elif name == "sex":
            words = {word: 0 if place else MANY for place, word in enumerate(told.words)}
            columns[name] = told.model_copy(update={"words": words})
        else:
            columns[name] = told
    return survey.model_copy(update={"rows": MANY, "columns": columns, "moments": None})


def outcomes(root: Path, seed: int) -> dict[str, tuple[Outcome, Outcome]]:
    """Run every strategy on one draw of patients: the honest study, and that with the liar."""
    later = patients(4000, seed, 1000)
    study, found = begun(root / "gates", seed), {}
    honest = study.outcome(None, later)
    for name, lie in UPLOADS.items():
        found[name] = honest, study.outcome(lie(study), later)
    sums = begun(root / "sums", seed, sums=True)
    found["moments"] = sums.outcome(None, later), sums.outcome(moments(sums, seed), later)
    fair, _ = from_surveys(root / "fair", seed, lies=False)
    drawn, named = from_surveys(root / "drawn", seed, lies=True)
    lied = replace(drawn.outcome(None, later), named=named)
    found["survey"] = fair.outcome(None, later), lied
    return found


def run(seeds: int = 5) -> dict[str, Any]:
    """Print what each strategy costs, from the least to the greatest of some draws."""
    torch.set_num_threads(1)
    lines: dict[str, list[tuple[Outcome, Outcome]]] = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            for name, pair in outcomes(Path(folder), seed).items():
                lines.setdefault(name, []).append(pair)
        print(f"draw {seed} is done", flush=True)
    figures = {name: _line(pairs) for name, pairs in lines.items()}
    print(f"{'strategy':<14}{'AUROC lost':>30}{'NLL added':>30}{'named':>10}")
    for name, found in figures.items():
        lost, added = (
            f"{found[k]['mean']:+.3f} ({found[k]['least']:+.3f} to {found[k]['most']:+.3f})"
            for k in ("auroc", "nll")
        )
        print(f"{name:<14}{lost:>30}{added:>30}{found['named']:>7} of {seeds}", flush=True)
    return {
        **figures,
        "reached": all(
            found["named"] == seeds or found["auroc"]["most"] < COST for found in figures.values()
        ),
    }


def _line(pairs: list[tuple[Outcome, Outcome]]) -> dict[str, Any]:
    lost = [honest.auroc - lied.auroc for honest, lied in pairs]
    added = [lied.nll - honest.nll for honest, lied in pairs]
    return {
        "honest": {
            "auroc": float(np.mean([honest.auroc for honest, _ in pairs])),
            "nll": float(np.mean([honest.nll for honest, _ in pairs])),
        },
        **{
            name: {"mean": float(np.mean(v)), "least": min(v), "most": max(v)}
            for name, v in (("auroc", lost), ("nll", added))
        },
        "named": sum(lied.named for _, lied in pairs),
        "accused": sum(honest.named for honest, _ in pairs),
    }
