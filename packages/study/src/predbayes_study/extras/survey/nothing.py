"""A whole study on one machine that begins with nothing but the sites' tables.

The coordinator has neither reference rows nor labels, but a draft: names and kinds of columns. Four
sites tell what their columns are like, in surveys; the reference rows are drawn from these. Then
each site trains, the gated mixture becomes one model, sites adopt it and say how good it is on rows
of their own, and the report has their Table 1. The tables are scikit-learn's of breast tumours,
dealt out so that some sites see more malignant ones. Each step is what the command of the same name
does, and leaves the same files.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from predbayes.exchange.upload import Upload
from predbayes.optional import require
from predbayes.partition import label_skew
from predbayes.progress import at
from predbayes.seeding import generator
from predbayes_study.coordinator.state import MODEL_FOLDER
from predbayes_study.coordinator.study import Study
from predbayes_study.demo.digits import Say, new_folder
from predbayes_study.extras.survey.leaving import write_survey
from predbayes_study.extras.survey.merge import merge
from predbayes_study.extras.survey.synthetic import with_rows
from predbayes_study.kit.kit import freeze
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


def run_from_nothing(out: Path, say: Say) -> tuple[Path, Result]:
    """From tables at sites to a report; returns the result's folder and what it found.

    Args:
        out: A new folder for all files.
        say: Is told each step as it begins.
    """
    new_folder(out)
    keys, tables = {name: SigningKey.generate() for name in SITES}, {}
    for name, frame in zip(SITES, _deal(len(SITES)), strict=True):
        (out / name).mkdir()
        tables[name] = out / name / "tumours.csv"
        frame.to_csv(tables[name], index=False)
    say("the coordinator writes draft.toml by hand: names and kinds of columns")
    (out / "draft.toml").write_bytes(DRAFT.encode())
    draft = Plan.load(out / "draft.toml")
    say("each site: predbayes site survey draft.toml tumours.csv --out NAME.survey")
    surveys = {}
    for name, table in tables.items():
        here = out / name
        (here / "site.toml").write_bytes(f'format = 1\nname = "{name}"\n'.encode())
        own = SiteFile.load(here / "site.toml")  # the site's books are beside it
        surveys[name] = write_survey(draft, own, keys[name], table, here / f"{name}.survey")
    say(f"predbayes plan merge draft.toml *.survey --out plan.toml --reference {NUM_SYNTHETIC}")
    told = [written.survey for written in surveys.values()]
    merged, file = merge(draft, told), "plan-reference.csv"
    plan, rows = with_rows(merged.plan, told, NUM_SYNTHETIC, 0, folder=out, file=file)
    rows.to_csv(out / file, index=False)
    (out / "plan.toml").write_bytes(dump(plan, merged.notes).encode())
    say("predbayes plan freeze plan.toml --out kit; predbayes study init kit")
    kit = freeze(out / "plan.toml", out / "kit", out / "kit-labels.json")
    study = Study.init(out / "study", out / "kit", out / "kit-labels.json")

    def send(name: str, upload: Upload, file: str) -> None:
        save_signed(upload, out / name / f"{file}.safetensors", keys[name])
        study.add(out / name / f"{file}.safetensors")

    at_site = {name: SiteRows.of(kit.plan, read_frame(table)) for name, table in tables.items()}
    for name, own_rows in at_site.items():
        say(f"{name}: train, sign, hand over one file; predbayes study add, its survey too")
        study.admit(name, keys[name].public)
        study.add(surveys[name].path)
        with at(name):
            send(name, make_upload(kit, name, (own_rows.inputs, own_rows.targets)), name)
    say("predbayes study finish: a gated mixture, distilled; nobody has a label to score by")
    recorded, _ = study.finish()
    model = CalibratedModel.load(study.result_folder(recorded.number) / MODEL_FOLDER)
    for name, own_rows in at_site.items():
        adoption = adopt(model, name, own_rows, None)
        adoption.save(out / name / "adopted")
        inputs, targets = own_rows[own_rows.split_for(study.kit, name)[1]]
        predicted = model.before_level(inputs)
        tried = evaluation_upload(kit.plan, name, predicted, targets, model.weights_digest())
        send(name, tried, f"{name}-evaluation")
        say(f"{name}: {adoption.comparison.advice}")
    say("predbayes study finish: the model as sure as sites found, and their figures")
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
