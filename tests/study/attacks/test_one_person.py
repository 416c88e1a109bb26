"""One person more or less: what of it leaves a site, under every kind of plan.

Whatever can leave is listed here by the registries that it comes from, with what is promised of it.
A new kind of upload, statistic, attachment, task or field of a header fails the first test until
somebody has said that. Then two sites that differ in one person make everything that leaves:

    named       it may differ, and the egress page has it: the field's value, or the array by name
    alike       the same for all whose outcomes follow from the same blocks (`test_one_evaluation`)
    with noise  another secret changes it as much as the person does
    masked      it is new with each upload
    stepped     counts differ by a step or not at all
    fixed       the person changes nothing
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from predbayes.exchange.header import UploadInfo
from predbayes_study import extra
from predbayes_study.attachments import attachment_kinds
from predbayes_study.extras.survey.surveyfile import CategoryTold
from predbayes_study.kit.kit import freeze
from predbayes_study.payload import _OWN, EVALUATION, payload_of
from predbayes_study.payloads.details import Details, Evaluation
from predbayes_study.report.egress import DataSummary, render_egress
from predbayes_study.result.evaluation import evaluate
from predbayes_study.result.statistics import STATISTICS
from predbayes_study.result.statistics.statistic import HeldOutRows
from predbayes_study.site.fitting import Job
from predbayes_study.site.rows import SiteRows
from predbayes_study.tasks import TASKS, task_of
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey
from tests.study.invented import STEP, survey_of, table
from tests.study.report.test_report import Page

PAYLOADS = {
    "predictions": "named",
    "private": "with noise",
    "moments": "named",
    "masked": "masked",
    EVALUATION: "alike",
}
ATTACHMENTS = {"survey": "stepped"}
PARTS_OF_EVALUATION = {
    "metrics": "alike",
    "bins": "alike",
    "risks": "alike",
    "groups": "alike",
    "scores": "alike",  # of classes
    "model": "fixed",
    "echo": "alike",
}
HEADER = {
    "format_version": "fixed",
    "kind": "fixed",
    "site": "fixed",
    "plan": "fixed",
    "learner": "fixed",
    "num_rows": "named",
    "class_rows": "named",
    "details": "by its fields",
}
DETAILS = {
    "seen": "fixed",
    "privacy": "fixed",
    "seals": "masked",
    "evaluation": "by its parts",
}

PLAN = """
format = 1
name = "one"
{target}
[columns]
age = {{ type = "number", unit = "years", range = [0, 120], missing = "impute" }}
weight = {{ type = "number", unit = "kg", range = [0, 300], missing = "impute" }}
sex = {{ type = "category", categories = ["female", "male"], other = false, missing = "impute" }}
[reference]
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
labelled = 40
unlabelled = 20
[model]
hidden = [4]
[pool]
own = "none"
{more}
"""
TARGETS = {
    "classification": '[target]\nname = "y"\ntask = "classification"\nclasses = ["no", "yes"]',
    "regression": '[target]\nname = "y"\ntask = "regression"\nunit = "cm"',
    "survival": '[target]\nname = "y"\ntask = "survival"\ntimes = [1, 2]\nevent = "died"',
}
LEARNER = "[learner]\nname = '{}'\n"
ALL = "holdout = 0.0\nholdout_reason = 'so that secrets differ in their noise alone'\n"
PRIVACY = "[privacy]\nepsilon = 4\ndelta = 1e-5\nadjacency = 'add-or-remove'\nunit = 'row'\n"
MOMENTS = "[moments]\nfeatures = 4\nscales = [1]\nrows_per_feature = 1\n"
HOLDER = CoordinatorKey.generate().public
WORDS = HOLDER.signing.hex + HOLDER.encryption
SEALED = f'[sealed]\nholders = ["{WORDS}"]\nminimum = 2\nmax_sites = 9\n'
PLANS = {
    "classification": ("classification", LEARNER.format("logistic-regression")),
    "regression": ("regression", LEARNER.format("linear-regression")),
    "survival": ("survival", LEARNER.format("logistic-regression")),
    "gate": ("classification", LEARNER.format("logistic-regression") + "[gate]\n"),
    "moments": ("classification", LEARNER.format("any") + MOMENTS),
    "sealed": ("classification", LEARNER.format("logistic-regression") + SEALED),
    "privacy": ("classification", LEARNER.format("dp-logistic") + ALL + PRIVACY),
}


def test_everything_that_can_leave_is_listed():
    assert {*_OWN, *extra.names("payloads")} == PAYLOADS.keys()
    assert {*attachment_kinds()} == ATTACHMENTS.keys()
    named = {statistic.name for statistic in STATISTICS}
    assert named | {"model", "echo"} == PARTS_OF_EVALUATION.keys()
    assert {*Evaluation.model_fields} == PARTS_OF_EVALUATION.keys()
    assert {*UploadInfo.model_fields} == HEADER.keys()
    assert {*Details.model_fields} == DETAILS.keys()
    assert {task for task, _ in PLANS.values()} == {*TASKS}


def test_every_payload_is_made_under_some_plan(kits):
    made = {kit.plan.payload for kit in kits.values()}
    assert made | {EVALUATION} == PAYLOADS.keys()


def people(task, num_rows, seed):
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(60, 10, num_rows).round(1), rng.choice(["female", "male"], num_rows)
    score = (age - 60) / 10 + rng.normal(size=num_rows)
    weight = rng.normal(75, 12, num_rows).round(1)
    frame = pd.DataFrame({"age": age.astype(str), "weight": weight.astype(str), "sex": sex})
    if task == "classification":
        return frame.assign(y=np.where(score > 0, "yes", "no"))
    if task == "regression":
        return frame.assign(y=(170 + 5 * score).round(1).astype(str))
    return frame.assign(
        y=rng.uniform(0.1, 3.0, num_rows).round(2).astype(str),
        died=np.where(score > 0, "1", "0"),
    )


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    found = {}
    for name, (task, more) in PLANS.items():
        root = tmp_path_factory.mktemp(name)
        reference = people(task, 60, 99)
        reference.loc[40:, [c for c in ("y", "died") if c in reference]] = ""
        reference.to_csv(root / "reference.csv", index=False)
        (root / "plan.toml").write_text(PLAN.format(target=TARGETS[task], more=more))
        found[name] = freeze(root / "plan.toml", root / "kit", root / "labels.json", salt=bytes(32))
    return found


def upload_of(kit, frame, secret=b"s" * 32):
    """What leaves, by the code that sites run, and how many rows were trained on."""
    rows = SiteRows.of(kit.plan, frame, secret=secret)
    learner = "logistic-regression" if kit.plan.learner.name == "any" else kit.plan.learner.name
    job = Job(kit, "Alpha", rows, learner, key=SigningKey.generate())
    return job.run()[0], len(job.kept), len(rows.targets)


@pytest.fixture(scope="module", params=PLANS)
def pair(request, kits):
    """A kit, and what leaves of 80 people and of one more."""
    kit = kits[request.param]
    frame = people(PLANS[request.param][0], 81, 1)
    return kit, upload_of(kit, frame[:-1]), upload_of(kit, frame)


def apart(one, other):
    return {name for name in one.arrays if not torch.equal(one.arrays[name], other.arrays[name])}


def test_a_header_changes_in_what_the_page_names_and_nothing_else(pair):
    kit, *both = pair
    one, other = (upload.info.model_dump(mode="json") for upload, _, _ in both)
    changed = {name for name in one if one[name] != other[name]}
    details = {name for name in DETAILS if Details.of(both[0][0].info).model_dump()[name]
               != Details.of(both[1][0].info).model_dump()[name]}  # fmt: skip
    assert {HEADER[name] for name in changed} <= {"named", "by its fields"}
    assert {DETAILS[name] for name in details} <= {"masked"}
    for upload, num_trained, num_rows in both:
        text = " ".join(page_of(kit, upload, num_trained, num_rows).words)
        assert f"{upload.info.num_rows:,}" in text
        for count in upload.info.class_rows or ():
            assert f"{count:g}" in text
            assert count >= kit.plan.rules.min_cell
        if kit.plan.promise is not None:
            assert upload.info.class_rows is None


def test_arrays_that_change_are_on_the_page_by_name(pair):
    kit, (one, num_trained, num_rows), (other, *_) = pair
    assert one.arrays.keys() == other.arrays.keys() == payload_of(kit.plan).arrays(kit.plan).keys()
    assert apart(one, other)  # or nothing here is tested
    text = " ".join(page_of(kit, one, num_trained, num_rows).words)
    assert all(name in text for name in one.arrays)


def page_of(kit, upload, num_trained, num_rows):
    data = DataSummary(num_rows, num_trained, num_rows - num_trained, 0, "x")
    num_bytes = 10_000 + sum(array.nbytes for array in upload.arrays.values())
    return Page(
        render_egress(
            kit.plan, upload, num_bytes=num_bytes, key_fingerprint="k", data=data, released=True
        )
    )


def test_with_noise_a_person_changes_no_more_than_another_secret(kits):
    """And the count as much: exact it would differ by one, always."""
    kit, frame = kits["privacy"], people("classification", 801, 1)
    moved, drawn, counts = [], [], set()
    for number in range(6):
        secret = bytes([number]) * 32
        more, without = upload_of(kit, frame, secret)[0], upload_of(kit, frame[:-1], secret)[0]
        again = upload_of(kit, frame, bytes([100 + number]) * 32)[0]
        moved.append(float((more.arrays["log_probs"] - without.arrays["log_probs"]).abs().mean()))
        drawn.append(float((more.arrays["log_probs"] - again.arrays["log_probs"]).abs().mean()))
        counts.add(more.info.num_rows - without.info.num_rows)
    assert 0.3 < np.median(moved) / np.median(drawn) < 3
    assert len(counts) > 2


def test_masked_words_are_new_with_each_upload(kits):
    """So the difference of two files is no person's: it is the same of the same rows."""
    kit, frame = kits["sealed"], people("classification", 80, 1)
    one, other = (upload_of(kit, frame)[0] for _ in range(2))
    for name in one.arrays:
        assert float((one.arrays[name] == other.arrays[name]).double().mean()) < 0.01


@pytest.mark.parametrize("task", TASKS)
def test_an_evaluation_is_of_blocks_alone_with_every_part_of_it(kits, task):
    """Two people of a block exchange their outcomes, and nothing changes."""
    asked = '[measures]\ngroups = ["sex"]\n' if task == "classification" else ""
    plan = kits[task].plan
    none = plan.reference.model_copy(update={"labelled": 0, "evaluate": 0})
    plan = plan.model_copy(update={"reference": none})  # so that there is an echo
    if asked:
        measures = type(plan).loads(PLAN.format(target=TARGETS[task], more=asked)).measures
        plan = plan.model_copy(update={"measures": measures})
    rows = SiteRows.of(plan, people(task, 300, 5))
    said = task_of(plan).family.from_natural(_natural(task, rows.inputs))
    blocks = HeldOutRows(plan, said, rows.targets, rows.inputs).said.blocks
    first = evaluate(plan, said, rows.targets, "0" * 64, rows.inputs)
    swapped = rows.targets.clone()
    for members in (
        torch.nonzero((blocks == block).all(1))[:, 0] for block in torch.unique(blocks, dim=0)
    ):
        swapped[members] = rows.targets[members.roll(1)]
    second = evaluate(plan, said, swapped, "0" * 64, rows.inputs)
    assert not torch.equal(swapped, rows.targets)
    parts = PARTS_OF_EVALUATION.keys() - ({"scores"} if task == "regression" else set())
    for part in parts:
        assert getattr(first, part) == getattr(second, part), part
    if task == "classification":  # then each part of two classes is there
        assert first.risks
        assert first.groups
        assert first.scores
        assert first.echo


def _natural(task, inputs):
    score = inputs[:, 0].double()
    if task == "classification":
        return torch.stack([-score, score], 1).log_softmax(1)
    if task == "regression":
        return torch.stack([score, torch.full_like(score, -0.5)], 1)
    return torch.stack([score - 1, score - 0.5], 1)


def test_counts_of_a_survey_differ_by_a_step_or_not_at_all(tmp_path):
    frame, changed = table("Graz", num_rows=400), 0
    for person in range(0, 40, 4):
        one = survey_of(frame, tmp_path)
        other = survey_of(frame.drop(index=person).reset_index(drop=True), tmp_path)
        for counts in zip(_counts(one), _counts(other), strict=True):
            least, most = sorted(count or 0 for count in counts)
            assert most - least in (0, STEP) or least == 0
            assert all(count % STEP == 0 for count in (least, most))
            changed += most != least
    assert changed


def _counts(survey):
    yield survey.rows
    for told in survey.columns.values():
        yield told.missing
        if isinstance(told, CategoryTold):
            yield from (*told.words.values(), told.other)
