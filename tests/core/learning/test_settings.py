"""AdamW, warm-up, clipped gradients and bfloat16: settings of learners and of distillation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError
from predbayes.learning.likelihood import FixedNoise, Softmax
from predbayes.learning.local import Network, OptimizerSettings, SGDLearner, SGHMCLearner
from predbayes.learning.nets import mlp
from predbayes.posterior.cyclical import PRESETS, SamplerSettings
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.metrics import accuracy
from predbayes.seeding import generator

LINE = Network(lambda: nn.Linear(1, 1, bias=False), FixedNoise())
CLASSES = Network(lambda: mlp(2, 2, hidden=(16,)), Softmax(2))
SAMPLER = SamplerSettings(num_epochs=20, batch_size=50, num_cycles=2, max_samples=3, friction=0.1)


def started_at(weight: float) -> WeightSamples:
    return WeightSamples({"weight": torch.tensor([[[weight]]])}, {})


@pytest.fixture
def far(rng):
    """Rows of a line with slope 1,000, whose gradient is huge."""
    x = torch.randn(50, 1, generator=rng)
    return x, 1000 * x[:, 0]


@pytest.fixture
def blobs(rng):
    y = torch.randint(2, (400,), generator=rng)
    return torch.randn(400, 2, generator=rng) + 2.0 * (2 * y[:, None] - 1), y


def moved(settings: OptimizerSettings, rows) -> float:
    """How far a weight goes from 0."""
    fitted = SGDLearner(LINE, settings).fit(rows, rng=generator(0), start=started_at(0.0))
    return float(fitted.samples.parameters["weight"].abs().max())


class TestClippedGradients:
    def test_a_step_is_no_longer_than_the_bound(self, far):
        one = OptimizerSettings(lr=0.1, momentum=0.0, num_epochs=1)
        assert moved(one, far) > 1
        assert moved(replace(one, clip_norm=2.0), far) == pytest.approx(0.2, rel=1e-4)
        assert moved(replace(one, clip_norm=1e9), far) == moved(one, far)

    def test_a_penalty_is_part_of_what_is_clipped(self, far):
        def penalty(module):
            for parameter in module.parameters():
                parameter.grad += 1e6

        learner = SGDLearner(LINE, OptimizerSettings(momentum=0.0, num_epochs=1, clip_norm=2.0))
        fitted = learner.fit(far, rng=generator(0), start=started_at(0.0), penalty=penalty)
        assert float(fitted.samples.parameters["weight"]) == pytest.approx(-0.2, rel=1e-4)

    def test_a_sampler_clips_until_noise_is_on(self, far, monkeypatch):
        norms, seen = [], nn.utils.clip_grad_norm_
        monkeypatch.setattr(
            nn.utils, "clip_grad_norm_", lambda *args: norms.append(args[1]) or seen(*args)
        )
        settings = SamplerSettings(
            num_epochs=20, step_size=1e-3, num_cycles=2, samples_per_cycle=1, clip_norm=3.0
        )
        SGHMCLearner(LINE, settings).fit(far, rng=generator(0))
        assert norms == [3.0] * 16  # 8 of every 10 steps explore


class TestWarmUp:
    def test_the_rate_rises_to_its_value_and_then_decays(self):
        settings = OptimizerSettings(lr=0.4, warmup=0.1)
        rates = [settings.lr_at(step, 40) for step in range(40)]
        assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
        cosine = replace(settings, decay="cosine")
        plain = replace(cosine, warmup=0.0)
        assert [cosine.lr_at(step, 40) for step in range(3, 40)] == [
            plain.lr_at(step, 40) for step in range(3, 40)
        ]
        assert cosine.lr_at(0, 40) == pytest.approx(0.1)

    def test_a_samplers_steps_rise_before_the_first_noise(self):
        settings = SamplerSettings(num_cycles=2, samples_per_cycle=1, warmup=0.2)
        schedule = settings.schedule(40)
        plain = replace(settings, warmup=0.0).schedule(40)
        parts = [schedule.step_size_at(s) / plain.step_size_at(s) for s in range(40)]
        assert parts[:8] == pytest.approx([(step + 1) / 8 for step in range(8)])
        assert parts[8:] == [1.0] * 32

    def test_a_warm_up_into_the_noise_is_refused_in_one_line(self):
        with pytest.raises(
            TrainingError, match=r"^warmup must end before[^\n]* to 0\.16, not 0\.2"
        ):
            replace(PRESETS["paper"], warmup=0.2)


def test_adamw_decays_weights_and_adam_their_gradients(far):
    """Far from the truth a decay that goes through the gradient is lost in it."""

    def fitted(kind, decay):
        settings = OptimizerSettings(kind, lr=0.01, weight_decay=decay, num_epochs=1)
        learner = SGDLearner(LINE, settings)
        samples = learner.fit(far, rng=generator(0), start=started_at(100.0)).samples
        return float(samples.parameters["weight"])

    assert fitted("adam", 0.5) == pytest.approx(fitted("adam", 0.0), abs=1e-3)
    assert fitted("adamw", 0.5) == pytest.approx(fitted("adamw", 0.0) - 0.5, abs=1e-3)


class TestBfloat16:
    """Torch's autocast on the CPU: the same code as on a GPU, without its speed."""

    @pytest.mark.parametrize("kind", ["sghmc", "sgd"])
    def test_it_learns_and_weights_stay_whole(self, kind, blobs):
        seen = []

        class Watched(nn.Linear):
            def forward(self, x):
                out = super().forward(x)
                seen.append(out.dtype)
                return out

        network = Network(
            lambda: nn.Sequential(Watched(2, 8), nn.ReLU(), nn.Linear(8, 2)), Softmax(2)
        )
        plain = OptimizerSettings(num_epochs=10, autocast=True)
        learner = (
            SGHMCLearner(network, replace(SAMPLER, autocast=True))
            if kind == "sghmc"
            else SGDLearner(network, plain)
        )
        fitted = learner.fit(blobs, rng=generator(0))
        assert set(seen) == {torch.bfloat16}
        assert {v.dtype for v in fitted.samples.parameters.values()} == {torch.float32}
        predictive = fitted.predict(blobs[0])
        assert seen[-1] == torch.float32
        assert accuracy(predictive, blobs[1]) > 0.97


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": -1.0}, {"warmup": -0.1}, {"clip_norm": float("nan")}]
)
@pytest.mark.parametrize("kind", [OptimizerSettings, SamplerSettings])
def test_nonsense_is_refused_in_one_line(kind, wrong):
    with pytest.raises(TrainingError, match=rf"^{next(iter(wrong))} [^\n]*$"):
        kind(**wrong)
