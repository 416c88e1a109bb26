"""Sums of moments beside predictions: who sends them, what is refused, and what becomes of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.errors import PlanError, UploadError
from predbayes.exchange.header import SUMS
from predbayes.learning.moments import Moments
from predbayes.study.kit.review import check
from predbayes.study.plan.models import summed_classes, summed_features
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.sizes import upload_bytes
from predbayes.study.report.egress import DataSummary, render_egress
from predbayes.study.report.report import render_card, render_report
from predbayes.study.result.head import summed
from predbayes.study.result.headscreen import SummedSite, against_sums
from predbayes.study.site.fitting import make_upload
from predbayes.study.site.policy import NO_POLICY, Asked, SitePolicy
from predbayes.study.site.rows import SiteRows
from predbayes.study.site.sums import withheld
from predbayes.study.tables.sitefile import Policy
from tests.study.report.test_report import Page
from tests.study.world import World, make_world

SECTION = "[moments]\nfeatures = 20\nscales = [1, 2]\nrows_per_feature = %d\n"
LEARNER = "[learner]\nname = 'any'\nholdout = 0.0\nholdout_reason = 'drawn'\n"
SITES = ("Alpha", "Beta", "Gamma")


def world_of(root, rows=5, **options):
    """A plan that asks for predictions with sums beside them; sites may learn what they like."""
    options = {"labelled": 150, "evaluate": 300, "learner": LEARNER} | options
    return make_world(root, gate=SECTION % rows, **options)


def table(seed, num_rows=400, turned=False):
    """Rows with a bend that no linear model of a site has."""
    rng = np.random.default_rng(seed)
    x, y = 10 * rng.normal(size=(2, num_rows))
    scores = np.stack([x, y, -x]) / 5 + rng.gumbel(size=(3, num_rows))
    names = np.array(["red", "green", "blue"])
    labels = (np.roll(names, 1) if turned else names)[scores.argmax(0)]
    heights = (170 + x + 3 * rng.normal(size=num_rows)).round(1)
    frame = pd.DataFrame({"x": x.round(3), "y": y.round(3), "kind": labels, "height": heights})
    frame["y"] = [f"{value}" if index % 7 else "" for index, value in enumerate(frame["y"])]
    return frame


def rows_of(world, seed, **options):
    rows = SiteRows.of(world.kit.plan, table(seed, **options))
    return rows.inputs, rows.targets


def sent(world, site, rows):
    """What a site sends whose own model knows next to nothing: the head has to help."""
    linear = "logistic-regression" if world.kit.plan.classification else "linear-regression"
    few = rows[0][:40], rows[1][:40]
    upload = make_upload(world.kit, site, few, learner=linear)
    features, classes = summed_features(world.kit.plan), summed_classes(world.kit.plan)
    moments = Moments.of(features, *rows, classes)
    counts = None if classes is None else tuple(map(float, moments.class_rows))
    info = upload.info.model_copy(update={"num_rows": len(rows[1]), "class_rows": counts})
    return dataclasses.replace(upload, info=info, arrays={**upload.arrays, **moments.arrays()})


def begun(world: World, uploads, name="study"):
    study = world.begin(name, sites=tuple(uploads))
    for site, upload in uploads.items():
        path = world.root / f"{site}.safetensors"
        upload.having_seen(world.seen).save(path, world.key(site))
        study.add(path)
    return study


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return world_of(tmp_path_factory.mktemp("beside"))


@pytest.fixture(scope="module")
def uploads(world):
    return {site: sent(world, site, rows_of(world, k)) for k, site in enumerate(SITES)}


class TestPlan:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"kind": "weights", "learner": ""}, "beside predictions that are neither"),
            ({"rules": "[privacy]\nmode = 'sealed'\n"}, "privacy"),
        ],
    )
    def test_what_sums_cannot_be_beside_is_refused(self, tmp_path, options, told):
        with pytest.raises(PlanError, match=rf"^[^\n]*{told}[^\n]*$"):
            world_of(tmp_path, **options)

    def test_only_the_pool_that_labels_choose_has_a_use_for_them(self, world):
        text = (world.root / "plan.toml").read_text()
        with pytest.raises(PlanError, match=r"pool\.method = 'auto' alone, not in 'beta'"):
            Plan.loads(text.replace("[pool]", "[pool]\nmethod = 'beta'"))

    def test_without_labels_they_would_leave_in_vain(self, tmp_path):
        with pytest.raises(PlanError, match="0 labelled rows are fewer than"):
            world_of(tmp_path, labelled=0, evaluate=0)

    def test_the_coordinator_is_told_who_sends_none(self, world):
        found = " ".join(finding.text for finding in check(world.kit.plan, world.root))
        assert "are 120; sites with fewer to train on send predictions alone" in found

    def test_sums_count_in_the_size(self, world):
        bare = world.kit.plan.model_copy(update={"moments": None})
        assert upload_bytes(world.kit.plan) - upload_bytes(bare) == 8 * 2 * (27 * 28 // 2)


class TestSite:
    def test_the_usual_policy_asks_for_20_rows_for_each_feature(self, world):
        rows = rows_of(world, 5)
        upload = make_upload(world.kit, "Alpha", rows, learner="logistic-regression")
        assert SUMS not in upload.arrays

    def test_a_target_that_cannot_be_summed_keeps_sums_here(self, tmp_path):
        world = world_of(tmp_path, 20, regression=True)
        inputs, targets = rows_of(world, 5, num_rows=600)
        assert withheld(world.kit.plan, NO_POLICY, inputs, targets) == ""
        targets[0] = 65.0
        why = withheld(world.kit.plan, NO_POLICY, inputs, targets)
        assert "height has values beyond 64 scales" in why
        rows = inputs, targets
        assert SUMS not in make_upload(world.kit, "a", rows, learner="linear-regression").arrays

    def test_people_are_counted_where_they_are_known(self, tmp_path):
        world = world_of(tmp_path, 20)
        rows = rows_of(world, 5, num_rows=600)
        of_few = torch.arange(600) // 2
        why = withheld(world.kit.plan, NO_POLICY, *rows, of_few)
        assert "people to train on are fewer than 480" in why
        assert withheld(world.kit.plan, NO_POLICY, *rows, torch.arange(600)) == ""

    def test_predictions_have_the_same_bits_with_and_without(self, tmp_path):
        both, bare = (
            world_of(tmp_path / "a", 20),
            make_world(tmp_path / "b", labelled=150, evaluate=300, learner=LEARNER),
        )
        rows = rows_of(both, 5, num_rows=600)
        one = make_upload(both.kit, "Alpha", rows, learner="logistic-regression")
        other = make_upload(bare.kit, "Alpha", rows, learner="logistic-regression")
        assert set(one.arrays) == {"log_probs", SUMS}
        assert torch.equal(one.arrays["log_probs"], other.arrays["log_probs"])
        whole = Moments.of(summed_features(both.kit.plan), *rows, 3)
        assert torch.equal(one.arrays[SUMS], whole.arrays()[SUMS])

    def test_a_site_with_few_rows_takes_part_without(self, tmp_path):
        world = world_of(tmp_path, 20)
        few = rows_of(world, 5, num_rows=400)
        assert SUMS not in make_upload(world.kit, "a", few, learner="logistic-regression").arrays

    @pytest.mark.parametrize(
        ("policy", "told"),
        [
            (Policy(kinds=("predictions",)), "moments would leave"),
            (Policy(max_membership_auc=0.6), "cannot be audited"),
        ],
    )
    def test_a_policy_keeps_sums_here_and_does_not_refuse_the_plan(self, tmp_path, policy, told):
        world = world_of(tmp_path, 20)
        held = SitePolicy((("policy.toml", policy),))
        plan = world.kit.plan
        assert told in withheld(plan, held, *rows_of(world, 5, num_rows=600))
        assert held.problems(Asked.of(plan)) == []

    def test_the_officer_reads_of_both(self, world, uploads):
        upload = uploads["Alpha"]
        data = DataSummary(400, 400, 0, 0, "logistic-regression")
        page = Page(egress(world, upload, data)).text
        assert "Beside that, sums over the same rows" in page
        assert "The sums beside the predictions could reveal" in page
        assert "Means, variances and correlations of all columns do leave" in page
        assert "no mean or range of any column" not in page
        kept = dataclasses.replace(upload, arrays={"log_probs": upload.arrays["log_probs"]})
        data = dataclasses.replace(data, withheld="rows are few")
        page = Page(egress(world, kept, data)).text
        assert "They stay here: rows are few." in page
        assert "no mean or range of any column" in page


def egress(world, upload, data):
    return render_egress(
        world.kit.plan, upload, num_bytes=10**5, key_fingerprint="w", data=data, released=True
    )


def with_array(upload, name, array):
    return dataclasses.replace(upload, arrays={**upload.arrays, name: array})


class TestIntake:
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lambda m: m[:, :-1], "array 'moments' does not have the type and shape"),
            (lambda m: m.double(), "array 'moments' does not have the type and shape"),
            (lambda m: m * 2, "sums are over 800 rows, and it states 400"),
            (lambda m: m * 0, "no rows"),
        ],
    )
    def test_hostile_sums_are_refused_in_one_line(self, world, uploads, change, told, tmp_path):
        honest = uploads["Alpha"]
        hostile = with_array(honest, SUMS, change(honest.arrays[SUMS].clone()))
        with pytest.raises(UploadError, match=rf"^[^\n]*{told}[^\n]*$"):
            begun(world, {"Alpha": hostile}, str(tmp_path / "study"))

    def test_a_plan_without_them_takes_none(self, uploads, tmp_path):
        bare = make_world(tmp_path, labelled=150, evaluate=300, learner=LEARNER)
        upload = uploads["Alpha"].for_plan(bare.kit.digest)
        with pytest.raises(UploadError, match="the arrays are not those of the plan: log_probs"):
            begun(bare, {"Alpha": upload})


@pytest.fixture(scope="module")
def concluded(world, uploads):
    study = begun(world, uploads)
    return study, study.finish()[1]


class TestResult:
    def test_the_head_is_taken_where_it_helps(self, world, uploads, concluded):
        _, result = concluded
        assert result.pool.weights["head"] > 0.3
        assert (result.pool.summed_sites, result.pool.summed_rows) == (3, 1200)
        alone = {
            site: dataclasses.replace(u, arrays={"log_probs": u.arrays["log_probs"]})
            for site, u in uploads.items()
        }
        _, bare = begun(world, alone, "bare").finish()
        assert "head" not in bare.pool.weights
        assert bare.pool.summed_sites == 0
        nll = {k: r.student.scores.metrics["nll"].value for k, r in (("a", result), ("b", bare))}
        assert nll["a"] < 0.97 * nll["b"]

    def test_a_result_is_made_again_to_the_bit(self, concluded):
        assert concluded[0].verify(rebuild=True) == []

    def test_pages_tell_of_them_and_the_public_one_not_how_many(self, world, concluded):
        plan, result = world.kit.plan, concluded[1]
        page = Page(render_report(plan, result, public=False)).text
        assert "the sums that 3 sites sent, over 1,200 rows" in page
        assert "a site’s predictions and sums one can try" in " ".join(page.split())
        public = Page(render_report(plan, result, public=True)).text
        assert "the sums that sites sent" in public
        assert "sites sent, over" not in public
        assert "with sums over its rows where it had enough" in Page(render_card(plan, result)).text

    def test_what_is_left_out_by_hand_is_not_in_the_head(self, concluded):
        study, _ = concluded
        _, without = study.finish(leave_out=["Gamma"])
        assert (without.pool.summed_sites, without.pool.summed_rows) == (2, 800)

    @pytest.mark.parametrize("screening", ["report", "leave-out"])
    def test_sums_that_do_harm_are_named_and_left_out(self, tmp_path, screening, monkeypatch):
        """Its predictions are honest: only the sums are of turned labels, which labels tell."""
        monkeypatch.setattr("predbayes.study.result.headscreen._FARTHER", 1.0)
        world = world_of(tmp_path, screening=screening)
        sums = {site: sent(world, site, rows_of(world, k)) for k, site in enumerate(SITES)}
        poison = sent(world, "Gamma", rows_of(world, 2, turned=True))
        honest = sums["Gamma"].info.model_copy(update={"class_rows": poison.info.class_rows})
        gamma = dataclasses.replace(sums["Gamma"], info=honest)
        sums["Gamma"] = with_array(gamma, SUMS, poison.arrays[SUMS])
        _, result = begun(world, sums).finish()
        findings = {site.site: [f.text for f in site.findings] for site in result.sites}
        assert [site for site, told in findings.items() if told] == ["Gamma"]
        assert "Without its sums their model is better by" in findings["Gamma"][0]
        left_out = "they are left out, and its predictions stay" in findings["Gamma"][0]
        assert left_out == (screening == "leave-out")
        assert result.pool.summed_sites == (2 if screening == "leave-out" else 3)

    def test_a_site_that_something_was_found_against_has_no_part(self, tmp_path):
        world = world_of(tmp_path, screening="leave-out")
        sums = {site: sent(world, site, rows_of(world, k)) for k, site in enumerate(SITES)}
        sums["Gamma"] = sent(world, "Gamma", rows_of(world, 2, turned=True))
        _, result = begun(world, sums).finish()
        (gamma,) = (site for site in result.sites if site.site == "Gamma")
        assert gamma.findings
        assert result.pool.summed_sites == 2

    def test_no_site_counts_for_more_rows_than_the_plan_allows(self, world, uploads):
        """The sums of 400 rows, fifty times: within the bounds of any sums, and a lie."""
        honest = uploads["Gamma"]
        counts = tuple(50 * num for num in honest.info.class_rows)
        info = honest.info.model_copy(update={"num_rows": 20_000, "class_rows": counts})
        many = with_array(honest, SUMS, 50 * honest.arrays[SUMS])
        many = dataclasses.replace(many, info=info)
        _, result = begun(world, {**uploads, "Gamma": many}, "many").finish()
        (gamma,) = (site for site in result.sites if site.site == "Gamma")
        assert gamma.counted_rows == 3 * 400
        assert result.pool.summed_rows == 400 + 400 + 3 * 400

    def test_copied_sums_count_once(self, world, uploads):
        copied = with_array(uploads["Gamma"], SUMS, uploads["Alpha"].arrays[SUMS])
        info = copied.info.model_copy(update={"class_rows": uploads["Alpha"].info.class_rows})
        copied = dataclasses.replace(copied, info=info)
        _, result = begun(world, {**uploads, "Gamma": copied}, "copied").finish()
        assert result.pool.summed_rows == 800
        (told,) = [f.text for site in result.sites for f in site.findings]
        assert told.startswith("Its sums are those of ")
        assert told.endswith(": they are left out, and its predictions stay.")

    def test_numbers_likewise(self, tmp_path):
        world = world_of(tmp_path, regression=True)
        sums = {site: sent(world, site, rows_of(world, k)) for k, site in enumerate(SITES)}
        _, result = begun(world, sums).finish()
        assert result.pool.summed_rows == 1200
        assert "head" in result.pool.weights


class TestWhereLabelsAreMissing:
    """One site's sums are turned at x > 10; its predictions are honest everywhere."""

    @pytest.mark.parametrize("lies", [False, True])
    def test_sums_that_lie_there_are_left_out(self, tmp_path, lies):
        world = world_of(tmp_path)
        sites = {}
        for k, site in enumerate((*SITES, "Delta", "Epsilon")):
            rows = inputs, targets = rows_of(world, k)
            linear = make_upload(world.kit, site, rows, learner="logistic-regression")
            if lies and site == "Epsilon":
                targets = torch.where(inputs[:, 0] > 1, (targets + 1) % 3, targets)
            upload = sent(world, site, (inputs, targets))
            part, kit = summed(world.kit.plan, upload), world.kit
            sites[site] = SummedSite.of(upload, part, kit.inputs, linear.predictive())
        found = against_sums(sites)
        assert [*found] == (["Epsilon"] if lies else [])
        assert all("do not say what its predictions say" in f.text for f in found.values())

    def test_who_sent_none_and_who_is_alone_is_not_held_against_anybody(self):
        assert against_sums({"a": None, "b": SummedSite("x", 0.3)}) == {}
