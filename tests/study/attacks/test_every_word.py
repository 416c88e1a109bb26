"""Whatever word of a site is multiplied, its share of the result stays within the cap.

Every way in which a site's own word is weight is tried on every pool and payload that there is:
rows, rows of each class, gates, precisions, rows of sums and of surveys. Pools and payloads come
from their registries, so that a new one fails here until somebody says what bounds it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from predbayes.errors import StudyError
from predbayes.predictive.families import Categorical, Gaussian, Survival
from predbayes.predictive.pooling import MOMENTS, NATURAL, Contribution
from predbayes.predictive.selection import MIN_LABELS, TERMS
from predbayes_study import extra
from predbayes_study.extras.moments.payload import MomentSums, _Summed
from predbayes_study.extras.sealed.payload import _require_stated
from predbayes_study.extras.survey.disagree import counted_rows
from predbayes_study.kit.kit import Labels
from predbayes_study.payload import _OWN
from predbayes_study.plan.schema import Pool
from predbayes_study.plan.weight import RowCaps
from predbayes_study.result.accepted import AcceptedUpload
from predbayes_study.result.analysis import Analysis, Evidence, ResultMeta
from predbayes_study.result.conclude import contributed, gather
from predbayes_study.result.weighing import Caps
from tests.study.test_moments import frozen, patients, plan_text, sent
from tests.study.world import SITES, make_world

FACTORS = (1e3, 1e6, 1e9)
TIMES, OTHERS = 3.0, 4
BAD = "Epsilon"
WHEN = "2026-01-01T00:00:00+00:00"

BOUNDED_BY = {
    "predictions": "TestPools",
    "moments": "TestSums",
    "private": "TestPools",  # which are predictions, with noise
    "masked": "TestMasked",
    "evaluation": "no weight in a model: figures at sites are shown for each of them",
}
"""What bounds the weight of a site, by payload."""

WORDS = {
    "rows": lambda site, by: replace(site, num_rows=site.num_rows * by),
    "class rows": lambda site, by: replace(
        site, num_rows=site.num_rows * by, class_rows=site.class_rows * by
    ),
    "gate": lambda site, by: replace(site, gate=site.gate + math.log(by)),
    "precision": lambda site, by: replace(
        site,
        predictive=Gaussian(
            site.predictive.mean, site.predictive.var / by, site.predictive.epistemic_var / by
        ),
    ),
    "certainty": lambda site, by: replace(
        site,
        predictive=Gaussian(
            site.predictive.mean, site.predictive.var, site.predictive.epistemic_var / by
        ),
    ),
}
POWERS = {"trust_2": 2.0, "trust_1": 1.0, "trust_0.5": 0.5, "gated_1.5": 1.5, "gated_0.5": 0.5}
"""Of what is capped, in a term; 1 in all others."""

KNOWS = {"entropy", "robust"}
"""Terms of what a site knows at a row: at most log C, and of numbers a logarithm of the cap."""


def test_every_payload_is_bounded_by_something():
    named = {*_OWN, *extra.names("payloads")}
    assert named == BOUNDED_BY.keys()


def predictives(family):
    rng = torch.Generator().manual_seed(0)
    if family is Gaussian:
        return Gaussian(torch.randn(20, generator=rng), torch.full((20,), 0.5), torch.ones(20) / 4)
    numbers = torch.randn(20, 3, generator=rng)
    return Survival(numbers) if family is Survival else Categorical.from_natural(numbers)


def site(name, family):
    gate, counts = torch.zeros(20), torch.full((3,), 40.0).double()
    prior = Gaussian(torch.zeros(1), torch.ones(1)) if family is Gaussian else None
    told = counts if family is Categorical else None
    return Contribution(name, predictives(family), 120.0, told, gate, prior)


def able(word, family):
    if word in ("precision", "certainty"):
        return family is Gaussian
    return word != "class rows" or family is Categorical


class TestPools:
    """Every term of every family, with every word."""

    @pytest.mark.parametrize("factor", FACTORS)
    @pytest.mark.parametrize(
        ("word", "family"), [(w, f) for w in WORDS for f in TERMS if able(w, f)]
    )
    def test_no_term_gives_a_site_more_than_its_share(self, word, family, factor):
        honest = [site(name, family) for name in SITES[:OTHERS]]
        liar = WORDS[word](site(BAD, family), factor)
        limits = Caps.of_rows(Caps(RowCaps(TIMES * 120, 120, 120)), TIMES, [*honest, liar])
        for term in (NATURAL, MOMENTS, *TERMS[family]):
            mine, *theirs = (
                torch.as_tensor(term.weigh(limits.applied(one)), dtype=torch.float64).max()
                for one in (liar, *honest)
            )
            most = max(TIMES, TIMES ** POWERS.get(term.name, 1.0))
            most *= 1.2 if term.name in KNOWS else 1.0
            assert float(mine) <= most * float(min(theirs)) * 1.0001, term.name

    @pytest.mark.parametrize(
        ("method", "labelled"),
        [
            (method, labelled)
            for method in get_args(Pool.model_fields["method"].annotation)
            for labelled in (0, 60)
            if labelled or method != "beta"  # which is tuned on labels
        ],
    )
    def test_a_study_adds_them_up_so(self, tmp_path, method, labelled):
        """Rows agreed at admission are no way round, and the sum is what intake gathers."""
        world = make_world(tmp_path, labelled=labelled, evaluate=0, gate="[gate]\n", method=method)
        uploads = {name: world.upload(name, gate=torch.zeros(50 + labelled)) for name in SITES}
        own = uploads[BAD]
        loud = own.info.model_copy(update={"num_rows": 10**9, "class_rows": (4e8, 3e8, 3e8)})
        high = {**own.arrays, "gate": own.arrays["gate"] + 20.0}
        uploads[BAD] = replace(own, info=loud, arrays=high)
        accepted = [
            AcceptedUpload(
                site=name,
                digest=f"{number:064x}",
                file_digest=f"{number:064x}",
                num_bytes=1,
                num_rows=upload.info.num_rows,
                at=WHEN,
                number=number,
                key="",
                kind="predictions",
                agreed_rows=upload.info.num_rows,
            )
            for number, (name, upload) in enumerate(uploads.items())
        ]
        evidence = Evidence(
            world.kit,
            Labels.load(world.labels_path, world.kit),
            accepted,
            lambda one: uploads[one.site],
            ResultMeta(1, WHEN, "0" * 64),
        )
        analysis = Analysis.of(evidence)
        total = gather(evidence, analysis, torch.arange(10)).total
        # With labels a site may have three times the rows and, at a row, three times the gate.
        rows = TIMES if labelled else 1.0
        terms = [
            t for t in TERMS[Categorical] if t.name in total.components and t.name not in KNOWS
        ]
        assert method != "auto" or {"gated", "log_pool"} <= {term.name for term in terms}
        for term in (MOMENTS, *terms):
            honest = sum(
                torch.as_tensor(term.weigh(contributed(uploads[name])), dtype=torch.float64)
                for name in SITES[:OTHERS]
            )
            whole = torch.as_tensor(total.weight(term.name), dtype=torch.float64)
            is_gated = term.name.startswith("gated")
            loudest = rows * (TIMES ** POWERS.get(term.name, 1.0) if is_gated else 1.0)
            share = ((whole - honest) / whole).max()
            assert float(share) <= loudest / (loudest + OTHERS) + 0.02, term.name


class TestSums:
    """Moments of as many rows as anybody likes."""

    @pytest.mark.parametrize("factor", [10, 1000])
    @pytest.mark.parametrize(("labelled", "times"), [(MIN_LABELS, TIMES), (MIN_LABELS - 1, 1)])
    def test_a_site_has_no_more_than_its_share_of_the_sums(self, tmp_path, factor, labelled, times):
        kit = frozen(tmp_path, plan_text())
        reference = kit.plan.reference.model_copy(update={"labelled": labelled})
        plan = kit.plan.model_copy(update={"reference": reference})
        uploads = {name: sent(kit, name, patients(400, seed=k)) for k, name in enumerate(SITES)}
        lie = uploads[BAD]
        counts = tuple(factor * count for count in lie.info.class_rows)
        told = lie.info.model_copy(update={"num_rows": 400 * factor, "class_rows": counts})
        arrays = {name: array * factor for name, array in lie.arrays.items()}
        uploads[BAD] = replace(lie, info=told, arrays=arrays)
        rows = {
            name: SimpleNamespace(site=name, num_rows=u.info.num_rows)
            for name, u in uploads.items()
        }
        evidence = SimpleNamespace(
            uploads=[*rows.values()], leave_out=frozenset(), read=lambda one: uploads[one.site]
        )
        summed = _Summed(evidence, SimpleNamespace(plan=plan), MomentSums())
        assert summed.total.num_rows == 400 * (OTHERS + times)
        assert not summed.opposed


class TestSurveys:
    @pytest.mark.parametrize("factor", FACTORS)
    def test_a_site_counts_for_three_times_the_median_one(self, tmp_path, factor):
        plan = frozen(tmp_path, plan_text()).plan
        told = [SimpleNamespace(site=name, rows=100) for name in SITES]
        told[-1].rows = int(100 * factor)
        assert counted_rows(plan, told) == dict.fromkeys(SITES, 100.0) | {BAD: 300.0}


class TestMasked:
    """Nobody sees a masked total's parts, so its rows are held against what sites state."""

    @pytest.mark.parametrize("factor", FACTORS)
    def test_other_rows_than_are_stated_are_refused(self, factor):
        stated = [SimpleNamespace(num_rows=100) for _ in SITES]
        _require_stated(stated, 500.0, 100_000)
        with pytest.raises(StudyError, match="some site sealed another number than it states"):
            _require_stated(stated, 400 + 100 * factor, 100_000)

    @pytest.mark.parametrize("other", [501, 499, 500.25, 504])
    def test_rounding_leaves_no_site_a_row(self, other):
        stated = [SimpleNamespace(num_rows=100) for _ in SITES]
        with pytest.raises(StudyError, match="some site sealed another number than it states"):
            _require_stated(stated, other, 100_000)

    def test_no_site_states_more_than_the_plan_lets_it_count_for(self):
        stated = [SimpleNamespace(num_rows=n) for n in (100, 10**9)]
        _require_stated(stated, 100 + 1000, 1000)
