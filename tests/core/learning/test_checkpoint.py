"""A fit that is stopped and goes on ends at the bits of one that never was."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from predbayes.errors import TrainingError
from predbayes.learning.checkpoint import Checkpoint
from predbayes.learning.likelihood import LearnedNoise, Softmax
from predbayes.learning.local import Network, SGHMCLearner, fit_with_retries
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import SamplerSettings
from predbayes.progress import listening
from predbayes.seeding import generator

SETTINGS = SamplerSettings(
    num_epochs=12, batch_size=16, num_cycles=2, samples_per_cycle=2, friction=0.1
)


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch):
    monkeypatch.setattr("predbayes.learning.checkpoint._LEAST_RATIO", 0)


def half_frozen():
    net = mlp(3, 2, (8,))
    net[1].requires_grad_(False)
    return net


BUILDS = {
    "classes": lambda: mlp(3, 2, (8,)),
    "dropout": lambda: nn.Sequential(*mlp(3, 8, (8,)), nn.Dropout(), nn.Linear(8, 2)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
    "frozen": half_frozen,
}
"""Dropout draws from torch's global generator, and batch norm has buffers."""


def problem(kind):
    inputs = torch.randn(60, 3, generator=generator(0, "rows"))
    if kind == "regression":
        return Network(lambda: mlp(3, 1, (8,)), LearnedNoise()), (inputs, inputs.sum(1))
    return Network(BUILDS[kind], Softmax(2)), (inputs, (inputs[:, 0] > 0).long())


@pytest.mark.parametrize("kind", ["regression", *BUILDS])
@pytest.mark.parametrize("epoch", [1, 6, 7, 11])
def test_it_goes_on_to_the_same_bits(kind, epoch, tmp_path):
    network, rows = problem(kind)
    learner = SGHMCLearner(network, SETTINGS)
    straight_rng = generator(0, "fit")
    straight = learner.fit(rows, rng=straight_rng)

    def stop(event):
        if event.epoch == epoch + 1:
            raise Stopped

    path = tmp_path / "fit.safetensors"
    with pytest.raises(Stopped), listening([stop]):
        learner.fit(rows, rng=generator(0, "fit"), checkpoint=Checkpoint(path, "fit", 0.0))
    rng = generator(0, "fit")
    seen = []
    with listening([lambda event: seen.append(event.epoch)]):
        resumed = learner.fit(rows, rng=rng, checkpoint=Checkpoint(path, "fit", 0.0))
    assert seen == list(range(epoch + 1, 13))
    ours, theirs = resumed.samples.arrays(), straight.samples.arrays()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(rng.get_state(), straight_rng.get_state())


def test_a_checkpoint_of_another_fit_is_ignored(tmp_path):
    network, rows = problem("classes")
    learner = SGHMCLearner(network, SETTINGS)
    path = tmp_path / "fit.safetensors"
    learner.fit(rows, rng=generator(0, "fit"), checkpoint=Checkpoint(path, "one", 0.0))
    seen = []
    with listening([lambda event: seen.append(event.epoch)]):
        learner.fit(rows, rng=generator(0, "fit"), checkpoint=Checkpoint(path, "other", 0.0))
    assert seen[0] == 1


@pytest.mark.parametrize("content", [b"", b"\x08", b"junk" * 100])
def test_a_damaged_checkpoint_is_as_none(content, tmp_path):
    path = tmp_path / "fit.safetensors"
    path.write_bytes(content)
    assert Checkpoint(path, "fit").read() is None


@pytest.mark.parametrize("lost", ["weights/", "generator/own", "epoch"])
def test_one_that_somebody_made_is_one_line(lost, tmp_path):
    network, rows = problem("classes")
    learner = SGHMCLearner(network, SETTINGS)
    path = tmp_path / "fit.safetensors"
    learner.fit(rows, rng=generator(0, "fit"), checkpoint=Checkpoint(path, "fit", 0.0))
    kept = {n: t for n, t in load_file(path).items() if not n.startswith(lost)}
    assert len(kept) < len(load_file(path))
    save_file(kept, path, metadata={"identity": "fit"})
    with pytest.raises(TrainingError, match=r"^[^\n]*is not what training wrote[^\n]*$"):
        learner.fit(rows, rng=generator(0, "fit"), checkpoint=Checkpoint(path, "fit", 0.0))


class TestDivergence:
    """A fit that diverged began again with half the step; when it was stopped it goes on there."""

    def fit(self, folder=None, stop=None):
        network, rows = problem("regression")
        learner = SGHMCLearner(network, replace(SETTINGS, step_size=4.0))
        kept = None if folder is None else Checkpoint(folder / "kept.safetensors", "one", 0.0)

        def watch(event):
            if event.epoch == stop:
                raise Stopped

        with listening([watch]):
            found = fit_with_retries(learner, rows, rng=generator(1), checkpoint=kept)
        return found.samples.arrays()

    def test_it_ends_at_the_same_bits(self, tmp_path, caplog):
        whole = self.fit()
        assert "training diverged at step" in caplog.text
        assert "it begins again with half the step" in caplog.text
        with pytest.raises(Stopped):
            self.fit(tmp_path, stop=10)
        assert any("slower" in path.name for path in tmp_path.iterdir())
        again = self.fit(tmp_path)
        assert whole.keys() == again.keys()
        assert all(torch.equal(value, again[name]) for name, value in whole.items())
