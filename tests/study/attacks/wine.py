"""Five sites of 160 red wines each, as in the review; what they send is quick to make and true.

A site sends a logistic (or linear) model of its own rows, fitted here in one call. The study is run
as it is: plan, freeze, admit, add, finish. `Outcome` is what the attacker cares about.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian, Predictive
from predbayes_study.coordinator.study import Study
from predbayes_study.kit.kit import Kit, Labels, freeze
from predbayes_study.payloads.details import save_signed
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Result
from predbayes_study.trust.signing import SigningKey

SITES = ("Alpha", "Beta", "Gamma", "Delta", "Epsilon")
BAD = "Epsilon"
NUM_ROWS = 160
_PLAN = """
format = 1
name = "poison"
[target]
name = "good"
{target}
[columns]
{columns}
[reference]
file = "reference.csv"
source = "x"
licence = "x"
legal_basis = "x"
labelled = {labelled}
evaluate = {evaluate}
unlabelled = {unlabelled}
[model]
hidden = [16]
[learner]
holdout = 0.2
[pool]
method = "{method}"
own = "none"
[rules]
screening = "{screening}"
{rules}
"""


@dataclass(frozen=True)
class Outcome:
    """What a poisoning came to."""

    score: float  # accuracy, or R^2, on wines that nobody had
    result: Result
    first: str  # what the report says before anything else
    report: str

    @property
    def named(self) -> set[str]:
        """Sites in the report's first lines."""
        return {site for site in SITES if site in self.first}

    @property
    def left_out(self) -> set[str]:
        return {site.site for site in self.result.sites if site.left_out}


@dataclass(frozen=True)
class Wines:
    """A frozen plan, what honest sites would send, and wines to try the model on."""

    root: Path
    kit: Kit
    honest: Mapping[str, Predictive]
    keys: Mapping[str, SigningKey]
    later: pd.DataFrame

    @property
    def unlabelled(self) -> Tensor:
        """The rows that no label can check, as only the coordinator should know them."""
        labels = Labels.load(self.root / "labels.json", self.kit)
        rows = torch.zeros(len(self.kit.inputs), dtype=torch.bool)
        reference = labels.reference
        rows[labels.order[len(reference.targets) : reference.evaluate.start]] = True
        return rows

    def run(
        self,
        tag: str,
        lies: Mapping[str, Predictive] | None = None,
        rows: Mapping[str, int] | None = None,
    ) -> Outcome:
        """The study, with what some sites say instead and the rows that they claim."""
        study = Study.init(self.root / tag, self.kit.folder, self.root / "labels.json")
        for site in SITES:
            study.admit(site, self.keys[site].public)
            study.add(self.file(site, (lies or {}).get(site), (rows or {}).get(site, NUM_ROWS)))
        recorded, result = study.finish()
        folder = study.result_folder(recorded.number)
        report = html.unescape((folder / "report.html").read_text())
        first = report.split('<p class="lead">')[0].split("<main>")[1]
        return Outcome(self._score(folder / "model"), result, re.sub("<[^>]*>", " ", first), report)

    def file(self, site: str, predictive: Predictive | None, num_rows: int) -> Path:
        path = self.root / f"{site}.safetensors"
        sent = self.honest[site] if predictive is None else predictive
        halves = (num_rows / 2, num_rows / 2) if self.kit.plan.target.classes else None
        made = Upload.of_predictions(sent, num_rows=num_rows, class_rows=halves)
        save_signed(made.named(site).for_plan(self.kit.digest, "drawn"), path, self.keys[site])
        return path

    def _score(self, model: Path) -> float:
        predicted = CalibratedModel.load(model).predict(self.later)
        truth = self.later["good"]
        if self.kit.plan.target.classes:
            return float(((predicted["probability_yes"] > 0.5) == (truth == "yes")).mean())
        residuals = predicted["mean"].to_numpy() - truth.to_numpy()
        return 1 - float(np.mean(residuals**2) / truth.var())


def flipped(honest: Predictive, rows: Tensor | None = None) -> Predictive:
    """The opposite on some rows, or on all."""
    everywhere = torch.ones(len(honest), dtype=torch.bool) if rows is None else rows
    if isinstance(honest, Categorical):
        turned = torch.where(everywhere[:, None], honest.log_probs.flip(1), honest.log_probs)
        return Categorical(turned)
    assert isinstance(honest, Gaussian)
    mean = torch.where(everywhere, -honest.mean, honest.mean)
    return Gaussian(mean, honest.var, honest.epistemic_var)


def make_wines(
    root: Path,
    *,
    labelled: int = 200,
    evaluate: int = 100,
    unlabelled: int = 200,
    screening: str = "leave-out",
    method: str = "auto",
    rules: str = "",
    regression: bool = False,
    seed: int = 0,
) -> Wines:
    """Deal the wines as the review did, and freeze a plan."""
    frame = _frame(seed, regression=regression)
    num = labelled + evaluate + unlabelled
    reference, later, sites = frame[:num].copy(), frame[num : num + 299], frame[num + 299 :]
    reference["good"] = reference["good"].astype(str)
    reference.loc[labelled + evaluate :, "good"] = ""
    root.mkdir(parents=True, exist_ok=True)
    reference.to_csv(root / "reference.csv", index=False)
    names = [name for name in frame.columns if name != "good"]
    target = 'task = "regression"' if regression else _CLASSES
    columns = "\n".join(f'{name} = {{ type = "number", missing = "impute" }}' for name in names)
    counts = {"labelled": labelled, "evaluate": evaluate, "unlabelled": unlabelled}
    settings = {"screening": screening, "method": method, "rules": rules}
    text = _PLAN.format(target=target, columns=columns, **counts, **settings)
    (root / "plan.toml").write_text(text)
    kit = freeze(root / "plan.toml", root / "kit", root / "labels.json", salt=bytes(32))
    inputs = pd.read_csv(root / "kit" / "reference.csv")
    fit = _linear if regression else _logistic
    parts = {s: sites[NUM_ROWS * i : NUM_ROWS * (i + 1)] for i, s in enumerate(SITES)}
    honest = {site: fit(kit, part, inputs[names]) for site, part in parts.items()}
    return Wines(root, kit, honest, {site: SigningKey.generate() for site in SITES}, later)


_CLASSES = 'task = "classification"\nclasses = ["no", "yes"]'


def _frame(seed: int, *, regression: bool) -> pd.DataFrame:
    path = Path(os.environ["PREDBAYES_DATA"]) / "uci" / "winequality-red.csv"
    frame = pd.read_csv(path, sep=";")
    frame.columns = [name.replace(" ", "_") for name in frame.columns]
    quality = frame.pop("quality")
    frame["good"] = quality.astype(float) if regression else np.where(quality >= 6, "yes", "no")
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def _logistic(_: Kit, rows: pd.DataFrame, inputs: pd.DataFrame) -> Predictive:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3))
    model.fit(rows.drop(columns="good"), rows["good"])
    return Categorical(torch.tensor(model.predict_log_proba(inputs)).float())


def _linear(kit: Kit, rows: pd.DataFrame, inputs: pd.DataFrame) -> Predictive:
    from sklearn.linear_model import BayesianRidge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), BayesianRidge())
    target = kit.plan.target
    model.fit(rows.drop(columns="good"), (rows["good"] - target.centre) / target.scale)
    mean, std = (torch.tensor(x).float() for x in model.predict(inputs, return_std=True))
    noise = 1 / model[-1].alpha_
    return Gaussian(mean, std.square(), (std.square() - noise).clamp_min(1e-6))
