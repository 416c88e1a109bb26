from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from predbayes.errors import MissingPackageError, StudyError
from predbayes.predictive.families import Categorical
from predbayes.predictive.measures import MEASURES
from predbayes.study.plan.schema import Plan
from predbayes.study.report.clinical import risk_words, useful_range
from predbayes.study.report.outstanding import MOST_LISTED, outstanding, site_files
from predbayes.study.report.report import (
    MOST_SITES,
    column_groups,
    compared,
    nll_note,
    render_card,
    render_report,
    tally_of,
    with_interval,
    without_sites,
)
from predbayes.study.report.unlabelled import trusted
from predbayes.study.result.schema import Estimate, Finding, Result, Scores
from predbayes.study.result.scoring import risks
from predbayes.study.wording import bytes_readable, plain
from tests.study.samples import (
    HARMFUL,
    HOSPITALS,
    UNJUDGED,
    classification_plan,
    classification_result,
    event_plan,
    event_result,
    regression_plan,
    regression_result,
    without_labels,
)

ROOT = str(Path(__file__).parents[3])
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MANY = tuple(
    f"University Hospital {k:03d} of a Very Long Association of Cities"[:64] for k in range(100)
)
VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = "<script>alert('$x$')</script> & \"co\" $y$"


class Page(HTMLParser):
    """What a browser would find: balanced elements, attributes, text as a reader sees it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def classification(**more) -> tuple[Plan, Result]:
    plan = classification_plan()
    return plan, classification_result(plan, **more)


def regression(**more) -> tuple[Plan, Result]:
    plan = regression_plan()
    return plan, regression_result(plan, **more)


def of_event(**more) -> tuple[Plan, Result]:
    plan = event_plan()
    return plan, event_result(plan, **more)


def pages(plan: Plan, result: Result) -> list[str]:
    """The report, the public report, the card."""
    return [
        render_report(plan, result, public=False),
        render_report(plan, result, public=True),
        render_card(plan, result),
    ]


STUDIES = {
    "classification": lambda: classification(poisoned=True),
    "regression": lambda: regression(poisoned=True),
    "event": lambda: of_event(poisoned=True),
    "few labels, event": lambda: of_event(can_judge=False),
    "few labels": lambda: classification(can_judge=False),
    "few labels, regression": lambda: regression(can_judge=False),
    "hundred sites": lambda: classification(names=MANY),
    "no labels": lambda: (classification()[0], without_labels(classification()[1])),
}


@pytest.fixture(scope="module", params=STUDIES)
def study(request):
    """A plan, a result, and the pages made from them."""
    plan, result = STUDIES[request.param]()
    return plan, result, pages(plan, result)


class TestEveryPage:
    def test_is_well_formed_with_distinct_names_of_parts(self, study):
        for html in study[2]:
            page = Page(html)
            names = [value for name, value in page.attributes if name == "id"]
            assert len(names) == len(set(names))
            references = re.findall(r'(?:url\(#|href="#)([^")]+)', html)
            assert set(references) <= set(names)

    def test_can_make_no_request(self, study):
        for html in study[2]:
            page = Page(html)
            assert ("content", POLICY) in page.attributes
            assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
            assert "http://" not in html
            assert "https://" not in html
            assert "@import" not in html
            assert re.findall(r"url\((?!#)", html) == []
            for name, value in page.attributes:
                assert not name.startswith("on")
                if name in ("src", "href", "xlink:href"):
                    assert value.startswith("#")

    def test_same_result_same_bytes(self, study):
        plan, result, first = study
        assert pages(plan, result) == first

    def test_says_the_verdict_and_the_digests(self, study):
        plan, result, found = study
        for html in found:
            text = Page(html).text
            assert trusted(plan, result) in text
            assert result.plan_digest in text
            assert plan.fingerprint in text
            assert result.ledger_digest in text
            assert "predbayes predict" in text
            for name, version in result.versions.items():
                assert f"{name} {version}" in text


def test_bytes_do_not_depend_on_the_process_or_the_users_settings(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
    program = (
        "import sys\n"
        "from predbayes.study.report.report import render_report\n"
        "from tests.study.samples import classification_plan, classification_result\n"
        "plan = classification_plan()\n"
        "html = render_report(plan, classification_result(plan), public=False)\n"
        "sys.stdout.buffer.write(html.encode())\n"
    )
    settings = {
        "MATPLOTLIBRC": str(tmp_path),
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([ROOT, *sys.path]),
    }
    out = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, check=True
    ).stdout
    here = render_report(*classification(), public=False).encode()
    assert hashlib.sha256(out).digest() == hashlib.sha256(here).digest()


# What the reader finds


def scores_of(result: Result) -> list[Scores]:
    found = [result.student.scores, result.pooled, result.mixture, result.server_only]
    return [scores for scores in (*found, *(s.alone for s in result.sites)) if scores is not None]


def mentions(text: str, estimate: Estimate, percent: bool = False) -> bool:
    """Whether a value with its interval occurs, in some number of decimals."""
    choices = [None] if percent else [None, 1, 2, 3, 4]
    return any(
        " ".join(with_interval(estimate, places, percent=percent)) in text for places in choices
    )


@pytest.mark.parametrize("make", [classification, regression, of_event])
def test_every_figure_is_in_the_report(make):
    plan, result = make(poisoned=True)
    text = Page(render_report(plan, result, public=False)).text
    for scores in scores_of(result):
        for metric, estimate in scores.metrics.items():
            assert mentions(text, estimate, percent=metric in ("accuracy", "coverage_95"))
    for site in result.sites:
        assert mentions(text, site.influence)
        assert f"{site.num_rows:,}" in text
        assert bytes_readable(site.num_bytes) in text
        assert site.digest[:8] in text
        for count in site.class_rows or ():
            assert re.search(rf"\b{count:.0f}\b", text)
    for one in result.pool.candidates:
        assert (
            f"{one.name} {one.num_weights} {one.nll:.4f} {one.share:.0%}".replace("%", " %") in text
        )
    assert result.pool.name in text
    assert result.pool.reason in text
    for name, weight in result.pool.weights.items():
        assert f"{name} {weight:.3f}" in text
    assert bytes_readable(result.bytes_in) in text
    assert bytes_readable(result.bytes_out) in text
    assert f"{result.student.num_parameters:,} parameters" in text
    assert plain(result.student.gap) in text
    assert f"temperature of {result.student.temperature}" in text
    assert "from the model of result 1" in text
    assert "1 site withdrew" in text
    reference = plan.reference
    for words in (reference.source, reference.licence, reference.legal_basis):
        assert words in text


def test_calibration_of_classes_has_its_null_value_and_counts():
    plan, result = classification()
    page = Page(render_report(plan, result, public=True))
    reliability = result.reliability
    assert mentions(page.text, reliability.ece)
    assert f"would show {plain(reliability.null)}" in page.text
    for b in reliability.bins:
        assert b.count == 0 or str(b.count) in page.words


def test_calibration_of_numbers_has_every_level():
    plan, result = regression()
    html = render_report(plan, result, public=True)
    text = Page(html).text
    for level in result.coverage.levels:
        assert (
            f"{100 * level.level:.0f} % " + " ".join(with_interval(level.coverage, percent=True))
            in text
        )
    assert 'id="pit-' in html
    assert 'id="levels-' in html


def test_results_are_in_the_targets_unit():
    for html in pages(*regression()):
        text = Page(html).text
        assert "RMSE (days)" in text
        assert "95 % width (days)" in text


def test_where_rows_are_too_few_it_says_so_and_greys_the_figures_out():
    for make, num in ((classification, 1), (regression, 2)):
        plan, result = make(can_judge=False)
        html = render_report(plan, result, public=False)
        assert html.count('<div class="unjudged">') == num
        assert html.count(f"<p>{UNJUDGED}</p>") == num + 1  # and at the top
        judged = render_report(*make(), public=False)
        assert '<div class="unjudged">' not in judged
        assert UNJUDGED not in judged


@pytest.mark.parametrize(
    ("paid", "words"),
    [(0.09, "Working together paid"), (-0.05, "did not pay"), (0.02, "not clear")],
)
def test_the_control_without_sites_is_named_first_by_the_paired_difference(paid, words):
    plan, result = classification()
    difference = Estimate(value=paid, low=paid - 0.03, high=paid + 0.03)
    changed = result.model_copy(update={"paid": difference})
    for public in (True, False):
        text = Page(render_report(plan, changed, public=public)).text
        assert words in text
        assert f"is {plain(paid, 3)} nats per row" in text
    old = result.model_copy(update={"paid": None})
    assert "Working together" not in Page(render_report(plan, old, public=True)).text


def test_a_pool_without_any_site_is_not_praised():
    plan, result = classification()
    difference = Estimate(value=0.001, low=0.0005, high=0.002)  # of a student and its teacher
    pool = result.pool.model_copy(update={"weights": {"own": 0.9, "marginal": 0.1}})
    changed = result.model_copy(update={"paid": difference, "pool": pool})
    text = Page(render_report(plan, changed, public=True)).text
    assert "Working together added nothing." in text
    assert "Working together paid" not in text


class TestTheTop:
    def test_begins_with_the_base_rate_and_who_is_told_apart(self):
        plan, result = of_event()
        (risk,) = result.risks
        share, area = (
            " ".join(with_interval(one, percent=True))
            for one in (risk.prevalence, risk.metrics["auroc"])
        )
        text = Page(render_report(plan, result, public=True)).text
        assert f"“yes” is the answer in {share}." in text
        assert f"the higher risk in {area} of cases (AUROC; 50 % is chance)." in text

    def test_accuracy_stands_beside_that_of_the_most_frequent_answer(self):
        plan, result = of_event()
        often = f"{100 * max(result.class_shares):.1f} %"
        text = Page(render_report(plan, result, public=True)).text
        assert f"of cases; always to answer “no” would be right in {often}." in text
        assert f"always “no”: {often}" in text
        card = Page(render_card(plan, result)).text
        assert f"Always to answer “no” would be right in {often}" in card

    def test_a_site_that_was_found_and_kept_is_named_before_all_else(self):
        plan, result = of_event(poisoned=True)
        kept = result.sites[-1].model_copy(update={"left_out": False})
        changed = result.model_copy(update={"sites": (*result.sites[:-1], kept)})
        text = Page(render_report(plan, changed, public=False)).text
        first = text.index(f"Espoo (kept): {HARMFUL}")
        assert first < text.index("5 sites made one model together")

    def test_the_recipe_of_the_pool_is_in_the_appendix(self):
        plan, result = of_event()
        text = Page(render_report(plan, result, public=True)).text
        start = text.index("Appendix: how the sites were combined")
        assert text.index(result.pool.name) > start
        assert "in the way that fits 200 labelled reference rows best" in text[:start]
        assert result.pool.name not in Page(render_card(plan, result)).text


class TestRisk:
    def test_every_figure_of_the_event_is_told_with_its_meaning(self):
        plan, result = of_event()
        (risk,) = result.risks
        text = Page(render_report(plan, result, public=True)).text
        for name, estimate in risk.metrics.items():
            assert mentions(text, estimate)
            assert MEASURES[name].meaning in text
        for one in risk.at:
            for name, estimate in one.metrics.items():
                assert mentions(text, estimate, percent=MEASURES[name].is_share)

    def test_the_diagram_is_of_the_risk_and_not_of_the_confidence(self):
        html = render_report(*of_event(), public=True)
        assert 'id="risk-' in html
        assert 'id="decisions-' in html
        assert 'id="reliability-' not in html
        assert 'id="reliability-' in render_report(*classification(), public=True)

    def test_of_several_classes_each_is_held_against_the_others(self):
        plan, result = classification()
        rng = torch.Generator().manual_seed(0)
        predictive = Categorical(torch.randn(200, 10, generator=rng).double().log_softmax(1))
        targets = torch.randint(10, (200,), generator=rng)
        found = risks(plan, predictive, targets, rng=rng)
        changed = result.model_copy(update={"risks": found})
        text = Page(render_report(plan, changed, public=True)).text
        assert "Each class against the others" in text
        for risk in found:
            assert mentions(text, risk.metrics["auroc"])
            assert mentions(text, risk.metrics["observed_expected"])

    @pytest.mark.parametrize(
        ("slope", "ratio", "words"),
        [
            ((0.8, 1.2), (0.9, 1.1), "Neither the level nor the spread"),
            ((0.5, 0.8), (0.9, 1.1), "They are too extreme, by more than chance"),
            ((1.2, 1.8), (0.5, 0.7), "On average the stated risks are too high, and they are not"),
        ],
    )
    def test_whether_risks_are_right_is_said_in_words(self, slope, ratio, words):
        risk = of_event()[1].risks[0]
        metrics = {
            name: Estimate(value=sum(ends) / 2, low=ends[0], high=ends[1])
            for name, ends in (("slope", slope), ("observed_expected", ratio))
        }
        assert words in risk_words(risk.model_copy(update={"metrics": metrics}))
        none = risk.model_copy(update={"metrics": {}})
        assert risk_words(none).startswith("There are too few events")

    def test_where_the_curve_is_above_both_others(self):
        curve = [(0.1, 0.2, 0.21), (0.2, 0.15, 0.1), (0.3, 0.1, -0.1), (0.4, 0.0, -1.0)]
        assert useful_range(curve) == (0.2, 0.3)
        assert useful_range(curve[:1]) is None


def test_without_labels_nothing_is_claimed():
    plan, result = STUDIES["no labels"]()
    for html in pages(plan, result):
        text = Page(html).text
        assert "Nothing can be said about how good the model is" in text
        assert "Working together" not in text


def gated(num_reference: int) -> tuple[Plan, Result]:
    """A study without labels whose first site has few rows, and so a gate of 1 everywhere."""
    plan, result = STUDIES["no labels"]()
    counts = {"labelled": 0, "evaluate": 0, "unlabelled": num_reference}
    plan = plan.model_copy(update={"reference": plan.reference.model_copy(update=counts)})
    rows = (19, *[500] * (len(result.sites) - 1))
    sites = [
        site.model_copy(update={"covered": 1.0 if num < 20 else 0.9, "num_rows": num})
        for site, num in zip(result.sites, rows, strict=True)
    ]
    return plan, result.model_copy(update={"sites": tuple(sites), "plan_digest": plan.digest()})


def test_a_site_with_too_few_rows_for_a_gate_has_no_share_of_rows():
    text = Page(render_report(*gated(20), public=False)).text
    assert f"by its own gate: 1 {HOSPITALS[0]} no gate learnt, 2 {HOSPITALS[1]} 90 %," in text
    assert "A site with fewer than 20 rows or patients learns no gate" in text


def test_with_too_few_reference_rows_no_gate_is_told_of():
    text = Page(render_report(*gated(19), public=False)).text
    assert "no gate learnt, because 19 reference rows are fewer than 20" in text
    assert "by its own gate" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("any", "a model of their choice"),
        ("network", "the plan’s network, by sampling"),
        ("random-forest", "random-forest"),
        ("auto", "one of {}, which each site’s own rows chose"),
    ],
)
def test_what_sites_fit_is_what_the_plan_says(name, words):
    plan, result = classification()
    learner = plan.learner.model_copy(update={"name": name})
    plan = plan.model_copy(update={"learner": learner})
    result = result.model_copy(update={"plan_digest": plan.digest()})
    text = Page(render_report(plan, result, public=False)).text
    assert f"Sites fit {words.format(', '.join(plan.tried))}; 20 % of a site’s rows" in text


def test_a_site_that_was_found_out_is_named_with_what_was_found():
    plan, result = classification(poisoned=True)
    text = Page(render_report(plan, result, public=False)).text
    assert f"5 Espoo (harmful; left out): {HARMFUL}" in text
    assert "4 sites made one model" in text
    assert "1 further site sent a file and was left out" in text


def test_a_site_left_out_by_hand_is_named_as_such():
    plan, result = classification()
    sites = (result.sites[0].model_copy(update={"left_out": True}), *result.sites[1:])
    text = Page(render_report(plan, result.model_copy(update={"sites": sites}), public=False)).text
    assert "Left out by the coordinator’s decision: 1 Amsterdam." in text


def test_what_is_not_protected_follows_from_what_was_sent():
    predictions = Page(render_report(*classification(), public=True)).text
    weights = Page(render_report(*regression(), public=True)).text
    for text in (predictions, weights):
        assert "signed, not encrypted" in text
        assert "no differential privacy" in text
        assert "membership inference" in text
        assert "Screening may miss" in text
    assert "With a site’s predictions" in predictions
    assert "easier with weights than with predictions" in weights


# Who may see what


@pytest.mark.parametrize("name", ["e", "mixture", "own"])
def test_the_public_report_hides_the_weights_of_sites_and_no_others(name):
    plan, result = classification(names=(name, "Basel", "Cork"))
    sites = {f"site {site}": 0.125 for site in (name, "Basel", "Cork")}
    pool = result.pool.model_copy(update={"weights": {**result.pool.weights, **sites}})
    shown = without_sites(result.model_copy(update={"pool": pool})).pool.weights
    assert shown == result.pool.weights
    public = render_report(plan, result.model_copy(update={"pool": pool}), public=True)
    assert "mixture 0.484" in Page(public).text
    assert "0.125" not in Page(public).text


def test_the_public_report_and_the_card_name_no_site_and_show_no_figure_of_one():
    for make in (classification, regression):
        plan, result = make(poisoned=True)
        for html in pages(plan, result)[1:]:
            text = Page(html).text
            for site in result.sites:
                assert site.site not in html
                assert site.digest[:8] not in html
                assert f"{site.num_rows:,}" not in text
                assert bytes_readable(site.num_bytes) not in text
                assert not mentions(text, site.alone.metrics["nll"])
                assert not mentions(text, site.influence)
            assert HARMFUL not in text
            assert "influence-" not in html


def test_the_public_report_counts_the_sites_that_were_left_out():
    plan, result = classification(poisoned=True)
    text = Page(render_report(plan, result, public=True)).text
    assert "4 sites contributed, with 7,690 rows in all, as they state; 1 was left out." in text


def test_weights_of_single_sites_are_not_public():
    plan, result = classification()
    weights = {"mixture": 0.5, "site Bergen": 0.7777, "site Espoo": (0.1111, 0.2222)}
    pool = result.pool.model_copy(update={"weights": weights})
    changed = result.model_copy(update={"pool": pool})
    members, public, card = (Page(html).text for html in pages(plan, changed))
    assert "site Bergen 0.778, site Espoo 0.111 / 0.222" in members
    for text in (public, card):
        assert "0.778" not in text
        assert "Bergen" not in text
    assert "mixture 0.500" in public


def test_a_sum_over_two_sites_is_not_public():
    plan, result = classification(names=HOSPITALS[:2])
    total = sum(site.num_rows for site in result.sites)
    members, public, card = (Page(html).text for html in pages(plan, result))
    assert f"{total:,} rows" in members
    assert f"{total:,}" not in public + card
    assert tally_of(result, public=True).num_rows is None


def test_text_of_others_stays_text():
    plan, result = classification(names=(*HOSPITALS[:3], NASTY))
    columns = {NASTY: plan.columns["pixel_0_0"]}
    reference = plan.reference.model_copy(update={"source": NASTY, "legal_basis": NASTY})
    target = plan.target.model_copy(update={"name": NASTY, "classes": (NASTY, *"123456789")})
    plan = plan.model_copy(
        update={
            "description": NASTY,
            "reference": reference,
            "columns": columns,
            "target": target,
        }
    )
    finding = Finding(kind="copy", text=NASTY)
    sites = tuple(site.model_copy(update={"findings": (finding,)}) for site in result.sites)
    result = result.model_copy(
        update={"plan_digest": plan.digest(), "sites": sites, "verdict": NASTY}
    )
    for html in pages(plan, result):
        page = Page(html)
        assert "<script" not in html
        assert "script" not in page.tags
        assert NASTY in page.text  # dollars are no formula


def test_names_in_any_script_are_drawn_without_a_warning():
    plan, result = classification(names=("北京医院", "Αθήνα", "مستشفى"))
    assert "1 北京医院" in Page(render_report(plan, result, public=False)).text


# Size


def test_of_a_hundred_sites_the_twenty_largest_are_drawn_and_all_are_in_the_tables():
    plan, result = classification(names=MANY)
    html = render_report(plan, result, public=False)
    text = Page(html).text
    assert f"The {MOST_SITES} largest of 100 are drawn." in text
    assert f"Of 100 sites the {MOST_SITES} that are best alone are drawn." in text
    assert all(name in text for name in MANY)
    drawing = html[html.index('id="influence-figure_1"') :]
    drawing = drawing[: drawing.index("</svg>")]
    drawn = [int(number) for number in re.findall(r">(\d+) University[^<]*</text>", drawing)]
    sizes = {n: abs(site.influence.value) for n, site in enumerate(result.sites, 1)}
    assert drawn == sorted(sorted(sizes, key=sizes.__getitem__)[-MOST_SITES:])


def test_many_classes_are_listed_one_after_the_other():
    plan, result = classification()
    classes = tuple(f"code {k}" for k in range(30))
    plan = plan.model_copy(update={"target": plan.target.model_copy(update={"classes": classes})})
    sites = tuple(
        s.model_copy(update={"class_rows": tuple(map(float, range(10, 40)))}) for s in result.sites
    )
    result = result.model_copy(update={"plan_digest": plan.digest(), "sites": sites})
    text = Page(render_report(plan, result, public=False)).text
    assert "code 0: 10, code 1: 11" in text
    assert text.count("code 29: 39") == len(sites)


def test_numbers_that_are_not_finite_are_said_to_be_so():
    """A pool may be no distribution at all for some beta."""
    plan, result = regression()
    candidates = (result.pool.candidates[0].model_copy(update={"nll": float("inf")}),)
    curve = ((0.0, 0.9), (0.5, 0.7), (1.0, float("inf")))
    pool = result.pool.model_copy(update={"candidates": candidates, "curve": curve})
    html = render_report(plan, result.model_copy(update={"pool": pool}), public=True)
    assert "not finite" in Page(html).text
    assert "lowest at beta = 0.50" in Page(html).text


# Parts


def test_columns_that_differ_in_nothing_but_their_names_stand_together():
    (pixels,) = column_groups(classification_plan().columns)
    assert len(pixels.names) == 64
    assert (pixels.kind, pixels.values) == ("number", "0 to 16")
    age, creatinine, ward = column_groups(regression_plan().columns)
    assert (age.unit, age.values, age.missing) == ("years", "0 to 110", "must not be missing")
    assert creatinine.missing.endswith("flagged; a site may lack the column")
    assert ward.values == "surgery, medicine, paediatrics; other words count as “other”"


def test_the_card_has_columns_and_classes_and_no_long_list():
    text = Page(render_card(*classification())).text
    assert "pixel_0_0 to pixel_7_7 (64 columns) number" in text
    assert "pixel_3_3" not in text  # a list of 64 names is for the plan
    assert "0, 1, 2, …, 9 (10 in all)" in text
    assert "no, yes." in Page(render_card(*of_event())).text


@pytest.mark.parametrize("make", [classification, regression])
def test_the_card_says_each_thing_about_calibration_once(make):
    for can_judge in (True, False):
        plan, result = make(can_judge=can_judge)
        text = Page(render_card(plan, result)).text
        assert text.count(result.verdict) == 1
        assert text.count("never exactly 0") <= 1
        assert ("could not be judged" in text) is not can_judge


def test_an_nll_of_numbers_says_what_its_unit_is():
    plan = regression_plan()
    assert nll_note(plan) == "It is of the target in standard units, one unit being 4.10 days."
    target = plan.target.model_copy(update={"transform": "log", "scale": 0.71})
    changed = plan.model_copy(update={"target": target})
    assert nll_note(changed).endswith("one unit being a factor of 2.03.")


@pytest.mark.parametrize("make", [classification, regression, of_event])
def test_headings_stay_with_their_figures_in_print(make):
    html = render_report(*make(), public=False)
    for heading, figure in (
        ("How good it is, compared", "comparison"),
        ("Calibration", "reliability|pit|risk"),
        *([("What decisions gain", "decisions")] if make is of_event else []),
    ):
        start = html.index(f"<h2>{heading}</h2>")
        assert html[:start].rstrip().endswith('<section class="together">')
        assert re.search(rf'id="({figure})-', html[start : html.index("</section>", start)])


def test_the_model_stands_first_in_the_comparison():
    _, result = classification(poisoned=True)
    roles = [contender.role for contender in compared(result)]
    assert roles == ["student", "pool", "mixture", "server", *["site"] * 4, "left out"]


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (-0.0, "0"), (-0.00001, "−0.000010"), (1234.4, "1,234"), (0.0213, "0.0213")],
)
def test_numbers_have_three_digits_and_at_most_six_decimals(value, words):
    assert plain(value) == words


def test_an_interval_has_the_decimals_of_its_value():
    assert with_interval(Estimate(value=0.02, low=-0.001, high=0.0449)) == (
        "0.0200",
        "(−0.0010 to 0.0449)",
    )


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (999_600, "1.00 MB"), (5 * 10**15, "5,000 TB")]
)
def test_sizes_are_readable(size, words):
    assert bytes_readable(size) == words


def test_a_result_of_another_plan_is_refused():
    _, result = classification()
    with pytest.raises(StudyError, match="not of the plan 'Length of stay'"):
        render_report(regression_plan(), result, public=True)
    with pytest.raises(StudyError, match="not of the plan"):
        render_card(regression_plan(), result)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{package}.*\.\[study\]"):
        render_report(*classification(), public=True)


class TestManySites:
    """Above `MOST_LISTED` a report has the outstanding sites, and a file has them all."""

    @staticmethod
    def result(num):
        names = tuple(f"University Hospital {k:04d} of an Association"[:64] for k in range(num))
        plan = classification_plan()
        found = classification_result(plan, names)
        finding = Finding(kind="contradicts", text=HARMFUL)
        sites = [
            site if k % 20 else site.model_copy(update={"findings": (finding,), "left_out": True})
            for k, site in enumerate(found.sites)
        ]
        return plan, found.model_copy(update={"sites": tuple(sites)})

    def test_the_page_has_a_bound_and_names_who_stands_out(self):
        sizes = {}
        for num in (200, 1000):
            plan, result = self.result(num)
            html = render_report(plan, result, public=False)
            sizes[num] = len(html.encode())
            words = " ".join(Page(html).words)
            assert "University Hospital 0020" in words
            assert f"found against {num // 20} sites" in words
            assert "sites.csv" in words
        assert max(sizes.values()) < 1_000_000
        assert sizes[1000] < 1.1 * sizes[200]

    def test_the_file_has_a_line_for_each_and_no_formula(self):
        _, result = self.result(MOST_LISTED + 1)
        first = result.sites[0].model_copy(update={"site": "=1+1"})
        result = result.model_copy(update={"sites": (first, *result.sites[1:])})
        (text,) = site_files(result).values()
        lines = list(csv.DictReader(io.StringIO(text)))
        assert [line["site"] for line in lines[1:]] == [site.site for site in result.sites[1:]]
        assert lines[0]["site"] == "'=1+1"
        assert float(lines[3]["nll"]) == pytest.approx(
            result.sites[3].alone.metrics["nll"].value, rel=1e-5
        )

    def test_few_sites_are_all_in_the_page(self):
        _, result = self.result(MOST_LISTED)
        assert outstanding(result) is result
        assert site_files(result) == {}

    def test_the_public_page_names_nobody(self):
        plan, result = self.result(300)
        assert "University Hospital" not in render_report(plan, result, public=True)
