"""Scores of a study are those of rows that had no part in it, screening included."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from predbayes.predictive.families import Categorical
from predbayes.seeding import generator
from predbayes.summand import fold
from predbayes_study.kit import kit as kit_module
from predbayes_study.result import conclude as module
from predbayes_study.result.analysis import Analysis, Evidence, ResultMeta
from predbayes_study.result.conclude import contributed, gather, lifting
from predbayes_study.result.weighing import Screened
from tests.study import world as of_world
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


NAMES = tuple(f"Site {k:02}" for k in range(14))


def luck(predictive, targets):
    """Losses against what they would be of labels that know nothing of the rows: a Z.

    About standard normal if predictions have nothing to do with labels; below zero they are better
    than they can be by right.
    """
    shares = torch.bincount(targets, minlength=3).double() / len(targets)
    losses = -predictive.log_probs.double()
    means = losses @ shares
    variances = losses.square() @ shares - means.square()
    gaps = -predictive.log_prob(targets).double() - means
    return float(gaps.sum()) / math.sqrt(float(variances.sum()))


def finished(root, seed, monkeypatch):
    """Fourteen sites send noise, and screening leaves some out; the pool is the mixture."""
    world = make_world(root, evaluate=0, labelled=60, screening="leave-out", method="mixture")
    study = world.begin(sites=NAMES)
    sent = {}
    for k, name in enumerate(NAMES):
        rng = generator(seed, "noise", k)
        noise = torch.randn(len(world.kit.inputs), 3, generator=rng)
        sent[name] = Categorical.from_natural(noise)
        study.add(world.file(name, sent[name]))
    held_out = []
    original = module._held_out

    def spy(*arguments):
        held_out.append(original(*arguments))
        return held_out[-1]

    monkeypatch.setattr(module, "_held_out", spy)
    _, result = study.finish()
    return study, result, sent, held_out[-1]


def test_each_part_is_screened_without_its_labels(tmp_path, monkeypatch):
    calls = []
    original = module.screen_sites

    def spy(contributions, targets, **options):
        calls.append((len(contributions[0].predictive), targets))
        return original(contributions, targets, **options)

    monkeypatch.setattr(module, "screen_sites", spy)
    world = make_world(tmp_path, evaluate=0, labelled=60, screening="leave-out", method="mixture")
    study = world.begin(added=SITES[:3])
    _, result = study.finish()
    assert result.scored_on == "cross-fitted"
    assert [num for num, _ in calls] == [60] + [48] * 5
    everybody = calls[0][1]
    counts = sum(torch.bincount(targets, minlength=3) for _, targets in calls[1:])
    assert torch.equal(counts, 4 * torch.bincount(everybody, minlength=3))  # each is left out once


@pytest.mark.slow("many studies of noise")
def test_scores_are_not_flattered_by_the_labels_that_screened_the_sites(tmp_path, monkeypatch):
    """Noise scores as noise; with sites screened once, by all labels, it looked informative."""
    nested, once = [], []
    for seed in range(2):
        with monkeypatch.context() as patch:
            study, result, sent, held_out = finished(tmp_path / str(seed), seed, patch)
        labels = study.labels
        targets, order = labels.reference.targets, labels.order
        kept = [site.site for site in result.sites if not site.left_out]
        assert 2 <= len(kept) < len(NAMES)
        probs = torch.stack([sent[name].moments()[order] for name in kept]).mean(0)
        chosen = Categorical.from_moments(probs)[labels.reference.labelled]
        once.append(luck(chosen, targets))
        nested.append(luck(held_out.pooled, targets))
        torch.testing.assert_close(held_out.pooled.log_probs, held_out.mixture.log_probs)
    assert sum(once) / math.sqrt(2) < -2.5
    assert sum(nested) / math.sqrt(2) > -1.5


@pytest.mark.slow("two studies with a model of the coordinator")
def test_the_coordinators_model_may_be_chosen_by_the_labelled_rows(tmp_path):
    """What comes of `auto` is what comes of the name that it chose, and the result says which."""
    results = {}
    for own in ("auto", "logistic-regression"):
        world = make_world(tmp_path / own, own=own)
        study = world.begin(sites=SITES[:3])
        for name in SITES[:3]:
            study.add(world.file(name))
        results[own] = study.finish()[1]
    chosen, named = results["auto"], results["logistic-regression"]
    assert chosen.pool.own == "logistic-regression"
    assert "own" not in named.pool.model_dump()
    assert chosen.pool.weights == named.pool.weights
    assert chosen.server_only == named.server_only


def test_sites_that_go_or_count_for_less_are_subtracted_and_no_other_is_read_again(tmp_path):
    world = make_world(tmp_path, gate="[gate]\n")
    study = world.begin(added=SITES)
    labels, uploads = study.labels, list(study.state().uploads.values())
    evidence = Evidence(study.kit, labels, uploads, study.read, ResultMeta(1, "", ""))
    gathered = gather(evidence, Analysis.of(evidence), torch.arange(3))
    total = gathered.total
    found = Screened(
        {},
        frozenset({"Alpha"}),
        frozenset({"Beta"}),
        frozenset({"Gamma"}),
        replace(gathered.limits, rows=replace(gathered.limits.rows, median=50.0)),
        (),
    )
    again = []

    def read(accepted):
        again.append(accepted.site)
        return study.read(accepted)

    left = replace(gathered, evidence=replace(evidence, read=read)).without(found)
    assert set(again) == {"Alpha", "Beta", "Gamma"}
    assert left.num_clients == 4
    lifted = lifting(study.plan)
    sent = (study.read(accepted) for accepted in uploads if accepted.site != "Alpha")
    whole = fold(lifted(found.applied(contributed(one))) for one in sent)[labels.order]
    found, expected = left.floats(), whole.floats()
    assert found.keys() == expected.keys()
    for name, parts in expected.items():
        assert all(map(torch.equal, found[name], parts)), name
    assert total.num_clients == 5  # which is left as it was


def test_labels_of_one_class_choose_nothing_and_accuse_nobody(tmp_path, monkeypatch):
    """Freezing refuses a table of them; but the draw can leave a rare class to the other rows."""
    made = of_world._frame

    def of_one_class(*args, **options):
        frame = made(*args, **options)
        return frame.assign(kind=frame["kind"].replace({"green": "red", "blue": "red"}))

    monkeypatch.setattr(of_world, "_frame", of_one_class)
    monkeypatch.setattr(kit_module, "require_sound", lambda *_: None)
    world = make_world(tmp_path, own="auto", screening="leave-out", evaluate=0)
    study = world.begin(added=SITES)
    _, result = study.finish()
    assert result.server_only is None
    assert result.pool.weights == {"mixture": 1.0}
    assert not any(site.findings or site.left_out for site in result.sites)
    assert any("the labels of all 60 labelled rows are the same" in t for t in result.cautions)
    assert not result.can_judge or "No miscalibration" not in result.verdict
