"""The model card for programs: every item of TRIPOD+AI, from the study or left to a person."""

from __future__ import annotations

import json

import pytest

from predbayes_study.extras.records.tripod import ITEMS, render_card_data
from predbayes_study.extras.survey.section import SurveyTerms, Synthetic
from tests.study import samples

STUDIES = {
    "classes": (samples.classification_plan, samples.classification_result),
    "event": (samples.event_plan, samples.event_result),
    "numbers": (samples.regression_plan, samples.regression_result),
}


@pytest.fixture(scope="module", params=STUDIES)
def made(request):
    make_plan, make_result = STUDIES[request.param]
    plan = make_plan()
    result = make_result(plan)
    return plan, result, json.loads(render_card_data(plan, result))


def items(card):
    return {item["item"]: item for item in card["reporting"]["items"]}


def test_it_has_the_27_items_and_their_parts_in_order():
    numbers = [item["number"] for item in ITEMS]
    whole = [int(number.rstrip("abcdefg")) for number in numbers]
    assert sorted(set(whole)) == list(range(1, 28))
    assert whole == sorted(whole)
    assert len(numbers) == len(set(numbers)) == 52
    assert [number for number in numbers if number.startswith("12")] == [
        f"12{c}" for c in "abcdefg"
    ]


def test_each_item_says_what_is_known_and_leaves_the_rest_to_a_person(made):
    plan, _, card = made
    states = {"known": (True, False), "in part": (True, True), "to write": (False, True)}
    for item in items(card).values():
        assert (bool(item["known"]), bool(item["write"])) == states[item["state"]], item
    assert sum(card["reporting"]["states"].values()) == 52
    for number in ["3a", "3c", "5b", "6b", "17", "18a", "18b", "18d", "19", "27c"]:
        if number == "17" and plan.reference.legal_basis:
            assert items(card)[number]["write"]
        else:
            assert items(card)[number]["state"] == "to write"


def test_figures_are_those_of_the_result_and_no_site_is_named(made):
    plan, result, card = made
    assert card["plan"] == plan.digest()
    for name, estimate in result.student.scores.metrics.items():
        assert card["scores"][name]["value"] == estimate.value
    assert next(iter(plan.columns)) in " ".join(items(card)["9b"]["known"])
    text = json.dumps(card, ensure_ascii=False)
    for site in result.sites:
        assert site.site not in text
        assert site.digest not in text


def test_without_labels_it_has_no_scores():
    plan = samples.classification_plan()
    result = samples.without_labels(samples.classification_result(plan))
    card = json.loads(render_card_data(plan, result))
    assert card["scores"] is None
    assert "cannot be said yet" in card["verdict"]


def test_it_says_that_reference_rows_are_synthetic():
    survey = SurveyTerms(synthetic=Synthetic(rows=7, seed=0, surveys=("0" * 64,)))
    plan = samples.classification_plan()
    drawn = plan.model_copy(update={"sections": {"survey": survey}})
    for one in (plan, drawn):
        card = json.loads(render_card_data(one, samples.classification_result(one)))
        assert ("synthetic" in json.dumps(card)) is (one is drawn)
    assert drawn.cautions[0] in items(card)["5a"]["known"]
