"""A ClientApp that says hello as ours does, trains as ours does, and sends something else."""

from __future__ import annotations

from typing import Any

from predbayes.flower import node
from predbayes.flower.client import make_client_app
from predbayes.flower.wire import Answer, pack_answer, read_words
from tests.flower.malformed import MALFORMED


def _malformed(answer: Answer) -> Any:
    content = pack_answer(answer)
    if read_words(content)["status"] == "upload":
        MALFORMED[answer.upload.info.site](content)
    return content


node.pack_answer = _malformed
app = make_client_app()
