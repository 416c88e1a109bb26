"""Whether sites differ is said before their mean, and who stands out."""

from __future__ import annotations

import pytest
import torch

from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes_study.report.unlabelled import between_words
from predbayes_study.result.evaluation import at_sites, evaluation_upload
from predbayes_study.tasks import task_of
from tests.study.world import frozen

PLAN = frozen("""
format = 1
name = "between"
target = { name = "died", task = "classification", classes = ["no", "yes"] }
reference = {}
measures = { event = "yes" }
[columns]
x = { type = "number", centre = 0.0, scale = 1.0 }
""")
SITES = ("Aarburg", "Basel", "Celje", "Delft", "Evora")
ROWS = 400


def found(draw, differs=None, slope=1.0, level=0.0):
    """What five sites find, one of which may have another slope or level."""
    sent = []
    for site in SITES:
        rng = generator(0, "between", draw, site)
        odds = -0.7 + 1.2 * torch.randn(ROWS, generator=rng, dtype=torch.float64)
        true = slope * odds + level if site == differs else odds
        died = torch.bernoulli(true.sigmoid(), generator=rng).long()
        said = Categorical(torch.stack([-odds, odds], 1).sigmoid().log())
        sent.append(evaluation_upload(PLAN, site, said, died, "0" * 64).info)
    return at_sites(PLAN, sent)


def test_sites_that_are_alike_are_seldom_said_to_differ():
    """At most 5% of studies; of 60 more than 7 have a probability of 1%."""
    told = [bool(found(draw).between) for draw in range(60)]
    assert sum(told) <= 7


@pytest.mark.parametrize("how", [{"slope": 0.3}, {"level": 1.0}])
def test_a_site_with_another_slope_or_level_is_named_first(how):
    """In at least 9 of 10 studies of 400 held-out rows a site, and no other site is named alone."""
    named = [
        between_words(found(draw, SITES[draw % 5], **how)).count(f"{SITES[draw % 5]}")
        for draw in range(20)
    ]
    assert sum(count > 0 for count in named) >= 18


def test_the_sentence_names_ends_and_what_to_do_and_the_mean_calls_nothing_right():
    told = found(3, "Evora", slope=0.3)
    (first, *_) = told.between
    assert first.measure == "slope"
    assert first.lowest[0] == "Evora"
    assert "Evora" in first.sites
    text = between_words(told)
    assert text.startswith("The sites differ by more than chance in how right the risks are")
    assert "predbayes site adopt" in text
    said = task_of(PLAN).at_sites(told, 100)
    assert "Neither the level nor the spread" not in said
    assert "means over sites that differ" in said


def test_one_site_has_nothing_to_differ_from():
    assert between_words(None) == ""
    rng = generator(0, "one")
    odds = torch.randn(ROWS, generator=rng, dtype=torch.float64)
    said = Categorical(torch.stack([-odds, odds], 1).sigmoid().log())
    died = torch.bernoulli(odds.sigmoid(), generator=rng).long()
    alone = at_sites(PLAN, [evaluation_upload(PLAN, "Basel", said, died, "0" * 64).info])
    assert alone.between == ()
