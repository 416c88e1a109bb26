"""The site's policy stands above every plan: floors, bounds, and where it is read from."""

import pytest
import torch
from pydantic import ValidationError

from predbayes.errors import PlanError, StudyError, TrainingError
from predbayes.seeding import generator
from predbayes_study import extra
from predbayes_study.extras.survey.leaving import write_survey
from predbayes_study.payload import _OWN, ModelPayload, payload_named
from predbayes_study.plan import software
from predbayes_study.site.policy import RULES, VARIABLE, Asked, SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.site import Site
from predbayes_study.site.training import Training
from predbayes_study.tables.sitefile import Policy, SiteFile
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("policy") / "world")


def of(**floors) -> SitePolicy:
    return SitePolicy((("policy.toml", Policy(**floors)),))


def changed(plan, section, **settings):
    part = getattr(plan, section).model_copy(update=settings)
    return plan.model_copy(update={section: part})


@pytest.mark.parametrize(
    ("floors", "told"),
    [
        ({"kinds": ("moments",)}, ["predictions would leave", "kinds = ['moments']"]),
        ({"min_cell": 6}, ["rules.min_cell of the plan is 5", "min_cell = 6"]),
        ({"learners": ("random-forest",)}, ["'network'", "learners = ['random-forest']"]),
        ({"max_memory": 1e-9}, ["max_samples = 6", "max_memory = 1e-09"]),
        ({"software": "refuse"}, ["software = 'refuse'"]),
        ({"max_epsilon": 1.0}, ["differential privacy", "max_epsilon = 1.0"]),
    ],
)
def test_a_plan_below_a_floor_is_refused_with_setting_floor_and_file(world, floors, told):
    with pytest.raises(PlanError) as refused:
        of(**floors).require(Asked.of(world.kit.plan))
    for words in (*told, "policy.toml"):
        assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_a_policy_an_honest_plan_passes(world):
    assert SitePolicy.of().problems(Asked.of(world.kit.plan, "network", 100_000)) == []
    assert SitePolicy.of().digest == ""


def test_every_key_is_a_rule_or_is_read_elsewhere():
    read = {"release", "max_near", "max_delta", "max_hours"}
    assert {rule.key for rule in RULES} | read == {*Policy.model_fields, "learner"}


KINDS = ("predictions", "gate", "moments", "evaluation", "survey")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_listed_does_not_leave(kind):
    others = tuple(other for other in KINDS if other != kind)
    of(kinds=(kind,)).require(Asked(leaving=(kind,)))
    with pytest.raises(PlanError, match=f"{kind} would leave, against kinds"):
        of(kinds=others).require(Asked(leaving=(kind,)))


def test_what_is_masked_is_predictions():
    of(kinds=("predictions",)).require(Asked.of_file("masked"))
    with pytest.raises(PlanError, match="kinds"):
        of(kinds=("moments",)).require(Asked.of_file("masked"))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    key = CoordinatorKey.generate().public
    section = f'[sealed]\nminimum = 2\nholders = ["{key.signing.hex}{key.encryption}"]\n'
    return make_world(tmp_path_factory.mktemp("sealed"), gate=section)


class TestSealed:
    """A site that wants masks: what leaves without them."""

    def test_a_plan_without_them_is_refused_and_one_with_them_is_not(self, world, sealed):
        for kinds in (None, ("predictions",)):
            wants = of(sealed=True, kinds=kinds)
            wants.require(Asked.of(sealed.kit.plan))
            with pytest.raises(PlanError, match="sealed = True"):
                wants.require(Asked.of(world.kit.plan))

    def test_every_kind_of_upload_is_masked_or_refused(self):
        """Whatever extras add: a file that a model is made of does not leave in the open."""
        kinds = [*_OWN, *(name for name, _, _ in extra.added("payloads"))]
        for kind in kinds:
            payload = payload_named(kind)
            if isinstance(payload, ModelPayload) and kind != "private":  # which is no kind
                refused = of(sealed=True, kinds=KINDS).problems(Asked.of_file(kind))
                assert bool(refused) != payload.masks, kind
        assert {"masked", "moments", "predictions"} <= {*kinds}

    @pytest.mark.parametrize("kind", ["evaluation", "survey"])
    def test_what_has_no_mask_is_for_the_site_to_name(self, kind):
        with pytest.raises(PlanError, match=f"{kind} would leave"):
            of(sealed=True).require(Asked(leaving=(kind,)))
        of(sealed=True, kinds=("predictions", kind)).require(Asked(leaving=(kind,)))

    def test_an_evaluation_of_a_plan_without_them_is_refused_all_the_same(self, world, tmp_path):
        policy = of(sealed=True, kinds=("predictions", "evaluation"))
        with pytest.raises(PlanError, match="sealed = True"):
            Approvals(tmp_path, policy=policy).require_evaluation(world.kit.plan)

    def test_nothing_is_trained_and_no_survey_is_made(self, world, tmp_path):
        approvals = Approvals(tmp_path, policy=of(sealed=True))
        training = Training(world.kit, "Alpha", SigningKey.generate(), approvals, tmp_path / "out")
        inputs = torch.randn(60, world.kit.plan.num_inputs, generator=generator(0, "rows"))
        with pytest.raises(PlanError, match="sealed = True"):
            training.run(SiteRows(inputs, (inputs[:, 0] > 0).long()))
        own = SiteFile.loads('format = 1\nname = "Alpha"\n[policy]\nsealed = true\n')
        own._folder = tmp_path
        with pytest.raises(PlanError, match="sealed = True"):
            write_survey(
                world.kit.plan, own, training.key, tmp_path / "t.csv", tmp_path / "a.survey"
            )
        assert not [*tmp_path.rglob("*.safetensors"), *tmp_path.rglob("*.survey")]

    def test_nor_is_such_a_plan_approved(self, world, tmp_path):
        (tmp_path / "site.toml").write_text('format = 1\nname = "A"\n[policy]\nsealed = true\n')
        with pytest.raises(PlanError, match="sealed = True"):
            Site(tmp_path / "site.toml").approve(world.kit.folder, "B. Officer")


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
        lax, strict = Policy(min_cell=1, max_hours=9.0), Policy(min_cell=9, max_hours=2.0)
        both = SitePolicy((("a", lax), ("b", strict)))
        assert both.max_hours == 2.0
        assert both.least_cell(world.kit.plan) == 9
        assert "of b" in both.problems(Asked.of(world.kit.plan))[0]

    def test_a_file_that_is_not_there_stops_everything(self, monkeypatch, tmp_path):
        monkeypatch.setenv(VARIABLE, str(tmp_path / "gone.toml"))
        with pytest.raises(PlanError, match="cannot read"):
            SitePolicy.of()

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("min_cel = 5", "did you mean 'min_cell'"),
            ("max_membership_auc = 1.5", "policy.max_membership_auc"),
            ('learners = ["a\\u001bb"]', "policy.learners"),
        ],
    )
    def test_its_form_is_strict(self, text, problem):
        with pytest.raises(PlanError, match=problem):
            SiteFile.loads(f'format = 1\nname = "A"\n[policy]\n{text}\n')

    def test_no_floor_is_negative(self):
        with pytest.raises(ValidationError):
            Policy(min_cell=0)


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

    def test_an_upload_is_held_back(self, world, tmp_path):
        training = self.training(world, tmp_path, release="manual")
        with pytest.raises(StudyError, match="approval before training"):
            training.run(self.rows(world))
        training.approvals.record("plan", world.kit.digest, "A. Officer")
        assert not training.run(self.rows(world)).released


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
        assert bool(of(software="refuse").problems(Asked.of(self.frozen(world, stated)))) == bool(
            problem
        )

    @pytest.mark.parametrize(("stated", "here"), [("", ""), ("a" * 64, "a" * 64), ("a" * 64, "")])
    def test_the_version_is_compared_whatever_is_known_of_files(
        self, world, monkeypatch, stated, here
    ):
        monkeypatch.setattr(software, "software_digest", lambda: here)
        assert not software.is_another_software(self.frozen(world, stated))
        plan = changed(world.kit.plan, "frozen", software=stated, version="0.0.9")
        assert software.is_another_software(plan)
        assert "the plan was frozen with 0.0.9" in software.software_problem(plan)

    @pytest.mark.parametrize(
        ("name", "content", "covered"),
        [
            ("predbayes/__init__.py", b"2", True),
            ("predbayes/words.toml", b"2", True),
            ("predbayes_study/__init__.py", b"2", True),
            # What the wheel does not list counts, too.
            ("predbayes/extra.py", b"1", True),
            ("predbayes_study/plan/numpy.py", b"1", True),
            ("predbayes/sourceless.pyc", b"1", True),
            ("predbayes/__pycache__/a.pyc", b"abcd\x01\0\0\0", True),  # run without its source
            ("predbayes/__pycache__/a.pyc", b"abcd\0\0\0\0", False),
            ("evil.pth", b"import os", False),
        ],
    )
    def test_it_covers_every_file_of_both_packages_that_runs(
        self, monkeypatch, tmp_path, name, content, covered
    ):
        for package in ("predbayes", "predbayes_study"):
            info = tmp_path / f"{package}-0.1.dist-info"
            (tmp_path / package).mkdir()
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n"
            )
            (info / "RECORD").write_text(f"{package}/__init__.py,,\n{package}/words.toml,,\n")
            (tmp_path / package / "__init__.py").write_text("1")
            (tmp_path / package / "words.toml").write_text("1")
            file = str(tmp_path / package / "__init__.py")
            monkeypatch.setattr(getattr(software, package), "__file__", file)
        monkeypatch.syspath_prepend(tmp_path)
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
