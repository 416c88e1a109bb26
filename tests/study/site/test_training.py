"""A site's part: the same rows give the same upload, and only what the plan names leaves."""

import dataclasses
import json

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from predbayes.errors import DataError, PlanError, StudyError, TrainingError
from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from predbayes.progress import listening
from predbayes.seeding import generator
from predbayes_study.site.fitting import Job, make_upload
from predbayes_study.site.policy import Asked, SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows, split_rows
from predbayes_study.site.training import EGRESS_FILE, HELD_BACK, Holdout, Training
from predbayes_study.tables.coding import encode
from predbayes_study.tables.sitefile import Policy
from predbayes_study.trust.coordinator import CoordinatorKey
from tests.study.world import make_world

HOLDOUT = "[learner]\nmin_steps = 200\nnum_epochs = 1\nholdout = 0.25\nname = 'any'\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), learner=HOLDOUT)


def frame(num_rows=60, classes=("red", "green", "blue"), seed=0):
    rng = generator(seed, "frame")
    x = 10 * torch.randn(num_rows, generator=rng)
    kind = [classes[index % len(classes)] for index in range(num_rows)]
    return pd.DataFrame({"x": x.numpy().round(2), "y": [1.5] * num_rows, "kind": kind})


def training(world, out, *, site="Alpha", learner="logistic-regression"):
    return Training(world.kit, site, world.key(site), Approvals(out.parent), out, learner)


def test_a_site_of_few_rows_does_not_take_part(world, tmp_path):
    few, enough = (SiteRows.of(world.kit.plan, frame(num)) for num in (12, 13))
    with pytest.raises(DataError, match=r"^fewer rows to train on than min_rows = 10"):
        training(world, tmp_path / "out").run(few)
    assert training(world, tmp_path / "out").run(enough).upload.info.num_rows == 10


class TestRows:
    def test_rows_without_a_target_are_left_out_and_counted(self, world):
        table = frame()
        table.loc[[3, 5], "kind"] = ""
        rows = SiteRows.of(world.kit.plan, table)
        assert (len(rows.targets), rows.num_dropped) == (58, 2)
        expected = encode(world.kit.plan, table.drop(index=[3, 5]))
        assert torch.equal(rows.inputs, expected)

    def test_a_table_without_targets_is_refused(self, world):
        table = frame()
        table["kind"] = ""
        with pytest.raises(DataError, match="fewer than 2 rows have a kind"):
            SiteRows.of(world.kit.plan, table)

    def test_the_holdout_is_a_share_that_depends_on_site_and_plan_only(self, world):
        plan = world.kit.plan
        trained, held_out = split_rows(plan, "Alpha", 60)
        assert (len(trained), len(held_out)) == (45, 15)
        assert sorted([*trained.tolist(), *held_out.tolist()]) == list(range(60))
        assert torch.equal(split_rows(plan, "Alpha", 60)[1], held_out)
        assert not torch.equal(split_rows(plan, "Beta", 60)[1], held_out)

    def test_held_out_rows_do_not_reach_the_upload(self, world, tmp_path):
        """Changing their labels changes nothing that leaves."""
        rows = SiteRows.of(world.kit.plan, frame())
        _, held_out = rows.split_for(world.kit, "Alpha")
        changed = rows.targets.clone()
        changed[held_out] = (changed[held_out] + 1) % 3
        other = SiteRows(rows.inputs, changed)
        one = training(world, tmp_path / "one").run(rows)
        two = training(world, tmp_path / "two").run(other)
        assert one.upload.digest() == two.upload.digest()


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    """A plan whose learner is that of `plan new`, with few steps."""
    return make_world(tmp_path_factory.mktemp("auto"), learner=HOLDOUT.replace("'any'", "'auto'"))


class TestChosenLearner:
    def test_rows_choose_and_page_upload_and_record_say_what(self, auto, tmp_path, monkeypatch):
        rows = SiteRows.of(auto.kit.plan, frame(120))
        trained = training(auto, tmp_path / "out", learner="auto").run(rows)
        assert trained.choice.name in auto.kit.plan.tried
        assert set(trained.choice.losses) == set(auto.kit.plan.tried)
        assert trained.choice.num_rows == 90  # those held out have no part in it
        assert trained.upload.info.learner == trained.choice.name
        assert f"({trained.choice.name}, chosen by the site’s rows" in trained.egress.read_text()
        kept = json.loads((tmp_path / "out" / "home" / "choice.json").read_bytes())
        assert kept["losses"] == trained.choice.losses
        named, _ = Job(auto.kit, "Alpha", rows, trained.choice.name).run()
        assert torch.equal(trained.upload.arrays["log_probs"], named.arrays["log_probs"])
        trained.path.unlink()
        (tmp_path / "out" / HELD_BACK).unlink(missing_ok=True)
        monkeypatch.setattr("predbayes_study.site.training.choose_at_site", None)
        again = training(auto, tmp_path / "out", learner="auto").run(rows)
        assert not again.again
        assert again.choice == trained.choice
        assert again.upload.digest() == trained.upload.digest()

    def test_the_policy_bounds_the_choice(self, auto, tmp_path):
        policy = SitePolicy((("policy.toml", Policy(learners=("small-network", "random-forest"))),))
        site = Training(
            auto.kit, "Alpha", auto.key("Alpha"), Approvals(tmp_path, policy=policy),
            tmp_path / "out", "auto",
        )  # fmt: skip
        trained = site.run(SiteRows.of(auto.kit.plan, frame(120)))
        assert trained.upload.info.learner == "small-network"
        apart = SitePolicy(
            (
                ("a", Policy(learners=("small-network",))),
                ("b", Policy(learners=("logistic-regression",))),
            )
        )
        site = dataclasses.replace(
            site, approvals=Approvals(tmp_path, policy=apart), out=tmp_path / "b"
        )
        with pytest.raises(PlanError, match="a and b have none in common"):
            site.run(SiteRows.of(auto.kit.plan, frame(120)))
        assert len(apart.problems(Asked.of(auto.kit.plan))) == 1  # which `site check` shows
        none = SitePolicy((("policy.toml", Policy(learners=("random-forest",))),))
        assert len(none.problems(Asked.of(auto.kit.plan))) == 1


class TestTraining:
    def test_the_same_rows_give_the_same_upload(self, world, tmp_path):
        rows = SiteRows.of(world.kit.plan, frame())
        one = training(world, tmp_path / "one", learner="network").run(rows)
        two = training(world, tmp_path / "two", learner="network").run(rows)
        assert one.path.read_bytes() == two.path.read_bytes()

    def test_a_plan_may_prescribe_a_learner(self, tmp_path):
        """Who chooses nothing fits what the plan says, and nobody anything else."""
        prescribed = HOLDOUT.replace("'any'", "'gradient-boosting'")
        world = make_world(tmp_path / "world", learner=prescribed)
        rows = SiteRows.of(world.kit.plan, frame())
        name = world.kit.plan.learner_or(None)
        trained = training(world, tmp_path / "out", learner=name).run(rows)
        assert trained.upload.info.learner == "gradient-boosting"
        with pytest.raises(TrainingError, match="asks every site for the learner 'gradient-boost"):
            training(world, tmp_path / "other", learner="network").run(rows)
        kept = rows[torch.arange(60)]
        assert make_upload(world.kit, "Alpha", kept).digest() == trained.upload.digest()

    def test_training_again_only_finds_what_is_there(self, world, tmp_path):
        rows = SiteRows.of(world.kit.plan, frame())
        first, told = training(world, tmp_path / "out").run(rows), []
        with listening([told.append]):
            again = training(world, tmp_path / "out").run(rows)
        assert again.again
        assert not told
        assert again.upload.digest() == first.upload.digest()
        first.path.write_bytes(b"junk")
        again = training(world, tmp_path / "out").run(rows)
        assert not again.again
        assert Upload.load(again.path).digest() == first.upload.digest()
        other = SiteRows.of(world.kit.plan, frame(seed=1))
        assert not training(world, tmp_path / "out").run(other).again

    def test_what_leaves_is_named_in_the_header_and_nothing_else(self, world, tmp_path):
        trained = training(world, tmp_path / "out").run(SiteRows.of(world.kit.plan, frame()))
        declared = Header.read(trained.path)
        assert set(declared.arrays) == {"log_probs"}
        told = declared.info.model_dump(exclude_defaults=True)
        assert set(told) == {"kind", "num_rows", "class_rows", "site", "plan", "learner"}

    def test_small_counts_are_not_sent(self, world, tmp_path):
        table = frame(classes=("red",) * 20 + ("green", "blue"))
        trained = training(world, tmp_path / "out").run(SiteRows.of(world.kit.plan, table))
        assert trained.upload.info.class_rows is None
        page = trained.egress.read_text()
        assert "min_cell" in page or "fewer than" in page or "below" in page

    def test_a_site_of_one_class_takes_part(self, world, tmp_path):
        rows = SiteRows.of(world.kit.plan, frame(classes=("red",)))
        for learner in ("logistic-regression", "network"):
            trained = training(world, tmp_path / learner, learner=learner).run(rows)
            log_probs = trained.upload.predictive().log_probs
            assert bool((log_probs.argmax(1) == 0).all())
            assert bool(log_probs.isfinite().all())

    def test_code_that_is_not_installed_is_refused(self, world, tmp_path, monkeypatch):
        (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(PlanError, match="not installed"):
            training(world, tmp_path / "out", learner="mine:Learner").run(
                SiteRows.of(world.kit.plan, frame())
            )

    def test_an_estimator_of_an_installed_package(self, world, tmp_path):
        name = "sklearn.naive_bayes:GaussianNB"
        trained = training(world, tmp_path / "out", learner=name).run(
            SiteRows.of(world.kit.plan, frame())
        )
        assert trained.upload.info.learner == "sklearn.naive_bayes.GaussianNB"


class TestRelease:
    @pytest.fixture
    def held(self, tmp_path):
        """A plan that asks for people's yes, and has it for itself."""
        world = make_world(tmp_path / "world", learner=HOLDOUT, upload="release = 'manual'\n")
        Approvals(tmp_path).record("plan", world.kit.digest, "A. Officer")
        return world

    def test_nothing_is_trained_before_somebody_says_yes_to_the_plan(self, held, tmp_path):
        (tmp_path / "approvals.jsonl").unlink()
        with pytest.raises(StudyError, match=r"predbayes site approve .*kit --by NAME$"):
            training(held, tmp_path / "out").run(SiteRows.of(held.kit.plan, frame()))
        assert not (tmp_path / "out").exists()

    def test_nothing_is_signed_before_the_officer_says_yes(self, held, tmp_path):
        rows = SiteRows.of(held.kit.plan, frame())
        out = tmp_path / "out"
        trained = training(held, out).run(rows)
        assert not trained.released
        assert trained.path == out / HELD_BACK
        assert not (out / "Alpha.safetensors").exists()
        assert Header.read(trained.path).signature is None
        assert trained.upload.digest() in (out / EGRESS_FILE).read_text()

        approvals = Approvals(tmp_path)
        assert approvals.record("upload", trained.upload.digest(), "A. Officer")
        assert not approvals.record("upload", trained.upload.digest(), "A. Officer")
        released = training(held, out).run(rows)
        assert released.released
        assert released.again
        assert not (out / HELD_BACK).exists()
        assert held.begin().add(released.path).site == "Alpha"

    def test_a_yes_for_another_upload_is_none_for_this(self, held, tmp_path):
        out = tmp_path / "out"
        first = training(held, out).run(SiteRows.of(held.kit.plan, frame()))
        Approvals(tmp_path).record("upload", first.upload.digest(), "A. Officer")
        other = training(held, out).run(SiteRows.of(held.kit.plan, frame(seed=1)))
        assert not other.released
        assert not (out / "Alpha.safetensors").exists()


class TestHoldout:
    def test_own_predictions_on_held_out_rows_stay_at_the_site(self, world, tmp_path):
        rows = SiteRows.of(world.kit.plan, frame())
        training(world, tmp_path / "out").run(rows)
        kept = Holdout.load(tmp_path / "out")
        _, held_out = rows.split_for(world.kit, "Alpha")
        assert torch.equal(kept.rows, held_out)
        assert len(kept.predictive) == 15
        assert kept.data_digest == rows.digest()
        assert kept.plan_digest == world.kit.digest

    def test_before_training_there_are_none(self, tmp_path):
        with pytest.raises(StudyError, match="site train"):
            Holdout.load(tmp_path)

    def test_a_file_that_does_not_say_which_rows_is_one_line(self, tmp_path):
        (tmp_path / "home").mkdir()
        save_file({"log_probs": torch.zeros(2, 1)}, tmp_path / "home" / "holdout.safetensors")
        with pytest.raises(StudyError, match=r"^[^\n]*not say which rows were held out[^\n]*$"):
            Holdout.load(tmp_path)

    def test_one_that_training_did_not_write_is_one_line(self, tmp_path):
        (tmp_path / "home").mkdir()
        for arrays in ({"log_probs": torch.ones(2, 3)}, {"mean": torch.ones(2)}, {}):
            rows = {"rows": torch.arange(2)}
            save_file({**arrays, **rows}, tmp_path / "home" / "holdout.safetensors")
            with pytest.raises(StudyError, match=r"^[^\n]*train again$"):
                Holdout.load(tmp_path)


def test_what_leaves_is_sealed_and_the_site_keeps_what_it_can_read(tmp_path):
    key = CoordinatorKey.generate()
    world = make_world(tmp_path / "world", learner=HOLDOUT, coordinator=key)
    study = world.begin()
    signed_kit = dataclasses.replace(world, kit=study.kit)
    rows, out = SiteRows.of(world.kit.plan, frame()), tmp_path / "site" / "out"
    trained = training(signed_kit, out).run(rows)
    assert trained.path.name == "Alpha.sealed"
    assert not (out / "Alpha.safetensors").exists()
    assert b"log_probs" not in trained.path.read_bytes()
    page = trained.egress.read_text()
    assert "encrypted to the coordinator’s key" in page
    assert "Nothing is encrypted" not in page
    again = training(signed_kit, out).run(rows)
    assert again.again
    assert study.add(again.path).digest == trained.upload.digest()
    assert Header.read(out / "held-back.safetensors").signature is None
    Approvals(out.parent).record("plan", world.kit.digest, "officer", act="revoke")
    Approvals(out.parent).record("plan", world.kit.digest, "officer")
    Approvals(out.parent).record("upload", trained.upload.digest(), "officer", act="revoke")
    assert not training(signed_kit, out).run(rows).released
    assert sorted(path.name for path in out.glob("*.*")) == ["egress.html", "held-back.safetensors"]
