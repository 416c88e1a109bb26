"""A study of sums: what a plan may ask, which rows and files are refused, and what is found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.errors import DataError, PlanError, StudyError, UploadError
from predbayes.learning.leverage import ENOUGH_ROWS
from predbayes.learning.moments import Moments, RandomFeatures
from predbayes_study.coordinator.study import Study
from predbayes_study.extras.moments.network import as_predictor
from predbayes_study.extras.moments.payload import MomentSums, asked_of, summed_features
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.kit.review import Review, check
from predbayes_study.payload import upload_bytes
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.schema import Plan
from predbayes_study.plan.text import dump
from predbayes_study.report.egress import DataSummary, render_egress
from predbayes_study.result.model import CalibratedModel
from predbayes_study.site.fitting import make_upload
from predbayes_study.site.policy import NO_POLICY, Asked, SitePolicy
from predbayes_study.site.rows import SiteRows
from predbayes_study.tables.sitefile import Policy
from predbayes_study.trust.signing import SigningKey
from tests.core.learning.test_moments import rows as rows_of_classes
from tests.study.report.test_report import Page
from tests.study.world import make_world

pytestmark = pytest.mark.usefixtures("quick_results")


PLAN = """
format = 1
name = "sums"
%(target)s
[columns]
age = { type = "number", unit = "years", centre = 60, scale = 10 }
marker = { type = "number", unit = "1", centre = 0, scale = 1, missing = "flag" }
sex = { type = "category", categories = ["female", "male"] }
[reference]
[learner]
name = "any"
holdout = 0.0
holdout_reason = "a test"
[moments]
features = 12
scales = [1, 2]
rows_per_feature = %(rows)d
[rules]
quorum = 1
"""
CLASSES = '[target]\nname = "ill"\ntask = "classification"\nclasses = ["no", "yes"]'
NUMBER = '[target]\nname = "days"\ntask = "regression"\nunit = "days"\ncentre = 20\nscale = 8'


def plan_text(target=CLASSES, rows=1):
    return PLAN % {"target": target, "rows": rows}


def patients(num_rows=400, seed=0):
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 10, num_rows).round(1), rng.normal(size=num_rows).round(3)
    sex = rng.choice(["female", "male"], num_rows)
    risk = (age - 60) / 10 + np.sin(2 * marker) + 0.5 * (sex == "male")
    ill = np.where(rng.logistic(size=num_rows) < 2 * risk, "yes", "no")
    days = (20 + 5 * risk + rng.normal(0, 3, num_rows)).round(2)
    cells = [f"{value}" if index % 9 else "" for index, value in enumerate(marker)]
    return pd.DataFrame({"age": age, "marker": cells, "sex": sex, "ill": ill, "days": days})


def frozen(root, text) -> Kit:
    root.mkdir(parents=True, exist_ok=True)
    (root / "plan.toml").write_text(text)
    return freeze(root / "plan.toml", root / "kit", root / "labels.json", salt=bytes(32))


def sent(kit, site, frame):
    """What a site sends; what it fits for itself is none of the study's business."""
    rows = SiteRows.of(kit.plan, frame)
    linear = "logistic-regression" if kit.plan.target.classes else "linear-regression"
    return make_upload(kit, site, (rows.inputs, rows.targets), learner=linear)


def begun(root, kit, uploads):
    study = Study.init(root / "study", kit.folder, root / "labels.json")
    keys = {site: SigningKey.generate() for site in uploads}
    study.admit_all({site: key.public for site, key in keys.items()})
    for site, upload in uploads.items():
        save_signed(upload, root / f"{site}.safetensors", keys[site])
    for added in study.add_all(root / f"{site}.safetensors" for site in uploads):
        if isinstance(added, UploadError):
            raise added
    return study


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return frozen(tmp_path_factory.mktemp("sums"), plan_text())


@pytest.mark.parametrize("target", [CLASSES, NUMBER])
def test_the_model_has_the_same_bits_whatever_the_sites(tmp_path, target):
    table, weights = patients(1500), []
    for number in (1, 5):
        root = tmp_path / str(number)
        kit = frozen(root, plan_text(target) + "min_cell = 1\n")
        order = np.random.default_rng(number).permutation(len(table))
        parts = {f"s{k}": table.iloc[part] for k, part in enumerate(np.array_split(order, number))}
        study = begun(root, kit, {site: sent(kit, site, part) for site, part in parts.items()})
        study.finish()
        model = study.result_folder(1) / "model"
        weights.append((model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    rows = SiteRows.of(kit.plan, table)
    whole = Moments.of(
        summed_features(kit.plan), rows.inputs, rows.targets, 2 if target == CLASSES else None
    )
    oracle = whole.head().predict(rows.inputs).natural()
    found = CalibratedModel.load(model).predictive(rows.inputs).natural()
    assert torch.allclose(found, oracle, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_classes", [None, 2, 3])
def test_the_network_of_a_head_predicts_what_the_head_does(num_classes):
    inputs, targets = rows_of_classes(300, num_classes)
    head = Moments.of(RandomFeatures(3, 20), inputs, targets, num_classes).head()
    one, other = head.predict(inputs), as_predictor(head).predict(inputs)
    assert torch.allclose(one.natural(), other.natural(), rtol=1e-4, atol=1e-4)


class TestPlan:
    def test_it_is_agreed_on_and_read_back(self, kit):
        assert Plan.loads(dump(kit.plan)) == kit.plan
        assert asked_of(kit.plan).num_summed(kit.plan) == 1 + 6 + 12
        assert upload_bytes(kit.plan) == 8 * 2 * (21 * 22 // 2)
        assert "[moments]" not in dump(Plan.loads(plan_text().split("[moments]")[0]))

    @pytest.mark.parametrize(
        ("old", "new", "told"),
        [
            ("scales = [1, 2]", "scales = []", r"moments\.scales: must be some numbers"),
            ("features = 12", "features = 0", r"moments\.features"),
            ("[rules]", "[gate]\n[rules]", "leave gate out"),
            ("quorum = 1", 'screening = "leave-out"', r"leave rules\.screening out"),
            (
                CLASSES,
                '[target]\nname = "t"\ntask = "survival"\nevent = "e"\ntimes = [1.0, 2.0]',
                r"target\.task: a survival .*\[moments\]",
            ),
        ],
    )
    def test_what_does_not_go_together_is_refused_in_one_line(self, old, new, told):
        with pytest.raises(PlanError, match=rf"^[^\n]*{told}[^\n]*$"):
            Plan.loads(plan_text().replace(old, new))

    def test_policies(self, tmp_path, kit):
        (few,) = NO_POLICY.problems(Asked.of(kit.plan))
        assert "moments.rows_per_feature = 1" in few
        enough = frozen(tmp_path, plan_text(rows=ENOUGH_ROWS)).plan
        assert NO_POLICY.problems(Asked.of(enough)) == []
        for policy, told in (
            (Policy(kinds=("predictions",)), "moments would leave"),
            (Policy(max_membership_auc=0.6), "cannot be audited"),
        ):
            with pytest.raises(PlanError, match=told):
                SitePolicy((("policy.toml", policy),)).require(Asked.of(enough))

    def test_columns_without_a_scale_and_few_rows_per_feature_are_told(self, tmp_path):
        text = plan_text(rows=2).replace(", centre = 60, scale = 10", "")
        found = " ".join(finding.text for finding in check(Review(Plan.loads(text), tmp_path)))
        assert "write centre and scale of age into the plan" in found
        assert "rows per feature can tell who is in them" in found


class TestSite:
    def test_fewer_rows_for_each_feature_than_agreed_are_refused(self, tmp_path):
        kit = frozen(tmp_path, plan_text(rows=ENOUGH_ROWS))
        with pytest.raises(DataError, match=r"fewer than 380, which are moments\.rows_per_feature"):
            sent(kit, "a", patients(379))
        assert sent(kit, "a", patients(380)).info.num_rows == 380

    @pytest.mark.parametrize(
        ("column", "value", "told"),
        [("sex", "other", "sex"), ("ill", "yes", "ill = yes"), ("marker", "", "marker")],
    )
    def test_a_group_of_few_rows_is_refused(self, kit, column, value, told):
        table = patients()
        usual = {"sex": "male", "ill": "no", "marker": "0.3"}[column]
        table[column] = [value] * 3 + [usual] * (len(table) - 3)
        with pytest.raises(DataError, match=rf"group of fewer than 5 rows .* {told}: "):
            sent(kit, "a", table)

    def test_a_plan_whose_scale_leaves_one_person_is_refused(self, tmp_path):
        """Ages far from the centre are the same where they are summed."""
        ages = sorted(patients()["age"].unique())
        between = (ages[-1] + ages[-2]) / 2
        text = plan_text().replace("centre = 60, scale = 10", f"centre = {between}, scale = 0.001")
        with pytest.raises(DataError, match=r"group of fewer than 5 rows .* age: "):
            sent(frozen(tmp_path, text), "a", patients())

    def test_a_target_that_few_rows_have_is_refused(self, tmp_path):
        table = patients()
        table["days"] = [25.0] + [20.0] * (len(table) - 1)
        with pytest.raises(DataError, match=r"group of fewer than 5 rows .* days: "):
            sent(frozen(tmp_path, plan_text(NUMBER)), "a", table)

    def test_a_column_that_few_rows_have_measured_is_refused(self, tmp_path):
        text = plan_text().replace('missing = "flag"', 'missing = "impute"')
        table = patients()
        table["marker"] = ["0.3", "0.7"] + [""] * (len(table) - 2)
        with pytest.raises(DataError, match=r"group of fewer than 5 rows .* marker: "):
            sent(frozen(tmp_path, text), "a", table)

    def test_a_target_that_cannot_be_summed_is_refused(self, tmp_path):
        table = patients()
        table.loc[0, "days"] = 20 + 65 * 8
        with pytest.raises(DataError, match="days has values beyond 64 scales"):
            sent(frozen(tmp_path, plan_text(NUMBER)), "a", table)

    def test_people_are_counted_where_they_are_known(self, tmp_path):
        plan = frozen(tmp_path, plan_text(rows=ENOUGH_ROWS)).plan
        rows = SiteRows.of(plan, patients(400))
        both = rows.inputs, rows.targets
        assert not MomentSums().why_refused(plan, both, 5, torch.arange(400))
        why = MomentSums().why_refused(plan, both, 5, torch.arange(400) // 2)
        assert "people to train on are fewer than 380" in why

    def test_the_officer_reads_what_sums_tell(self, kit):
        upload = sent(kit, "a", patients())
        data = DataSummary(400, 400, 0, 0, "logistic-regression")
        page = Page(
            render_egress(
                kit.plan, upload, num_bytes=10**5, key_fingerprint="w", data=data, released=True
            )
        ).text
        assert "sums over 400 rows, of products of each two of 19 features" in page
        assert "There are 21.1 rows for each feature" in page
        assert "could not be told apart better than by chance" in page
        assert "the difference of two files is the sum over the rows between them" in page
        few = dataclasses.replace(data, num_rows=200, num_trained=200)
        upload = sent(kit, "a", patients(200))
        page = Page(
            render_egress(
                kit.plan, upload, num_bytes=10**5, key_fingerprint="w", data=few, released=True
            )
        ).text
        assert "Warning: from 20 on this hardly succeeds" in page


def altered(upload, change, **info):
    moments = upload.arrays["moments"].clone()
    arrays = {"moments": change(moments)}
    told = upload.info.model_copy(update=info)
    return dataclasses.replace(upload, info=told, arrays=arrays)


def put(row, column, value, size=21):
    """Set one sum of every scale."""
    place = int((torch.tensor([row, column]) == torch.triu_indices(size, size).T).all(1).nonzero())

    def change(moments):
        moments[:, place] = value
        return moments

    return change


def of_one_scale(moments):
    moments[1, 1] += 4096
    return moments


UNIT = 2**24
HOSTILE = {
    "wrong width": (lambda m: m[:, :-1], "and the plan's is"),
    "numbers": (lambda m: m.double(), "and the plan's is"),
    "not a number": (lambda m: m.double() * torch.nan, "not finite|and the plan's is"),
    "no rows": (lambda m: m * 0, "no rows"),
    "another number of rows": (lambda m: m * 2, "sums are over 800 rows, and it states 400"),
    "absurd squares": (put(5, 5, 2**60), "squares that no row can have"),
    "absurd products": (put(1, 2, 2**40), "larger than their squares allow"),
    "negative squares": (put(3, 3, -1), "squares that no row can have"),
    "other rows by scale": (of_one_scale, "other rows than those of another"),
    "half a patient of a class": (put(0, 19, 7), "larger than|count each row once"),
    "two classes at once": (put(19, 20, UNIT), "count each row once"),
    "no sum of squares": (put(1, 2, 300 * UNIT), "larger than|less than none"),
}


@pytest.fixture(scope="module")
def honest(kit):
    return sent(kit, "a", patients())


class TestIntake:
    @pytest.mark.parametrize("what", HOSTILE)
    def test_hostile_files_are_refused_in_one_line(self, kit, honest, tmp_path, what):
        change, told = HOSTILE[what]
        with pytest.raises(UploadError, match=rf"^[^\n]*({told})[^\n]*$"):
            begun(tmp_path, kit_of(kit, tmp_path), {"a": altered(honest, change)})

    def test_other_counts_of_classes_are_refused(self, kit, honest, tmp_path):
        counts = honest.info.class_rows
        swapped = altered(honest, lambda m: m, class_rows=(counts[1], counts[0]))
        with pytest.raises(UploadError, match="other rows of each class than it states"):
            begun(tmp_path, kit_of(kit, tmp_path), {"a": swapped})

    def test_a_site_that_broke_the_rule_of_rows_is_refused(self, tmp_path):
        strict = frozen(tmp_path, plan_text(rows=ENOUGH_ROWS))
        rows = SiteRows.of(strict.plan, patients(100))
        moments = Moments.of(summed_features(strict.plan), rows.inputs, rows.targets, 2)
        fair = sent(strict, "a", patients(400))
        counts = tuple(map(float, moments.class_rows))
        few = altered(fair, lambda _: moments.arrays()["moments"], num_rows=100, class_rows=counts)
        with pytest.raises(UploadError, match=r"rows_per_feature of the plan asks for 380"):
            begun(tmp_path, strict, {"a": few})


def kit_of(kit, root):
    """The same kit in a study of its own."""
    (root / "labels.json").write_bytes((kit.folder.parent / "labels.json").read_bytes())
    return kit


SUMS = "[moments]\nfeatures = 12\nscales = [1, 2]\nrows_per_feature = 1\n"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("labels"), evaluate=300, gate=SUMS)
    rng = np.random.default_rng(1)
    study = world.begin(sites=("Alpha", "Beta", "Gamma"))
    for site in ("Alpha", "Beta", "Gamma"):
        x, y = 10 * rng.normal(size=(2, 300))
        scores = np.stack([x, y, -x]) / 5 + rng.gumbel(size=(3, 300))
        labels = np.array(["red", "green", "blue"])[scores.argmax(0)]
        if site == "Gamma":
            labels = np.roll(np.array(["red", "green", "blue"]), 1)[scores.argmax(0)]
        table = pd.DataFrame({"x": x.round(3), "y": y.round(3), "kind": labels})
        table["y"] = [f"{value}" if index % 7 else "" for index, value in enumerate(table["y"])]
        rows = SiteRows.of(world.kit.plan, table)
        upload = make_upload(world.kit, site, (rows.inputs, rows.targets))
        save_signed(upload, world.root / f"{site}.safetensors", world.key(site))
        study.add(world.root / f"{site}.safetensors")
    return world.kit.plan, study, study.finish()[1]


class TestLabels:
    """With labelled reference rows: nothing is tuned on them, so all of them score."""

    def test_the_model_is_scored_and_so_is_each_site(self, found):
        _, _, result = found
        assert (result.scored_on, result.num_scored) == ("evaluate", 300)
        assert result.student.scores.metrics["accuracy"].value > 0.4
        assert all(site.alone is not None for site in result.sites)

    def test_a_site_with_turned_labels_is_found_by_what_is_gained_without_it(self, found):
        _, _, result = found
        findings = {site.site: [f.kind for f in site.findings] for site in result.sites}
        assert findings == {"Alpha": [], "Beta": [], "Gamma": ["opposed", "harmful"]}

    def test_it_can_be_left_out_by_hand(self, found):
        _, study, result = found
        _, again = study.finish(leave_out=["Gamma"])
        assert (
            again.student.scores.metrics["nll"].value < result.student.scores.metrics["nll"].value
        )
        assert study.verify(rebuild=True) == []


def test_of_more_rows_than_can_be_added_the_site_with_most_is_named(tmp_path, monkeypatch):
    kit = frozen(tmp_path, plan_text())
    sums = {site: sent(kit, site, patients(num)) for site, num in (("a", 300), ("b", 400))}
    study = begun(tmp_path, kit, sums)
    monkeypatch.setattr("predbayes.learning.moments._MOST_ROWS", 500)
    with pytest.raises(StudyError, match=r"the upload of b has the most .* withdraw b"):
        study.finish()


def test_a_copy_is_found(tmp_path):
    kit = frozen(tmp_path, plan_text())
    study = begun(tmp_path, kit, {site: sent(kit, site, patients()) for site in ("a", "b")})
    _, result = study.finish()
    assert sum(f.kind == "copy" for site in result.sites for f in site.findings) == 1
    assert "Nobody could check what a single site sent" in result.cautions[0]


@pytest.mark.slow("exports a model")
def test_onnx_says_what_the_model_says(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    kit = frozen(tmp_path, plan_text())
    study = begun(tmp_path, kit, {"a": sent(kit, "a", patients())})
    study.finish(onnx=True)
    folder = study.result_folder(1) / "model"
    model = CalibratedModel.load(folder)
    table = patients(50, seed=1)
    from predbayes_study.tables.coding import code_table

    codes = code_table(kit.plan, table).double().numpy()
    told = runtime.InferenceSession(folder / "model.onnx").run(None, {"codes": codes})[0]
    expected = model.predict(table)[["probability_no", "probability_yes"]].to_numpy()
    assert np.abs(told - expected).max() < 1e-4
