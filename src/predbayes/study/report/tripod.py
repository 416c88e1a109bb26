"""The model card for programs: what is known of a model, by the items of TRIPOD+AI.

TRIPOD+AI is the guideline for reporting studies that make or evaluate a prediction model (Collins
et al., BMJ 2024;385:e078378, https://doi.org/10.1136/bmj-2023-078378): 27 items, 52 with their
parts. Each has here its number, in our words what it asks for, what the study knows of it, and what
a person must write, which no software knows: whom the model is for, who consented, who paid.

    known      the study says all of it
    in part    the study says some of it, and `write` what is left
    to write   a person says it

Like the card for people it is made from plan and result alone, and names no site.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from predbayes.predictive.measures import MEASURES
from predbayes.study.plan.schema import Plan
from predbayes.study.plan.synthetic import synthetic_words
from predbayes.study.report.clinical import event_of, risk_words
from predbayes.study.report.report import (
    Tally,
    column_groups,
    compared,
    listed,
    require_same_plan,
    tally_of,
    with_interval,
    without_sites,
)
from predbayes.study.report.unlabelled import trusted
from predbayes.study.result.schema import Estimate, Result, Scores
from predbayes.study.wording import counted, plain

CARD_FILE = "model-card.json"
SOURCE = "https://doi.org/10.1136/bmj-2023-078378"

_PREPARATION = (
    "Each site’s table was put into the plan’s units and words and checked against the plan: "
    "types, units, plausible ranges, categories, missing values, repeated rows."
)
_PREDICTION = (
    "By predbayes predict MODEL TABLE, or in Python by CalibratedModel.load(MODEL).predict."
)
_SPECIFICATION = (
    "The folder model: weights (safetensors), and the plan with all preprocessing (JSON)."
)
_UPDATING = "The common model was not updated; a site may adopt it with an adjustment of its own."


@dataclass(frozen=True, slots=True)
class _Study:
    """What items are filled from; of sites no more than the public may see."""

    plan: Plan
    result: Result
    tally: Tally


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the guideline."""

    number: str
    section: str
    asks: str  # in our words
    write: str = ""  # what a person must write; empty: nothing
    # What the study says: a text that is true of every study, or what makes one of this.
    known: Callable[[_Study], Iterator[str]] | str = ""


def render_card_data(plan: Plan, result: Result) -> str:
    """Return the card of a result as JSON."""
    require_same_plan(plan, result)
    study = _Study(plan, without_sites(result), tally_of(result, public=True))
    items = [_filled(item, study) for item in ITEMS]
    states = Counter(item["state"] for item in items)
    card = {
        "format": 1,
        "study": plan.name,
        "plan": result.plan_digest,
        "ledger": result.ledger_digest,
        "result": result.number,
        "finished": result.finished,
        "predicts": plan.target.model_dump(include={"name", "task", "classes", "unit"}),
        "sites": study.tally.num_sites,
        "rows": study.tally.num_rows,
        "scored_on": result.scored_on,
        "scored_rows": result.num_scored,
        "scores": None if result.student.scores is None else _figures(result.student.scores),
        "verdict": trusted(plan, study.result),
        "software": result.versions,
        "reporting": {
            "guideline": "TRIPOD+AI",
            "source": SOURCE,
            "states": {name: states[name] for name in ("known", "in part", "to write")},
            "items": items,
        },
    }
    return json.dumps(card, indent=1, ensure_ascii=False) + "\n"


def _filled(item: Item, study: _Study) -> dict[str, object]:
    texts = [item.known] if isinstance(item.known, str) else item.known(study)
    known = [" ".join(text.split()) for text in texts if text]
    state = "to write" if not known else "in part" if item.write else "known"
    write = item.write or ("" if known else "The study does not say.")
    return {
        "item": item.number,
        "section": item.section,
        "asks": item.asks,
        "state": state,
        "known": known,
        "write": write,
    }


def _figures(scores: Scores) -> dict[str, object]:
    return scores.model_dump()["metrics"]  # type: ignore[no-any-return]


# What the study knows


def _title(study: _Study) -> Iterator[str]:
    yield f"Development and evaluation of a model that predicts {study.plan.target.name}."


def _abstract(study: _Study) -> Iterator[str]:
    yield from _setting(study)
    yield from _model_type(study)
    yield from _performance(study)


def _use(study: _Study) -> Iterator[str]:
    yield study.plan.description


def _objectives(study: _Study) -> Iterator[str]:
    yield f"To make a model of {study.plan.target.name} in one round, and to evaluate it."


def _differences(study: _Study) -> Iterator[str]:
    if study.result.num_scored:
        yield "Scores are of reference rows; sites’ rows may differ from them."
    else:
        yield "Scores, if any, are of rows that sites held out; no reference row is scored."


def _sources(study: _Study) -> Iterator[str]:
    reference = study.plan.reference
    yield "Development: rows of the sites, which stayed there."
    if not reference.num_rows:
        return
    scored = "Evaluation and pooling" if study.result.num_scored else "Pooling"
    yield (
        f"{scored}: {counted(reference.num_rows, 'reference row')}; source: "
        f"{reference.source or 'not stated'}; licence: {reference.licence or 'not stated'}."
    )
    yield synthetic_words(reference)


def _setting(study: _Study) -> Iterator[str]:
    yield f"{counted(study.tally.num_sites, 'site')} took part, each with rows of its own."


def _outcome(study: _Study) -> Iterator[str]:
    target = study.plan.target
    words = listed(target.classes) if target.classes else f"a number, unit: {target.unit or 'none'}"
    yield f"{target.name} ({target.task}): {words}."


def _choice_of_predictors(study: _Study) -> Iterator[str]:
    yield f"The plan fixed {counted(len(study.plan.columns), 'column')} before any site trained."


def _predictors(study: _Study) -> Iterator[str]:
    for group in column_groups(study.plan.columns):
        unit = f", unit: {group.unit}" if group.unit else ""
        yield f"{group.title}: {group.kind}{unit}; values: {group.values}."


def _sample_size(study: _Study) -> Iterator[str]:
    tally, reference = study.tally, study.plan.reference
    if tally.num_rows is not None:
        yield f"Development: {counted(tally.num_rows, 'row')} at the sites, as they state them."
    yield (
        f"Reference rows: {reference.labelled:,} labelled for pooling, {reference.evaluate:,} for "
        f"evaluation alone, {reference.unlabelled:,} without a label."
    )
    yield f"Fewer than {study.plan.rules.min_labels_to_judge:,} labels judge no calibration."


def _missing(study: _Study) -> Iterator[str]:
    for group in column_groups(study.plan.columns):
        yield f"{group.title}: {group.missing}."


def _partition(study: _Study) -> Iterator[str]:
    learner = study.plan.learner
    yield f"Each site held {plain(100 * learner.holdout)} % of its rows out of training."
    if study.result.scored_on == "cross-fitted":
        yield "Labelled reference rows were cross-fitted: each was scored without its label."
    elif study.result.scored_on == "evaluate":
        yield "Labels of evaluation rows were opened only to score."


_SCALES_OF = {True: "of the reference rows and ", False: ""}


def _scaling(study: _Study) -> Iterator[str]:
    rows = study.plan.reference.num_rows
    yield (
        f"Numbers: minus a centre, over a scale, both {_SCALES_OF[bool(rows)]}in the plan. "
        "Categories: one input for each."
    )
    if study.plan.target.transform == "log":
        yield "The target: its logarithm."


_SUMS_BESIDE = ", and where it had enough rows sums of products of {:,} features and the target"


def _model_type(study: _Study) -> Iterator[str]:
    plan, result = study.plan, study.result
    if plan.sums_alone:
        yield (
            f"Each site sent sums of products of {plan.num_summed:,} features and the target, once."
        )
        yield "The model is Bayesian least squares on their total; nothing was distilled."
        return
    sent = "predictions for the reference rows" if plan.upload.kind == "predictions" else "weights"
    hidden = "" if plan.sealing is None else " under masks, of which only the sum was opened"
    beside = "" if plan.moments is None else _SUMS_BESIDE.format(plan.num_summed)
    yield f"Each site fitted one model ({plan.learner.name}) and sent {sent}{hidden}{beside}, once."
    yield f"These were pooled ({result.pool.name}): {result.pool.reason}"
    yield (
        f"A network with {result.student.num_parameters:,} parameters learnt to imitate the pool; "
        f"temperature {plain(result.student.temperature)}."
    )


def _heterogeneity(study: _Study) -> Iterator[str]:
    if study.plan.sums_alone:
        yield "The model is that of all rows in one place, however unlike the sites are."
        return
    if study.plan.sealing is not None and study.plan.sealing.scores:
        yield "Sites were screened by one number of each, how far it agrees with the labels."
        return
    if study.plan.sealing is not None:
        yield "Sites were neither screened nor compared: only the sum of all was opened."
        return
    measured = "and its influence on the pool was measured"
    if not study.result.pool.num_labels:
        measured = "without labels, against those of the other sites"
    yield f"Each site’s predictions were screened, {measured}."
    if study.plan.gate is not None:
        yield (
            "Each site also sent how typical each reference row is of its own rows; a gated pool "
            "weighs sites by it, row by row."
        )


def _measures(study: _Study) -> Iterator[str]:
    scores = study.result.student.scores
    for name in () if scores is None else scores.metrics:
        yield f"{MEASURES[name].label}: {MEASURES[name].meaning}"


def _imbalance(study: _Study) -> Iterator[str]:
    yield {
        "classification": (
            "Each class has its share of the rows held out; no row was weighed by its class."
            if study.plan.learner.split == "stratified"
            else "No row was weighed or drawn by its class."
        ),
        "regression": "There are no classes: a number is predicted.",
        "survival": "There are no classes: the time to an event is predicted.",
    }[study.plan.target.task]


def _fairness(study: _Study) -> Iterator[str]:
    groups = [grouping.column for grouping in study.plan.groupings]
    if groups:
        yield f"Measures were told apart by {listed(groups)}."
    else:
        yield "The plan names no groups, so none were examined."


def _output(study: _Study) -> Iterator[str]:
    plan = study.plan
    yield {
        "classification": "A probability of each class.",
        "regression": "A mean and an interval.",
        "survival": "The probability to be without the event at each time of the plan.",
    }[plan.target.task]
    if plan.thresholds:
        yield f"Thresholds of the plan: {', '.join(map(plain, plan.thresholds))}."


def _legal_basis(study: _Study) -> Iterator[str]:
    if study.plan.reference.legal_basis:
        yield f"Legal basis of the reference rows: {study.plan.reference.legal_basis}"


def _protocol(study: _Study) -> Iterator[str]:
    yield f"The frozen plan, SHA-256 {study.result.plan_digest}; in words {study.plan.fingerprint}."


def _data_sharing(study: _Study) -> Iterator[str]:
    yield "Rows of the sites were not shared and cannot be."
    licence = study.plan.reference.licence
    yield f"Reference rows: licence {licence}." if licence else ""


def _code_sharing(study: _Study) -> Iterator[str]:
    versions = ", ".join(f"{name} {text}" for name, text in study.result.versions.items())
    yield f"predbayes, Apache-2.0; made with {versions}."


def _flow(study: _Study) -> Iterator[str]:
    tally = study.tally
    yield f"{counted(tally.num_sites, 'site')} counted; {tally.num_left_out} left out."
    yield f"Withdrawn: {counted(study.result.withdrawn, 'site')}."
    event = event_of(study.result)
    if event is not None:
        share = _told("share", event.prevalence, percent=True)
        yield f"Of {counted(event.num_rows, 'scored row')} with “{event.name}”: {share}."


def _counts(study: _Study) -> Iterator[str]:
    yield from _sample_size(study)
    yield f"Scored: {counted(study.result.num_scored, 'row')}."


def _performance(study: _Study) -> Iterator[str]:
    for contender in compared(study.result):
        figures = contender.scores.metrics.items()
        told = (
            _told(MEASURES[n].label, estimate, percent=MEASURES[n].is_share)
            for n, estimate in figures
        )
        yield f"{contender.label} ({counted(contender.scores.num_rows, 'row')}): {'; '.join(told)}."
    event = event_of(study.result)
    if event is not None:
        yield risk_words(event)
    yield study.result.group_words
    yield trusted(study.plan, study.result)


def _at_sites(study: _Study) -> Iterator[str]:
    if study.result.at_sites is not None:
        rows = counted(study.result.at_sites.pooled.num_rows, "row")
        yield f"Sites evaluated the model on {rows} that their own models had not seen."
    yield "The members’ report has figures of each site; this card names none."


def _limits(study: _Study) -> Iterator[str]:
    yield from study.result.cautions
    whose = "the reference rows" if study.result.num_scored else "those that sites held out"
    yield f"Scores hold for rows like {whose}."
    if study.plan.promise is None:
        yield "No differential privacy: a known person’s row can be looked for in the model."
    else:
        yield f"Uploads of sites are differentially private: {study.plan.promise.text}."
    if study.plan.sealing is None or study.plan.sealing.scores:
        yield "Screening is a statistical test, and no proof against manipulation."


def _poor_input(study: _Study) -> Iterator[str]:
    yield "A number outside its plausible range counts as the end of the range, and is named."
    yield from _missing(study)


def _told(label: str, estimate: Estimate, *, percent: bool) -> str:
    return f"{label} {' '.join(with_interval(estimate, percent=percent))}"


ITEMS = (
    Item("1", "title", "what was done, for whom, and what is predicted",
         "Name the people whom the model is for.", _title),
    Item("2", "abstract", "a summary of aim, data, methods and results",
         "Write it; what is known here may serve as a draft.", _abstract),
    Item("3a", "introduction", "the care in which it would serve, why, and models that exist",
         "Say what is diagnosed or foretold, why that is needed, and which models there are."),
    Item("3b", "introduction", "people, purpose, place in the path of care, and users",
         "Say whose care it is, when in it the model is asked, and who asks.", _use),
    Item("3c", "introduction", "known inequalities of health between groups",
         "Name those that matter for this outcome."),
    Item("4", "introduction", "aims: to develop, to evaluate, or both",
         "Add the aims that the plan does not have.", _objectives),
    Item("5a", "methods", "where the data are from, why, and whom they represent",
         "Say for each site where its rows are from, and whom they stand for.", _sources),
    Item("5b", "methods", "first and last dates of the data, and of follow-up",
         "Give the dates of every site."),
    Item("6a", "methods", "kind, number and place of the institutions",
         "Name kind and place of the institutions.", _setting),
    Item("6b", "methods", "who was included and who was not", "Give the criteria."),
    Item("6c", "methods", "treatments, and what was done about them", "Say so, or that none was."),
    Item("7", "methods", "how data were prepared and checked, and whether alike in all groups",
         "Say whether it was done alike for all groups.", _PREPARATION),
    Item("8a", "methods", "the outcome, its time, how and when it was assessed, and why that",
         "Say how and when it is assessed, over which time, and whether alike in all groups.",
         _outcome),
    Item("8b", "methods", "who assessed an outcome that needs judgement", "Say so, if it does."),
    Item("8c", "methods", "what was done to blind that assessment", "Say so, or that none was."),
    Item("9a", "methods", "how predictors were chosen before the model was made",
         "Say why these.", _choice_of_predictors),
    Item("9b", "methods", "every predictor: what, how and when it is measured",
         "Say how and when each is measured.", _predictors),
    Item("9c", "methods", "who measured predictors that need judgement", "Say so, if any does."),
    Item("10", "methods", "how many, why so many, and whether that is enough",
         "Say why this is enough.", _sample_size),
    Item("11", "methods", "what was done about missing values, and about rows left out",
         "Say why values are missing.", _missing),
    Item("12a", "methods", "which data served for what, and how they were parted", "", _partition),
    Item("12b", "methods", "how predictors enter the model", "", _scaling),
    Item("12c", "methods", "kind of model, why, every step of making it, and inner validation",
         "Say why this kind.", _model_type),
    Item("12d", "methods", "how differences between sites were handled and measured",
         "", _heterogeneity),
    Item("12e", "methods", "measures and figures by which it is judged, and why",
         "Say why these, where not every reader knows.", _measures),
    Item("12f", "methods", "whether the model was updated after its evaluation", "", _UPDATING),
    Item("12g", "methods", "how predictions were calculated in the evaluation", "", _PREDICTION),
    Item("13", "methods", "what was done about classes of unequal size", "", _imbalance),
    Item("14", "methods", "what was done for fairness, and why",
         "Say why these groups, or why none.", _fairness),
    Item("15", "methods", "what the model gives out; thresholds, and why those",
         "Give reasons for thresholds, if somebody acts by them.", _output),
    Item("16", "methods", "how data of development and evaluation differ",
         "Compare places, people, outcome and predictors of both.", _differences),
    Item("17", "methods", "ethical approval and consent",
         "Name the committees, and consent or its waiver.", _legal_basis),
    Item("18a", "open science", "who paid, and what they had to do with it", "Say so."),
    Item("18b", "open science", "conflicts of interest", "Declare them."),
    Item("18c", "open science", "the protocol, and where it can be had",
         "Say where it can be had.", _protocol),
    Item("18d", "open science", "registration", "Give register and number, or say that none is."),
    Item("18e", "open science", "whether data can be had",
         "Say whether the reference rows can be had, and where.", _data_sharing),
    Item("18f", "open science", "whether code can be had", "", _code_sharing),
    Item("19", "involvement", "what patients and the public had to do with it",
         "Say so, or that they had nothing to do with it."),
    Item("20a", "results", "how many came, stayed and had the outcome; follow-up",
         "Add the people whom each site looked at, and why some were left out.", _flow),
    Item("20b", "results", "what the people are like, in each place and in all; differences",
         "Let each site describe its rows, which stayed there."),
    Item("20c", "results", "predictors in evaluation compared with those in development",
         "Compare reference rows with rows of the sites, as far as sites tell."),
    Item("21", "results", "rows and events in each analysis",
         "Add events at the sites, as far as they tell.", _counts),
    Item("22", "results", "all that is needed to predict for somebody new, and who may",
         "Say who may have it.", _SPECIFICATION),
    Item("23a", "results", "performance with intervals, also of important groups",
         "", _performance),
    Item("23b", "results", "how performance differs between sites",
         "Tell of differences in the members’ report, as the sites agree.", _at_sites),
    Item("24", "results", "what updating gave", "Tell what adoptions at sites gave, if any.",
         _UPDATING),
    Item("25", "discussion", "what the results mean, fairness included",
         "Say so, and compare with earlier studies."),
    Item("26", "discussion", "limits, and what they do to the results",
         "Say what they mean for the use intended.", _limits),
    Item("27a", "discussion", "what to do about poor or missing input in use",
         "Say who sees to it.", _poor_input),
    Item("27b", "discussion", "what users must do and know", "Say so."),
    Item("27c", "discussion", "what should be examined next", "Say so."),
)  # fmt: skip
"""Every item, in the order of the guideline."""
