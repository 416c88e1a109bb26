"""A plan as TOML that people read: every section says what it is for, every rule what it does.

The text loads back to an equal plan: `Plan.loads(dump(plan)) == plan`. What a reader should decide
about is written out even where it is the default; what would be noise, such as an empty unit, is
left out. Comments are no part of a plan's digest, so they may change with the version; their words
are in `comments.toml`, and for a section of an extra in a file of this name beside its module.

Keys and values are written by tomlkit, for a site's file, too. The layout is ours, because comments
stand below each other; and a whole number has no point, because the text of a frozen plan must not
change with a library.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import tomlkit

from predbayes_study.plan.schema import Category, Column, Plan, Section, Target

with resources.files(__package__).joinpath("comments.toml").open("rb") as _file:
    _COMMENTS = tomllib.load(_file)

_COMMENT_FROM = 30  # comments of a section stand below each other, unless its lines are longer
_COMMENT_UP_TO = 48
_WIDTH = 98  # of comments that are made here
_QUIET = {
    "reference.file", "frozen.signing_key", "frozen.encryption_key",
    "frozen.software",
}  # fmt: skip
"""Keys that are noise where they are empty."""


_SELDOM = {"rules.min_rows", "learner.split", "target.event", "target.codes", "target.times"}
"""Keys that few plans need, shown only where they are not at their default."""


def dump(plan: Plan, notes: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the text of a plan, with comments; notes are further ones, above columns."""
    header = _COMMENTS["draft" if plan.frozen is None else "frozen"]
    top = _lines("", {k: v for k, v in plan if not isinstance(v, Section | Mapping)})
    parts = [header + "\n".join(top)]
    *others, frozen = plan
    for name, value in (*others, *plan.sections.items(), frozen):
        if name == "columns":
            comments = _above(_COMMENTS, name)
            parts.append("\n".join([*comments, *_columns(plan.columns, notes or {})]))
        elif isinstance(value, Section):
            parts += _sections(name, value, _COMMENTS if name in Plan.model_fields else _of(value))
    if plan.frozen is None and plan.measures is None:
        parts.append(_offer_measures(plan))
    return "\n\n".join(parts) + "\n"


def _of(section: Section) -> Mapping[str, Any]:
    """The comments of an extra's section, from the file beside its module, if there is one."""
    package = sys.modules[type(section).__module__].__package__
    file = resources.files(package or type(section).__module__).joinpath("comments.toml")
    stated = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    return {"sections": {}, "keys": {}, **stated}


def _sections(name: str, section: Section, comments: Mapping[str, Any]) -> Iterator[str]:
    """A section, and those that are in it."""
    values = _shown(name, section)
    inner = {key: value for key, value in values.items() if isinstance(value, Section)}
    outer = {key: value for key, value in values.items() if key not in inner}
    yield "\n".join([*_above(comments, name), *_lines(f"{name}.", outer, comments)])
    for key, value in inner.items():
        yield from _sections(f"{name}.{key}", value, comments)


def _above(comments: Mapping[str, Any], name: str) -> list[str]:
    return [*(f"# {line}" for line in comments["sections"].get(name, "").splitlines()), f"[{name}]"]


def _offer_measures(plan: Plan) -> str:
    """The section of a draft that states no measures, as comments: it can be had without signs."""
    target, adds = plan.target, ""
    values: dict[str, Any] = {}
    if target.classes and len(target.classes) == 2:
        values["event"] = target.classes[1]
    if target.classes:
        values["thresholds"] = (0.1, 0.2)
        adds = f"Thresholds add {_COMMENTS['measured']['thresholds']}."
    words = [name for name, column in plan.columns.items() if isinstance(column, Category)]
    values["groups"] = tuple(name for name in words[:1] if name and ":" not in name)
    told = textwrap.wrap(f"The report has {_COMMENTS['measured'][target.task]}. {adds}", _WIDTH)
    lines = [_COMMENTS["sections"]["measures"], *told, "To ask for it, delete the # from here on."]
    lines += ["[measures]", *_lines("measures.", values)]
    return "\n".join(f"# {line}" for line in lines)


def _shown(name: str, section: Section) -> dict[str, Any]:
    """The keys of a section that are not noise for this plan."""
    values = dict(section)
    if isinstance(section, Target):
        values = {key: value for key, value in values.items() if key in section.allowed}
    for key, told in type(section).model_fields.items():
        if f"{name}.{key}" in _SELDOM and values.get(key) == told.default:
            del values[key]
    return {k: v for k, v in values.items() if v or f"{name}.{k}" not in _QUIET}


def _lines(
    prefix: str, values: dict[str, Any], comments: Mapping[str, Any] = _COMMENTS
) -> list[str]:
    """One line for each value, its comment behind it."""
    written = [(f"{prefix}{key}", _assignment(prefix, key, value)) for key, value in values.items()]
    pairs = [(line, comments["keys"].get(path, "")) for path, line in written if line]
    widths = [len(line) for line, comment in pairs if comment and len(line) <= _COMMENT_UP_TO]
    column = max([_COMMENT_FROM, *widths])
    return [f"{line:<{column}}  # {comment}" if comment else line for line, comment in pairs]


def _assignment(prefix: str, key: str, value: Any) -> str:
    unset = _COMMENTS["unset"].get(f"{prefix}{key}", "")
    if value is None:
        return f"# {unset}" if unset else ""
    if isinstance(value, str) and "\n" in value:
        return f"{key} = {_paragraphs(value)}"
    return f"{key} = {toml_value(value)}"


def _columns(columns: dict[str, Column], notes: Mapping[str, Sequence[str]]) -> list[str]:
    lines: list[str] = []
    for name, column in columns.items():
        lines += (f"# {' '.join(note.split())}" for note in notes.get(name, ()))
        lines += assignments({name: _shown_of(column)})
    return lines


def _shown_of(column: Column) -> dict[str, Any]:
    """The keys of a column that are not noise; `missing` and `other` always show."""
    quiet = {"unit": "", "optional": False}
    shown = {k: v for k, v in column if v is not None and not (k in quiet and v == quiet[k])}
    return {"type": column.type} | shown


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Return one `key = value` for each value.

    Examples:
        >>> assignments({"range": (0.0, 1.5), "recode": {"m.": "male"}})
        ['range = [0, 1.5]', 'recode = { "m." = "male" }']
    """
    return [f"{tomlkit.key(k).as_string()} = {toml_value(v)}" for k, v in values.items()]


def toml_value(value: Any) -> str:
    """Return a value in one line."""
    if isinstance(value, Section):
        value = dict(value)
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
