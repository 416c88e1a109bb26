"""A whole study on one machine: five sites learn to read digits, and never share a picture.

scikit-learn's 1,797 pictures of handwritten digits are dealt to five sites, each with its own mix
of digits, and to the coordinator, who has reference rows: a few with labels, or none. Each step is
what the command of the same name does, and leaves the same files. Without labels sites also try the
model on held-out rows of their own, and the report is made again with what they found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from predbayes.errors import StudyError
from predbayes.exchange.upload import Upload
from predbayes.optional import require
from predbayes.partition import label_skew
from predbayes.progress import at
from predbayes.seeding import generator
from predbayes_study.coordinator.state import MODEL_FOLDER
from predbayes_study.coordinator.study import Study
from predbayes_study.kit.draft import Unlabelled, draft
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.schema import Learner, Number, Plan, Pool, Section
from predbayes_study.plan.text import dump
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Result
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.coding import code_targets, encode
from predbayes_study.trust.signing import SigningKey

SITES = ("Basel", "Genoa", "Leiden", "Porto", "Uppsala")
_TARGET = "digit"
_PIXELS = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
_CLASSES = tuple("0123456789")
_NUM_SITE_ROWS = 750  # of all sites
_NUM_SITE_ROWS_UNLABELLED = 1250  # where no labels are taken from them
_NUM_LABELLED, _NUM_EVALUATE = 150, 350
_HETEROGENEITY = 0.6

Say = Callable[[str], None]
S = TypeVar("S", bound=Section)


def run_demo(out: Path, say: Say, *, labels: bool = True) -> tuple[Path, Result]:
    """From data to a report; returns the result's folder and what it found.

    Args:
        out: A new folder for all files.
        say: Is told each step as it begins.
        labels: Whether some reference rows have labels.
    """
    new_folder(out)
    reference, sites = _deal(_NUM_SITE_ROWS if labels else _NUM_SITE_ROWS_UNLABELLED)
    if not labels:
        reference = reference.drop(columns=_TARGET)
    reference.to_csv(out / "reference.csv", index=False)

    told = "" if labels else f" --classes {','.join(_CLASSES)}"
    say(f"predbayes plan new reference.csv --target digit{told}, filled in by hand")
    (out / "plan.toml").write_bytes(dump(_plan(reference, labels=labels)).encode())
    say("predbayes plan freeze plan.toml --out kit")
    kit = freeze(out / "plan.toml", out / "kit", out / "kit-labels.json")
    say("predbayes study init kit --labels kit-labels.json")
    study = Study.init(out / "study", out / "kit", out / "kit-labels.json")
    keys: dict[str, SigningKey] = {}
    for site, frame in sites.items():
        say(f"{site}: {len(frame)} rows; train, sign, hand over one file; predbayes study add")
        keys[site] = key = SigningKey.generate()
        study.admit(site, key.public)
        rows = rows_of(kit.plan, frame)
        with at(site):
            upload = make_upload(kit, site, rows)
        save_signed(upload, out / f"{site}.safetensors", key)
        study.add(out / f"{site}.safetensors")
    say("predbayes study finish: pool, distil, score, report")
    recorded, result = study.finish()
    if labels:
        return study.result_folder(recorded.number), result
    say("each site: predbayes site evaluate on held-out rows of its own; predbayes study add")
    model = CalibratedModel.load(study.result_folder(recorded.number) / MODEL_FOLDER)
    for site, frame in sites.items():
        path = out / f"{site}-evaluation.safetensors"
        save_signed(_evaluate(kit, model, site, frame), path, keys[site])
        study.add(path)
    say("predbayes study finish: the model as sure as sites found, and their figures")
    recorded, result = study.finish()
    return study.result_folder(recorded.number), result


def new_folder(out: Path) -> None:
    """Make the folder of a demo; one that is there already is refused."""
    if out.exists():
        raise StudyError(f"{out} exists; give another folder with --out")
    out.mkdir(parents=True)


def rows_of(plan: Plan, frame: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Inputs and digits of a table."""
    return encode(plan, frame), code_targets(plan, frame).long()


def _evaluate(kit: Kit, model: CalibratedModel, site: str, frame: pd.DataFrame) -> Upload:
    """What a site says of the model, by rows that its own was not trained on."""
    plan = kit.plan
    inputs, targets = rows_of(plan, frame)
    _, held_out = SiteRows(inputs, targets).split_for(kit, site)
    predictive = model.before_level(inputs[held_out])
    digest = model.weights_digest()
    return evaluation_upload(plan, site, predictive, targets[held_out], digest)


def deal_with_labels() -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Return what the demonstration without labels deals out, with the digits that it hides."""
    return _deal(_NUM_SITE_ROWS_UNLABELLED, hide=False)


def _deal(num_site_rows: int, *, hide: bool = True) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Reference rows, of which some have labels, and the rows of each site."""
    digits = require("sklearn.datasets", "study").load_digits()
    frame = pd.DataFrame(digits.data.astype(np.int64), columns=_PIXELS)
    frame[_TARGET] = digits.target.astype(str)
    order = torch.randperm(len(frame), generator=generator(0, "demo", "order"))
    frame = frame.iloc[order.numpy()].reset_index(drop=True)
    at_sites, reference = frame[:num_site_rows], frame[num_site_rows:].copy()
    if hide:
        reference.iloc[_NUM_LABELLED + _NUM_EVALUATE :, -1] = ""
    labels = torch.tensor(at_sites[_TARGET].astype(int).to_numpy())
    rng = generator(0, "demo", "sites")
    parts = label_skew(labels, len(SITES), _HETEROGENEITY, rng=rng)
    return reference, {
        site: at_sites.iloc[part.numpy()] for site, part in zip(SITES, parts, strict=True)
    }


def _plan(reference: pd.DataFrame, *, labels: bool) -> Plan:
    """The draft, with what only people can know."""
    drafted = draft(
        reference,
        name="digits demo",
        target=_TARGET,
        file="reference.csv",
        labelled=_NUM_LABELLED if labels else 0,
        evaluate=_NUM_EVALUATE if labels else 0,
        unlabelled=None if labels else Unlabelled(_CLASSES),
    ).plan
    rows = _with(
        drafted.reference,
        source="scikit-learn's digits: Optical Recognition of Handwritten Digits, UCI",
        licence="CC BY 4.0",
        legal_basis="open data; no person can be told from an 8 x 8 picture of a digit",
    )
    return _with(
        drafted,
        description="Five sites learn to read digits; a demonstration.",
        # What a pixel may be is known better than from the rows at hand.
        columns={name: Number(type="number", range=(0.0, 16.0)) for name in _PIXELS},
        reference=rows,
        learner=Learner(),  # a network: these are pictures, and no table
        pool=Pool(),
        rules=_with(drafted.rules, quorum=3),
    )


def _with(section: S, **fields: object) -> S:
    """A section with some fields changed, checked again."""
    changed = {name: getattr(section, name) for name in type(section).model_fields} | fields
    return type(section).model_validate(changed)
