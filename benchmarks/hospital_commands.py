"""The four hospitals through the commands alone: what each takes home, on patients to come.

`examples/four-hospitals/study.py` is run on random splits, command by command. On each hospital's
test rows, which nobody has seen, three models are scored: the hospital's own, the study's model as
it came, and the adopted one; and the one that `predbayes site adopt` advises. Means over splits are
of all hospitals' test rows together, as accuracy and NLL.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from predbayes.cli.app import app
from predbayes.data.files import data_root
from predbayes.errors import DataError
from predbayes.predictive.families import Categorical, Predictive
from predbayes.study.home import Comparison
from predbayes.study.kit import Kit
from predbayes.study.model import CalibratedModel
from predbayes.study.site import SiteRows, fit_site
from predbayes.study.sitefile import SiteFile, read_site_table
from predbayes.study.tables import read_frame

EXAMPLE = Path(__file__).parents[1] / "examples" / "four-hospitals" / "study.py"
TARGET = {"accuracy": 0.80, "nll": 0.44}  # of the adopted models, at least and at most

Losses = dict[str, tuple[np.ndarray, np.ndarray]]  # by model: -log p and hits, row by row


def run_commands(num_splits: int) -> dict[str, Any]:
    """Run the example on every split, and score what comes home."""
    torch.set_num_threads(1)
    example = _example()
    splits: list[dict[str, Losses]] = []
    advised: dict[str, Counter[str]] = {h.name: Counter() for h in example.HOSPITALS}
    harmed = 0
    for seed in range(num_splits):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "study"
            example.main(_data(), out, seed, run_quietly)
            found = {h.name: _at_home(out, h) for h in example.HOSPITALS}
            for hospital in example.HOSPITALS:
                choice = _comparison(out, hospital).choice
                advised[hospital.name][choice] += 1
                found[hospital.name]["advised"] = found[hospital.name][choice]
                harmed += _harmed(found[hospital.name])
        splits.append(found)
        print(f"split {seed}: " + _line(splits[-1:], None), flush=True)
    print("all hospitals: " + _line(splits, None))
    for name in advised:
        print(f"{name}: {_line(splits, name)}; advised {dict(advised[name])}")
    adopted = _means(splits, None, "adopted")
    return {
        "lines": {model: _means(splits, None, model) for model in splits[0]["Cleveland"]},
        "at_home": {
            name: {model: _means(splits, name, model) for model in splits[0][name]}
            for name in advised
        },
        "advised": {name: dict(counts) for name, counts in advised.items()},
        "advised_worse_beyond_interval": harmed,
        "target": TARGET,
        "reached": adopted["accuracy"] >= TARGET["accuracy"] and adopted["nll"] <= TARGET["nll"],
    }


def run_quietly(folder: Path, arguments: Sequence[str]) -> None:
    """One command in a folder, in this process, without its output."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        app(list(arguments), standalone_mode=False)


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("four_hospitals", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def _data() -> Path:
    folder = data_root() / "uci" / "heart"
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; run `predbayes data fetch heart`")
    return folder


def _at_home(out: Path, hospital: Any) -> Losses:
    """Each model's losses on the hospital's patients to come."""
    at = out / hospital.folder
    kit = Kit.load(at / "kit")
    later = SiteRows.of(kit.plan, read_frame(at / "later-patients.csv"))
    table = read_site_table(kit.plan, SiteFile.load(at / "site.toml"), at / "patients.csv")
    _, own = fit_site(kit, hospital.name, SiteRows.of(kit.plan, table), hospital.learner)
    models = {name: CalibratedModel.load(at / name) for name in ("model", "adopted")}
    return {
        "own": _losses(own.predict(later.inputs), later),
        "global": _losses(models["model"].predictive(later.inputs), later),
        "adopted": _losses(models["adopted"].predictive(later.inputs), later),
    }


def _losses(predictive: Predictive, rows: SiteRows) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(predictive, Categorical)
    hits = predictive.log_probs.argmax(-1) == rows.targets
    return -predictive.log_prob(rows.targets).double().numpy(), hits.double().numpy()


def _comparison(out: Path, hospital: Any) -> Comparison:
    path = out / hospital.folder / "adopted" / "comparison.json"
    return Comparison.model_validate_json(path.read_bytes(), strict=False)


def _harmed(found: Losses) -> bool:
    """Whether what was advised is worse than the own model by more than two standard errors."""
    difference = found["advised"][0] - found["own"][0]
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return bool(difference.mean() > 2 * error > 0)


def _means(splits: list[dict[str, Losses]], name: str | None, model: str) -> dict[str, float]:
    """Means over splits of the mean over test rows, of one hospital or of all together."""
    names = list(splits[0]) if name is None else [name]
    rows = [[split[n][model] for n in names] for split in splits]
    nll = np.mean([np.concatenate([losses for losses, _ in each]).mean() for each in rows])
    accuracy = np.mean([np.concatenate([hits for _, hits in each]).mean() for each in rows])
    return {"accuracy": float(accuracy), "nll": float(nll)}


def _line(splits: list[dict[str, Losses]], name: str | None) -> str:
    models = list(splits[0][name or next(iter(splits[0]))])
    found = {model: _means(splits, name, model) for model in models}
    return ", ".join(f"{m} {f['accuracy']:.3f} / {f['nll']:.3f}" for m, f in found.items())
