"""Time to an event at three sites, alike and sorted, against one Cox model of all rows.

Three public tables: gbsg2 (686 women with breast cancer, recurrence), whas500 (500 heart attacks,
death) and rossi (432 men released from prison, arrest). A quarter of the rows are for the test.
Of the others 100 are the coordinator's labelled rows, the rest are dealt to three sites: at random
(alike), or sorted by age, so that no site has seen the others' ages. Every site fits hazards by
logistic regression and sends them with its gate; the test rows are `evaluate` rows of the study,
whose labels nothing but the scores has seen. Intervals end at quantiles of the events' times in
the rows that are not for the test.

    cox       one Cox model of all rows but those of the test, in one place
    best site, mean site   of the sites' own models alone
    labels    a model of the coordinator's 100 labelled rows alone
    mixture, log pool, gated mixture, gated log pool   what sites sent, nothing tuned
    pool, student   what the study makes of it (`auto`), and what everybody gets back

C-index (`c_index`) and integrated Brier score (`ibs`) up to the last interval, as means over seeds
and as paired differences from the Cox model with their standard errors over seeds.
"""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from predbayes.errors import DataError
from predbayes.exchange.upload import Upload
from predbayes.methods.pooled import contribution
from predbayes.predictive.families import Survival
from predbayes.predictive.selection import GATED, GATED_LOG, SURVIVAL_TERMS
from predbayes.predictive.survival import concordance_rows, integrated_brier_rows
from predbayes.summand import fold
from predbayes_lab.data.files import data_root
from predbayes_study.kit.draft import interval_ends
from predbayes_study.kit.kit import Kit, Labels, freeze
from predbayes_study.plan.schema import (
    Category,
    Gate,
    Learner,
    Model,
    Number,
    Plan,
    Pool,
    Reference,
    Target,
)
from predbayes_study.plan.text import dump
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Evidence, ResultMeta
from predbayes_study.result.conclude import conclude
from predbayes_study.result.schema import Scores
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.rows import SiteRows

FIRST_SEED = 2  # 0 and 1 were looked at while pools were chosen
NUM_SEEDS = 10
LEARNER = "logistic-regression"
NUM_SITES = 3
NUM_LABELLED = 100
TEST_SHARE = 0.25
TIME, EVENT = "time", "event"
UNTUNED = {"mixture": "mixture", "log pool": "log_pool", "gated mixture": GATED}
UNTUNED |= {"gated log pool": GATED_LOG}

Table = dict[str, dict[str, float]]
"""C-index and integrated Brier score by predictor."""


def run(seeds: int = NUM_SEEDS) -> dict[str, Any]:
    """Run every table and split; print a line for each predictor."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for name, table in tables().items():
        for split in ("alike", "sorted"):
            found = [one_seed(table, split, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
            figures[f"{name}, {split}"] = summary = summarised(found)
            for predictor, line in summary.items():
                print(f"{name}, {split}: {predictor:15} {_line(line)}", flush=True)
    return figures


def _line(line: Mapping[str, float]) -> str:
    told = f"c_index {line['c_index']:.3f}, ibs {line['ibs']:.4f}"
    if "c_index_minus_cox" not in line:
        return told
    return (
        f"{told}; minus cox {line['c_index_minus_cox']:+.3f} (±{line['c_index_error']:.3f}), "
        f"{line['ibs_minus_cox']:+.4f} (±{line['ibs_error']:.4f})"
    )


def summarised(found: Sequence[Table]) -> dict[str, dict[str, float]]:
    """Means over seeds, and paired differences from the Cox model with their errors."""
    summary: dict[str, dict[str, float]] = {}
    for predictor in found[0]:
        line: dict[str, float] = {}
        for measure in ("c_index", "ibs"):
            values = np.array([table[predictor][measure] for table in found])
            line[measure] = float(values.mean())
            if predictor != "cox":
                gap = values - np.array([table["cox"][measure] for table in found])
                line[f"{measure}_minus_cox"] = float(gap.mean())
                line[f"{measure}_error"] = float(gap.std(ddof=1) / len(gap) ** 0.5)
        summary[predictor] = line
    return summary


# Tables


def tables() -> dict[str, pd.DataFrame]:
    """The three tables, with columns `time` and `event` and no missing value."""
    sets = sksurv("datasets")
    return {
        "gbsg2": _joined(*sets.load_gbsg2()),
        "whas500": _joined(*sets.load_whas500()),
        "rossi": _rossi(),
    }


def sksurv(part: str) -> Any:
    """A part of scikit-survival, which nothing else needs."""
    try:
        return importlib.import_module(f"sksurv.{part}")
    except ImportError as error:
        raise DataError("install it first: pip install scikit-survival==0.28.0") from error


def _joined(inputs: pd.DataFrame, outcome: Any) -> pd.DataFrame:
    event, time = outcome.dtype.names
    words = inputs.assign(**{c: inputs[c].astype(str) for c in inputs.select_dtypes("category")})
    return words.assign(**{TIME: outcome[time], EVENT: outcome[event].astype(int)})


def _rossi() -> pd.DataFrame:
    path = data_root() / "rossi" / "rossi.csv"
    if not path.exists():
        raise DataError(
            f"{path} is not there; it is lifelines/datasets/rossi.csv of the wheel that "
            "`pip download --no-deps lifelines==0.30.3` brings"
        )
    table = pd.read_csv(path).rename(columns={"week": TIME, "arrest": EVENT})
    codes = ["fin", "race", "wexp", "mar", "paro"]
    return table.assign(**{name: table[name].astype(str) for name in codes})


# One study


def one_seed(table: pd.DataFrame, split: str, seed: int) -> Table:
    """Every predictor on the test rows of one split."""
    reference, sites = dealt(table, split, seed)
    with tempfile.TemporaryDirectory() as folder:
        kit, labels = frozen(reference, sites, Path(folder), seed)
    rows = [SiteRows.of(kit.plan, part) for part in sites]
    uploads = {
        f"site {number}": make_upload(kit, f"site {number}", (own.inputs, own.targets))
        for number, own in enumerate(rows)
    }
    evidence = Evidence(
        kit,
        labels,
        [accepted(site, upload) for site, upload in uploads.items()],
        lambda one: uploads[one.site],
        ResultMeta(1, "", ""),
    )
    result = conclude(evidence).result
    alone = [of_scores(site.alone) for site in result.sites]
    return {
        "cox": scored(kit.plan, cox(labels, rows), labels),
        "student": of_scores(result.student.scores),
        "pool": of_scores(result.pooled),
        **untuned(kit.plan, labels, list(uploads.values())),
        "labels": of_scores(result.server_only),
        "best site": max(alone, key=lambda one: one["c_index"]),
        "mean site": {m: float(np.mean([one[m] for one in alone])) for m in alone[0]},
    }


def dealt(table: pd.DataFrame, split: str, seed: int) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Reference rows, test and labelled, and the sites' rows, at random or by age."""
    order = np.random.default_rng(seed).permutation(len(table))
    num_reference = int(TEST_SHARE * len(table)) + NUM_LABELLED
    left = table.iloc[order[num_reference:]]
    if split == "sorted":
        left = left.sort_values("age", kind="stable")
    parts = np.array_split(np.arange(len(left)), NUM_SITES)
    return table.iloc[order[:num_reference]], [left.iloc[part] for part in parts]


def frozen(
    reference: pd.DataFrame, sites: Sequence[pd.DataFrame], folder: Path, seed: int
) -> tuple[Kit, Labels]:
    """The plan of a split, frozen; which reference rows are for the test is drawn by the salt."""
    seen = pd.concat(sites)
    ends = interval_ends(seen.loc[seen[EVENT] == 1, TIME].to_numpy(float))
    plan = Plan(
        format=1,
        name="survival",
        description="a benchmark",
        seed=seed,
        target=Target(name=TIME, task="survival", event=EVENT, times=ends, unit="days"),
        columns={name: _column(seen[name]) for name in seen.columns.drop([TIME, EVENT])},
        reference=Reference(
            file="reference.csv",
            source="public",
            licence="public",
            legal_basis="public",
            labelled=NUM_LABELLED,
            evaluate=len(reference) - NUM_LABELLED,
        ),
        model=Model(hidden=()),
        learner=Learner(name=LEARNER, holdout=0.0, holdout_reason="sites are scored elsewhere"),
        gate=Gate(),
        pool=Pool(own=LEARNER),
    )
    (folder / "plan.toml").write_text(dump(plan))
    reference.to_csv(folder / "reference.csv", index=False)
    salt = hashlib.sha256(f"survival {seed}".encode()).digest()
    kit = freeze(folder / "plan.toml", folder / "kit", folder / "labels.json", salt=salt)
    return kit, Labels.load(folder / "labels.json", kit)


def _column(cells: pd.Series) -> Number | Category:
    if cells.dtype.kind in "if":
        return Number(type="number", missing="impute", unit="1")
    return Category(type="category", categories=tuple(sorted(set(cells))), missing="impute")


def accepted(site: str, upload: Upload) -> AcceptedUpload:
    """An upload as a ledger has it."""
    return AcceptedUpload(
        site=site,
        digest=upload.digest(),
        file_digest=upload.digest(),
        num_bytes=sum(array.nbytes for array in upload.arrays.values()),
        num_rows=upload.info.num_rows,
        at="",
        number=1,
        key="",
        kind="predictions",
    )


def untuned(plan: Plan, labels: Labels, uploads: Sequence[Upload]) -> Table:
    """Pools of what sites sent in which nothing is tuned."""
    total = fold(
        contribution(sent, sent.predictive()).summand(terms=SURVIVAL_TERMS, floor=plan.pool.floor)
        for sent in uploads
    )
    tested = total[labels.order[labels.reference.evaluate]]
    return {
        name: scored(plan, tested.pool({component: 1.0}), labels)
        for name, component in UNTUNED.items()
    }


def cox(labels: Labels, rows: Sequence[SiteRows]) -> Survival:
    """One Cox model of the sites' and the labelled rows, on the test rows.

    Times beyond the horizon are taken as censored there, as everywhere in the study. A little
    ridge makes up for one 0/1 input too many of each category.
    """
    models = sksurv("linear_model")
    reference = labels.reference
    inputs = torch.cat([reference.inputs[reference.labelled], *(own.inputs for own in rows)])
    targets = torch.cat([reference.targets, *(own.targets for own in rows)])
    kinds = [("event", bool), ("time", float)]
    outcome = np.array([(t > 0, abs(t)) for t in targets.tolist()], dtype=kinds)
    fitted = models.CoxPHSurvivalAnalysis(alpha=1e-3, ties="efron").fit(inputs.numpy(), outcome)
    curves = fitted.predict_survival_function(reference.inputs[reference.evaluate].numpy())
    ends = np.arange(1, int(targets.abs().max().ceil()) + 1)
    ends = np.minimum(ends, float(targets.abs().max()))
    shares = torch.tensor(np.array([curve(ends) for curve in curves]))
    shares = torch.cat([torch.ones(len(shares), 1).double(), shares], 1)
    return Survival.from_moments(torch.cat([-shares.diff(), shares[:, -1:]], 1))


def scored(plan: Plan, predictive: Survival, labels: Labels) -> dict[str, float]:
    """C-index and integrated Brier score on the test rows."""
    targets = labels.evaluate_targets
    return {
        "c_index": float(concordance_rows(predictive, targets).mean()),
        "ibs": float(integrated_brier_rows(predictive, targets, plan.target.times).mean()),
    }


def of_scores(scores: Scores | None) -> dict[str, float]:
    """The same two of a result."""
    assert scores is not None  # there are test rows
    names = {"c_index": "c_index", "ibs": "integrated_brier"}
    return {short: scores.metrics[name].value for short, name in names.items()}
