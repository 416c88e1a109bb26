"""The example of a mixed federation: five kinds of models, in Python, over Flower and by files."""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import predbayes as pb
from benchmarks.by_commands import as_module, run_quietly
from predbayes.exchange.header import Header
from predbayes_study.coordinator.study import Study
from tests.flower.deployment import ROOT
from tests.flower.simulated import simulated

EXAMPLE = ROOT / "examples" / "mixed-federation"
ENDED = 300  # seconds in which a run has ended on the busiest machine


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        yield as_module("in_python", EXAMPLE / "in_python.py")
        sys.modules.pop("mixed.task", None)


@pytest.fixture(scope="module")
def result(script):
    return script.run()


def test_five_kinds_of_models_give_one(script, result):
    inputs, targets = script.task.rows_to_come(0)
    assert len(result.account.sites) == len(script.task.LEARNERS) == 5
    assert pb.metrics.accuracy(result.predict(inputs), targets) > 0.9
    nll = pb.metrics.nll(result.predict(inputs), targets)
    printed = f"{result}\nNLL {nll:.3f} on {len(targets)} new rows\n"
    gallery = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "regenerate")))
    page = gallery.shown("examples/mixed-federation/in_python.py")
    assert list(gallery.differences(page, printed)) == []


@pytest.mark.slow("a simulation of five sites on Ray")
def test_over_flower_it_has_the_bits_of_python(script, result, tmp_path):
    with simulated(tmp_path / "simulation") as simulation:
        run = simulation.run_app(EXAMPLE, 5, out=tmp_path / "result")
        assert run.wait(ENDED) == 0
    saved, inputs = pb.load(tmp_path / "result"), script.task.rows_to_come(0)[0]
    assert saved.account == result.account
    assert torch.equal(saved.predict(inputs).natural(), result.predict(inputs).natural())


@pytest.mark.slow("commands of five sites")
def test_by_files_each_site_says_its_learner(script, tmp_path):
    by_files = as_module("by_files", EXAMPLE / "by_files.py")
    by_files.main(tmp_path / "study", 0, run_quietly)
    coordinator = tmp_path / "study" / "coordinator"
    sent = {
        site: tmp_path / "study" / site / "out" / f"{site}.safetensors" for site in by_files.SITES
    }
    learners = {site: Header.read(path).info.learner for site, path in sent.items()}
    assert learners == by_files.SITES
    assert Study(coordinator / "study").state().uploads.keys() == learners.keys()
    predicted = pd.read_csv(coordinator / "predicted.csv")["predicted"]
    kinds = pd.read_csv(coordinator / "later.csv")["kind"]
    assert (predicted == kinds).mean() > 0.9
