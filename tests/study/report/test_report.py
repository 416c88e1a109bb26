from __future__ import annotations

import csv
import functools
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
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.families import Categorical
from predbayes.predictive.measures import MEASURES
from predbayes_study.plan.schema import Plan
from predbayes_study.report.clinical import useful_range
from predbayes_study.report.outstanding import MOST_LISTED, outstanding, site_files
from predbayes_study.report.pages import with_interval
from predbayes_study.report.report import (
    MOST_SITES,
    column_groups,
    render_card,
    render_report,
    tally_of,
    without_sites,
)
from predbayes_study.report.unlabelled import trusted
from predbayes_study.result.schema import Finding, Result, Scores
from predbayes_study.tasks import task_of
from predbayes_study.tasks.classes import risk_words
from predbayes_study.wording import bytes_readable, plain
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


MEMBERS, PUBLIC, CARD = KINDS = "members", "public", "card"
SITE = "University Hospital"


def render(plan: Plan, result: Result, kind: str) -> str:
    if kind == CARD:
        return render_card(plan, result)
    return render_report(plan, result, public=kind == PUBLIC)


def text_of(plan: Plan, result: Result, kind: str = PUBLIC) -> str:
    return Page(render(plan, result, kind)).text


def with_findings(num: int) -> tuple[Plan, Result]:
    """A study of many sites of which every twentieth is left out for a finding."""
    plan = classification_plan()
    names = tuple(f"{SITE} {k:04d} of an Association"[:64] for k in range(num))
    found = classification_result(plan, names)
    finding = Finding(kind="contradicts", text=HARMFUL)
    sites = [
        site if k % 20 else site.model_copy(update={"findings": (finding,), "left_out": True})
        for k, site in enumerate(found.sites)
    ]
    return plan, found.model_copy(update={"sites": tuple(sites)})


@functools.cache
def study(name: str) -> tuple[Plan, Result]:
    classes, numbers, event = classification_plan(), regression_plan(), event_plan()
    return {
        "classification": lambda: (classes, classification_result(classes, poisoned=True)),
        "regression": lambda: (numbers, regression_result(numbers, poisoned=True)),
        "event": lambda: (event, event_result(event, poisoned=True)),
        "few labels": lambda: (classes, classification_result(classes, can_judge=False)),
        "few labels, numbers": lambda: (numbers, regression_result(numbers, can_judge=False)),
        "hundred sites": lambda: (classes, classification_result(classes, MANY)),
        "many sites": lambda: with_findings(400),
        "no labels": lambda: (classes, without_labels(classification_result(classes))),
    }[name]()


@functools.cache
def page(name: str, kind: str) -> str:
    """A page of an unchanged study, which is drawn once."""
    return render(*study(name), kind)


def changed(name: str, **update: object) -> tuple[Plan, Result]:
    plan, result = study(name)
    return plan, result.model_copy(update=update)


# "few labels, numbers" and "many sites" have the parts of others
SHOWN = ["classification", "regression", "event", "few labels", "hundred sites", "no labels"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHOWN)
def test_a_page_is_well_formed_asks_for_nothing_and_has_digests_and_the_verdict(name, kind):
    plan, result = study(name)
    html = page(name, kind)
    found = Page(html)
    names = [value for attribute, value in found.attributes if attribute == "id"]
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', html)) <= set(names)

    assert ("content", POLICY) in found.attributes
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    for attribute, value in found.attributes:
        assert not attribute.startswith("on")
        if attribute in ("src", "href", "xlink:href"):
            assert value.startswith("#")

    versions = [f"{package} {version}" for package, version in result.versions.items()]
    digests = [result.plan_digest, plan.fingerprint, result.ledger_digest]
    for words in (trusted(plan, result), *digests, *versions):
        assert words in found.text


def test_bytes_do_not_depend_on_the_process_or_the_users_settings(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
    program = (
        "import sys\n"
        "from tests.study.report import test_egress, test_report\n"
        "made = [test_report.page('classification', 'members')]\n"
        "made += [test_egress.rendered(*made) for made in test_egress.UPLOADS.values()]\n"
        "sys.stdout.buffer.write(''.join(made).encode())\n"
    )
    settings = {
        "MATPLOTLIBRC": str(tmp_path),
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([ROOT, *sys.path]),
    }
    out = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, check=True
    ).stdout
    from tests.study.report import test_egress  # which imports this module

    egress = [test_egress.rendered(*made) for made in test_egress.UPLOADS.values()]
    here = "".join([page("classification", MEMBERS), *egress]).encode()
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


@pytest.mark.parametrize("name", ["classification", "regression", "event"])
def test_every_figure_is_in_the_report(name):
    plan, result = study(name)
    text = Page(page(name, MEMBERS)).text
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
        share = f"{one.share:.0%}".replace("%", " %")
        assert f"{one.name} {one.num_weights} {one.nll:.4f} {share}" in text
    for weight_name, weight in result.pool.weights.items():
        assert f"{weight_name} {weight:.3f}" in text
    reference, student = plan.reference, result.student
    for words in (
        *(reference.source, reference.licence, reference.legal_basis),
        *(result.pool.name, result.pool.reason, plain(student.gap), str(student.temperature)),
        *(bytes_readable(result.bytes_in), bytes_readable(result.bytes_out)),
        f"{student.num_parameters:,} parameters",
    ):
        assert words in text


def test_calibration_of_classes_has_its_null_value_and_counts():
    reliability = study("classification")[1].reliability
    found = Page(page("classification", PUBLIC))
    assert mentions(found.text, reliability.ece)
    assert plain(reliability.null) in found.text
    for b in reliability.bins:
        assert b.count == 0 or str(b.count) in found.words


def test_calibration_of_numbers_has_every_level_and_the_targets_unit():
    html = page("regression", PUBLIC)
    text = Page(html).text
    for level in study("regression")[1].coverage.levels:
        interval = " ".join(with_interval(level.coverage, percent=True))
        assert f"{100 * level.level:.0f} % {interval}" in text
    assert 'id="pit-' in html
    assert 'id="levels-' in html
    for kind in KINDS:
        assert "RMSE (days)" in Page(page("regression", kind)).text


@pytest.mark.parametrize(("name", "num"), [("few labels", 1), ("few labels, numbers", 2)])
def test_where_rows_are_too_few_it_says_so_and_greys_the_figures_out(name, num):
    html = page(name, MEMBERS)
    assert html.count('<div class="unjudged">') == num
    assert html.count(f"<p>{UNJUDGED}</p>") == num + 1  # and at the top
    judged = page({1: "classification", 2: "regression"}[num], MEMBERS)
    assert '<div class="unjudged">' not in judged
    assert UNJUDGED not in judged


@pytest.mark.parametrize(
    ("paid", "words"),
    [
        (0.09, "Working together paid"),
        (-0.05, "did not pay"),
        (0.02, "not clear"),
        (None, ""),
    ],
)
def test_the_control_without_sites_is_named_by_the_paired_difference(paid, words):
    value = 0.0 if paid is None else paid
    difference = Estimate(value=value, low=value - 0.03, high=value + 0.03)
    text = text_of(*changed("classification", paid=None if paid is None else difference))
    assert words in text
    assert paid is not None or "Working together" not in text
    assert (f"is {plain(value, 3)} nats per row" in text) is (paid is not None)


def test_a_pool_without_any_site_is_not_praised():
    difference = Estimate(value=0.001, low=0.0005, high=0.002)  # of a student and its teacher
    pool = study("classification")[1].pool
    pool = pool.model_copy(update={"weights": {"own": 0.9, "marginal": 0.1}})
    text = text_of(*changed("classification", paid=difference, pool=pool))
    assert "Working together added nothing." in text
    assert "Working together paid" not in text


def test_without_labels_nothing_is_claimed():
    for kind in KINDS:
        text = Page(page("no labels", kind)).text
        assert "Nothing can be said about how good the model is" in text
        assert "Working together" not in text


class TestRisk:
    def test_every_figure_of_the_event_is_told_with_its_meaning(self):
        html = page("event", PUBLIC)
        text = Page(html).text
        (risk,) = study("event")[1].risks
        assert " ".join(with_interval(risk.prevalence, percent=True)) in text
        for name, estimate in risk.metrics.items():
            assert mentions(text, estimate)
            assert MEASURES[name].meaning in text
        for one in risk.at:
            for name, estimate in one.metrics.items():
                assert mentions(text, estimate, percent=MEASURES[name].is_share)
        often = f"{100 * max(study('event')[1].class_shares):.1f} %"
        assert f"always “no”: {often}" in text
        assert often in Page(page("event", CARD)).text
        # The diagrams are of the risk, not of the confidence
        assert 'id="risk-' in html
        assert 'id="decisions-' in html
        assert 'id="reliability-' not in html
        assert 'id="reliability-' in page("classification", PUBLIC)

    def test_of_several_classes_each_is_held_against_the_others(self):
        plan, _ = study("classification")
        rng = torch.Generator().manual_seed(0)
        predictive = Categorical(torch.randn(200, 10, generator=rng).double().log_softmax(1))
        targets = torch.randint(10, (200,), generator=rng)
        found = task_of(plan).risks(plan, predictive, targets, rng=rng)
        text = text_of(*changed("classification", risks=found))
        for risk in found:
            assert mentions(text, risk.metrics["auroc"])
            assert mentions(text, risk.metrics["observed_expected"])

    @pytest.mark.parametrize(
        ("slope", "ratio", "words"),
        [
            ((0.8, 1.2), (0.9, 1.1), "Neither the level nor the spread"),
            ((0.5, 0.8), (0.9, 1.1), "They are too extreme"),
            ((1.2, 1.8), (0.5, 0.7), "stated risks are too high"),
            (None, None, "too few events"),
        ],
    )
    def test_whether_risks_are_right_is_said_in_words(self, slope, ratio, words):
        ends = {} if slope is None else {"slope": slope, "observed_expected": ratio}
        found = {
            name: Estimate(value=(low + high) / 2, low=low, high=high)
            for name, (low, high) in ends.items()
        }
        risk = study("event")[1].risks[0].model_copy(update={"metrics": found})
        assert words in risk_words(risk)

    def test_where_the_curve_is_above_both_others(self):
        curve = [(0.1, 0.2, 0.21), (0.2, 0.15, 0.1), (0.3, 0.1, -0.1), (0.4, 0.0, -1.0)]
        assert useful_range(curve) == (0.2, 0.3)
        assert useful_range(curve[:1]) is None


@pytest.mark.parametrize("num_reference", [19, 20])
def test_a_gate_that_was_not_learnt_has_no_share_of_rows(num_reference):
    """Of too few reference rows no gate is learnt, nor by a site with too few rows."""
    plan, result = study("no labels")
    counts = {"labelled": 0, "evaluate": 0, "unlabelled": num_reference}
    plan = plan.model_copy(update={"reference": plan.reference.model_copy(update=counts)})
    rows = (19, *[500] * (len(result.sites) - 1))
    sites = [
        site.model_copy(
            update={"covered": 1.0 if num < 20 else 0.9, "num_rows": num, "counted_rows": num}
        )
        for site, num in zip(result.sites, rows, strict=True)
    ]
    update = {"sites": tuple(sites), "plan_digest": plan.digest()}
    text = text_of(plan, result.model_copy(update=update), MEMBERS)
    assert (f"1 {HOSPITALS[0]} no gate learnt, 2 {HOSPITALS[1]} 90 %," in text) is (
        num_reference == 20
    )
    assert ("19 reference rows are fewer than 20" in text) is (num_reference == 19)


def test_who_was_found_out_kept_or_left_out_by_hand_is_named():
    text = Page(page("classification", MEMBERS)).text
    assert f"5 Espoo (harmful; left out): {HARMFUL}" in text
    assert "4 sites made one model" in text

    first, *others = study("event")[1].sites
    kept = others[-1].model_copy(update={"left_out": False})
    by_hand = first.model_copy(update={"left_out": True})
    text = text_of(*changed("event", sites=(by_hand, *others[:-1], kept)), MEMBERS)
    assert text.index(f"Espoo (kept): {HARMFUL}") < text.index("4 sites made one model together")
    assert "Left out by the coordinator’s decision: 1 Amsterdam." in text


# Who may see what


@pytest.mark.parametrize("name", ["classification", "regression"])
@pytest.mark.parametrize("kind", [PUBLIC, CARD])
def test_the_public_report_and_the_card_name_no_site_and_show_no_figure_of_one(name, kind):
    html = page(name, kind)
    text = Page(html).text
    for site in study(name)[1].sites:
        assert site.site not in html
        assert site.digest[:8] not in html
        assert f"{site.num_rows:,}" not in text
        assert bytes_readable(site.num_bytes) not in text
        assert not mentions(text, site.alone.metrics["nll"])
        assert not mentions(text, site.influence)
    assert HARMFUL not in text
    assert "influence-" not in html
    assert ("1 was left out" in text) is (kind == PUBLIC)


def test_weights_of_single_sites_are_not_public():
    plan, _ = study("classification")
    names = ("e", "mixture", "own", "Basel")  # and not of a component of the same name
    result = classification_result(plan, names)
    weights = {"site e": 0.7777, "site mixture": 0.125, "site Basel": (0.1111, 0.2222)}
    pool = result.pool.model_copy(update={"weights": {**result.pool.weights, **weights}})
    changed = result.model_copy(update={"pool": pool})
    assert without_sites(changed).pool.weights == result.pool.weights
    members, public, card = (text_of(plan, changed, kind) for kind in KINDS)
    assert "site e 0.778, site mixture 0.125, site Basel 0.111 / 0.222" in members
    for text in (public, card):
        for words in ("0.778", "0.125", "0.111", "Basel"):
            assert words not in text
    assert "mixture 0.484" in public


def test_a_sum_over_two_sites_is_not_public():
    plan, _ = study("classification")
    result = classification_result(plan, HOSPITALS[:2])
    total = f"{sum(site.num_rows for site in result.sites):,}"
    members, public, card = (text_of(plan, result, kind) for kind in KINDS)
    assert f"{total} rows" in members
    assert total not in public + card
    assert tally_of(result, public=True).num_rows is None


def test_text_of_others_stays_text():
    """Neither elements nor formulas, and names in any script."""
    plan, _ = study("classification")
    names = ("北京医院", "Αθήνα", "مستشفى", NASTY)
    result = classification_result(plan, names)
    reference = plan.reference.model_copy(update={"source": NASTY, "legal_basis": NASTY})
    target = plan.target.model_copy(update={"name": NASTY, "classes": (NASTY, *"123456789")})
    update = {
        "description": NASTY,
        "reference": reference,
        "columns": {NASTY: plan.columns["pixel_0_0"]},
        "target": target,
    }
    plan = plan.model_copy(update=update)
    finding = Finding(kind="copy", text=NASTY)
    sites = tuple(site.model_copy(update={"findings": (finding,)}) for site in result.sites)
    update = {"plan_digest": plan.digest(), "sites": sites, "verdict": NASTY}
    for kind in KINDS:
        html = render(plan, result.model_copy(update=update), kind)
        found = Page(html)
        assert "<script" not in html
        assert "script" not in found.tags
        assert NASTY in found.text  # dollars are no formula
        assert ("1 北京医院" in found.text) is (kind == MEMBERS)


# Size


def test_of_a_hundred_sites_the_twenty_largest_are_drawn_and_all_are_in_the_tables():
    _, result = study("hundred sites")
    html = page("hundred sites", MEMBERS)
    text = Page(html).text
    assert all(name in text for name in MANY)
    drawing = html[html.index('id="influence-figure_1"') :]
    drawing = drawing[: drawing.index("</svg>")]
    drawn = [int(number) for number in re.findall(r">(\d+) University[^<]*</text>", drawing)]
    sizes = {n: abs(site.influence.value) for n, site in enumerate(result.sites, 1)}
    assert drawn == sorted(sorted(sizes, key=sizes.__getitem__)[-MOST_SITES:])


class TestManySites:
    """Above `MOST_LISTED` a report has the outstanding sites, and a file has them all."""

    def test_the_page_has_a_bound_and_names_who_stands_out(self):
        few = render_report(*with_findings(200), public=False)
        many = page("many sites", MEMBERS)
        for html, num in ((few, 200), (many, 400)):
            text = Page(html).text
            assert f"{SITE} 0020" in text
            assert f"found against {num // 20} sites" in text
            assert "sites.csv" in text
        assert len(many) < min(1_000_000, 1.1 * len(few))
        assert SITE not in page("many sites", PUBLIC)

    def test_the_file_has_a_line_for_each_and_no_formula(self):
        _, few = with_findings(MOST_LISTED)
        assert outstanding(few) is few
        assert site_files(few) == {}
        _, result = with_findings(MOST_LISTED + 1)
        first = result.sites[0].model_copy(update={"site": "=1+1"})
        result = result.model_copy(update={"sites": (first, *result.sites[1:])})
        (text,) = site_files(result).values()
        lines = list(csv.DictReader(io.StringIO(text)))
        assert [line["site"] for line in lines[1:]] == [site.site for site in result.sites[1:]]
        assert lines[0]["site"] == "'=1+1"
        expected = result.sites[3].alone.metrics["nll"].value
        assert float(lines[3]["nll"]) == pytest.approx(expected, rel=1e-5)


def test_numbers_that_are_not_finite_are_said_to_be_so():
    """A pool may be no distribution at all for some beta."""
    pool = study("regression")[1].pool
    candidates = (pool.candidates[0].model_copy(update={"nll": float("inf")}),)
    curve = ((0.0, 0.9), (0.5, 0.7), (1.0, float("inf")))
    pool = pool.model_copy(update={"candidates": candidates, "curve": curve})
    text = text_of(*changed("regression", pool=pool))
    assert "not finite" in text
    assert "lowest at beta = 0.50" in text


# Parts


def test_columns_that_differ_in_nothing_but_their_names_are_together():
    (pixels,) = column_groups(classification_plan().columns)
    assert len(pixels.names) == 64
    assert (pixels.kind, pixels.values) == ("number", "0 to 16")
    age, creatinine, ward = column_groups(regression_plan().columns)
    assert (age.unit, age.values, age.missing) == ("years", "0 to 110", "must not be missing")
    assert creatinine.missing.endswith("flagged; a site may lack the column")
    assert ward.values == "surgery, medicine, paediatrics; other words count as “other”"


def test_the_card_has_columns_and_classes_once_and_no_long_list():
    text = Page(page("classification", CARD)).text
    assert "pixel_0_0 to pixel_7_7 (64 columns) number" in text
    assert "pixel_3_3" not in text  # a list of 64 names is for the plan
    assert "0, 1, 2, …, 9 (10 in all)" in text
    assert "no, yes." in Page(page("event", CARD)).text
    for name in ("classification", "regression", "few labels", "few labels, numbers"):
        text = Page(page(name, CARD)).text
        assert text.count(study(name)[1].verdict) == 1
        assert ("could not be judged" in text) is name.startswith("few")


def test_numbers_are_readable():
    """Three digits, at most six decimals, and an interval with the decimals of its value."""
    for value, words in (
        *((0.0, "0"), (-0.0, "0"), (-0.00001, "−0.000010")),
        *((1234.4, "1,234"), (0.0213, "0.0213")),
    ):
        assert plain(value) == words
    interval = with_interval(Estimate(value=0.02, low=-0.001, high=0.0449))
    assert interval == ("0.0200", "(−0.0010 to 0.0449)")
    sizes = {0: "0 B", 999: "999 B", 999_600: "1.00 MB", 5 * 10**15: "5,000 TB"}
    assert {size: bytes_readable(size) for size in sizes} == sizes


def test_a_result_of_another_plan_is_refused():
    for kind in KINDS:
        with pytest.raises(StudyError, match="Length of stay"):
            render(regression_plan(), study("classification")[1], kind)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{package}.*packages/study"):
        render_report(*study("classification"), public=True)
