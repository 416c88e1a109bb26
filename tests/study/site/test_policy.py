"""The site's policy stands above every plan: floors, bounds, and where it is read from."""

import pytest
import torch
from pydantic import ValidationError

from predbayes.errors import DataError, PlanError, StudyError, TrainingError
from predbayes.exchange.signing import SigningKey
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes.study.plan import software
from predbayes.study.site.bounds import least_std
from predbayes.study.site.policy import VARIABLE, SitePolicy
from predbayes.study.site.release import Approvals
from predbayes.study.site.rows import SiteRows
from predbayes.study.site.training import Training
from predbayes.study.tables.sitefile import Policy, SiteFile
from tests.study.world import make_world

CLASSES = torch.tensor([0, 1, 2])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("policy") / "world")


def of(**floors) -> SitePolicy:
    return SitePolicy((("policy.toml", Policy(**floors)),))


def changed(plan, section, **settings):
    part = getattr(plan, section).model_copy(update=settings)
    return plan.model_copy(update={section: part})


@pytest.mark.parametrize(
    ("floors", "setting"),
    [
        ({"kinds": ("weights",)}, "upload.kind = 'predictions'"),
        ({"min_cell": 6}, "rules.min_cell = 5 of the plan is below min_cell = 6"),
        ({"min_holdout": 0.1}, "learner.holdout = 0 of the plan is below min_holdout = 0.1"),
        ({"presets": ("paper",)}, "learner.preset = 'tuned'"),
        ({"learners": ("random-forest",)}, "learner 'network' is not among learners"),
        ({"max_sureness": 0.3}, "target.classes of the plan are 3"),
        ({"max_steps": 100}, "learner.min_steps = 200"),
        ({"max_memory": 1e-9}, "max_samples = 6"),
        ({"software": "refuse"}, "software = 'refuse'"),
    ],
)
def test_a_plan_below_a_floor_is_refused_with_setting_floor_and_file(world, floors, setting):
    with pytest.raises(PlanError) as refused:
        of(**floors).require(world.kit.plan)
    assert setting in str(refused.value)
    assert "policy.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_a_policy_an_honest_plan_passes(world):
    assert SitePolicy.of().problems(world.kit.plan, "network", 100_000) == []
    assert SitePolicy.of().digest == ""


def test_weights_cannot_be_made_less_sure(world):
    plan = changed(world.kit.plan, "upload", kind="weights")
    assert "cannot be bounded" in of(max_sureness=0.9).problems(plan)[0]


def test_bytes_round_too_coarsely_for_a_bound_on_sureness(world):
    plan = changed(world.kit.plan, "upload", precision="uint8")
    assert of().problems(plan) == []
    assert "rounds too coarsely" in of(max_sureness=0.9).problems(plan)[0]


class TestWhere:
    def test_it_is_a_section_a_file_or_the_institutions(self, tmp_path, monkeypatch):
        (tmp_path / "ours.toml").write_text("min_cell = 7\n")
        (tmp_path / "site.toml").write_text('format = 1\nname = "A"\npolicy = "ours.toml"\n')
        own = SiteFile.load(tmp_path / "site.toml")
        assert SitePolicy.of(own).stated[0][1].min_cell == 7
        section = SiteFile.loads('format = 1\nname = "A"\n[policy]\nmin_cell = 3\n')
        monkeypatch.setenv(VARIABLE, str(tmp_path / "ours.toml"))
        both = SitePolicy.of(section)
        assert [(where, p.min_cell) for where, p in both.stated] == [
            ("site.toml", 3),
            ("ours.toml", 7),
        ]
        assert both.digest != SitePolicy.of(own).digest

    def test_of_two_the_stricter_decides(self, world):
        lax, strict = Policy(min_cell=1, max_sureness=1.0), Policy(min_cell=9, max_sureness=0.8)
        both = SitePolicy((("a", lax), ("b", strict)))
        assert both.bounds.sureness == 0.8
        assert "of b" in both.problems(world.kit.plan)[0]

    def test_a_file_that_is_not_there_stops_everything(self, monkeypatch, tmp_path):
        monkeypatch.setenv(VARIABLE, str(tmp_path / "gone.toml"))
        with pytest.raises(PlanError, match="cannot read"):
            SitePolicy.of()

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("min_cel = 5", "did you mean 'min_cell'"),
            ("max_sureness = 1.5", "policy.max_sureness"),
            ('learners = ["a\\u001bb"]', "policy.learners"),
        ],
    )
    def test_its_form_is_strict(self, text, problem):
        with pytest.raises(PlanError, match=problem):
            SiteFile.loads(f'format = 1\nname = "A"\n[policy]\n{text}\n')

    def test_no_floor_is_negative(self):
        with pytest.raises(ValidationError):
            Policy(min_cell=0)


class TestWhatLeaves:
    def test_no_probability_is_above_the_bound_and_the_order_stays(self):
        logits = 6 * torch.randn(200, 3, generator=generator(0, "sure"))
        upload = Upload.of_predictions(Categorical(logits.log_softmax(1)), num_rows=163)
        sent = of(max_sureness=0.9).limited(upload, CLASSES).arrays["log_probs"]
        before = upload.arrays["log_probs"]
        sure = before.exp().amax(1) > 0.9
        assert float(sent.exp().max()) == pytest.approx(0.9, abs=1e-6)
        assert torch.equal(sent.argsort(1), before.argsort(1))
        assert torch.equal(sent[~sure], before[~sure])
        assert float((sent.exp().sum(1) - 1).abs().max()) < 1e-6

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
    def test_numbers_have_a_least_deviation_whatever_the_plans_unit(self, scale):
        """With a scale a hundred times too large a plan would have lowered the floor as much."""
        targets = torch.randn(300, generator=generator(0, "targets")) / scale
        var = torch.full((5,), 0.01) / scale**2
        upload = Upload.of_predictions(Gaussian(torch.zeros(5), 2 * var, var), num_rows=300)
        sent = of(min_std=0.5).limited(upload, targets).arrays
        std = (sent["epistemic_var"] + sent["noise_var"]).double().sqrt() / targets.double().std()
        assert 0.5 <= float(std.min()) <= float(std.max()) <= 0.56

    def test_the_floor_does_not_tell_the_deviation_itself(self):
        targets = torch.arange(100.0)
        floors = {least_std(0.5, targets[: 100 - left_out]) for left_out in range(4)}
        assert floors == {15.0}

    def test_numbers_that_are_all_the_same_have_no_unit(self):
        with pytest.raises(DataError, match="min_std has no unit"):
            least_std(0.5, torch.ones(9))
        assert least_std(0.0, torch.ones(9)) == 0.0

    def test_training_bounds_numbers_by_the_rows_it_trained_on(self, tmp_path):
        learner = "[learner]\nname = 'any'\nholdout = 0.2\n"
        world = make_world(tmp_path / "world", regression=True, learner=learner)
        inputs = torch.randn(60, world.kit.plan.num_inputs, generator=generator(0, "rows"))
        targets = inputs[:, 0] / 100  # as if the plan's scale were a hundred times too large
        training = Training(
            world.kit,
            "Alpha",
            SigningKey.generate(),
            Approvals(tmp_path, policy=of(min_std=0.5)),
            tmp_path / "out",
            "linear-regression",
        )
        sent = training.run(SiteRows(inputs, targets)).upload.arrays
        least = (sent["epistemic_var"] + sent["noise_var"]).min()
        assert float(least.sqrt()) == pytest.approx(0.5 * float(targets.std()), rel=0.1)

    def test_counts_are_rounded_down(self, world):
        told = of(round_rows=10).limited(world.upload("Alpha"), CLASSES).info
        assert (told.num_rows, told.class_rows) == (100, (40.0, 30.0, 30.0))
        assert of(round_rows=35).limited(world.upload("Alpha"), CLASSES).info.class_rows is None
        with pytest.raises(DataError, match="round down to none"):
            of(round_rows=1000).limited(world.upload("Alpha"), CLASSES)

    def test_without_bounds_it_is_the_same(self, world):
        upload = world.upload("Alpha")
        assert SitePolicy.of().limited(upload, CLASSES) is upload


class TestEnforced:
    def rows(self, world):
        inputs = torch.randn(60, world.kit.plan.num_inputs, generator=generator(0, "rows"))
        return SiteRows(inputs, (inputs[:, 0] > 0).long())

    def training(self, world, tmp_path, **floors):
        approvals = Approvals(tmp_path, policy=of(**floors))
        return Training(world.kit, "Alpha", SigningKey.generate(), approvals, tmp_path / "out")

    def test_training_refuses_what_a_policy_forbids(self, world, tmp_path):
        with pytest.raises(PlanError, match="min_cell = 9"):
            self.training(world, tmp_path, min_cell=9).run(self.rows(world))

    def test_training_ends_after_its_hours(self, world, tmp_path):
        with pytest.raises(TrainingError, match="max_hours"):
            self.training(world, tmp_path, max_hours=1e-9).run(self.rows(world))

    def test_an_upload_is_bounded_and_held_back(self, world, tmp_path):
        training = self.training(world, tmp_path, max_sureness=0.7, round_rows=50, release="manual")
        with pytest.raises(StudyError, match="approval before training"):
            training.run(self.rows(world))
        training.approvals.record("plan", world.kit.digest, "A. Officer")
        trained = training.run(self.rows(world))
        assert not trained.released
        assert float(trained.upload.arrays["log_probs"].exp().max()) < 0.7 + 1e-6
        assert trained.upload.info.num_rows == 50

    def test_what_was_made_under_a_laxer_policy_is_made_again(self, world, tmp_path):
        before = self.training(world, tmp_path).run(self.rows(world))
        after = self.training(world, tmp_path, max_sureness=0.6).run(self.rows(world))
        assert float(before.upload.arrays["log_probs"].exp().max()) > 0.6
        assert float(after.upload.arrays["log_probs"].exp().max()) < 0.6 + 1e-6
        assert not after.again

    def test_an_approval_of_the_plan_may_be_asked_for_alone(self, world):
        policy = of(approval=True)
        assert policy.asks_approval(world.kit.plan)
        assert not policy.asks_release(world.kit.plan)

    def test_evaluations_need_rows_and_a_kind(self):
        with pytest.raises(DataError, match=r"29 rows is below min_evaluated = 30 of policy\.toml"):
            of(min_evaluated=30).require_rows(29)
        of(min_evaluated=30).require_rows(30)
        with pytest.raises(PlanError, match="evaluation are not among kinds"):
            of(kinds=("predictions",)).require_rows(100)


class TestSoftware:
    def frozen(self, world, stated):
        return changed(world.kit.plan, "frozen", software=stated)

    @pytest.mark.parametrize(
        ("stated", "here", "problem"),
        [
            ("a" * 64, "a" * 64, ""),
            ("a" * 64, "b" * 64, "are not those of predbayes"),
            ("", "b" * 64, "frozen.software of the plan is empty"),
            ("a" * 64, "", "runs from its sources"),
        ],
    )
    def test_it_is_compared_or_said_why_not(self, world, monkeypatch, stated, here, problem):
        monkeypatch.setattr(software, "software_digest", lambda: here)
        told = software.software_problem(self.frozen(world, stated))
        assert bool(told) == bool(problem)
        assert problem in told
        assert bool(of(software="refuse").problems(self.frozen(world, stated))) == bool(problem)

    @pytest.mark.parametrize(("stated", "here"), [("", ""), ("a" * 64, "a" * 64), ("a" * 64, "")])
    def test_the_version_is_compared_whatever_is_known_of_files(
        self, world, monkeypatch, stated, here
    ):
        monkeypatch.setattr(software, "software_digest", lambda: here)
        assert not software.is_another_software(self.frozen(world, stated))
        plan = changed(world.kit.plan, "frozen", software=stated, version="0.0.9")
        assert software.is_another_software(plan)
        assert "the plan was frozen with 0.0.9" in software.software_problem(plan)

    def test_of_a_wheel_it_covers_every_file_and_not_what_is_compiled(self, monkeypatch, tmp_path):
        package, info = tmp_path / "predbayes", tmp_path / "predbayes-0.1.dist-info"
        (package / "__pycache__").mkdir(parents=True)
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: predbayes\nVersion: 0.1\n")
        names = ["predbayes/__init__.py", "predbayes/words.toml", "predbayes/__pycache__/a.pyc"]
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
        for name in names:
            (tmp_path / name).write_text("1")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(software.predbayes, "__file__", str(package / "__init__.py"))
        digests = []
        for name in (None, names[2], names[1], names[0]):
            if name is not None:
                (tmp_path / name).write_text("2")
            software.software_digest.cache_clear()
            digests.append(software.software_digest())
        software.software_digest.cache_clear()
        assert digests[0] == digests[1]
        assert len(set(digests)) == 3

    @pytest.mark.parametrize(
        ("name", "content", "covered"),
        [
            ("predbayes/extra.py", b"1", True),
            ("predbayes/study/numpy.py", b"1", True),
            ("predbayes/sourceless.pyc", b"1", True),
            ("predbayes/__pycache__/a.pyc", b"abcd\x01\0\0\0", True),  # run without its source
            ("predbayes/__pycache__/a.pyc", b"abcd\0\0\0\0", False),
            ("evil.pth", b"import os", False),
        ],
    )
    def test_files_that_the_wheel_does_not_list_count_too(
        self, monkeypatch, tmp_path, name, content, covered
    ):
        package, info = tmp_path / "predbayes", tmp_path / "predbayes-0.1.dist-info"
        package.mkdir()
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: predbayes\nVersion: 0.1\n")
        (info / "RECORD").write_text("predbayes/__init__.py,,\n")
        (package / "__init__.py").write_text("1")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(software.predbayes, "__file__", str(package / "__init__.py"))
        before = software.software_digest.__wrapped__()
        assert before
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        assert (software.software_digest.__wrapped__() != before) == covered

    def test_from_sources_there_is_none(self, monkeypatch, tmp_path):
        monkeypatch.setattr(software.predbayes, "__file__", str(tmp_path / "__init__.py"))
        software.software_digest.cache_clear()
        assert software.software_digest() == ""
        software.software_digest.cache_clear()
