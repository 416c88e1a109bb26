"""One evaluation of a model that was made to ask about one person.

The model may say anything about anyone, so it can set one person apart: alone on one side, alone
between others, or alone on one side of an edge, a group or a score. Exact numbers of an evaluation
can then be added and subtracted, and what is left may be that person.

`predbayes_study.result.statistics.disclosure` states what holds. Here it is checked for all small
tables.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch

from predbayes.predictive.families import Categorical, Gaussian, Survival
from predbayes.predictive.survival import cumulative_hazard
from predbayes.seeding import generator
from predbayes_study.plan.schema import Plan
from predbayes_study.result.evaluation import evaluate
from predbayes_study.result.statistics import confidence, disclosure, groups, risks, statistic
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.tasks.classes import Classes
from predbayes_study.tasks.times import Times

PLAN = """
format = 1
name = "asking"
target = {{ name = "ill", task = "classification", classes = {classes} }}
reference = {{}}
[rules]
min_cell = {min_cell}
[columns]
x = {{ type = "number", centre = 0.0, scale = 1.0, missing = "refuse" }}
sex = {{ type = "category", categories = ["f", "m"], other = false, missing = "refuse" }}
[measures]
{groups}
"""
NUM_ROWS = 240


def plan_of(min_cell=5, classes=("no", "yes"), groups=()):
    listed = "".join(f'"{name}", ' for name in groups)
    return Plan.loads(
        PLAN.format(
            classes=list(classes),
            min_cell=min_cell,
            groups=f"groups = [{listed}]" if groups else "",
        )
    )


def two_classes(odds):
    odds = torch.as_tensor(odds, dtype=torch.float64)
    return Categorical(torch.stack([-odds, odds], 1).div(2).log_softmax(1).float())


def events_and_hits(sent):
    return sum(sent.risks[0].events), int(sent.metrics["accuracy"].total)


@pytest.mark.parametrize("min_cell", [5, 10, 20])
def test_right_answers_and_events_do_not_reveal_an_outcome(min_cell):
    """No for all, yes for one: right answers + events - rows was 0, or -1 or 1 by the outcome."""
    plan, told = plan_of(min_cell), set()
    for seed, theirs in itertools.product(range(4), (None, 0, 1)):
        targets = torch.bernoulli(torch.full((NUM_ROWS,), 0.4), generator=generator(seed, "ill"))
        odds = torch.full((NUM_ROWS,), -2.2)
        if theirs is not None:
            odds[17], targets[17] = 2.2, theirs
        events, hits = events_and_hits(evaluate(plan, two_classes(odds), targets.long(), "0" * 64))
        told.add(hits + events - NUM_ROWS)
    assert told == {0}


def outcomes_told(plan, odds, inputs=None, place=17):
    """What sites send that differ in the outcome of one person."""
    sent = []
    for seed in range(3):
        targets = torch.bernoulli(torch.full((len(odds),), 0.4), generator=generator(seed, "ill"))
        for theirs in (0, 1):
            changed = targets.clone().long()
            changed[place] = theirs
            sent.append(evaluate(plan, two_classes(odds), changed, "0" * 64, inputs))
    return sent


def test_nor_does_a_group_less_those_of_it_that_a_model_names():
    """The model says yes of all women but one, and groups are sent as well."""
    women = torch.arange(NUM_ROWS) < 120
    odds = torch.where(women, 2.2, -2.2)
    odds[17] = -2.2
    inputs = torch.stack([torch.zeros(NUM_ROWS), women, ~women], 1).float()
    for sent in outcomes_told(plan_of(groups=["sex"]), odds, inputs):
        if sent.groups is None or sent.risks is None:
            continue
        group, (risks,) = sent.groups[0], sent.risks
        for events, others in zip(risks.events, risks.others, strict=True):
            assert abs(group.rows - events - others) != 1


@pytest.mark.parametrize("num_rows", [30, 60])
def test_nor_does_a_sum_of_which_one_person_has_a_part_in_the_middle(num_rows):
    """The model is sure of half the others, unsure of the other half, and in between of one."""
    odds = torch.full((num_rows,), -2.2)
    odds[: num_rows // 2], odds[num_rows // 2 + 2] = -0.4, -1.2
    targets = torch.zeros(num_rows).long()
    said = HeldOutRows(plan_of(), two_classes(odds), targets).said.predictive
    _, rows = torch.unique(said.log_probs, dim=0, return_counts=True)
    assert int(rows.min()) >= 5


# All small tables


@pytest.fixture
def few(monkeypatch):
    """Two rows are enough, so that there are few enough tables to look at all of them."""
    monkeypatch.setattr(disclosure, "_FEWEST_ALIKE", 2)
    monkeypatch.setattr(disclosure, "_FEWEST_BLOCKS", 1)
    monkeypatch.setattr(disclosure, "FEWEST_ROWS", 1)
    for module in (statistic, risks, confidence, groups):
        monkeypatch.setattr(module, "FEWEST_COUNTED", 1)
    monkeypatch.setattr(Classes, "grid", Classes.grid[::8])


CASES = {
    "classes": (
        4,
        [0, 1],
        two_classes([-2.2, -0.4, 2.2]),
        'task = "classification", classes = ["no", "yes"]',
    ),
    "three classes": (
        4,
        [0, 1, 2],
        Categorical(torch.tensor([[0.8, 0.1, 0.1], [0.4, 0.35, 0.25]]).log()),
        'task = "classification", classes = ["a", "b", "c"]',
    ),
    "numbers": (
        4,
        [-1.0, 2.5],
        Gaussian(torch.tensor([0.0, 3.0, 0.0]), torch.tensor([1.0, 1.0, 9.0])),
        'task = "regression", centre = 0.0, scale = 1.0',
    ),
    "times": (
        4,
        [0.5, -2.0],
        Survival(torch.tensor([[-3.0, -2.0], [1.0, 0.0], [-0.5, 2.0]])),
        'task = "survival", times = [1, 2], event = "died"',
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_sent_of_every_small_table_is_of_blocks_alone(name, few):
    """All that is sent of all tables gives no outcome that people alike do not share.

    A model says one of three things of each person. Of every table, all that is sent is a function
    of how many rows of each block, of at least two, have each outcome. So wherever one person is
    alone in what the model says of them, and an attacker who has enumerated all tables knows their
    outcome, all of their block have it.
    """
    num_rows, outcomes, model, target = CASES[name]
    plan = Plan.loads(
        f'format = 1\nname = "all"\ntarget = {{ name = "y", {target} }}\nreference = {{}}\n'
        '[columns]\nx = { type = "number" }\n[rules]\nmin_cell = 2\n'
    )
    sent = defaultdict(set)  # by what the blocks have
    theirs = defaultdict(set)  # one person's outcomes, by what is sent and what the model says
    people = []
    for said in itertools.combinations_with_replacement(range(len(model.natural())), num_rows):
        for drawn in itertools.product(outcomes, repeat=num_rows):
            targets = torch.tensor(drawn)
            rows = HeldOutRows(plan, model[torch.tensor(said)], targets)
            blocks = rows.said.blocks
            assert min(int(torch.bincount(column).min()) for column in blocks.T) >= 2
            evaluation = evaluate(plan, rows.unclipped, targets, "0" * 64)
            if name == "numbers":  # whose counts of scores are of predictions as they are
                evaluation = evaluation.model_copy(update={"scores": None})
            text = evaluation.model_dump_json()
            own = blocks[:, 0] if len(outcomes) == 2 else blocks.gather(1, targets[:, None])[:, 0]
            key = said, tuple(sorted(zip(own.tolist(), drawn, strict=True)))
            sent[key].add(text)
            for place in (k for k in range(num_rows) if said.count(said[k]) == 1):
                theirs[text, said[place]].add(drawn[place])
                alike = {drawn[k] for k in range(num_rows) if own[k] == own[place]}
                people.append((text, said[place], alike))
    assert {len(texts) for texts in sent.values()} == {1}
    if len(outcomes) == 2:
        assert any(len(known) == 2 for known in theirs.values())
        for text, value, alike in people:
            assert len(theirs[text, value]) == 2 or len(alike) == 1


@pytest.mark.parametrize("num_rows", range(113, 130))
def test_the_last_rows_of_a_table_are_told_as_the_rest_of_their_block(num_rows):
    """Equal numbers at another place have another last bit, and a threshold may be in between."""
    rng = torch.Generator().manual_seed(num_rows)
    odds = torch.randn(num_rows, generator=rng)
    targets = torch.arange(num_rows) % 2
    survival = Survival(odds[:, None].expand(-1, 3) - 2.0)
    two = HeldOutRows(plan_of(), two_classes(odds), targets)
    kinds = torch.stack([odds, -odds, odds.roll(1), 0.3 * odds, odds.roll(5)], 1)
    five = plan_of(classes=tuple("abcde"))
    several = HeldOutRows(five, Categorical(kinds.log_softmax(1)), torch.arange(num_rows) % 5)
    told = [
        (two.said.blocks[:, 0], two.said.predictive.log_probs[:, 1]),
        (two.said.blocks[:, 0], two.risks(1).log_odds),
        (two.said.blocks[:, 0], two.risks(1).risk),
        (_blocks(survival, targets), cumulative_hazard(_said(survival, targets).predictive)),
    ]
    assert several.said.predicted is not None
    for index in range(5):
        among = several.said.blocks[:, index], several.risks(index).risk
        told.append(among)
    mine = several.said.blocks.gather(1, several.said.predicted[:, None])[:, 0]
    told.append((mine * 5 + several.said.predicted, confidence._stated(several)))
    for blocks, values in told:
        for block in torch.unique(blocks).tolist():
            assert len(torch.unique(values[blocks == block])) == 1


def _said(survival, targets):
    apart = torch.zeros(len(targets), dtype=torch.int64)
    return Times().alike(survival, targets.float() + 1, 5, apart)


def _blocks(survival, targets):
    return _said(survival, targets).blocks[:, 0]
