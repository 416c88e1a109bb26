"""`predbayes demo-from-nothing`: tables at sites, and in the end a model and a report."""

from __future__ import annotations

from predbayes_study.coordinator.study import Study
from predbayes_study.extras.survey.section import SurveyTerms
from predbayes_study.plan.schema import Plan
from tests.study.commands import done


def test_from_tables_at_sites_to_a_model_and_a_report(tmp_path):
    out = tmp_path / "demo"
    lines = done(f"demo-from-nothing --out {out}")
    folder = out / "study/results/2"
    assert lines[-1].endswith("results/2/report.html")
    plan = Plan.load(out / "kit/plan.toml")
    synthetic = plan.section(SurveyTerms).synthetic
    assert synthetic.rows == plan.reference.num_rows == plan.reference.unlabelled == 500
    assert not list(out.glob("reference*"))  # none is real, and none has a label
    pages = [folder / name for name in ("report-public.html", "model-card.html")]
    for page in (*pages, out / "kit/README.txt"):
        assert "500 of 500 reference rows are synthetic" in page.read_text()

    result = Study(out / "study").result(2)
    assert result.student.scores is None
    assert len(result.at_sites.sites) == 4
    assert result.at_sites.pooled.metrics["accuracy"].value > 0.85
    assert result.at_sites.pooled.metrics["nll"].value < 0.35
    assert len(list(out.glob("*/adopted/comparison.json"))) == 4

    members, public = (
        (folder / f"{name}.html").read_text() for name in ("report", "report-public")
    )
    for page in (members, public):
        assert "(Table 1)" in page
        assert ("Turku" in page) is (page is members)
    assert Study(out / "study").verify() == []
