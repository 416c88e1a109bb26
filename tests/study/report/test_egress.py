from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from typing import get_type_hints

import pytest
import torch

from predbayes.errors import StudyError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical, Gaussian
from predbayes.seeding import generator
from predbayes_study.payloads.details import save_signed
from predbayes_study.plan.models import upload_dtype
from predbayes_study.plan.schema import Plan
from predbayes_study.report.egress import (
    SURE,
    DataSummary,
    render_egress,
)
from predbayes_study.report.measurement import Measurement
from predbayes_study.trust.signing import SigningKey, fingerprint
from tests.study.report.test_report import NASTY, POLICY, Page
from tests.study.samples import classification_plan, regression_plan

KEY = "lusab-babad-gutih-tugad-mudof-sakat-dufun-pobad"
NUM_SURE = 7
COUNTS = tuple(float(count) for count in range(20, 30))
HELD_BACK = "Held back until approved: predbayes site approve FILE --by NAME"
ONE_PAGE = 3700  # characters; a printed A4 page has room for a little more


def changed(plan: Plan, **sections: dict[str, object]) -> Plan:
    """A plan with other settings in some of its sections."""
    parts = {name: getattr(plan, name).model_copy(update=s) for name, s in sections.items()}
    return plan.model_copy(update=parts)


def sent(plan: Plan, upload: Upload, site: str = "Bergen") -> Upload:
    return upload.named(site).for_plan(plan.digest(), "random-forest")


def class_upload(plan: Plan, counts: tuple[float, ...] | None = COUNTS) -> Upload:
    """Probabilities of which a few are nearly one."""
    num_rows, num_classes = plan.reference.num_rows, plan.num_outputs
    logits = torch.rand(num_rows, num_classes, generator=generator(0, "logits"))
    logits[:NUM_SURE, 0] += 2 * math.log(num_classes / (1 - SURE))
    predictive = Categorical(logits.log_softmax(-1))
    upload = Upload.of_predictions(
        predictive, num_rows=245, class_rows=counts, dtype=upload_dtype(plan)
    )
    return sent(plan, upload)


def number_upload(plan: Plan) -> Upload:
    mean, var = torch.randn(2, plan.reference.num_rows, generator=generator(0, "mean"))
    predictive = Gaussian(mean, var**2 + 0.3, var**2)
    return sent(plan, Upload.of_predictions(predictive, num_rows=245))


CLASSES, NUMBERS = classification_plan(), regression_plan()
HALF = changed(CLASSES, upload={"precision": "float16"})
MANUAL = changed(CLASSES, upload={"release": "manual"})
UPLOADS = {
    "classes": (CLASSES, class_upload(CLASSES)),
    "classes, half precision": (HALF, class_upload(HALF)),
    "classes, no counts": (CLASSES, class_upload(CLASSES, counts=None)),
    "numbers": (NUMBERS, number_upload(NUMBERS)),
}
SUMMARY = DataSummary(308, 245, 60, 3, "random-forest")


def size_of(upload: Upload) -> int:
    return sum(array.nbytes for array in upload.arrays.values()) + 616


def rendered(
    plan: Plan, upload: Upload, *, data: DataSummary = SUMMARY, released: bool = True
) -> str:
    return render_egress(
        plan,
        upload,
        num_bytes=size_of(upload),
        key_fingerprint=KEY,
        data=data,
        released=released,
    )


@functools.cache
def page(name: str) -> Page:
    """The page about an upload as it is."""
    return Page(rendered(*UPLOADS[name]))


def text_of(name: str) -> str:
    return page(name).text


@pytest.mark.parametrize("name", UPLOADS)
class TestEveryPage:
    def test_is_well_formed_and_asks_for_nothing(self, name):
        html, found = rendered(*UPLOADS[name]), page(name)
        assert {"main", "table", "footer"} <= set(found.tags)
        assert ("content", POLICY) in found.attributes
        assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
        assert not re.search(r"https?://|@import|url\(", html)
        assert not {name for name, _ in found.attributes if name.startswith("on")}
        assert not {name for name, _ in found.attributes if name in ("src", "href", "action")}

    def test_is_the_same_of_the_file_and_whatever_the_order_of_arrays(self, name, tmp_path):
        plan, upload = UPLOADS[name]
        html = rendered(plan, upload)
        backwards = dict(reversed(upload.arrays.items()))
        assert rendered(plan, dataclasses.replace(upload, arrays=backwards)) == html
        save_signed(upload, tmp_path / "x.safetensors", SigningKey.generate())
        assert rendered(plan, Upload.load(tmp_path / "x.safetensors")) == html

    def test_every_array_is_named_with_type_shape_and_bytes_which_add_up(self, name):
        plan, upload = UPLOADS[name]
        text = text_of(name)
        for array_name, array in upload.arrays.items():
            dtype = str(array.dtype).removeprefix("torch.")
            shape = " × ".join(f"{n:,}" for n in array.shape)
            found = re.search(rf"\b{re.escape(array_name)} .*?\b{dtype},? {shape},? ([\d,]+)", text)
            assert found, array_name
            assert found[1] == f"{array.nbytes:,}"
        table = rendered(plan, upload).partition("</table>")[0]
        rows = re.findall(r"<tr.*?</tr>", table, re.S)[1:]
        *parts, whole = [int(re.findall(r">([\d,]+)<", row)[-1].replace(",", "")) for row in rows]
        assert sum(parts) == whole == size_of(upload)

    def test_has_every_field_of_the_header_and_the_digests(self, name):
        plan, upload = UPLOADS[name]
        text, info = text_of(name), upload.info
        for value in (info.site, info.plan, info.learner, info.kind, plan.fingerprint):
            assert value in text
        assert f"{info.num_rows} (those trained on)" in text
        for word, count in zip(plan.target.classes or (), info.class_rows or (), strict=False):
            assert f"{word}: {count:.0f}" in text
        assert f"{upload.digest()} {fingerprint(upload.digest())}" in text
        assert f"Signed with key {KEY}" in text

    def test_promises_neither_secrecy_nor_privacy_and_is_short(self, name):
        text = text_of(name)
        for words in ("Nothing is encrypted", "no differential privacy", "membership inference"):
            assert words in text
        assert "Results already given out remain" in text
        assert "Data manager Data-protection officer" in text  # two lines to sign
        assert len(text) <= ONE_PAGE or "many arrays" in name or name == "weights, classes"


# Nothing of a row


def test_no_row_can_come_in():
    """What the page is made from holds counts, names, and what leaves anyway."""
    hints = get_type_hints(render_egress)
    assert hints == {
        "plan": Plan,
        "upload": Upload,
        "num_bytes": int,
        "key_fingerprint": str,
        "data": DataSummary,
        "released": bool,
        "measured": Measurement | None,  # whose lines are not shown: tests/study/site/test_audit.py
        "return": str,
    }
    assert set(inspect.signature(render_egress).parameters) == set(hints) - {"return"}
    fields = get_type_hints(DataSummary)
    assert {name for name, kind in fields.items() if kind is not int} == {"learner"}
    assert fields["learner"] is str  # a name that the software knows


def test_of_the_values_only_the_ends_are_shown():
    plan, upload = UPLOADS["numbers"]
    mean = torch.linspace(-1.111, 2.222, plan.reference.num_rows)
    mean[17] = 1.23456
    upload = dataclasses.replace(upload, arrays={**upload.arrays, "mean": mean})
    text = Page(rendered(plan, upload)).text
    assert "−1.11 to 2.22" in text
    assert "1.23" not in text


# What leaves, and what it could reveal


def test_how_sure_the_model_is_can_be_read():
    for name in ("classes", "classes, half precision"):
        assert f"more than 99 % sure of a class for {NUM_SURE} of 1,000" in text_of(name)
    assert "% sure" not in text_of("numbers")


def test_counts_that_are_too_small_are_said_not_to_be_sent_and_who_does_without():
    text = text_of("classes, no counts")
    assert "not sent, because some class has rows of fewer than 5 people" in text
    assert "For all sites the pool then does without" in text
    assert "tells that some class is rare" in text
    assert not re.search(r"\b0: \d", text)
    plan = changed(CLASSES, pool={"method": "mixture"}, rules={"min_cell": 11})
    text = Page(rendered(plan, class_upload(plan, counts=None))).text
    assert "fewer than 11 people. The plan’s pool, mixture, does not need them." in text
    assert "not sent" not in text_of("classes")
    assert "Rows of each class" not in text_of("numbers")


def test_a_field_that_the_page_does_not_know_is_shown_all_the_same(monkeypatch):
    """Nothing may leave unseen because a later format has more in its header."""
    plan, upload = UPLOADS["classes"]
    dump = UploadInfo.model_dump

    def more(self, **options):
        return {**dump(self, **options), "shoe_size": [43, "<b>"]}

    monkeypatch.setattr(UploadInfo, "model_dump", more)
    assert 'shoe_size [43, "<b>"]' in Page(rendered(plan, upload)).text


@pytest.mark.parametrize(
    ("plan", "released", "words"),
    [
        (CLASSES, True, "Released The plan asks for automatic release"),
        (MANUAL, True, "Approved The plan asks for manual release"),
        (MANUAL, False, f"{HELD_BACK} The plan asks for"),
        (CLASSES, False, f"{HELD_BACK} Nothing leaves"),
    ],
)
def test_whether_it_may_leave_stands_first(plan, released, words):
    text = Page(rendered(plan, class_upload(plan), released=released)).text
    assert words in text[: text.index("Meaning")]
    assert ("Held back" in text) != released


def test_text_of_others_stays_text():
    target = {"name": NASTY, "classes": (NASTY, *"123456789")}
    plan = changed(CLASSES, target=target)
    data = dataclasses.replace(SUMMARY, learner=NASTY)
    html = rendered(plan, class_upload(plan), data=data)
    assert "script" not in Page(html).tags
    assert Page(html).text.count(NASTY) >= 3


# Refusals


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": NUMBERS}, "the plan 'Length of stay' asks for"),
        ({"data": DataSummary(244, 244, 0, 0, "network")}, "244"),
        ({"upload": class_upload(CLASSES).named("")}, "which site"),
        ({"num_bytes": 12}, "12 bytes"),
        ({"arrays": {"ages": torch.zeros(3)}}, "'ages'"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes, why):
    plan, upload = UPLOADS["classes"]
    upload = changes.get("upload", upload)
    more = changes.get("arrays", {})
    upload = dataclasses.replace(upload, arrays={**upload.arrays, **more})
    with pytest.raises(StudyError, match=why):
        render_egress(
            changes.get("plan", plan),
            upload,
            num_bytes=changes.get("num_bytes", size_of(upload)),
            key_fingerprint=KEY,
            data=changes.get("data", SUMMARY),
            released=True,
        )


def test_counts_that_do_not_add_up_are_refused():
    with pytest.raises(StudyError, match="rows of the site"):
        DataSummary(300, 245, 60, 3, "network")
