"""`predbayes demo-from-nothing`: tables at sites, and in the end a model and a report."""

import pytest

from predbayes_study.coordinator.study import Study
from predbayes_study.extras.survey.section import SurveyTerms
from predbayes_study.plan.schema import Plan
from tests.study.cli.test_site_train import done


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's folder, and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    return out, done(f"demo-from-nothing --out {out}")


def test_no_reference_row_is_real_and_none_has_a_label(demo):
    out, _ = demo
    plan = Plan.load(out / "kit/plan.toml")
    reference = plan.reference
    assert (
        plan.section(SurveyTerms).synthetic.rows
        == reference.num_rows
        == reference.unlabelled
        == 500
    )
    assert not list(out.glob("reference*"))
    pages = [out / "study/results/2" / name for name in ("report-public.html", "model-card.html")]
    for page in (*pages, out / "kit/README.txt"):
        assert "500 of 500 reference rows are synthetic" in page.read_text()


def test_sites_say_how_good_the_model_is_and_it_is(demo):
    out, _ = demo
    result = Study(out / "study").result(2)
    assert result.student.scores is None
    assert len(result.at_sites.sites) == 4
    assert result.at_sites.pooled.metrics["accuracy"].value > 0.85
    assert result.at_sites.pooled.metrics["nll"].value < 0.35


def test_the_report_has_the_sites_table_1(demo):
    out, lines = demo
    members, public = (
        (out / "study/results/2" / name).read_text()
        for name in ("report.html", "report-public.html")
    )
    assert "(Table 1)" in members
    assert "Turku" in members
    assert "(Table 1)" in public
    assert "Turku" not in public
    assert lines[-1].endswith("results/2/report.html")


def test_every_site_adopts_it_and_the_study_verifies(demo):
    out, _ = demo
    assert len(list(out.glob("*/adopted/comparison.json"))) == 4
    assert Study(out / "study").verify() == []
