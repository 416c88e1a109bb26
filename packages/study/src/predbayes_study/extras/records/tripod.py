"""The model card for programs: what is known of a model, by the items of TRIPOD+AI.

TRIPOD+AI is the guideline for reporting studies that make or evaluate a prediction model (Collins
et al., BMJ 2024;385:e078378, https://doi.org/10.1136/bmj-2023-078378): 27 items, 52 with their
parts. `tripod.toml` has a table for each: what it asks for, what the study knows, and what a person
must write, because no software knows whom the model is for, who consented and who paid.

    known      the study says all of it
    in part    the study says some of it, and `write` what is left
    to write   a person says it

Like the card for people it is made from plan and result alone, and names no site.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from predbayes.optional import require
from predbayes.predictive.estimate import Estimate
from predbayes.predictive.measures import MEASURES
from predbayes_study.payload import payload_of
from predbayes_study.plan.schema import Plan
from predbayes_study.report.clinical import event_of
from predbayes_study.report.pages import listed, with_interval
from predbayes_study.report.report import (
    column_groups,
    compared,
    require_same_plan,
    tally_of,
    without_sites,
)
from predbayes_study.report.unlabelled import trusted
from predbayes_study.result.schema import Result
from predbayes_study.tasks import task_of
from predbayes_study.tasks.classes import risk_words
from predbayes_study.wording import counted, plain

CARD_FILE = "model-card.json"
SOURCE = "https://doi.org/10.1136/bmj-2023-078378"
ITEMS: tuple[dict[str, str], ...] = tuple(
    tomllib.loads(files(__package__).joinpath("tripod.toml").read_text("utf-8"))["items"]
)
"""Every item, in the order of the guideline."""

_SENTENCE = "\x1e"  # begins one; no text of a plan or a result can hold it by accident


def render_card_data(plan: Plan, result: Result) -> str:
    """Return the card of a result as JSON."""
    require_same_plan(plan, result)
    tally, result = tally_of(result, public=True), without_sites(result)
    scores = result.student.scores
    items = _filled(
        plan=plan,
        task=task_of(plan),
        payload=payload_of(plan),
        result=result,
        tally=tally,
        groups=column_groups(plan.columns),
        measures=[MEASURES[name] for name in (() if scores is None else scores.metrics)],
        performance=list(_performance(plan, result)),
        event=event_of(result),
        synthetic=" ".join(plan.cautions),
        told=_told,
    )
    states = Counter(item["state"] for item in items)
    card = {
        "format": 1,
        "study": plan.name,
        "plan": result.plan_digest,
        "ledger": result.ledger_digest,
        "result": result.number,
        "finished": result.finished,
        "predicts": plan.target.model_dump(include={"name", "task", "classes", "unit"}),
        "sites": tally.num_sites,
        "rows": tally.num_rows,
        "scored_on": result.scored_on,
        "scored_rows": result.num_scored,
        "scores": None if scores is None else scores.model_dump()["metrics"],
        "verdict": trusted(plan, result),
        "software": result.versions,
        "reporting": {
            "guideline": "TRIPOD+AI",
            "source": SOURCE,
            "states": {name: states[name] for name in ("known", "in part", "to write")},
            "items": items,
        },
    }
    return json.dumps(card, indent=1, ensure_ascii=False) + "\n"


def _filled(**values: Any) -> list[dict[str, Any]]:
    """Fill in what the study knows of each item."""
    require("jinja2", "study")
    environment = _environment()
    items: list[dict[str, Any]] = []
    for item in ITEMS:
        text = environment.get_template(item["number"]).render(values)
        sentences = (" ".join(part.split()) for part in text.split(_SENTENCE))
        known = [sentence for sentence in sentences if sentence]
        items.append(
            {
                "item": item["number"],
                "section": item["section"],
                "asks": item["asks"],
                "state": "to write" if not known else "in part" if item["write"] else "known",
                "known": known,
                "write": item["write"] or ("" if known else "The study does not say."),
            }
        )
    return items


@functools.cache
def _environment() -> Any:
    """Return the compiled templates of all items."""
    jinja2 = require("jinja2", "study")
    sources = {i["number"]: re.sub("^- ", _SENTENCE, i["known"], flags=re.M) for i in ITEMS}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(counted=counted, listed=listed, plain=plain, thousands="{:,}".format)
    return environment


def _performance(plan: Plan, result: Result) -> Iterator[str]:
    for contender in compared(result):
        figures = contender.scores.metrics.items()
        told = (_told(MEASURES[n].label, e, percent=MEASURES[n].is_share) for n, e in figures)
        yield f"{contender.label} ({counted(contender.scores.num_rows, 'row')}): {'; '.join(told)}."
    if (event := event_of(result)) is not None:
        yield risk_words(event)
    yield result.group_words
    yield trusted(plan, result)


def _told(label: str, estimate: Estimate, *, percent: bool) -> str:
    return f"{label} {' '.join(with_interval(estimate, percent=percent))}"
