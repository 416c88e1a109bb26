"""A saved result loads in a new process and predicts the same bits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import predbayes as pb
from predbayes.errors import DataError, PoolError, TrainingError, UploadError
from tests.core.contracts.averaged import Averaged, Ensemble
from tests.core.contracts.test_methods import SHORT, world

STUDENTS = {
    pb.Categorical: pb.Network.mlp(2, pb.Softmax(3), hidden=(8,)),
    pb.Gaussian: pb.Network.mlp(2, pb.LearnedNoise(per_input=True), hidden=(8,)),
}
NEW_PROCESS = """
import sys, torch, safetensors.torch, predbayes as pb
folder = sys.argv[1]
inputs = safetensors.torch.load_file(folder + "/inputs")["inputs"]
result = pb.load(folder)
torch.set_num_threads(1)
parts = {"new": result.predict(inputs).natural(), "reference": result.predictive.natural()}
safetensors.torch.save_file({n: p.contiguous() for n, p in parts.items()}, folder + "/outputs")
print(result)
"""


def distilled(family):
    learner = pb.SGDLearner(STUDENTS[family], SHORT)
    return pb.Distilled(pb.Pooled(learner, pb.pools.beta()), STUDENTS[family], SHORT)


def forests():
    ensemble = pytest.importorskip("sklearn.ensemble")
    learner = pb.SklearnClassifier(ensemble.RandomForestClassifier(5), num_classes=3, size=2)
    pool = pb.Pooled(learner, pb.pools.beta(), send="predictions")
    return pb.Distilled(pool, STUDENTS[pb.Categorical], SHORT)


def ensemble():
    return Ensemble(pb.SGDLearner(STUDENTS[pb.Gaussian], SHORT))


CASES = {
    "classification": (pb.Categorical, lambda: distilled(pb.Categorical)),
    "regression": (pb.Gaussian, lambda: distilled(pb.Gaussian)),
    "ensemble": (pb.Gaussian, ensemble),
    "forests": (pb.Categorical, forests),
}


@pytest.mark.parametrize("case", CASES)
def test_a_new_process_predicts_the_same_bits(case, tmp_path):
    from safetensors.torch import load_file, save_file

    family, build = CASES[case]
    sites, reference = world(family)
    result = pb.run(build(), sites, reference)
    result.save(tmp_path)
    inputs = torch.cat([x for x, _ in sites.values()])
    save_file({"inputs": inputs}, tmp_path / "inputs")
    done = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outputs = load_file(tmp_path / "outputs")
    assert torch.equal(outputs["new"], result.predict(inputs).natural())
    assert torch.equal(outputs["reference"], result.predictive.natural())
    assert done.stdout.rstrip("\n") == result.summary()


def own_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))


class TestANetworkOfOnesOwn:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("own")
        sites, reference = world(pb.Categorical)
        network = pb.Network(own_net, pb.Softmax(3))
        result = pb.run(Averaged(pb.SGDLearner(network, SHORT)), sites, reference)
        result.save(folder)
        return folder, result, reference.inputs

    def test_it_is_given(self, saved):
        folder, result, inputs = saved
        for given in (own_net, pb.Network(own_net, pb.Softmax(3))):
            predicted = pb.load(folder, given).predict(inputs)
            assert torch.equal(predicted.log_probs, result.predict(inputs).log_probs)

    def test_or_imported_if_that_is_asked_for(self, saved):
        folder, result, inputs = saved
        with pytest.raises(DataError, match=r"or trust=True to import .*:own_net"):
            pb.load(folder)
        predicted = pb.load(folder, trust=True).predict(inputs)
        assert torch.equal(predicted.log_probs, result.predict(inputs).log_probs)

    def test_another_one_is_refused(self, saved):
        with pytest.raises(UploadError, match="not of this network"):
            pb.load(saved[0], lambda: nn.Linear(2, 3))


def test_a_pool_without_a_network_keeps_its_predictive(tmp_path):
    sites, reference = world(pb.Gaussian)
    learner = pb.SGDLearner(STUDENTS[pb.Gaussian], SHORT)
    result = pb.run(pb.Pooled(learner, pb.pools.mixture()), sites, reference)
    result.save(tmp_path)
    again = pb.load(tmp_path)
    assert torch.equal(again.predictive.natural(), result.predictive.natural())
    assert again.choice is None
    with pytest.raises(PoolError, match="Distilled"):
        again.predict(reference.inputs)


def test_what_is_no_result_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"no result\.json"):
        pb.load(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"format_version": 2}))
    with pytest.raises(DataError, match=r"not a saved result: format_version") as error:
        pb.load(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_damaged_predictive_is_refused(tmp_path):
    sites, reference = world(pb.Categorical)
    pb.run(distilled(pb.Categorical), sites, reference).save(tmp_path)
    (tmp_path / "reference.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="does not hold a predictive"):
        pb.load(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(UploadError, match="not a safetensors file"):
        pb.load(tmp_path)


class TestAResultOfDamagedWords:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("damaged")
        sites, reference = world(pb.Gaussian, num_sites=1)
        pb.run(Averaged(pb.SGDLearner(STUDENTS[pb.Gaussian], SHORT)), sites, reference).save(folder)
        return folder, json.loads((folder / "result.json").read_text())

    def load(self, saved, part, **changes):
        folder, record = saved
        changed = record | {part: record[part] | changes}
        (folder / "result.json").write_text(json.dumps(changed))
        return pb.load(folder)

    @pytest.mark.parametrize(
        ("part", "changes", "said"),
        [
            ("network", {"arguments": ["two"]}, "describes a mlp"),
            ("network", {"arguments": [2, -3, [8]]}, "describes a mlp"),
            ("network", {"options": {"depth": 3}}, "describes a mlp"),
            ("network", {"likelihood_options": {"loud": True}}, "describes a LearnedNoise"),
            ("scaling", {"unit": 3.0}, "describes a Scaling"),
        ],
    )
    def test_it_is_refused_in_one_line(self, saved, part, changes, said):
        with pytest.raises(DataError, match=rf"^result\.json {said} that cannot be: [^\n]+$"):
            self.load(saved, part, **changes)


class TestTheModule:
    def test_of_a_loaded_result_is_its_network(self, tmp_path):
        sites, reference = world(pb.Categorical)
        result = pb.run(Averaged(pb.SGDLearner(Dropping, SHORT)), sites, reference)
        result.save(tmp_path)
        module = pb.load(tmp_path, Dropping).module()
        assert not module.training
        with torch.no_grad():
            log_probs = module(reference.inputs).log_softmax(1)
        assert torch.equal(log_probs, result.predict(reference.inputs).log_probs)

    def test_is_not_one_of_several(self):
        sites, reference = world(pb.Gaussian)
        result = pb.run(ensemble(), sites, reference)
        with pytest.raises(TrainingError, match=r"average of \d+ networks; distil it into one"):
            result.module()

    def test_is_refused_where_there_is_none(self):
        sites, reference = world(pb.Categorical)
        method = pb.Pooled(pb.SGDLearner(STUDENTS[pb.Categorical], SHORT), pb.pools.mixture())
        with pytest.raises(PoolError, match=r"^Pooled\(mixture\) has no network of its own"):
            pb.run(method, sites, reference).module()


Dropping = pb.Network(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3)), pb.Softmax(3))
