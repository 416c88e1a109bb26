"""Studies of which the coordinator has no label at all: from the draft of a plan to the report."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from predbayes.errors import PlanError, UploadError
from predbayes.predictive.families import Categorical
from predbayes_study.cli.study import app
from predbayes_study.coordinator.state import MODEL_FOLDER
from predbayes_study.kit.draft import Unlabelled, draft
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.schema import Gate
from predbayes_study.report.report import render_card, render_report
from predbayes_study.report.unlabelled import in_short
from predbayes_study.result.evaluation import evaluation_upload
from predbayes_study.result.model import CalibratedModel
from predbayes_study.result.schema import Between
from tests.study.report.test_report import Page
from tests.study.world import SITES, make_world

pytestmark = pytest.mark.usefixtures("quick_results")


def table(num_rows=40):
    return pd.DataFrame({"x": np.linspace(-3, 3, num_rows), "y": np.arange(num_rows) % 7})


class TestDraft:
    def made(self, frame=None, **told):
        frame = table() if frame is None else frame
        return draft(
            frame, name="n", target="kind", file="reference.csv", unlabelled=Unlabelled(**told)
        )

    def test_classes_are_told(self):
        plan = self.made(classes=("no", "yes")).plan
        assert plan.target.classes == ("no", "yes")
        assert (plan.reference.labelled, plan.reference.unlabelled) == (0, 40)
        assert plan.gate == Gate()

    def test_a_number_has_centre_and_scale(self):
        plan = self.made(centre=170.0, scale=9.0).plan
        assert (plan.target.task, plan.target.centre, plan.target.scale) == ("regression", 170, 9)

    @pytest.mark.parametrize("told", [{"scale": 1.0}, {"classes": ("a", "b"), "scale": 1.0}])
    def test_half_a_word_is_refused(self, told):
        with pytest.raises(PlanError, match="no row has a label in 'kind', so say what it is"):
            self.made(**told)


def finished(world, uploads=None, sites=SITES):
    study = world.begin()
    for site in sites:
        upload = (uploads or {}).get(site) or world.upload(site)
        save_signed(upload, world.root / f"{site}.safetensors", world.key(site))
        study.add(world.root / f"{site}.safetensors")
    recorded, result = study.finish()
    return study, recorded, result


@pytest.mark.parametrize("regression", [False, True])
def test_a_study_from_kit_to_report_and_what_sites_find_comes_to_the_top(tmp_path, regression):
    world = make_world(
        tmp_path, labelled=0, evaluate=0, unlabelled=150, gate="[gate]\n", regression=regression
    )
    study, recorded, result = finished(world)
    plan = world.kit.plan
    assert result.pool.name == "gated mixture"
    assert result.pool.weights == {"gated": 1.0}
    assert (result.num_scored, result.can_judge) == (0, False)
    assert "Calibration cannot be judged: no row with a label was scored." in result._repr_html_()
    assert all(0 < site.covered <= 1.01 for site in result.sites)
    assert study.verify(rebuild=True) == []
    for public in (True, False):
        page = Page(render_report(plan, result, public=public)).text
        assert "No reference row has a label: nothing was tuned" in page
        assert "No site has sent one yet" in page
        assert "with nothing tuned, because no reference row has a label" in page
        assert "How good it is could not be measured, for want of labels" in page
    assert "comes from sites' evaluations. No site has sent one yet" in in_short(plan, result)

    model = CalibratedModel.load(study.result_folder(recorded.number) / MODEL_FOLDER)
    for number, site in enumerate(SITES):
        inputs = torch.randn(60, plan.num_inputs, generator=torch.Generator().manual_seed(number))
        targets = (inputs[:, 0] > 0).long() if plan.target.classes else inputs[:, 0]
        predictive = model.predictor.predict(inputs)
        sent = evaluation_upload(plan, site, predictive, targets, model.weights_digest())
        save_signed(sent, tmp_path / f"{site}.evaluation", world.key(site))
        study.add(tmp_path / f"{site}.evaluation")
    _, again = study.finish()
    assert again.at_sites is not None
    page = Page(render_report(plan, again, public=False)).text
    assert "5 sites sent theirs" in page
    assert ("a site sends one from 100 held-out rows on" in page) is bool(plan.target.classes)
    assert "by what 5 sites found on 300 held-out rows of their own" in page
    assert "Sites set how sure the model is, by 300 held-out rows" in page
    assert "are of the model before sites set how sure it is" in page
    for html in (page, Page(render_report(plan, again, public=True)).text):
        assert "How good it is was measured by sites" in html
        assert "could not be measured" not in html
    card = Page(render_card(plan, again)).text
    assert "but by the sites: see the top of this card" in card
    assert "It could not be judged" not in card
    assert in_short(plan, again).startswith("Sites set how sure the model is, by 300 held-out rows")

    one_site = {"inverse_temperature": 3.0, "without": 1.0, "decided_by": SITES[0]}
    between = Between(
        measure="slope",
        of="event",
        p_value=0.001,
        num_sites=5,
        lowest=(SITES[1], 0.3),
        highest=(SITES[2], 1.4),
        sites=(SITES[1],),
    )
    level = again.at_sites.level.model_copy(update=one_site)
    told = again.at_sites.model_copy(update={"level": level, "between": (between,)})
    apart = again.model_copy(update={"at_sites": told})
    page = Page(render_report(plan, apart, public=False)).text
    assert f"How sure the model is depends on what {SITES[0]} says" in page
    assert f"runs from 0.30 ({SITES[1]}) to 1.40 ({SITES[2]})" in page
    assert in_short(plan, apart).startswith("The sites differ by more than chance")
    for html in (render_report(plan, apart, public=True), render_card(plan, apart)):
        assert "The sites differ by more than chance" in Page(html).text
        assert not [site for site in SITES if site in Page(html).text]

    few = again.model_copy(update={"at_sites": again.at_sites.model_copy(update={"public": False})})
    page = Page(render_report(plan, few, public=True)).text
    assert "No site has sent one yet" not in page
    assert page.count("too few sites or rows to be shown in public") == 3
    assert "could not be measured" not in page


def test_gates_that_cannot_be_trusted_are_the_first_thing_that_is_told(tmp_path):
    world = make_world(tmp_path, labelled=0, evaluate=0, unlabelled=150, gate="[gate]\n")
    study = world.begin()
    for site in SITES:
        upload = world.upload(site, gate=torch.full((150,), -4.0))
        save_signed(upload, tmp_path / f"{site}.safetensors", world.key(site))
        study.add(tmp_path / f"{site}.safetensors")
    shown = CliRunner().invoke(app, ["finish", "--study", str(study.folder)])
    assert shown.exit_code == 0, shown.output
    result = study.result(1)
    assert result.pool.name == "mixture"
    (caution,) = [one for one in result.cautions if "gates cannot be trusted" in one]
    assert caution.startswith("The pool is the plain mixture")
    assert "only 2% of the sites' rows seem to lie where the reference rows do" in caution
    assert f"{caution}\n" in shown.output
    assert "0 scored rows" not in shown.output
    assert "comes from sites' evaluations. No site has sent one yet" in shown.output
    plan = world.kit.plan
    for public in (True, False):
        page = Page(render_report(plan, result, public=public)).text
        assert page.index("Read this first") < page.index(caution) < page.index("Sites ")
    assert caution in Page(render_card(plan, result)).text


def test_who_switches_gates_off_by_its_weight_is_compared_all_the_same(tmp_path):
    """It has no rows here, it says: of sites few, of rows too many for gates to be trusted."""
    world = make_world(tmp_path, labelled=0, evaluate=0, unlabelled=90, gate="[gate]\n")
    uploads = {}
    for site, num in zip(SITES, (320, 240, 31, 31, 240), strict=True):
        lies = site == SITES[-1]
        said = world.predictions(site)
        said = Categorical(said.log_probs.roll(1, 1)) if lies else said
        gate = torch.full((90,), -6.0 if lies else 0.0)
        sent = world.upload(site, said, gate)
        uploads[site] = replace(
            sent, info=sent.info.model_copy(update={"num_rows": num, "class_rows": None})
        )
    _, _, result = finished(world, uploads)
    assert result.pool.name == "mixture"
    found = {site.site: [one.kind for one in site.findings] for site in result.sites}
    assert found == {site: [] for site in SITES[:-1]} | {SITES[-1]: ["opposed"]}


def test_a_gate_of_fewer_rows_than_teach_one_is_refused(tmp_path):
    world = make_world(tmp_path, labelled=0, evaluate=0, unlabelled=150, gate="[gate]\n")
    sent = world.upload("Alpha", gate=torch.full((150,), -1.0))

    def stating(num_rows):
        few = {"num_rows": num_rows, "class_rows": None}
        return replace(sent, info=sent.info.model_copy(update=few))

    study = world.begin()
    for num_rows in (19, 20):
        save_signed(stating(num_rows), world.root / f"{num_rows}.safetensors", world.key("Alpha"))
    with pytest.raises(UploadError, match="at most 19 rows, fewer than 20, no gate is learnt"):
        study.add(world.root / "19.safetensors")
    study.add(world.root / "20.safetensors")


def test_a_site_that_turns_its_labels_is_named_and_kept_within_the_median(tmp_path):
    world = make_world(tmp_path, labelled=0, evaluate=0, unlabelled=150, gate="[gate]\n")
    honest = world.predictions("Epsilon")
    turned = world.upload("Epsilon", Categorical(honest.log_probs.roll(1, 1)))
    _, _, result = finished(world, {"Epsilon": turned})
    found = {site.site: site.findings for site in result.sites if site.findings}
    assert set(found) == {"Epsilon"}
    assert found["Epsilon"][0].kind == "opposed"
    assert "agrees with none" in found["Epsilon"][0].text
    rows = sorted(site.num_rows for site in result.sites)
    assert max(site.counted_rows for site in result.sites) == rows[2]
