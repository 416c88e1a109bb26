"""How sure a model should be, by the sums of sites: right whatever the blocks are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from predbayes.errors import UploadError
from predbayes.predictive.families import Categorical, Gaussian, Survival
from predbayes.seeding import generator
from predbayes_study.coordinator.state import MODEL_FOLDER
from predbayes_study.payloads.details import evaluation_of, save_signed, with_evaluation
from predbayes_study.plan.schema import Plan
from predbayes_study.report.unlabelled import level_words
from predbayes_study.result.evaluation import check_evaluation, evaluate, evaluation_upload
from predbayes_study.result.level import level_of
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.statistics.disclosure import rounded
from predbayes_study.tasks.echo import SHIFTS, TIMES, TIMES_OF_TWO, ModelLevel, is_possible
from tests.study.world import SITES, frozen, make_world

PLAN = """
format = 1
name = "echo"
target = {{ name = "y", {target} }}
reference = {{ {reference} }}
[columns]
x = {{ type = "number", centre = 0.0, scale = 1.0 }}
"""
TEN = [str(digit) for digit in range(10)]


def plan_of(target, reference="", more=""):
    return frozen(PLAN.format(target=target, reference=reference) + more)


def classes(num):
    return f'task = "classification", classes = {TEN[:num]}'


def sent(plan, sites):
    """What sites with these predictions and targets say of a model."""
    return {
        f"site {number}": (len(targets), evaluate(plan, said, targets, "0" * 64))
        for number, (said, targets) in enumerate(sites)
    }


def two(num_rows, time, shift, *path):
    """A model whose log odds are right if multiplied and shifted."""
    rng = generator(0, "two", *path)
    odds = 2.0 * torch.randn(num_rows, generator=rng, dtype=torch.float64)
    targets = torch.bernoulli(odds.sigmoid(), generator=rng).long()
    stated = (odds - shift) / time
    return Categorical(torch.stack([-stated, stated], 1).sigmoid().log()), targets


def ten(num_rows, time, *path):
    """A model of ten classes whose logits are right if multiplied; the classes are clear."""
    rng = generator(0, "ten", *path)
    logits = 3.0 * torch.randn(num_rows, 10, generator=rng, dtype=torch.float64)
    targets = torch.distributions.Categorical(logits=logits)
    drawn = torch.multinomial(targets.probs, 1, generator=rng)[:, 0]
    return Categorical((logits / time).log_softmax(1)), drawn


@pytest.mark.parametrize(
    ("time", "shift"), [(1.0, 0.0), (2.0, 0.0), (0.6, 0.0), (1.0, 1.2), (3.0, -0.8)]
)
def test_two_classes_get_their_slope_and_level_from_sites_of_few_rows(time, shift):
    """By 40 sites of 100 rows, so that errors are small: standard errors are about .04."""
    plan = plan_of(classes(2))
    found = level_of(plan, sent(plan, [two(100, time, shift, n) for n in range(40)]))
    assert math.log(found.inverse_temperature) == pytest.approx(math.log(time), abs=0.13)
    low, high = found.shifts
    assert high - low == pytest.approx(shift, abs=0.16)
    assert low == -high


@pytest.mark.parametrize("time", [1.0, 3.0, 0.6])
def test_ten_classes_of_fifty_rows_are_right_in_the_mean(time):
    """Blocks of five rows are coarse for ten classes. What they expect is right all the same."""
    plan, logs = plan_of(classes(10)), []
    for draw in range(12):
        sites = [ten(50, time, draw, n) for n in range(5)]
        found = level_of(plan, sent(plan, sites))
        logs.append(math.log(found.inverse_temperature))
        assert found.shifts == ()
    mean, std = torch.tensor(logs).mean(), torch.tensor(logs).std()
    assert float(mean) == pytest.approx(math.log(time), abs=float(3.2 * std / math.sqrt(12)) + 0.02)
    assert float(std) < 0.35


@pytest.mark.parametrize("time", [1.0, 2.5, 0.5])
def test_numbers_get_their_variance_from_counts_of_scores(time):
    plan = plan_of('task = "regression", unit = "days", centre = 0.0, scale = 1.0')

    def site(number):
        rng = generator(0, "numbers", number)
        mean = torch.randn(200, generator=rng)
        targets = mean + 0.5 * torch.randn(200, generator=rng)
        return Gaussian(mean, torch.full((200,), 0.25 * time)), targets

    found = level_of(plan, sent(plan, [site(number) for number in range(20)]))
    assert math.log(found.inverse_temperature) == pytest.approx(math.log(time), abs=0.08)


def test_times_to_an_event_have_no_level_yet():
    plan = plan_of('task = "survival", event = "died", times = [1.0, 2.0], unit = "years"')
    rng = generator(0, "times")
    said = Survival(torch.randn(60, 2, generator=rng))
    found = sent(plan, [(said, torch.rand(60, generator=rng) + 0.1)])
    assert found["site 0"][1].echo is None
    assert level_of(plan, found) is None


def test_with_labels_sites_say_nothing_of_it():
    plan = plan_of(classes(2), "labelled = 20")
    found = sent(plan, [two(100, 2.0, 0.0)])
    assert found["site 0"][1].echo is None
    assert level_of(plan, found) is None


def test_a_site_counts_for_three_times_the_median_site_at_most_and_is_named():
    plan = plan_of(classes(10), more="[rules]\nmax_weight = 3.0\n")
    honest = sent(plan, [ten(100, 1.0, n) for n in range(5)])
    rows, said = sent(plan, [ten(100, 6.0, "loud")])["site 0"]
    times = 10**6
    metrics = {n: m.model_copy(update={"total": times * m.total}) for n, m in said.metrics.items()}
    echo = tuple(times * number for number in said.echo)
    loud = times * rows, said.model_copy(update={"metrics": metrics, "echo": echo})
    alone, together = level_of(plan, {"loud": loud}), level_of(plan, {**honest, "loud": loud})
    assert (alone.decided_by, alone.without) == ("", None)
    assert together.inverse_temperature < 0.7 * alone.inverse_temperature
    assert together.decided_by == "loud"
    assert together.without == level_of(plan, honest).inverse_temperature
    assert f"{together.without:.2f} without loud" in level_words(plan, together)


class TestLevel:
    def test_is_applied_to_natural_parameters(self):
        said, _ = ten(20, 1.0)
        level = ModelLevel(inverse_temperature=2.0)
        expected = (2 * said.log_probs).log_softmax(1)
        torch.testing.assert_close(level.apply(said).log_probs, expected)
        even = Categorical(torch.full((1, 2), 0.5).log())
        shifted = ModelLevel(inverse_temperature=5.0, shifts=(-0.5, 0.5)).apply(even)
        assert float(shifted.log_probs[0, 1].exp()) == pytest.approx(1 / (1 + math.exp(-1)))
        wide = Gaussian(torch.tensor([3.0]), torch.tensor([4.0]))
        level = ModelLevel(inverse_temperature=4.0).apply(wide)
        assert (float(level.mean), float(level.var)) == pytest.approx((3.0, 1.0))

    @pytest.mark.parametrize("given", [{"inverse_temperature": 1e100}, {"shifts": (0.0, 1e100)}])
    def test_none_can_make_predictions_overflow(self, given):
        with pytest.raises(ValidationError):
            ModelLevel.model_validate({"inverse_temperature": 1.0, **given})

    @pytest.mark.parametrize("draw", range(12))
    @pytest.mark.parametrize("time", [0.3, 1.0, 4.0])
    def test_honest_echoes_are_possible(self, draw, time):
        """Of few rows and many, too sure and too unsure: none is refused."""
        for num, made in ((2, two(60 + 20 * draw, time, 0.5, draw)), (10, ten(50, time, draw))):
            found = evaluate(plan_of(classes(num)), *made, "0" * 64)
            assert found.echo is None or is_possible(found.echo, num, len(made[1]))

    def test_few_events_leave_no_echo(self):
        """Their number follows from the echo of two classes."""
        said, _ = two(60, 1.0, 0.0)
        for events, is_there in ((4, False), (5, True), (55, True), (56, False)):
            targets = (torch.arange(60) < events).long()
            found = evaluate(plan_of(classes(2)), said, targets, "0" * 64)
            assert (found.echo is not None) is is_there

    @pytest.mark.parametrize("num", [3, 10])
    def test_the_surest_and_most_wrong_rows_have_a_possible_echo(self, num):
        """So no honest site is refused."""
        plan, targets = plan_of(classes(num)), torch.zeros(60).long()
        said = Categorical(torch.tensor([-80.0] * (num - 1) + [0.0]).expand(60, -1))
        found = evaluate(plan, said, targets, "0" * 64)
        assert is_possible(found.echo, num, 60)
        assert is_possible(evaluate(plan, said, targets + num - 1, "0" * 64).echo, num, 60)

    def test_grids_have_the_level_that_changes_nothing(self):
        assert 1.0 in TIMES
        assert 1.0 in TIMES_OF_TWO
        assert 0.0 in SHIFTS
        assert len(TIMES_OF_TWO) * len(SHIFTS) <= 100


@pytest.mark.parametrize("num", [2, 3])
def test_an_echo_of_other_numbers_is_refused(num):
    plan = plan_of(classes(num))
    said, targets = two(60, 1.0, 0.0) if num == 2 else ten(60, 1.0)
    if num == 3:
        said, targets = Categorical(said.log_probs[:, :3].log_softmax(1)), targets % 3
    info = evaluation_upload(plan, "Basel", said, targets, "0" * 64).info
    told = evaluation_of(info)
    check_evaluation(plan, info)
    for echo in (told.echo[1:], (*told.echo, 1.0), (told.echo[0] + 0.123456, *told.echo[1:])):
        changed = with_evaluation(info, told.model_copy(update={"echo": echo}))
        with pytest.raises(UploadError, match="echo"):
            check_evaluation(plan, changed)
    drowning = [(sign * 1e9, *told.echo[1:]) for sign in (-1, 1)]
    drowning += [(*told.echo[:-1], sign * 1e9) for sign in (-1, 1)]
    for echo in drowning:
        changed = with_evaluation(info, told.model_copy(update={"echo": echo}))
        with pytest.raises(UploadError, match="echo cannot be that of 60 rows"):
            check_evaluation(plan, changed)
    bent = list(told.echo)  # a spike that pulls the least value to one point
    bent[3] -= 20.0
    changed = with_evaluation(info, told.model_copy(update={"echo": tuple(map(rounded, bent))}))
    with pytest.raises(UploadError, match="echo cannot be that of 60 rows"):
        check_evaluation(plan, changed)
    labelled = plan_of(classes(num), "labelled = 20")
    with pytest.raises(UploadError, match="echo"):
        check_evaluation(labelled, info)


@pytest.mark.usefixtures("quick_results")
@pytest.mark.parametrize("regression", [False, True])
def test_a_study_gives_a_model_at_the_level_that_sites_found(tmp_path, regression):
    world = make_world(
        tmp_path, labelled=0, evaluate=0, unlabelled=150, gate="[gate]\n", regression=regression
    )
    study, plan = world.begin(), world.kit.plan
    for site in SITES:
        study.add(world.file(site))

    def model_of(recorded):
        return CalibratedModel.load(study.result_folder(recorded.number) / MODEL_FOLDER)

    def asked(recorded, number):
        model, rng = model_of(recorded), generator(number, "asked")
        inputs = torch.randn(60, plan.num_inputs, generator=rng)
        targets = inputs[:, 0] if regression else (inputs[:, 0] > 0).long()
        return evaluation_upload(
            plan, SITES[number], model.before_level(inputs), targets, model.weights_digest()
        )

    first, result = study.finish()
    assert result.at_sites is None
    assert model_of(first).level is None
    for number, site in enumerate(SITES[:4]):
        save_signed(asked(first, number), tmp_path / f"{site}.evaluation", world.key(site))
        study.add(tmp_path / f"{site}.evaluation")
    second, result = study.finish()
    level, model = result.at_sites.level, model_of(second)
    assert (level.num_sites, level.num_rows) == (4, 240)
    assert model.level.inverse_temperature == level.inverse_temperature != 1
    inputs = torch.randn(9, plan.num_inputs, generator=generator(0, "new"))
    said = model.level.apply(model.before_level(inputs))
    torch.testing.assert_close(model.predictive(inputs).natural(), said.natural())
    torch.testing.assert_close(
        model.before_level(inputs).natural(), model_of(first).predictive(inputs).natural()
    )
    assert study.verify(rebuild=True) == []
    # An evaluation of the second result is of the same model as one of the first.
    assert asked(first, 4).digest() == asked(second, 4).digest()
    save_signed(asked(second, 4), tmp_path / "last.evaluation", world.key(SITES[4]))
    study.add(tmp_path / "last.evaluation")
    third, result = study.finish()
    assert result.at_sites.level.num_sites == 5
    assert model_of(third).weights_digest() == model.weights_digest()
    assert study.verify(rebuild=True) == []
    adopted = replace(model_of(third), level=None)
    assert (
        adopted.predictive(inputs).natural().equal(model_of(third).before_level(inputs).natural())
    )


def test_a_plan_without_labels_is_one_whose_reference_rows_have_none():
    assert Plan.loads(PLAN.format(target=classes(2), reference="")).reference.labelled == 0
