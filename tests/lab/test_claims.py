"""What pages claim is what the records say."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from predbayes_lab.claims import Claim, agrees, figure, marker, marks
from predbayes_lab.records import Record
from predbayes_lab.statistics import summarise

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "tables"))
CLAIMS = json.loads((ROOT / "results" / "claims.json").read_text())
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in SCRIPT["_pages"]()}


def record(method, seed, nll, **data):
    return Record("k", "study", {"data.name": "bike"}, method, seed, {"nll": nll}, data=data)


RECORDS = [record(m, s, v + 0.1 * s) for m, v in {"a": 1.0, "b": 2.0}.items() for s in range(3)]


class TestFigure:
    def test_it_is_a_mean_over_seeds_with_its_interval(self):
        found = figure(Claim("study", "bike", "a"), RECORDS)
        expected = summarise([1.0, 1.1, 1.2])
        assert found == {"value": expected.mean, "seeds": 3, "interval": [*expected.interval]}

    def test_or_a_paired_difference_in_parts_of_the_other_mean(self):
        found = figure(Claim("study", "bike", "a", against="b"), RECORDS)
        assert found["value"] == pytest.approx(-1 / 2.1)
        assert found["interval"] == pytest.approx([-1 / 2.1, -1 / 2.1])

    def test_one_seed_has_no_interval(self):
        assert figure(Claim("study", "bike", "a"), RECORDS[:1])["interval"] is None

    @pytest.mark.parametrize(
        "claim",
        [
            Claim("study", "wine", "a"),
            Claim("study", "bike", "c"),
            Claim("study", "bike", "a", "ece"),
        ],
    )
    def test_without_records_it_waits(self, claim):
        assert figure(claim, RECORDS) is None


class TestMarks:
    def test_numbers_stand_right_before_them(self):
        text = f"**.358**{marker('x')} or 38 %{marker('y')}, words {marker('z')}"
        found = [*marks({"page": text})]
        assert found == [("page", "x", ".358"), ("page", "y", "38 %"), ("page", "z", None)]

    @pytest.mark.parametrize(
        ("shown", "value", "same"),
        [
            (".358", 0.3584, True),
            (".358", 0.3586, False),
            ("0.36", 0.3584, True),
            ("-1.5", -1.52, True),
            ("12", 12.4, True),
            ("38 %", -0.3814, True),
            ("38 %", -0.3914, False),
        ],
    )
    def test_a_number_is_rounded_as_the_page_has_it(self, shown, value, same):
        assert agrees(shown, value) is same


def test_the_file_is_made_from_the_records_and_pages():
    assert json.loads(json.dumps(SCRIPT["claimed"]())) == CLAIMS


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "<!-- claim:" in text])
def test_every_marked_number_is_that_of_its_claim(page):
    for _, name, shown in marks({page: PAGES[page]}):
        assert name in CLAIMS, f"{page}: no claim {name}; add a line to CLAIMS in scripts/tables"
        assert shown is not None, f"{page}: no number right before the mark of {name}"
        assert agrees(shown, CLAIMS[name]["value"]), f"{page}: {name} is {CLAIMS[name]['value']}"


def test_the_readme_and_the_page_of_claims_claim_no_figure_without_a_mark():
    """In the words of the one and in the table of the other, every number has one."""
    readme = PAGES["README.md"].partition("## What it reaches")[2].partition("\n## ")[0]
    lines = PAGES["docs/claims.md"].splitlines()
    rows = [line for line in lines if line.startswith("| ") and " / " in line][1:]
    assert len(rows) >= 6
    assert "<!-- claim: " in readme
    for text in (readme, *rows):
        without = re.sub(r"[-+]?\d*(\.\d+| %)<!-- claim: \S+ -->", "", text)
        assert not re.search(r"\d\.\d|\d %", without), text


def test_no_claim_is_without_a_page():
    assert {name for name, claim in CLAIMS.items() if not claim["pages"]} == set()


def test_names_that_are_promised_are_lines_of_the_table():
    assert {
        "gated.fashion-mnist.h0.9.nll",
        "gated.mnist.h0.9.nll",
        "gated.fashion-mnist.h0.9.sites50.nll",
        "gated.hospitals.nll",
    } <= SCRIPT["CLAIMS"].keys()
