"""A site's part in a plan that promises differential privacy: what leaves has noise, or stays."""

import dataclasses
import json
import stat

import pandas as pd
import pytest
import torch

from predbayes import system
from predbayes.errors import (
    DataError,
    KeyFileError,
    PlanError,
    StudyError,
    TrainingError,
    UploadError,
)
from predbayes.learning.guarantee import Guarantee
from predbayes.seeding import generator
from predbayes_study.extras.privacy.secret import SUFFIX, read_secret
from predbayes_study.extras.survey.leaving import write_survey
from predbayes_study.payload import payload_of
from predbayes_study.payloads.details import promise_of
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.site.adopt import evaluated_rows
from predbayes_study.site.book import FILE, Book
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.policy import Asked, SitePolicy
from predbayes_study.site.release import Approvals
from predbayes_study.site.rows import SiteRows
from predbayes_study.site.training import EGRESS_FILE, Holdout, Training
from predbayes_study.tables.mapping import PATIENT
from predbayes_study.tables.sitefile import Policy, SiteFile
from tests.study.world import SITES, make_world

PRIVATE = """
[learner]
name = "dp-logistic"
holdout = {holdout}
[privacy]
epsilon = 4
delta = 1e-5
adjacency = "replace-one"
unit = "{unit}"
"""
PROMISE = Guarantee(4.0, 1e-5, "replace-one", "row")
SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    learner = PRIVATE.format(unit="row", holdout=0.25)
    return make_world(tmp_path_factory.mktemp("world"), learner=learner)


def frame(num_rows=120, seed=0):
    rng = generator(seed, "frame")
    x = 10 * torch.randn(num_rows, generator=rng)
    kind = ["red" if value < -3 else "blue" if value > 3 else "green" for value in x.tolist()]
    return pd.DataFrame({"x": x.numpy().round(2), "y": [1.5] * num_rows, "kind": kind})


def rows_of(world, table=None, secret=SECRET):
    return SiteRows.of(world.kit.plan, frame() if table is None else table, secret=secret)


def train(world, folder, rows, *, site="Alpha", policy=None, out="out", table=""):
    folder.mkdir(exist_ok=True, parents=True)
    approvals = Approvals(folder, policy=SitePolicy() if policy is None else policy)
    key = world.key(site)
    learner = world.kit.plan.learner.name
    training = Training(world.kit, site, key, approvals, folder / out, learner, table=table)
    return training.run(rows)


class TestWhatLeaves:
    def test_is_predictions_a_noisy_count_and_nothing_else(self, world, tmp_path):
        """Every field of the header: a further one must be thought about here."""
        rows = rows_of(world)
        upload = train(world, tmp_path, rows).upload
        assert upload.arrays.keys() == {"log_probs"}
        told = upload.info.model_dump(exclude_none=True)
        assert told.pop("num_rows") != len(rows.split(world.kit.plan, "Alpha")[0])
        assert told == {
            "format_version": 1,
            "kind": "predictions",
            "site": "Alpha",
            "plan": world.kit.digest,
            "learner": "dp-logistic",
            "details": {"privacy": dataclasses.asdict(PROMISE)},
        }

    def test_is_the_same_bits_again_with_the_same_secret(self, world, tmp_path):
        one = train(world, tmp_path / "one", rows_of(world))
        other = train(world, tmp_path / "other", rows_of(world))
        assert one.path.read_bytes() == other.path.read_bytes()

    def test_has_other_noise_with_another_secret_whatever_the_seed(self, world, tmp_path):
        one = train(world, tmp_path / "one", rows_of(world)).upload
        other = train(world, tmp_path / "other", rows_of(world, secret=b"x" * 32)).upload
        apart = one.predictive().log_probs - other.predictive().log_probs
        assert float(apart.abs().mean()) > 0.01

    def test_has_other_noise_with_one_row_changed(self, world, tmp_path):
        """So the difference of two uploads is not that row."""
        table = frame()
        one = train(world, tmp_path, rows_of(world, table)).upload
        table.loc[3, "x"] += 0.01
        other = train(world, tmp_path, rows_of(world, table)).upload
        apart = one.predictive().log_probs - other.predictive().log_probs
        assert float(apart.abs().mean()) > 0.01

    def test_no_secret_no_upload(self, world, tmp_path):
        rows = rows_of(world)
        with pytest.raises(TrainingError, match="with noise of the site's secret"):
            make_upload(world.kit, "Alpha", (rows.inputs, rows.targets))
        with pytest.raises(TrainingError, match="with noise of the site's secret"):
            train(world, tmp_path, rows_of(world, secret=b""))

    def test_the_page_says_it_with_delta_unit_and_adjacency(self, world, tmp_path):
        trained = train(world, tmp_path, rows_of(world))
        page = (tmp_path / "out" / EGRESS_FILE).read_text()
        assert trained.egress.name == EGRESS_FILE
        assert PROMISE.text in page
        assert "No noise is added" not in page
        assert "Somebody with several rows is covered less" in page

    def test_no_survey_and_no_evaluation(self, world, tmp_path):
        plan = world.kit.plan
        with pytest.raises(StudyError, match=f"an evaluation does not leave.*{PROMISE.text}"):
            Approvals(tmp_path).require_evaluation(plan)
        own = SiteFile.loads('format = 1\nname = "Alpha"')
        with pytest.raises(StudyError, match="a survey does not leave"):
            write_survey(plan, own, world.key("Alpha"), tmp_path / "t.csv", tmp_path / "a.survey")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    learner = PRIVATE.format(unit="person", holdout=0.5)
    return make_world(tmp_path_factory.mktemp("people"), learner=learner)


def one_more(table, at):
    new = table.iloc[[0]].assign(**{PATIENT: "new", "who": -1})
    return pd.concat([new, table] if at == "top" else [table, new], ignore_index=True)


def with_cell(table, column, value):
    table = table.copy()
    table.loc[len(table) - 1, column] = value
    return table


CHANGES = {
    "one more at the top": lambda table: one_more(table, "top"),
    "one more at the end": lambda table: one_more(table, "end"),
    "a value": lambda table: with_cell(table, "x", 0.5),
    "an outcome": lambda table: with_cell(
        table, "kind", "red" if table["kind"].iloc[-1] == "blue" else "blue"
    ),
    "whose": lambda table: with_cell(table, PATIENT, "p0"),
    "order": lambda table: table.iloc[::-1].reset_index(drop=True),
}


class TestHeldOut:
    def test_is_by_the_secret(self, world):
        plan = world.kit.plan
        splits = [rows_of(world, secret=key * 32).split(plan, "Alpha")[1] for key in (b"a", b"b")]
        assert not torch.equal(*splits)
        assert 15 < len(splits[0]) < 45

    def test_is_by_no_rows_contents(self, world):
        table = frame()
        # A copy of a reference row: with a blind spot it would be held out in another's place.
        table.loc[5, ["x", "kind"]] = [float(10 * world.kit.inputs[0, 0]), "red"]
        rows, num = rows_of(world, table), 400
        held_out = torch.zeros(num, 120)
        for number in range(num):
            own = dataclasses.replace(rows, secret=number.to_bytes(32, "big"))
            held_out[number, own.split_for(world.kit, "Alpha")[1]] = 1
        assert held_out[:, 5].mean() == pytest.approx(0.25, abs=0.09)
        assert held_out.mean() == pytest.approx(0.25, abs=0.01)

    def test_is_the_same_of_the_same_rows_whenever_it_is_asked(self, world, tmp_path):
        train(world, tmp_path, rows_of(world))
        kept = Holdout.load(tmp_path / "out")
        again = rows_of(world)
        assert torch.equal(again.split(world.kit.plan, "Alpha")[1], kept.rows)
        assert torch.equal(evaluated_rows(world.kit.plan, "Alpha", again, kept), kept.rows)

    @pytest.mark.parametrize("change", CHANGES)
    def test_any_other_rows_have_coins_of_their_own(self, people, change):
        """Neither by person nor by place: each release is independent of every other."""
        num = 2000
        table = frame(num).assign(**{PATIENT: [f"p{row}" for row in range(num)], "who": range(num)})
        other = CHANGES[change](table)
        sides = []
        for some in (table, other):
            rows = rows_of(people, some.drop(columns="who"))
            side = torch.zeros(len(some))
            side[rows.split(people.kit.plan, "Alpha")[1]] = 1
            sides.append(side)
        place = {who: row for row, who in enumerate(other["who"])}
        by_person = sides[1][[place[who] for who in range(num)]]
        for aligned in (by_person, sides[1][:num], sides[1][-num:]):
            assert (aligned == sides[0]).float().mean() == pytest.approx(0.5, abs=0.05)


class TestPeople:
    def test_are_on_one_side_and_are_clipped_as_one(self, people, tmp_path):
        table = frame().assign(**{PATIENT: [f"p{row // 3}" for row in range(120)]})
        rows = rows_of(people, table)
        trained, held_out = rows.split(people.kit.plan, "Alpha")
        assert not {*rows.patients[trained].tolist()} & {*rows.patients[held_out].tolist()}
        told = train(people, tmp_path, rows).upload.info
        assert promise_of(told).unit == "person"
        assert told.num_rows < 50  # about 20 people, and not 60 rows

    def test_must_be_known(self, people):
        with pytest.raises(DataError, match="patient = COLUMN"):
            rows_of(people)
        named = [f"p{row // 3}" for row in range(119)]
        assert len(rows_of(people, frame().assign(**{PATIENT: [*named, ""]})).targets) == 119
        assert len(rows_of(people, frame().assign(**{PATIENT: ""})).targets) == 0


class TestSecret:
    def test_is_made_once_for_its_owner_alone(self, world, tmp_path):
        own = SiteFile.loads('format = 1\nname = "Alpha"')
        own._folder = tmp_path
        secret = payload_of(world.kit.plan).secret
        assert secret(own, may_make=False) == b"0" * 32
        made = secret(own)
        path = tmp_path / f"Alpha{SUFFIX}"
        assert (len(made), secret(own)) == (32, made)
        if system.NAME != "win32":  # where files have no mode
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_that_is_none_is_refused(self, tmp_path):
        (tmp_path / "a.secret").write_text("abc")
        with pytest.raises(KeyFileError, match="bring it back from a backup"):
            read_secret(tmp_path / "a.secret")


class TestBudget:
    def policy(self, most):
        return SitePolicy((("site.toml", Policy(max_epsilon=most)),))

    def test_the_same_release_is_spent_once_and_another_again(self, world, tmp_path):
        table = frame()
        for _ in range(2):
            train(world, tmp_path, rows_of(world, table), table="heart")
        train(world, tmp_path, rows_of(world, table), out="elsewhere", table="heart")
        assert len(Book(tmp_path).of_table("heart")) == 1
        table.loc[0, "x"] += 1
        train(world, tmp_path, rows_of(world, table), table="heart")
        found = Book(tmp_path).of_table("heart")
        assert [spent.guarantee for spent in found] == [PROMISE, PROMISE]
        assert Book(tmp_path).of_table("lungs") == []

    def test_above_the_limit_nothing_is_made(self, world, tmp_path):
        train(world, tmp_path, rows_of(world), policy=self.policy(4.1))
        told = r"epsilon 5\.992 at delta 1e-05 for each row, replace-one, above max_epsilon = 4\.1"
        with pytest.raises(StudyError, match=told):
            train(world, tmp_path, rows_of(world, frame(seed=1)), policy=self.policy(4.1), out="b")
        assert not (tmp_path / "b" / "held-back.safetensors").exists()
        assert len((tmp_path / FILE).read_text().splitlines()) == 1

    def test_a_book_that_was_altered_is_refused(self, world, tmp_path):
        train(world, tmp_path, rows_of(world))
        content = (tmp_path / FILE).read_text()
        (tmp_path / FILE).write_text(content.replace('"epsilon":4.0', '"epsilon":0.4'))
        with pytest.raises(StudyError, match="budget"):
            train(world, tmp_path, rows_of(world, frame(seed=1)), out="b")

    def test_with_a_limit_a_plan_without_a_promise_is_refused(self, tmp_path):
        plain = make_world(tmp_path)
        with pytest.raises(PlanError, match="promises no differential privacy"):
            self.policy(4.0).require(Asked.of(plain.kit.plan))


class TestPlan:
    def text(self, world, **changed):
        plan = world.kit.plan
        draft = plan.model_copy(update={"frozen": None})
        content = json.loads(draft.model_dump_json(exclude_none=True))
        for path, value in changed.items():
            section, _, key = path.partition("__")
            content[section] = content.get(section, {}) | {key: value} if key else value
        return content

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"gate": {}}, "leave gate out"),
            ({"survey": {}}, "leave survey out"),
            ({"learner__split": "stratified"}, "leave learner.split out"),
            ({"learner__name": "any"}, "learner.name"),
            ({"learner__name": "auto"}, "learner.name"),
            ({"moments": {"features": 5}}, "leave moments out"),
            ({"privacy": {}}, "privacy.delta is missing"),
        ],
    )
    def test_what_has_no_noise_is_refused_by_name(self, world, changed, why):
        with pytest.raises(ValueError, match=why):
            Plan.model_validate(self.text(world, **changed))

    @pytest.mark.parametrize("task", ["regression", "survival"])
    def test_tasks_that_it_cannot_do_are_refused_by_name(self, world, task):
        target = {"name": "kind", "task": task}
        if task == "survival":
            target |= {"event": "died", "times": [1.0, 2.0]}
        content = self.text(world) | {"target": target}
        with pytest.raises(ValueError, match=rf"target\.task: a {task}.*\[privacy\]"):
            Plan.model_validate(content)

    def test_its_text_reads_back(self, world):
        assert Plan.loads(dump(world.kit.plan)) == world.kit.plan


def test_a_study_from_sites_to_report(world, tmp_path):
    study = world.begin()
    for number, site in enumerate(SITES[:3]):
        rows = rows_of(world, frame(seed=number))
        accepted = study.add(train(world, tmp_path / site, rows, site=site).path)
        assert PROMISE.text in accepted.rows_in_words
    assert study.ledger.path.read_text().count(PROMISE.text) == 3
    with pytest.raises(UploadError, match="promises no differential privacy, and the plan epsilon"):
        study.add(world.signed("Delta"))
    study.finish()
    result = study.folder / "results" / "1"
    for page in ("report.html", "model-card.html"):
        text = (result / page).read_text()
        assert PROMISE.text in text
        assert "there is no differential privacy" not in text
        assert "No differential privacy" not in text
