"""A site's part in a plan with a private network: what holds for the linear model holds here."""

import dataclasses
import json
import re
import sys

import pytest

from predbayes.errors import DataError, MissingPackageError, StudyError
from predbayes.learning.accounting import Guarantee
from predbayes.learning.composition import _least_noise
from predbayes.seeding import generator
from predbayes.study.plan.models import make_learner
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.text import dump
from predbayes.study.site.audit import audit, in_short
from predbayes.study.site.budget import FILE, Book
from predbayes.study.site.policy import NO_POLICY, SitePolicy
from predbayes.study.site.training import EGRESS_FILE
from predbayes.study.tables.check import site_problems
from predbayes.study.tables.mapping import PATIENT
from predbayes.study.tables.sitefile import Policy, SiteFile
from tests.study.site.test_private import frame, rows_of, train
from tests.study.world import SITES, make_world

NETWORK = """
[learner]
name = "dp-network"
holdout = 0.25
batches = {{ clip = 2, size = 50, least = 500, steps = 20 }}
[privacy]
people = {{ epsilon = 4, delta = 1e-5, adjacency = "replace-one", unit = "{unit}" }}
"""
PROMISE = Guarantee(4.0, 1e-5, "replace-one", "row")
NUM_ROWS = 800


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("network"), learner=NETWORK.format(unit="row"))


def many(world, seed=0, secret=bytes(range(32))):
    return rows_of(world, frame(NUM_ROWS, seed), secret)


class TestWhatLeaves:
    def test_is_predictions_a_noisy_count_and_nothing_else(self, world, tmp_path):
        rows = many(world)
        upload = train(world, tmp_path, rows).upload
        assert upload.arrays.keys() == {"log_probs"}
        told = upload.info.model_dump(exclude_none=True)
        assert told.pop("num_rows") != len(rows.split(world.kit.plan, "Alpha")[0])
        assert told == {
            "format_version": 1,
            "kind": "predictions",
            "site": "Alpha",
            "plan": world.kit.digest,
            "learner": "dp-network",
            "privacy": dataclasses.asdict(PROMISE),
        }
        page = (tmp_path / "out" / EGRESS_FILE).read_text()
        assert PROMISE.text in page
        assert "No noise is added" not in page

    def test_is_the_same_bits_again_and_other_noise_with_another_secret(self, world, tmp_path):
        one, again = (train(world, tmp_path / name, many(world)) for name in ("one", "again"))
        assert one.path.read_bytes() == again.path.read_bytes()
        other = train(world, tmp_path / "other", many(world, secret=b"x" * 32))
        apart = one.upload.predictive().log_probs - other.upload.predictive().log_probs
        assert float(apart.abs().mean()) > 0.01


class TestTooFew:
    WHY = "with fewer than least = 500 people .* ask the coordinator for a plan with 'dp-logistic'"

    def test_rows_are_refused_before_anything_is_spent(self, world, tmp_path):
        with pytest.raises(DataError, match=self.WHY) as refused:
            train(world, tmp_path, rows_of(world, frame(600)))  # of which 450 are trained on
        assert "\n" not in str(refused.value)
        assert not (tmp_path / FILE).exists()

    def test_site_check_says_so(self, world, tmp_path):
        own = SiteFile.loads('format = 1\nname = "Alpha"')
        found = {}
        for num_rows in (600, NUM_ROWS):
            frame(num_rows).to_csv(tmp_path / "rows.csv", index=False)
            checked = site_problems(world.kit.plan, own, tmp_path / "rows.csv", 0)
            found[num_rows] = [one.text for one in checked.errors]
        [why] = found[600]
        assert re.fullmatch(self.WHY, why)
        assert found[NUM_ROWS] == []

    def test_people_are_counted_and_not_their_rows(self, tmp_path):
        people = make_world(tmp_path / "people", learner=NETWORK.format(unit="person"))
        table = frame(NUM_ROWS).assign(**{PATIENT: [f"p{row // 2}" for row in range(NUM_ROWS)]})
        with pytest.raises(DataError, match=self.WHY):
            train(people, tmp_path, rows_of(people, table))
        table[PATIENT] = [f"p{row}" for row in range(NUM_ROWS)]
        assert train(people, tmp_path, rows_of(people, table)).upload.info.privacy.unit == "person"


class TestBudget:
    def policy(self, most):
        return SitePolicy((("site.toml", Policy(max_epsilon=most)),))

    def test_is_spent_once_for_the_same_release_and_says_how_it_was_kept(self, world, tmp_path):
        for out in ("out", "elsewhere"):
            train(world, tmp_path, many(world), out=out, table="heart")
        (spent,) = Book(tmp_path).of_table("heart")
        assert spent.guarantee == PROMISE
        assert (spent.kept.probability, spent.kept.steps) == (0.1, 20)

    def test_of_two_networks_is_composed_as_batches_are(self, world, tmp_path):
        train(world, tmp_path, many(world), policy=self.policy(4.0))
        told = r"epsilon [56]\.\d+ at delta 1e-05 for each row, replace-one, above max_epsilon = 5 "
        with pytest.raises(StudyError, match=told):
            train(world, tmp_path, many(world, 1), policy=self.policy(5.0), out="b")
        assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_an_audit_finds_less_than_is_promised(world):
    found = audit(world.kit, "Alpha", many(world), "dp-network", policy=NO_POLICY)
    assert (found.learner, found.shortened) == ("dp-network", "")
    assert found.target.epsilon <= PROMISE.epsilon


def test_an_audit_of_many_rows_takes_fewer_steps_under_the_same_promise(world):
    learner = make_learner(world.kit.plan, "dp-network")
    rows = frame(2), range(4_000_000)
    fewer, told = in_short(learner, rows, 5.0, rng=generator(0))
    assert told == f"{fewer.steps} of 20 steps"
    assert (fewer.steps < 20, fewer.guarantee) == (True, PROMISE)


def test_without_the_accountant_nothing_is_spent(world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    _least_noise.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install '\.\[privacy\]'"):
        train(world, tmp_path, many(world))
    assert not (tmp_path / FILE).exists()


class TestPlan:
    def content(self, world, **changed):
        draft = world.kit.plan.model_copy(update={"frozen": None})
        content = json.loads(draft.model_dump_json(exclude_none=True))
        for section, values in changed.items():
            content[section] = content.get(section, {}) | values
        return content

    @pytest.mark.parametrize(
        ("batches", "why"),
        [
            (None, r"'dp-network' needs learner.batches, such as \{ clip = 2"),
            ({"clip": 0.0}, "greater than 0"),
            ({"size": 0}, "greater than or equal to 1"),
            ({"size": 501}, "size = 501 is above least = 500"),
            ({"steps": 10_001}, "less than or equal to 10000"),
            ({"least": 499}, "least = 499 is below 500: .* take learner.name = 'dp-logistic'"),
            ({"momentum": 0.9}, "momentum"),
        ],
    )
    def test_batches_that_cannot_be_are_refused(self, world, batches, why):
        content = self.content(world)
        if batches is None:
            del content["learner"]["batches"]
        else:
            content["learner"]["batches"] |= batches
        with pytest.raises(ValueError, match=why):
            Plan.model_validate(content)

    def test_batches_of_another_learner_are_refused(self, world):
        content = self.content(world, learner={"name": "dp-logistic"})
        with pytest.raises(ValueError, match=r"learner\.batches is of the learner 'dp-network'"):
            Plan.model_validate(content)

    @pytest.mark.parametrize("task", ["regression", "survival"])
    def test_tasks_that_it_cannot_do_are_refused_by_name(self, world, task):
        target = {"name": "kind", "task": task}
        if task == "survival":
            target |= {"event": "died", "times": [1.0, 2.0]}
        content = self.content(world) | {"target": target}
        with pytest.raises(ValueError, match=f"'dp-network' is for a classification, not .*{task}"):
            Plan.model_validate(content)

    def test_without_a_promise_it_is_refused(self, world):
        content = self.content(world) | {"privacy": {}}
        with pytest.raises(ValueError, match=r"'dp-network' needs privacy\.people: epsilon, delta"):
            Plan.model_validate(content)

    def test_its_text_has_the_batches_in_one_line_and_reads_back(self, world):
        text = dump(world.kit.plan)
        line = next(line for line in text.splitlines() if line.startswith("batches"))
        assert all(word in line for word in ("clip", "size", "least", "steps"))
        assert Plan.loads(text) == world.kit.plan


def test_a_study_from_sites_to_report(world, tmp_path):
    study = world.begin()
    for number, site in enumerate(SITES[:3]):
        trained = train(world, tmp_path / site, many(world, number), site=site)
        assert PROMISE.text in study.add(trained.path).rows_in_words
    assert study.ledger.path.read_text().count(PROMISE.text) == 3
    study.finish()
    for page in ("report.html", "model-card.html"):
        text = (study.folder / "results" / "1" / page).read_text()
        assert PROMISE.text in text
        assert "No differential privacy" not in text
