"""Studies by the commands of predbayes alone: what each site takes home, on rows to come.

A study is run on random splits, command by command. On each site's test rows, which nobody has
seen, three models are scored: the site's own, the study's as it came (global), and the adopted one;
and whichever of them `predbayes site adopt` advises. Scores are means over splits of the mean over
test rows, of one site or of all together; those of a number are in the target's unit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.predictive.families import Predictive
from predbayes.predictive.measures import MEASURES
from predbayes.seeding import generator
from predbayes_lab.data.files import data_root
from predbayes_study.cli.app import app
from predbayes_study.kit.kit import Kit
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.scoring import row_values
from predbayes_study.site.adopt import COMPARISON_FILE, Comparison
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.simple import simple_learners
from predbayes_study.tables.mapping import read_site_table
from predbayes_study.tables.reading import read_frame
from predbayes_study.tables.sitefile import SITE_FILE, SiteFile

EXAMPLE = Path(__file__).parents[1] / "examples" / "four-hospitals" / "study.py"
ADVISED = "advised"

Models = dict[str, dict[str, Tensor]]
"""Each measure's values row by row, by model."""

Split = dict[str, Models]
"""What one split gave, by site."""


class Site(Protocol):
    """Who takes part."""

    @property
    def name(self) -> str:
        """In the study."""

    @property
    def folder(self) -> str:
        """All that the site has."""

    @property
    def learner(self) -> str:
        """Its choice of model."""


@dataclass(frozen=True, slots=True)
class Story:
    """A study that is another for every seed."""

    sites: Sequence[Site]
    conduct: Callable[[Path, int], None]  # runs it in a folder of its own, for a seed
    table: str  # a site's rows; those to come are in `later-TABLE`
    shown: tuple[str, ...]  # metrics that are printed

    def run(self, num_splits: int) -> dict[str, Any]:
        """Run every split, and score what comes home."""
        torch.set_num_threads(1)
        splits: list[Split] = []
        advised: dict[str, Counter[str]] = {site.name: Counter() for site in self.sites}
        for seed in range(num_splits):
            found, choices = self.run_split(seed)
            splits.append(found)
            for name, choice in choices.items():
                advised[name][choice] += 1
            print(f"split {seed}: {self._line([found], list(advised))}", flush=True)
        print(f"all sites: {self._line(splits, list(advised))}")
        for name, counts in advised.items():
            print(f"{name}: {self._line(splits, [name])}; advised {dict(counts)}")
        return {
            "lines": scores(splits, list(advised)),
            "at_home": {name: scores(splits, [name]) for name in advised},
            "advised": {name: dict(counts) for name, counts in advised.items()},
            "advised_worse_beyond_interval": sum(
                worse_beyond_interval(found[name]) for found in splits for name in advised
            ),
        }

    def run_split(self, seed: int) -> tuple[Split, dict[str, str]]:
        """What each site took home from one split, and what each was advised."""
        with tempfile.TemporaryDirectory() as folder, known_secrets(seed):
            out = Path(folder) / "study"
            self.conduct(out, seed)
            found = {site.name: models_at_home(out, site, self.table) for site in self.sites}
            choices: dict[str, str] = {
                site.name: comparison(out, site).choice for site in self.sites
            }
        return found, choices

    def _line(self, splits: Sequence[Split], names: Sequence[str]) -> str:
        """Each model's metrics in a few digits."""
        found = scores(splits, names)
        said = {m: " / ".join(f"{s[name]:.4g}" for name in self.shown) for m, s in found.items()}
        return ", ".join(f"{model} {values}" for model, values in said.items())


def run_quietly(folder: Path, arguments: Sequence[str]) -> None:
    """One command in a folder, in this process, without its output."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        app(list(arguments), standalone_mode=False)


@contextlib.contextmanager
def known_secrets(seed: int) -> Iterator[None]:
    """Salts that anybody can draw again, so that figures repeat."""
    draw = random.Random(seed).randbytes
    with mock.patch("predbayes_study.kit.kit.secrets.token_bytes", draw):
        yield


def example() -> ModuleType:
    """The four hospitals' script as a module; `conduct` in it has the commands of any study."""
    return as_module("four_hospitals", EXAMPLE)


def as_module(name: str, path: Path) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def uci(name: str, dataset: str) -> Path:
    """A file or folder of UCI's data."""
    path = data_root() / "uci" / name
    if not path.exists():
        raise DataError(f"{path} is not there; run `predbayes data fetch {dataset}`")
    return path


def models_at_home(out: Path, site: Site, table: str) -> Models:
    """Each model's metrics on the site's rows to come, and those of the one that is advised."""
    at = out / site.folder
    kit = Kit.load(at / "kit")
    rows = SiteRows.of(
        kit.plan, read_site_table(kit.plan, SiteFile.load(at / SITE_FILE), at / table)
    )
    # The same fit as in `site train`, which keeps no model.
    _, own = Job(kit, site.name, rows, site.learner).run()
    later = SiteRows.of(kit.plan, read_frame(at / f"later-{table}"))
    predictives: dict[str, Predictive] = {"own": own.predict(later.inputs)}
    for name, folder in (("global", "model"), ("adopted", "adopted")):
        predictives[name] = CalibratedModel.load(at / folder).predictive(later.inputs)
    told = comparison(out, site)
    if told.choice == "simple":
        trained = rows[rows.split_for(kit, site.name)[0]]
        simple = simple_learners(kit.plan)[told.simple]
        fitted = simple.fit(trained, rng=generator(kit.plan.seed, "simple", site.name))
        predictives[ADVISED] = fitted.predict(later.inputs)
    else:  # half adopted, half own is what was saved as adopted
        predictives[ADVISED] = predictives["adopted" if told.choice == "half" else told.choice]
    return {name: row_values(kit.plan, p, later.targets) for name, p in predictives.items()}


def comparison(out: Path, site: Site) -> Comparison:
    """What `predbayes site adopt` told the site."""
    path = out / site.folder / "adopted" / COMPARISON_FILE
    return Comparison.model_validate_json(path.read_bytes(), strict=False)


def worse_beyond_interval(models: Models) -> bool:
    """Whether what was advised has a higher NLL than the own model by two standard errors."""
    difference = (models[ADVISED]["nll"] - models["own"]["nll"]).numpy()
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return bool(difference.mean() > 2 * error > 0)


def scores(splits: Sequence[Split], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Every model's metrics on the test rows of some sites, as means over splits."""
    models = splits[0][names[0]]
    return {
        model: {
            metric: float(np.mean([_score(split, names, model, metric) for split in splits]))
            for metric in rows
        }
        for model, rows in models.items()
    }


def _score(split: Split, names: Sequence[str], model: str, metric: str) -> float:
    return MEASURES[metric].value(torch.cat([split[name][model][metric] for name in names]))
