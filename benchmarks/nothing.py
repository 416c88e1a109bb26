"""Four real hospitals that begin with nothing: no reference row and no label.

`examples/four-hospitals/study.py` is run from nothing on 20 splits: surveys, synthetic reference
rows, a gated mixture, its student, and what each hospital adopts. On patients to come, of all
hospitals:

    own        each hospital's own logistic regression, of its own patients
    student    the study's model as it came
    adopted    fitted to each hospital's own rows
    all rows   what nobody may do: one logistic regression of every training row

With `--real` also the three beginnings beside the same sites: 97 patients are taken out of the
hospitals' tables, and are reference rows with labels, or without, or 97 rows are drawn from surveys
instead. With `--records` the scores are written to `results/`, from which `scripts/tables` makes
claims.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import predbayes
from benchmarks.by_commands import (
    Models,
    Split,
    example,
    known_secrets,
    models_at_home,
    run_quietly,
    scores,
    uci,
)
from predbayes.seeding import generator
from predbayes_lab.records import RECORDS_FILE, Record
from predbayes_study.kit.kit import Kit
from predbayes_study.plan.models import make_learner
from predbayes_study.result.scoring import row_values
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SITE_FILE, SiteFile

TABLE, LEARNER = "patients.csv", "logistic-regression"
STUDENT, ADOPTED, ALL_ROWS = "student", "adopted", "all rows"
TARGET = {"nll": 0.455, "accuracy": 0.79, "adopted_nll": 0.44}  # at most, at least, at most
EXPERIMENT = "nothing-hospitals"
RECORDS = Path(__file__).parents[1] / "results" / EXPERIMENT / RECORDS_FILE
SHOWN = ("accuracy", "nll")
_NAMES = {"global": STUDENT}

Conduct = Callable[[Path, int], None]
"""Runs a study in a folder of its own, for a seed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one split of a study gave."""

    models: Split
    num_trained: int  # rows of all sites
    seconds: float


def run(splits: int = 20, real: bool = False, records: bool = False) -> dict[str, Any]:
    """Run every split of each study, and score what comes home."""
    torch.set_num_threads(1)
    names = [site.name for site in example().ALIKE]
    found: dict[str, dict[str, dict[str, float]]] = {}
    made: list[Record] = []
    for reference, conduct in studies(real=real).items():
        outcomes = []
        for seed in range(splits):
            outcomes.append(run_split(conduct, seed))
            print(f"{reference}, split {seed}: {_line(outcomes[-1:], names)}", flush=True)
            made += records_of(reference, seed, outcomes[-1])
        for line in (names, *([name] for name in names)):
            print(f"{reference}, {', '.join(line)}: {_line(outcomes, line)}", flush=True)
        found[reference] = scores([outcome.models for outcome in outcomes], names)
    if records:
        RECORDS.parent.mkdir(parents=True, exist_ok=True)
        RECORDS.write_text("".join(record.line() for record in made))
    return {**_judged(next(iter(found.values()))), "lines": found}


def studies(*, real: bool) -> dict[str, Conduct]:
    """Every study by its reference rows; the first is the one that the target is for."""
    script, data = example(), uci("heart", "heart")

    def of_nothing(out: Path, seed: int) -> None:
        script.from_nothing(data, out, seed, run_quietly)

    def beside(num_rows: int, begin: Callable[[Path], Sequence[str]]) -> Conduct:
        def conduct(out: Path, seed: int) -> None:
            script.prepare(data, out, seed, "draft.toml", num_rows)
            drawn = begin(out / "coordinator")
            script.make_keys(out, script.ALIKE, run_quietly)
            seeded = [*drawn, "--seed", str(seed)] if drawn else []
            script.plan_by_surveys(out, script.ALIKE, run_quietly, seeded)
            script.freeze(out / "coordinator", run_quietly)
            script.train_and_adopt(out, script.ALIKE, run_quietly)

        return conduct

    num = script.NUM_REFERENCE
    found: dict[str, Conduct] = {f"{script.NUM_SYNTHETIC} synthetic": of_nothing}
    if real:
        found |= {
            f"{num} synthetic": beside(num, lambda _: ["--reference", str(num)]),
            f"{num} real": beside(num, lambda at: _with_real_rows(at, f"unlabelled = {num}")),
            f"{num} labelled": beside(num, lambda at: _with_real_rows(at, f"labelled = {num}")),
        }
    return found


def _with_real_rows(coordinator: Path, role: str) -> Sequence[str]:
    """A draft with the coordinator's rows in some role; none is drawn beside them."""
    if role.startswith("unlabelled"):
        rows = read_frame(coordinator / "reference.csv").drop(columns="disease")
        rows.to_csv(coordinator / "reference.csv", index=False)
    draft = coordinator / "draft.toml"
    own = f'[reference]\nfile = "reference.csv"\nsource = "UCI"\n{role}\n'
    draft.write_text(draft.read_text().replace("[reference]", own))
    return ()


def run_split(conduct: Conduct, seed: int) -> Outcome:
    """What each site took home from one split, and what all rows would have given."""
    sites, began = example().ALIKE, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, known_secrets(seed):
        out = Path(folder) / "study"
        conduct(out, seed)
        found = {site.name: _at_home(out, site) for site in sites}
        together, of_all_rows = _of_all_rows(out, sites)
    for name, values in of_all_rows.items():
        found[name][ALL_ROWS] = values
    return Outcome(found, together, time.monotonic() - began)


def _at_home(out: Path, site: Any) -> Models:
    models = models_at_home(out, site, TABLE)
    return {_NAMES.get(name, name): rows for name, rows in models.items()}


def _of_all_rows(out: Path, sites: Sequence[Any]) -> tuple[int, dict[str, dict[str, Tensor]]]:
    """How many rows there are, and each measure row by row at each site of one model of them."""
    kit = Kit.load(out / "coordinator" / "kit")
    tables = [_rows(kit, out / site.folder) for site in sites]
    inputs, targets = (
        torch.cat([getattr(table, part) for table in tables]) for part in ("inputs", "targets")
    )
    learner = make_learner(kit.plan, LEARNER)
    fitted = learner.fit((inputs, targets), rng=generator(kit.plan.seed, ALL_ROWS))
    found = {}
    for site in sites:
        later = SiteRows.of(kit.plan, read_frame(out / site.folder / f"later-{TABLE}"))
        found[site.name] = row_values(kit.plan, fitted.predict(later.inputs), later.targets)
    return len(targets), found


def _rows(kit: Kit, at: Path) -> SiteRows:
    table = read_site_table(kit.plan, SiteFile.load(at / SITE_FILE), at / TABLE)
    return SiteRows.of(kit.plan, table)


def _judged(lines: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The figures that the target is for, and whether they reach it."""
    figures = {
        "nll": lines[STUDENT]["nll"],
        "accuracy": lines[STUDENT]["accuracy"],
        "adopted_nll": lines[ADOPTED]["nll"],
        "all_rows_nll": lines[ALL_ROWS]["nll"],
    }
    at_most = all(figures[name] <= TARGET[name] for name in ("nll", "adopted_nll"))
    reached = at_most and figures["accuracy"] >= TARGET["accuracy"]
    return {**figures, "target": TARGET, "reached": reached}


def records_of(reference: str, seed: int, outcome: Outcome) -> Iterator[Record]:
    """One record for each model, as sweeps write them."""
    names = list(outcome.models)
    num_tested = sum(len(models[STUDENT]["nll"]) for models in outcome.models.values())
    drawn = {"num_test": num_tested, "num_train": outcome.num_trained}
    for model, found in scores([outcome.models], names).items():
        told = {"name": "nothing", "reference": reference, "learner": LEARNER}
        config = {"benchmark": told}
        content = json.dumps([config, model, seed], sort_keys=True).encode()
        yield Record(
            key=hashlib.sha256(content).hexdigest()[:20],
            experiment=EXPERIMENT,
            cell={"reference": reference},
            method=model,
            seed=seed,
            scores=found,
            config=config,
            data={"name": "heart", "variant": "default", **drawn},
            version=predbayes.__version__,
            seconds=outcome.seconds,
        )


def _line(outcomes: Sequence[Outcome], names: Sequence[str]) -> str:
    found = scores([outcome.models for outcome in outcomes], names)
    said = {m: " / ".join(f"{s[name]:.4f}" for name in SHOWN) for m, s in found.items()}
    return ", ".join(f"{model} {values}" for model, values in said.items())
