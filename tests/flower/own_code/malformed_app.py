"""A ClientApp that says hello as ours does, trains as ours does, and sends something else."""

from __future__ import annotations

from typing import Any

from predbayes.flower import parcel
from predbayes.flower.client import make_client_app
from predbayes.flower.parcel import Answer, pack_answer
from predbayes.flower.wire import read_words
from tests.flower.malformed import MALFORMED


def _malformed(answer: Answer) -> Any:
    content = pack_answer(answer)
    if read_words(content)["status"] == "upload":
        MALFORMED[answer.upload.info.site](content)
    return content


parcel.pack_answer = _malformed
app = make_client_app()
