"""The egress page: one page on what leaves a site, for whoever must allow it.

It is made from the plan, the upload as it will be sent, and a few counts; it never sees a row. All
that is in the upload's file stands on it: every array with its meaning, type, shape and size, and
every field of the header. It says what does not leave, what the upload could reveal, what an audit
found if there was one, who will see it, how it can be taken back, and has two lines to sign on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from predbayes.errors import StudyError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import GATE, Upload
from predbayes.text import printable
from predbayes_study.payload import payload_of
from predbayes_study.payloads.details import Details
from predbayes_study.plan.schema import Plan
from predbayes_study.report.measurement import Measurement
from predbayes_study.report.pages import render_page
from predbayes_study.tasks import task_of
from predbayes_study.trust.signing import fingerprint
from predbayes_study.wording import decimals, plain

SURE = 0.99  # a probability from which a model counts as sure of a class

_SHOWN_FIELDS = {
    "format_version", "kind", "num_rows", "class_rows", "site", "plan", "learner", "seen",
    "seals", "privacy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataSummary:
    """How many of a site's rows went where, and what was fitted: nothing of any single row."""

    num_rows: int  # in the site's table
    num_trained: int
    num_held_out: int  # never trained on
    num_dropped: int  # without a target
    learner: str

    def __post_init__(self) -> None:
        if self.num_trained + self.num_held_out + self.num_dropped != self.num_rows:
            raise StudyError("rows trained on, held out and dropped are not all rows of the site")


@dataclass(frozen=True, slots=True)
class ArrayShown:
    """One array that leaves."""

    name: str
    meaning: str
    dtype: str
    shape: str
    num_bytes: int
    values: str  # the least and the greatest


def render_egress(
    plan: Plan,
    upload: Upload,
    *,
    num_bytes: int,
    key_fingerprint: str,
    data: DataSummary,
    released: bool,
    measured: Measurement | None = None,
) -> str:
    """Render the egress page of an upload, in HTML.

    Args:
        plan: Of the study.
        upload: As it will be sent.
        num_bytes: Of its file.
        key_fingerprint: Of the key that signs it, in words.
        data: What became of the site's rows.
        released: Whether the upload may leave; otherwise the page says that it is held back.
        measured: What was measured of the same rows, plan and learner.
    """
    _require_same(plan, upload, data)
    if num_bytes < sum(array.nbytes for array in upload.arrays.values()):
        raise StudyError(f"a file of {num_bytes} bytes does not hold this upload")
    arrays, lines = upload.arrays, arrays_shown(plan, upload.arrays, data.num_trained)
    digest = upload.digest()
    return render_page(
        "egress.html.j2",
        {},
        payload_of(plan).words,
        plan=plan,
        task=task_of(plan),
        info=upload.info,
        details=Details.of(upload.info),
        data=data,
        released=released,
        measured=measured,
        has_gate=GATE in arrays,
        gate_tells=GATE in arrays and bool(arrays[GATE].any()),
        lines=lines,
        num_bytes=num_bytes,
        num_array_bytes=sum(line.num_bytes for line in lines),
        num_sure=_num_sure(upload),
        sure=SURE,
        other_fields=_other_fields(upload.info),
        key_fingerprint=key_fingerprint,
        digest=digest,
        fingerprint=fingerprint(digest),
        **payload_of(plan).shown(plan, upload, data.num_trained),
    )


def arrays_shown(plan: Plan, arrays: Mapping[str, Tensor], num_trained: int) -> list[ArrayShown]:
    """Describe every array by itself, in the order of the payload's words for them."""
    meanings = payload_of(plan).meanings(plan, num_trained)
    if unknown := sorted(arrays.keys() - meanings.keys()):
        raise StudyError(
            f"the upload has an array {printable(unknown[0])!r}, which the plan does not ask for"
        )
    return [
        ArrayShown(
            name,
            meaning,
            str(array.dtype).removeprefix("torch."),
            " × ".join(f"{n:,}" for n in array.shape),
            array.nbytes,
            _values(array),
        )
        for name, meaning in meanings.items()
        if (array := arrays.get(name)) is not None
    ]


def _require_same(plan: Plan, upload: Upload, data: DataSummary) -> None:
    """Refuse to describe one upload with the plan or the counts of another."""
    info = upload.info
    if info.plan != plan.digest() or info.kind != plan.sent:
        raise StudyError(f"the upload is not what the plan {plan.name!r} asks for")
    if not info.site:
        raise StudyError("the upload does not say which site it is from")
    # A count with noise is of people, and is not that of the rows.
    if plan.promise is None and info.num_rows != data.num_trained:
        raise StudyError(
            f"the upload counts {info.num_rows} rows, and {data.num_trained} were trained on"
        )


# Arrays


def _values(array: Tensor) -> str:
    """The least and the greatest of all numbers, in the same decimals."""
    if not array.numel():
        return "–"
    ends = [float(end) for end in torch.aminmax(array)]
    places = decimals([max(abs(end) for end in ends)])
    return f"{plain(min(ends), places)} to {plain(max(ends), places)}"


def _num_sure(upload: Upload) -> int | None:
    """Reference rows of whose class the model is sure, where probabilities are sent."""
    if "log_probs" not in upload.arrays:
        return None
    greatest = upload.predictive().natural().amax(dim=1)
    return int((greatest > math.log(SURE)).sum())


def _other_fields(info: UploadInfo) -> dict[str, str]:
    """Whatever else a later format may have in its header: nothing leaves unseen."""
    fields: dict[str, Any] = info.model_dump(mode="json")
    fields |= fields.pop("details", {})
    return {
        name: json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
        if name not in _SHOWN_FIELDS and value is not None
    }
