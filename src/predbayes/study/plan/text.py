"""A plan as TOML that people read: every section says what it is for, every rule what it does.

The text loads back to an equal plan: `Plan.loads(dump(plan)) == plan`. What a reader should decide
about is written out even where it is the default; what would be noise, such as an empty unit, is
left out. Comments are no part of a plan's digest, so they may change with the version.

Keys and values are written by tomlkit, for a site's file, too. The layout is ours, because comments
stand below each other; and a whole number has no point, because the text of a frozen plan must not
change with a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit

from predbayes.study.plan.schema import Category, Column, Number, Plan, Section

_DRAFT = """\
# The plan of a study: what everybody agrees on before anybody trains.
# Edit it, run `predbayes plan check`, then `predbayes plan freeze`.
"""
_FROZEN = """\
# The plan of a study, frozen: any change of its content changes its fingerprint.
# Comments, spaces and line endings are no part of it.
"""
_SECTIONS = {
    "target": "What is predicted.",
    "columns": (
        "What it is predicted from, one line each, in the order of the network's inputs.\n"
        'type "number": unit; range of plausible values; later centre and scale, by freezing.\n'
        'type "category": categories in order; other = true makes other words one more category.\n'
        'missing: "refuse" is an error, "impute" puts the centre, "flag" tells the network as '
        "well.\n"
        "optional = true: a site may lack the column."
    ),
    "reference": "Rows that every party may see; their labels stay with the coordinator.",
    "model": "The network that everybody gets back.",
    "learner": "What a site fits.",
    "upload": "What leaves a site.",
    "pool": "How the coordinator combines the uploads.",
    "rules": "What holds for everybody.",
    "frozen": "Written by `predbayes plan freeze`.",
}
_KEYS = {
    "seed": "all randomness derives from it",
    "target.task": "classification or regression",
    "target.classes": "in the order of the model's outputs",
    "target.unit": "results come back in it",
    "target.transform": "none, or log for targets that are positive and skewed",
    "target.centre": "of the transformed target; so is the scale",
    "reference.file": "CSV or Parquet, relative to this file; sites never see this path",
    "reference.source": "who collected the rows, when, where",
    "reference.licence": "under which terms sites may hold them",
    "reference.legal_basis": "such as consent, anonymised, public",
    "reference.labelled": "rows to tune the pool on",
    "reference.evaluate": "rows whose labels are opened only to score",
    "reference.unlabelled": "further rows to distil on",
    "model.hidden": "widths of the hidden layers",
    "model.module": "or a network of your own: package.module:function, installed everywhere",
    "learner.name": "network: the one above; any: a model of the site's choice",
    "learner.preset": "of the network's sampler: tuned or paper",
    "learner.num_epochs": "passes over a site's rows",
    "learner.min_steps": "small sites pass over their rows more often",
    "learner.max_samples": "weight samples that a site keeps",
    "learner.threads": "with one, a run repeats to the bit",
    "learner.holdout": "share of a site's rows that is never trained on",
    "upload.kind": "predictions on the reference rows, or weights",
    "upload.precision": "of predictions: float16 or float32",
    "upload.release": "automatic, or manual: somebody at the site looks first",
    "upload.max_bytes": "larger uploads are refused",
    "pool.method": "auto (the labelled rows choose), beta, mixture or product",
    "pool.own": "the coordinator's own model of the labelled rows, or none",
    "pool.floor": "least log p with which a site enters",
    "rules.quorum": "sites without which the study does not finish",
    "rules.deadline": "day after which uploads are late",
    "rules.min_cell": "smaller counts are not sent",
    "rules.min_labels_to_judge": "with fewer, nothing is said about calibration",
    "rules.screening": "of sites that contradict the labels: report or leave-out",
    "frozen.inputs_digest": "of the reference inputs",
    "frozen.labels_digest": "of their labels, salted: it says nothing about them",
    "frozen.version": "of predbayes",
    "frozen.module_digest": "of the source of the network of your own",
}
_UNSET = {
    "learner.num_epochs": "num_epochs = 25",
    "rules.deadline": "deadline = 2030-12-31",
}
"""How to write what a plan leaves open, offered as a comment where it makes sense."""

_COMMENT_FROM = 30  # comments of a section stand below each other, unless its lines are longer
_COMMENT_UP_TO = 48


def dump(plan: Plan) -> str:
    """Return the text of a plan, with comments."""
    header = _DRAFT if plan.frozen is None else _FROZEN
    top = _lines("", {k: v for k, v in plan if not isinstance(v, Section | dict)})
    parts = [header + "\n".join(top)]
    for name, value in plan:
        if name == "columns":
            parts.append(_section(name, _columns(plan.columns)))
        elif isinstance(value, Section):
            parts.append(_section(name, _lines(f"{name}.", _shown(name, value))))
    return "\n\n".join(parts) + "\n"


def _section(name: str, lines: list[str]) -> str:
    comments = [f"# {line}" for line in _SECTIONS[name].splitlines()]
    return "\n".join([*comments, f"[{name}]", *lines])


def _shown(name: str, section: Section) -> dict[str, Any]:
    """The keys of a section that are not noise for this plan."""
    values = dict(section)
    if name == "target" and values["task"] == "classification":
        del values["unit"], values["transform"]  # a class has neither
    quiet = {"reference": "file", "frozen": "module_digest"}.get(name)
    if quiet is not None and not values.get(quiet, ""):
        values.pop(quiet, None)
    return values


def _lines(prefix: str, values: dict[str, Any]) -> list[str]:
    """One line for each value, its comment behind it."""
    written = [(f"{prefix}{key}", _assignment(prefix, key, value)) for key, value in values.items()]
    pairs = [(line, _KEYS.get(path, "")) for path, line in written if line]
    widths = [len(line) for line, comment in pairs if comment and len(line) <= _COMMENT_UP_TO]
    column = max([_COMMENT_FROM, *widths])
    return [f"{line:<{column}}  # {comment}" if comment else line for line, comment in pairs]


def _assignment(prefix: str, key: str, value: Any) -> str:
    unset = _UNSET.get(f"{prefix}{key}", "")
    if value is None:
        return f"# {unset}" if unset else ""
    if isinstance(value, str) and "\n" in value:
        return f"{key} = {_paragraphs(value)}"
    return f"{key} = {toml_value(value)}"


def _columns(columns: dict[str, Column]) -> list[str]:
    return assignments({name: _shown_of(column) for name, column in columns.items()})


def _shown_of(column: Number | Category) -> dict[str, Any]:
    """The keys of a column that are not noise; `missing` and `other` always show."""
    quiet = {"unit": "", "optional": False}
    return {k: v for k, v in column if v is not None and not (k in quiet and v == quiet[k])}


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Return one `key = value` for each value.

    Examples:
        >>> assignments({"range": (0.0, 1.5), "recode": {"m.": "male"}})
        ['range = [0, 1.5]', 'recode = { "m." = "male" }']
    """
    return [f"{tomlkit.key(k).as_string()} = {toml_value(v)}" for k, v in values.items()]


def toml_value(value: Any) -> str:
    """Return a value in one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(assignments(value))} }}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):  # the shortest digits that read back as the same number
        text = repr(value)
        return text if text == "-0.0" else text.removesuffix(".0")
    return str(tomlkit.item(value).as_string())


def _paragraphs(value: str) -> str:
    """Several lines as several lines. TOML drops the line break behind the opening quotes."""
    lines = (toml_value(line)[1:-1] for line in value.split("\n"))
    return '"""\n' + "\n".join(lines) + '"""'
