"""What is said of calibration where sites alone have measured: no more than they have shown."""

import pytest

from predbayes.predictive.estimate import Estimate
from predbayes_study.report.report import without_sites
from predbayes_study.report.unlabelled import trusted
from predbayes_study.result.schema import (
    AtSites,
    Bin,
    ClassRisk,
    Coverage,
    Evaluated,
    Scores,
    ScoreSums,
)
from tests.study.samples import (
    classification_plan,
    classification_result,
    event_plan,
    event_result,
    regression_plan,
    regression_result,
    without_labels,
)

RIGHT = {"slope": (0.8, 1.0, 1.2), "observed_expected": (0.9, 1.0, 1.1)}
FLAT = RIGHT | {"slope": (-0.1, 0.0, 0.1)}


def estimates(ends):
    return {name: Estimate(low=low, value=v, high=high) for name, (low, v, high) in ends.items()}


def scores(num_rows, **ends):
    return Scores(num_rows=num_rows, metrics=estimates(ends))


CLASSES = scores(720, accuracy=(0.7, 0.72, 0.74), nll=(0.5, 0.55, 0.6))


def risk(ends, num_bins, num_rows=720):
    inside = {"stated": 0.5, "observed": 0.5, "null_low": 0.4, "null_high": 0.6}
    return ClassRisk(
        name="yes",
        num_rows=num_rows,
        prevalence=Estimate(value=0.5, low=0.4, high=0.6),
        metrics=estimates(ends),
        bins=tuple(Bin(count=num_rows // num_bins, **inside) for _ in range(num_bins)),
    )


def told(found, plan, result, *, public=False, **change):
    coverages, figures = change.pop("coverages", ()), dict(found)
    sites = tuple(
        Evaluated(site=s.site, **figures, risks=change.get("risks", ())) for s in result.sites
    )
    pooled = Evaluated(**figures, **change)
    at_sites = AtSites(sites=sites, pooled=pooled, coverages=coverages, public=True)
    result = without_labels(result).model_copy(update={"at_sites": at_sites})
    return trusted(plan, without_sites(result) if public else result)


def of_event(*, public=False, **change):
    plan = event_plan()
    return told(CLASSES, plan, event_result(plan), public=public, **change)


@pytest.mark.parametrize("public", [False, True])
class TestTwoClasses:
    @pytest.mark.parametrize("num_bins", [1, 2, 5])
    def test_a_model_that_says_the_same_of_everybody_is_found_whatever_the_groups(
        self, num_bins, public
    ):
        """All rows in one group have the right share, whatever is said of each."""
        text = of_event(public=public, risks=(risk(FLAT, num_bins),))
        assert "too extreme" in text
        assert ("groups of about equal probability" in text) is (num_bins == 5 and not public)

    def test_level_and_spread_are_judged_from_counts(self, public):
        text = of_event(public=public, risks=(risk(RIGHT, 1),))
        assert "Neither the level nor the spread" in text
        some = of_event(public=public, risks=(risk(RIGHT, 4, num_rows=100),))
        assert "By counts of 100 of these rows: Neither" in some


def bins(num):
    inside = {"stated": 0.5, "observed": 0.5, "null_low": 0.4, "null_high": 0.6}
    return tuple(Bin(count=100, **inside) for _ in range(num))


@pytest.mark.parametrize(
    ("num_bins", "public", "words"),
    [
        (2, False, "calibration is not judged"),
        (3, False, "Of 3 groups of about equal probability of 300 of these rows 3 are"),
        (3, True, "if sites sent it, is in the members’ report"),
    ],
)
def test_calibration_of_more_classes_is_judged_by_enough_groups(num_bins, public, words):
    plan = classification_plan()
    result = classification_result(plan)
    assert words in told(CLASSES, plan, result, public=public, bins=bins(num_bins))


class TestNumbers:
    def of(self, covered, shown=None):
        plan = regression_plan()
        result = regression_result(plan)
        found = scores(600, coverage_95=covered)
        if shown is None:
            return told(found, plan, result)
        one = Coverage(level=0.95, size=1.0, credible_covered=shown)
        counts = ScoreSums(num_sites=4, edges=(1.0,), counts=(500, 100))
        return told(found, plan, result, coverages=(one,), scores=counts)

    def test_only_what_clipping_cannot_explain_is_a_verdict(self):
        for covered, shown, words in (
            ((0.907, 0.93, 0.948), (0.927, 0.967), "which does not speak against 95 %"),
            ((0.78, 0.8, 0.82), (0.78, 0.82), ": not 95 %."),
            ((0.907, 0.93, 0.948), None, "clipped as they leave a site."),
            ((0.93, 0.95, 0.97), None, "as many as they should"),
        ):
            assert words in self.of(covered, shown)
