"""Sums over a site's rows: that they add up, tell of no few rows, and become part of a study."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from predbayes.errors import DataError, StudyError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.predictive.metrics import DIAGRAM_BINS
from predbayes.seeding import generator
from predbayes_study.coordinator.status import status_of
from predbayes_study.coordinator.study import Study
from predbayes_study.payloads.details import (
    BinSums,
    Details,
    Sums,
    evaluation_of,
    save_signed,
    with_evaluation,
)
from predbayes_study.plan.schema import Plan
from predbayes_study.report.report import render_report
from predbayes_study.result.accepted import AcceptedEvaluation
from predbayes_study.result.evaluation import (
    at_sites,
    check_evaluation,
    evaluate,
    evaluation_upload,
)
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.scoring import measures_of, score
from predbayes_study.result.statistics import STATISTICS
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks import task_of
from tests.study.samples import (
    classification_plan,
    classification_result,
    regression_plan,
    regression_result,
)
from tests.study.world import SITES, make_world

MODEL = "a" * 64
pytestmark = pytest.mark.usefixtures("quick_results")
ROUNDED = 5e-3  # what three digits can be off by


def plan_of(target, min_cell=5):
    return Plan.loads(f"""
format = 1
name = "sums"
target = {{ name = "outcome", {target} }}
reference = {{}}
[columns]
x = {{ type = "number" }}
[rules]
min_cell = {min_cell}
""")


CLASSES = plan_of('task = "classification", classes = ["a", "b", "c"]')
NUMBER = plan_of('task = "regression", unit = "cm", centre = 170.0, scale = 10.0')
LOG = plan_of('task = "regression", transform = "log", centre = 2.0, scale = 0.5')


def names_of(plan):
    return {measure.name for measure in measures_of(plan)}


def draw(plan, num_rows, seed=0):
    """Predictions and targets that agree more or less."""
    rng = generator(seed, "draw")
    if plan.target.classes:
        logits = 1.5 * torch.randn(num_rows, plan.num_outputs, generator=rng)
        predictive = Categorical(logits.log_softmax(-1))
        return predictive, torch.multinomial(predictive.moments(), 1, generator=rng)[:, 0]
    mean, noise = torch.randn(2, num_rows, generator=rng)
    return Gaussian(mean, torch.full_like(mean, 0.5)), mean + 0.7 * noise


def sent(plan, site, num_rows, seed=0):
    return evaluation_upload(plan, site, *draw(plan, num_rows, seed), MODEL)


class TestSums:
    @pytest.mark.parametrize("plan", [CLASSES, NUMBER, LOG])
    def test_sums_of_sites_add_up_to_the_metrics_of_all_rows(self, plan):
        sizes = (30, 45, 60)
        parts = [draw(plan, size, seed) for seed, size in enumerate(sizes)]
        infos = [
            evaluation_upload(plan, site, *part, MODEL).info
            for site, part in zip(SITES, parts, strict=False)
        ]
        pooled = at_sites(plan, infos).pooled
        rows = [HeldOutRows(plan, *part).values for part in parts]
        expected = {
            name: task_of(plan).measure(name).value(torch.cat([one[name] for one in rows]))
            for name in rows[0]
        }
        assert pooled.num_rows == sum(sizes)
        assert pooled.metrics.keys() == names_of(plan)
        assert expected.keys() == pooled.metrics.keys()
        for name, found in pooled.metrics.items():
            assert found.value == pytest.approx(expected[name], rel=ROUNDED)

    @pytest.mark.parametrize("plan", [CLASSES, NUMBER])
    def test_intervals_are_about_those_of_the_rows(self, plan):
        predictive, targets = draw(plan, 400)
        info = evaluation_upload(plan, "Basel", predictive, targets, MODEL).info
        found = at_sites(plan, [info]).pooled.metrics
        expected = score(plan, predictive, targets).metrics
        for name in names_of(plan):
            if name == "width_95":
                continue  # all are equally wide
            width = expected[name].high - expected[name].low
            assert found[name].low == pytest.approx(expected[name].low, abs=0.1 * width)
            assert found[name].high == pytest.approx(expected[name].high, abs=0.1 * width)

    def test_the_order_of_sites_is_irrelevant(self):
        infos = [sent(CLASSES, site, 30, seed).info for seed, site in enumerate(SITES)]
        assert at_sites(CLASSES, infos) == at_sites(CLASSES, infos[::-1])
        assert [s.site for s in at_sites(CLASSES, infos).sites] == sorted(SITES)
        assert at_sites(CLASSES, []) is None

    def test_it_says_which_model_plan_and_site_it_is_of_and_nothing_else(self):
        upload = sent(CLASSES, "Basel", 50)
        info = upload.info
        assert (info.kind, info.site, info.plan) == ("evaluation", "Basel", CLASSES.digest())
        assert (info.num_rows, info.class_rows, info.learner) == (50, None, "")
        assert evaluation_of(info).model == MODEL
        assert not upload.arrays


class TestSuppression:
    @pytest.mark.parametrize(("min_cell", "least"), [(1, 30), (5, 30), (40, 240)])
    def test_of_fewer_rows_than_30_or_six_times_min_cell_nothing_is_sent(self, min_cell, least):
        plan = plan_of('task = "regression"', min_cell=min_cell)
        assert sent(plan, "Basel", least)
        with pytest.raises(DataError, match=f"{least - 1} held-out rows are fewer than {least}"):
            sent(plan, "Basel", least - 1)

    def test_bins_are_sent_of_a_hundred_rows_and_if_none_is_small(self):
        confident = Categorical(torch.tensor([[0.95, 0.03, 0.02]] * 100).log())
        targets = torch.zeros(101, dtype=torch.long)
        bins = evaluate(CLASSES, confident, targets[:100], MODEL).bins
        assert bins.rows == (0,) * 9 + (100,)
        assert bins.hits == (0,) * 9 + (100,)
        assert bins.confidence[-1] == pytest.approx(95.0)
        assert evaluate(CLASSES, confident[:99], targets[:99], MODEL).bins is None
        one_other = torch.cat([confident.log_probs, torch.full((1, 3), 1 / 3).log()])
        bins = evaluate(CLASSES, Categorical(one_other), targets, MODEL).bins
        assert bins.rows == (0,) * 9 + (101,)  # it is taken for one of the others
        one_other[95:100] = torch.tensor([0.64, 0.18, 0.18]).log()
        one_other[0] = torch.tensor([0.76, 0.12, 0.12]).log()  # between others
        bins = evaluate(CLASSES, Categorical(one_other), targets, MODEL).bins
        assert bins.rows == (0,) * 6 + (7, 0, 0, 94)  # with the nearer of them

    def test_sums_have_three_digits_and_counts_all_of_theirs(self):
        found = evaluate(CLASSES, *draw(CLASSES, 1000), MODEL)
        for name in ("nll", "brier"):
            total, squares = found.metrics[name].total, found.metrics[name].squares
            spread = squares - total * total / 1000
            assert float(f"{total:.3g}") == total
            assert float(f"{spread:.3g}") == pytest.approx(spread, rel=1e-9)
        assert found.metrics["accuracy"].total == int(found.metrics["accuracy"].total)

    def test_what_follows_from_the_rest_is_not_sent(self):
        found = evaluate(CLASSES, *draw(CLASSES, 50), MODEL)
        assert json.loads(found.model_dump_json())["metrics"]["accuracy"].keys() == {"total"}

    def test_in_public_there_is_no_sum_of_fewer_than_three_sites(self):
        infos = [sent(CLASSES, site, 60, seed).info for seed, site in enumerate(SITES)]
        assert at_sites(CLASSES, infos[:3]).public
        assert not at_sites(CLASSES, infos[:2]).public

    def test_nor_a_share_that_tells_of_a_few_rows(self):
        sure = Categorical(torch.tensor([[0.98, 0.01, 0.01]] * 30).log())

        def info(site, wrong):
            targets = torch.tensor([1] * wrong + [0] * (30 - wrong))
            return evaluation_upload(CLASSES, site, sure, targets, MODEL).info

        assert at_sites(CLASSES, [info(site, 0) for site in SITES]).public  # none is wrong
        few = [info(site, int(site == "Beta")) for site in SITES]
        assert not at_sites(CLASSES, few).public

    def test_pooled_bins_have_the_band_of_a_calibrated_model(self):
        sure = Categorical(torch.tensor([[0.8, 0.1, 0.1]] * 100).log())
        targets = torch.tensor([0] * 80 + [1] * 20)
        infos = [evaluation_upload(CLASSES, s, sure, targets, MODEL).info for s in SITES[:2]]
        (found,) = at_sites(CLASSES, infos).pooled.bins
        assert (found.count, found.observed) == (200, 0.8)
        assert found.stated == pytest.approx(0.8)
        assert found.null_low < 0.8 < found.null_high
        assert found.null_high - found.null_low == pytest.approx(0.11, abs=0.01)  # 3.92 std


class TestWire:
    def test_an_evaluation_is_of_its_kind_alone(self):
        evaluation = evaluate(CLASSES, *draw(CLASSES, 20), MODEL)
        for info in (
            with_evaluation(UploadInfo(kind="predictions", num_rows=20), evaluation),
            UploadInfo(kind="evaluation", num_rows=20),
        ):
            with pytest.raises(UploadError, match="evaluation"):
                Details.of(info)

    @pytest.mark.parametrize("plan", [CLASSES, NUMBER])
    def test_it_is_read_as_it_was_written(self, plan, tmp_path):
        upload = sent(plan, "Basel", 50)
        upload.save(tmp_path / "it.safetensors")
        loaded = Upload.load(tmp_path / "it.safetensors")
        assert loaded.digest() == sent(plan, "Basel", 50).digest()
        assert loaded.info == upload.info
        assert loaded.digest() == upload.digest()


class TestRefusal:
    """What a coordinator does not believe, or may not have."""

    def changed(self, plan, num_rows=50, **fields):
        info = sent(plan, "Basel", max(num_rows, 30)).info
        evaluation = evaluation_of(info).model_copy(update=fields)
        return with_evaluation(info, evaluation).model_copy(update={"num_rows": num_rows})

    def with_sums(self, plan, name, total, squares):
        metrics = dict(evaluation_of(sent(plan, "Basel", 50).info).metrics)
        return self.changed(plan, metrics=metrics | {name: Sums(total=total, squares=squares)})

    @pytest.mark.parametrize("plan", [CLASSES, NUMBER, LOG])
    @pytest.mark.parametrize("num_rows", [30, 31, 150, 3000])
    def test_what_an_honest_site_sends_is_taken(self, plan, num_rows):
        for seed in range(5):
            check_evaluation(plan, sent(plan, "Basel", num_rows, seed).info)

    @pytest.mark.parametrize("statistic", STATISTICS, ids=lambda one: one.name)
    def test_a_figure_that_is_too_large_is_one_line_at_the_site(self, statistic, monkeypatch):
        far = torch.full((50,), 1e4)
        with pytest.raises(DataError, match=r"so far off at these rows[^\n]*$"):
            evaluation_upload(LOG, "Basel", Gaussian(far, far), torch.zeros(50), MODEL)
        monkeypatch.setattr(type(statistic), "make", lambda *_: Sums(total=1e101))
        with pytest.raises(DataError, match=r"so far off at these rows[^\n]*$"):
            evaluation_upload(CLASSES, "Basel", *draw(CLASSES, 50), MODEL)

    def test_more_digits(self):
        for total in (40.01, 40.0):
            info = self.with_sums(CLASSES, "nll", total, total**2 / 50 + 12.34)
            with pytest.raises(UploadError, match=r"nll have more than 3 digits.*site evaluate"):
                check_evaluation(CLASSES, info)
        check_evaluation(CLASSES, self.with_sums(CLASSES, "nll", 40.0, 40**2 / 50 + 12.3))

    @pytest.mark.parametrize(
        ("plan", "name", "total", "squares"),
        [
            (CLASSES, "nll", -1.0, 1.0),
            (CLASSES, "nll", 40.0, 1.0),  # less than 40² / 50
            (CLASSES, "nll", 1e9, 1e90),
            (CLASSES, "accuracy", 51.0, 51.0),
            (CLASSES, "accuracy", -1.0, 1.0),
            (CLASSES, "accuracy", 20.5, 20.5),
            (CLASSES, "accuracy", 20.0, 21.0),
            (CLASSES, "brier", 101.0, 1e3),
            (NUMBER, "rmse", -1.0, 1e90),
            (NUMBER, "rmse", 1e35, 1e90),
            (NUMBER, "coverage_95", 60.0, 1e90),
            (NUMBER, "nll", 1e9, 1e90),
        ],
    )
    def test_sums_that_no_rows_have(self, plan, name, total, squares):
        with pytest.raises(UploadError, match=f"sums of {name}"):
            check_evaluation(plan, self.with_sums(plan, name, total, squares))

    def test_few_rows_counts_of_classes_and_metrics_of_another_task(self):
        info = sent(CLASSES, "Basel", 50).info
        for other, why in (
            (self.changed(CLASSES, num_rows=29), "fewer rows than 30"),
            (info.model_copy(update={"class_rows": (20.0, 20.0, 10.0)}), "classes"),
            (sent(NUMBER, "Basel", 50).info, "metrics"),
        ):
            with pytest.raises(UploadError, match=why):
                check_evaluation(CLASSES, other)

    def test_bins_that_are_small_or_do_not_add_up(self):
        hits = int(evaluation_of(sent(CLASSES, "Basel", 100).info).metrics["accuracy"].total)

        def bins(rows, right, confidence, length=DIAGRAM_BINS):
            empty = (0,) * (length - len(rows))
            sums = tuple(map(float, (*confidence, *empty)))
            return BinSums(rows=(*rows, *empty), hits=(*right, *empty), confidence=sums)

        check_evaluation(CLASSES, self.changed(CLASSES, 100, bins=bins((100,), (hits,), (30.0,))))
        for wrong, why in (
            (bins((96, 4), (hits, 0), (30.0, 2.0)), "fewer than 5 rows"),
            (bins((99,), (hits,), (30.0,)), "do not add up"),
            (bins((100,), (hits + 1,), (30.0,)), "do not add up"),
            (bins((100,), (hits,), (101.0,)), "do not add up"),
            (bins((100,), (hits,), (30.0,), length=9), "not those of the plan"),
        ):
            with pytest.raises(UploadError, match=why):
                check_evaluation(CLASSES, self.changed(CLASSES, 100, bins=wrong))
        info = sent(NUMBER, "Basel", 100).info
        evaluation = evaluation_of(info).model_copy(update={"bins": bins((100,), (9,), (30.0,))})
        with pytest.raises(UploadError, match="not those of the plan"):
            check_evaluation(NUMBER, with_evaluation(info, evaluation))

    @pytest.mark.parametrize("value", ["NaN", "Infinity", '"1"', "true", "null"])
    def test_what_is_no_finite_number_is_no_sum(self, value):
        text = sent(CLASSES, "Basel", 50).info.model_dump_json()
        changed = re.sub(r'"total":[-0-9.e]+', f'"total":{value}', text, count=1)
        assert changed != text
        with pytest.raises((ValueError, UploadError), match=r"total|details"):
            Details.of(UploadInfo.model_validate_json(changed))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), method="mixture")


@pytest.fixture(scope="module")
def model(world):
    """The model of a study of three sites, which every study here begins with."""
    return begin(world, "first")[1]


def begin(world, name):
    """A study with a result of three sites; made once, then copied."""
    first = world.root / "first"
    if not first.exists():
        study = world.begin("first", added=SITES[:3])
        study.finish()
    if name != "first":
        shutil.copytree(first, world.root / name)
    study = Study(world.root / name)
    return study, study.state().results[-1].model


def evaluation_file(world, site, model, *, seed=0, num_rows=60, key=None):
    plan = world.kit.plan
    upload = evaluation_upload(plan, site, *draw(plan, num_rows, seed), model)
    path = world.root / f"{site}-evaluation.safetensors"
    save_signed(upload, path, key or world.key(site))
    return path


def weights(study, number):
    return (study.result_folder(number) / "model" / "model.safetensors").read_bytes()


class TestStudy:
    def test_an_evaluation_makes_a_new_result_of_the_same_model(self, world):
        study, model = begin(world, "new-result")
        before = study.state().results[0]
        accepted = study.add(evaluation_file(world, "Alpha", model))
        assert isinstance(accepted, AcceptedEvaluation)
        assert (accepted.site, accepted.num_rows, accepted.model) == ("Alpha", 60, model)
        assert study.state().current is None
        assert status_of(study).next == "predbayes study finish"
        recorded, result = study.finish()
        assert (recorded.number, recorded.outcome) == (2, before.outcome)
        assert recorded.uploads == before.uploads
        assert weights(study, 1) == weights(study, 2)
        assert CalibratedModel.load(study.result_folder(2) / "model").number == 2
        assert [s.site for s in result.at_sites.sites] == ["Alpha"]
        assert result.at_sites.pooled.num_rows == 60
        assert study.result(1).at_sites is None
        assert study.finish()[0].number == 2
        assert study.verify(rebuild=True) == []

    def test_a_site_that_is_left_out_promises_nothing(self, world):
        study, _ = begin(world, "left-out")
        model = study.finish(leave_out=["Beta"])[0].model
        for site in ("Alpha", "Beta"):
            study.add(evaluation_file(world, site, model))
        _, result = study.finish(leave_out=["Beta"])
        assert sum(result.at_sites.pooled.scores.counts) == 60
        assert result.at_sites.pooled.scores.num_sites == 1

    def test_what_is_no_evaluation_of_the_site_is_refused(self, world, model):
        study, _ = begin(world, "refused")
        info = evaluation_upload(world.kit.plan, "Alpha", *draw(world.kit.plan, 60), model).info

        def arrays():
            path = world.root / "arrays.safetensors"
            save_signed(Upload(info, {"rows": torch.zeros(3)}), path, world.key("Alpha"))
            return path

        def altered():
            path = evaluation_file(world, "Alpha", model)
            content = path.read_bytes()
            path.write_bytes(content.replace(b'num_rows\\":60', b'num_rows\\":61'))
            assert path.read_bytes() != content
            return path

        for make, why in (
            (arrays, "array .rows."),
            (altered, "altered on the way"),
            (lambda: evaluation_file(world, "Alpha", MODEL), "did not produce"),
            (lambda: evaluation_file(world, "Alpha", model, num_rows=5000), "5,000 rows"),
            (lambda: evaluation_file(world, "Alpha", model, key=world.key("Beta")), "not signed"),
        ):
            with pytest.raises(UploadError, match=why) as refused:
                study.add(make())
            assert "\n" not in str(refused.value)
        assert not study.state().evaluations

    def test_a_newer_one_replaces_the_older_which_does_not_come_back(self, world, model):
        study, _ = begin(world, "newer")
        old = evaluation_file(world, "Alpha", model, seed=0)
        kept = world.root / "kept.safetensors"
        kept.write_bytes(old.read_bytes())
        first = study.add(old)
        assert study.add(old) is None
        second = study.add(evaluation_file(world, "Alpha", model, seed=1, num_rows=70))
        names = {path.stem for path in (study.folder / "uploads").iterdir()}
        assert second.digest in names
        assert first.digest not in names
        assert study.verify() == []
        with pytest.raises(UploadError, match="sent a newer evaluation"):
            study.add(kept)
        _, result = study.finish()
        assert result.at_sites.pooled.num_rows == 70

    def test_withdrawing_deletes_a_sites_evaluations_as_well(self, world, model):
        study, _ = begin(world, "withdrawing")
        study.add(evaluation_file(world, "Alpha", model))
        alone = study.add(evaluation_file(world, "Delta", model, seed=3))  # who sent nothing else
        study.finish()
        study.withdraw("Alpha")
        state = study.state()
        assert [accepted.site for accepted in state.evaluations.values()] == ["Delta"]
        assert len(list((study.folder / "uploads").iterdir())) == 2 + 1
        _, result = study.finish()
        assert result.at_sites is None  # it is another model now
        assert study.withdraw("Delta") == alone.digest
        assert study.withdraw("Delta") == alone.digest
        assert not study.state().evaluations
        assert study.verify() == []
        with pytest.raises(UploadError, match="no admitted site 'Delta'"):
            study.add(evaluation_file(world, "Delta", model, seed=3))

    def test_a_result_that_was_altered_is_not_carried_on(self, world, model):
        study, _ = begin(world, "carried-on")
        study.add(evaluation_file(world, "Alpha", model))
        path = study.result_folder(1) / "result.json"
        path.write_text(path.read_text().replace('"withdrawn": 0', '"withdrawn": 3'))
        with pytest.raises(StudyError, match="result 1 was altered"):
            study.finish()


class TestReport:
    @pytest.fixture(params=["classes", "number"])
    def told(self, request):
        plan, result = (
            (classification_plan(), classification_result)
            if request.param == "classes"
            else (regression_plan(), regression_result)
        )
        infos = [sent(plan, site, 60, seed).info for seed, site in enumerate(SITES)]
        found = at_sites(plan, infos).model_copy(update={"public": True})
        return plan, result(plan).model_copy(update={"at_sites": found})

    def test_members_see_every_site_and_the_public_all_together(self, told):
        members, public = (render_report(*told, public=public) for public in (False, True))
        assert all(f">{site}<" in members for site in SITES)
        assert not any(site in public for site in SITES)
        assert all(">300<" in page for page in (members, public))  # rows of all

    def test_or_nothing_where_that_would_tell_too_much(self, told):
        plan, result = told
        hidden = result.at_sites.model_copy(update={"public": False})
        shown = result.model_copy(update={"at_sites": hidden})
        assert ">300<" not in render_report(plan, shown, public=True)
        assert ">300<" in render_report(plan, shown, public=False)
