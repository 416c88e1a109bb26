"""A whole study on one machine that begins with nothing but the sites' tables.

The coordinator has neither reference rows nor labels, but a draft: names and kinds of columns. Four
sites tell what their columns are like, in surveys; the reference rows are drawn from these. Then
each site trains, the gated mixture becomes one model, sites adopt it and say how good it is on rows
of their own, and the report has their Table 1. The tables are scikit-learn's of breast tumours,
dealt out so that some sites see more malignant ones. Each step is what the command of the same name
does, and leaves the same files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from predbayes.optional import require
from predbayes.partition import label_skew
from predbayes.progress import at
from predbayes.seeding import generator
from predbayes_study.coordinator.state import MODEL_FOLDER
from predbayes_study.coordinator.study import Study
from predbayes_study.demo.digits import Say, new_folder
from predbayes_study.extras.survey.leaving import write_survey
from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.surveyfile import read_survey
from predbayes_study.extras.survey.synthetic import record, with_rows
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Result
from predbayes_study.site.adopt import adopt
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.trust.signing import SigningKey

SITES = ("Aarhus", "Bergen", "Turku", "Vilnius")
NUM_SYNTHETIC = 500
DRAFT = """\
# All that the coordinator knows: what is asked, and the names and kinds of columns.
format = 1
name = "tumours demo"
description = "Is a breast tumour malignant? A demonstration that begins with nothing."

[target]
name = "tumour"
task = "classification"
classes = ["benign", "malignant"]

[columns]
radius = { type = "number" }
texture = { type = "number" }
smoothness = { type = "number" }
concavity = { type = "number" }
symmetry = { type = "number" }

[reference]
licence = "none: they are nobody's rows"
legal_basis = "drawn from counts and rounded figures of at least five people each"

[model]
hidden = []

[learner]
name = "logistic-regression"
holdout = 0.25

[rules]
quorum = 3
"""


@dataclass(frozen=True)
class _Site:
    """A site in the demo: a folder with a table and a key."""

    name: str
    folder: Path
    key: SigningKey

    @property
    def table(self) -> Path:
        return self.folder / "tumours.csv"

    def rows(self, plan: Plan) -> SiteRows:
        return SiteRows.of(plan, read_frame(self.table))


def run_from_nothing(out: Path, say: Say) -> tuple[Path, Result]:
    """From tables at sites to a report; returns the result's folder and what it found.

    Args:
        out: A new folder for all files.
        say: Is told each step as it begins.
    """
    new_folder(out)
    sites = [_site(out / name, table) for name, table in zip(SITES, _deal(len(SITES)), strict=True)]
    say("the coordinator writes draft.toml by hand: names and kinds of columns")
    (out / "draft.toml").write_bytes(DRAFT.encode())
    say("each site: predbayes site survey draft.toml tumours.csv --out NAME.survey")
    surveys = [_survey(out, site) for site in sites]
    say(f"predbayes plan merge draft.toml *.survey --out plan.toml --reference {NUM_SYNTHETIC}")
    _merge(out, surveys)
    say("predbayes plan freeze plan.toml --out kit; predbayes study init kit")
    kit = freeze(out / "plan.toml", out / "kit", out / "kit-labels.json")
    study = Study.init(out / "study", out / "kit", out / "kit-labels.json")
    for site, survey in zip(sites, surveys, strict=True):
        say(f"{site.name}: train, sign, hand over one file; predbayes study add, its survey too")
        study.admit(site.name, site.key.public)
        study.add(survey)
        _train(study, kit, site)
    say("predbayes study finish: a gated mixture, distilled; nobody has a label to score by")
    recorded, _ = study.finish()
    model = CalibratedModel.load(study.result_folder(recorded.number) / MODEL_FOLDER)
    for site in sites:
        say(f"{site.name}: {_take_home(study, model, site)}")
    say("predbayes study finish: the same model, and the report with what sites found")
    recorded, result = study.finish()
    return study.result_folder(recorded.number), result


def _deal(num_sites: int) -> list[pd.DataFrame]:
    """Each site's table; tumours are alike everywhere, but not equally often malignant."""
    data = require("sklearn.datasets", "study").load_breast_cancer(as_frame=True)
    names = Plan.loads(DRAFT).columns
    frame = pd.DataFrame({name: data.frame[f"mean {name}"] for name in names})
    # In the data 0 is malignant.
    frame["tumour"] = data.frame["target"].map({0: "malignant", 1: "benign"})
    labels = torch.tensor(data.frame["target"].to_numpy())
    parts = label_skew(labels, num_sites, 0.3, rng=generator(0, "demo from nothing"))
    return [frame.iloc[part.numpy()] for part in parts]


def _site(folder: Path, table: pd.DataFrame) -> _Site:
    folder.mkdir()
    site = _Site(folder.name, folder, SigningKey.generate())
    table.to_csv(site.table, index=False)
    return site


def _survey(out: Path, site: _Site) -> Path:
    own = SiteFile(format=1, name=site.name)
    draft = Plan.load(out / "draft.toml")
    return write_survey(draft, own, site.key, site.table, site.folder / f"{site.name}.survey").path


def _merge(out: Path, paths: list[Path]) -> None:
    """Write the plan, and the reference rows that are drawn for it."""
    surveys = [read_survey(path).survey for path in paths]
    merged = merge(Plan.load(out / "draft.toml"), surveys)
    drawn = record(surveys, NUM_SYNTHETIC, seed=0)
    plan, rows = with_rows(merged.plan, surveys, drawn, out, "plan-reference.csv")
    rows.to_csv(out / "plan-reference.csv", index=False)
    (out / "plan.toml").write_bytes(dump(plan, merged.notes).encode())


def _train(study: Study, kit: Kit, site: _Site) -> None:
    path = site.folder / f"{site.name}.safetensors"
    rows = site.rows(kit.plan)
    with at(site.name):
        save_signed(make_upload(kit, site.name, (rows.inputs, rows.targets)), path, site.key)
    study.add(path)


def _take_home(study: Study, model: CalibratedModel, site: _Site) -> str:
    """Adopt the model, tell the study how good it is here, and return the advice."""
    plan, rows = model.plan, site.rows(model.plan)
    adoption = adopt(model, site.name, rows, None)
    adoption.save(site.folder / "adopted")
    _, held_out = rows.split_for(study.kit, site.name)
    inputs, targets = rows[held_out]
    path = site.folder / f"{site.name}-evaluation.safetensors"
    told = evaluation_upload(
        plan, site.name, model.predictor.predict(inputs), targets, model.weights_digest()
    )
    save_signed(told, path, site.key)
    study.add(path)
    return adoption.comparison.advice
