"""What is checked before an upload counts."""

import dataclasses

import pytest
import torch

from predbayes.errors import UploadError
from predbayes.exchange.strict import MAX_ROWS
from predbayes.predictive.families import Gaussian
from predbayes_study.coordinator.intake import HEADER_ROOM, Intake
from predbayes_study.payloads.details import save_signed
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world

SITE = "Alpha"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    root = tmp_path_factory.mktemp("intake")
    return {
        "classes": make_world(root / "classes"),
        "numbers": make_world(root / "numbers", regression=True),
    }


@pytest.fixture
def check(worlds, tmp_path):
    """Sign an upload as the site and hand it to the study's checks."""

    def handed(kind, upload, key=None, keys=None):
        world = worlds[kind]
        own = world.key(SITE)
        path = tmp_path / "upload.safetensors"
        save_signed(upload, path, own if key is None else key)
        admitted = {SITE: own.public.hex, "Beta": world.key("Beta").public.hex}
        intake = Intake.of(world.kit.plan)
        return intake.check(path, admitted if keys is None else keys)

    return handed


def honest(worlds, kind):
    return worlds[kind].upload(SITE)


def telling(upload, **fields):
    return dataclasses.replace(upload, info=upload.info.model_copy(update=fields))


def holding(upload, **arrays):
    return dataclasses.replace(upload, arrays={**upload.arrays, **arrays})


@pytest.mark.parametrize("kind", ["classes", "numbers"])
class TestEveryKind:
    def test_the_sender_must_be_admitted_and_sign_with_its_key(self, kind, worlds, check):
        upload = honest(worlds, kind)
        with pytest.raises(UploadError, match="not signed with the key that Alpha"):
            check(kind, upload, key=SigningKey.generate())
        with pytest.raises(UploadError, match="not signed with the key that Beta"):
            check(kind, upload.named("Beta"))
        with pytest.raises(UploadError, match="no admitted site 'Alpa'; did you mean 'Alpha'"):
            check(kind, upload.named("Alpa"))

    def test_row_counts_are_bounded(self, kind, worlds, check):
        upload = honest(worlds, kind)
        assert check(kind, telling(upload, num_rows=MAX_ROWS))
        with pytest.raises(UploadError, match="num_rows"):
            check(kind, telling(upload, num_rows=MAX_ROWS + 1))

    def test_the_largest_file_is_the_plans_and_not_the_headers(self, kind, worlds, tmp_path):
        plan = worlds[kind].kit.plan
        save_signed(honest(worlds, kind), tmp_path / "u", worlds[kind].key(SITE))
        size = (tmp_path / "u").stat().st_size
        most = Intake.of(plan).max_bytes
        assert size < most < HEADER_ROOM + size
        tight = plan.upload.model_copy(update={"max_bytes": 100})
        assert Intake.of(plan.model_copy(update={"upload": tight})).max_bytes == 100


class TestClasses:
    def test_classes_are_counted_as_the_plan_has_them(self, worlds, check):
        upload = honest(worlds, "classes")
        assert check("classes", telling(upload, class_rows=None))
        for counts in ((50.0, 55.0), (1.0,) * 4, ()):
            with pytest.raises(UploadError, match="does not count the plan's classes"):
                check("classes", telling(upload, class_rows=counts))
        with pytest.raises(UploadError, match="more rows by class than in all"):
            check("classes", telling(upload, class_rows=(100.0, 100.0, 100.0)))

    def test_one_class_of_each_row_may_not_be_above_one(self, worlds, check):
        """Where all others are impossible, the sum of a row alone would let it pass."""
        log_probs = honest(worlds, "classes").arrays["log_probs"].clone()
        log_probs[0] = torch.tensor([0.04, -80.0, -80.0])
        with pytest.raises(UploadError, match="not logarithms of probabilities"):
            check("classes", holding(honest(worlds, "classes"), log_probs=log_probs))


class TestNumbers:
    @pytest.mark.parametrize(
        ("epistemic", "noise"), [(-0.1, 0.3), (0.3, -0.1), (0.0, 0.0), (0.0, -0.1)]
    )
    def test_both_parts_of_a_variance_are_positive(self, epistemic, noise, worlds, check):
        upload = honest(worlds, "numbers")
        parts = {
            "epistemic_var": torch.full_like(upload.arrays["mean"], epistemic),
            "noise_var": torch.full_like(upload.arrays["mean"], noise),
        }
        with pytest.raises(UploadError, match="variances must be positive"):
            check("numbers", holding(upload, **parts))

    @pytest.mark.parametrize(("mean", "var"), [(2e4, 1.0), (-2e4, 1.0), (0.0, 2e4)])
    def test_no_target_is_that_far_out(self, mean, var, worlds, check):
        like = honest(worlds, "numbers").arrays["mean"]
        absurd = Gaussian(torch.full_like(like, mean), torch.full_like(like, var))
        with pytest.raises(UploadError, match="beyond any plausible target"):
            check("numbers", worlds["numbers"].upload(SITE, absurd))
