"""Everything that is read from a file or a message has a bound: each number, text and list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import predbayes
import predbayes_study
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.strict import (
    LARGEST,
    MAX_COUNT,
    Bounded,
    Finite,
    Json,
    RowCount,
    Strict,
    bounded,
)
from predbayes_study.extras.records import crate

BOUNDS = {
    "int": [("le", "lt"), ("ge", "gt")],
    "float": [("le", "lt"), ("ge", "gt"), ("allow_inf_nan",)],
    **{key: [("max_length",)] for key in ("str", "list", "tuple", "dict", "set", "frozenset")},
}
EXCEPTIONS = {
    id(crate._Listing): "names and digests of a file whose size is bounded: nothing is computed",
}


def open_parts(schema: Any, where: str = "", seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Where a schema has a number, a text or a list without a bound, or takes anything."""
    if id(schema) in seen or not isinstance(schema, dict | list | tuple):
        return
    seen |= {id(schema)}
    if not isinstance(schema, dict):
        for part in schema:
            yield from open_parts(part, where, seen)
        return
    function = schema.get("function")
    if isinstance(function, dict) and function.get("function") is bounded:
        return  # looks at whatever it is
    kind = schema.get("type")
    if kind == "any":
        yield f"{where}: anything"
    for names in BOUNDS.get(kind, ()) if isinstance(kind, str) else ():
        value = [schema[name] for name in names if schema.get(name) is not None]
        if not value or value[0] is True:
            yield f"{where}: {kind} without {names[0]}"
    if kind == "definitions":
        schema = schema["schema"]  # others are reached from there, or looked at by `bounded`
    inside = {k: v for k, v in schema.items() if k not in ("metadata", "config", "serialization")}
    for name, part in inside.items():
        yield from open_parts(part, f"{where}.{name}", seen)


def all_forms(*packages: ModuleType) -> dict[str, Any]:
    """Every model and adapter of packages: what files and messages are read by."""
    models, found = [BaseModel], {}
    for package in packages:
        for about in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if about.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(about.name)).items():
                several = value.values() if type(value) is dict else [value]
                for adapter in (one for one in several if type(one) is TypeAdapter):
                    if id(adapter) not in EXCEPTIONS:
                        adapter.rebuild()
                        found[f"{name} {id(adapter)}"] = adapter.core_schema
    while models:
        one = models.pop()
        models += one.__subclasses__()
        if one.__module__.startswith("predbayes"):
            found[f"{one.__module__}.{one.__qualname__}"] = one.__pydantic_core_schema__
    return found


def test_every_form_has_bounds():
    forms = all_forms(predbayes, predbayes_study)
    assert len(forms) > 80
    assert sum(name.startswith("_FORMS ") for name in forms) > 5
    left = {name: found for name, form in forms.items() if (found := [*open_parts(form)])}
    assert left == {}


class Loose(BaseModel):
    """What the test must find."""

    number: float
    rows: list[int]
    anything: Any


def test_what_has_none_is_found():
    found = [*open_parts(Loose.__pydantic_core_schema__)]
    assert {line.partition(": ")[2] for line in found} == {
        *("float without le", "float without ge", "float without allow_inf_nan"),
        *("list without max_length", "int without le", "int without ge", "anything"),
    }
    tight = TypeAdapter(Annotated[list[tuple[int, float, str]], Bounded()])
    assert [*open_parts(tight.core_schema)] == []


class Tight(Strict):
    """A form that says nothing of bounds."""

    number: float = 0.0
    count: int = 0
    rows: RowCount = 0
    numbers: tuple[Finite, ...] = ()
    data: Json = None


HUGE = "1" + "0" * 320


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{"number": {value}}}' for value in (HUGE, "1e308", "NaN", "-Infinity", "1.1e100")),
        *(f'{{"count": {value}}}' for value in (HUGE, f"-{HUGE}", str(MAX_COUNT + 1))),
        *('{"rows": 1000000001}', '{"rows": -1}', '{"numbers": [0.0, 1e200]}'),
        *(f'{{"data": {{"a": [{value}]}}}}' for value in (HUGE, "1e200", "NaN")),
        f'{{"data": {"[" * 100_000}{"]" * 100_000}}}',
    ],
    ids=lambda text: text[:30],
)
def test_what_is_beyond_them_is_refused(text):
    with pytest.raises(ValidationError):
        Tight.model_validate_json(text)


def test_what_is_within_them_is_taken():
    text = f'{{"number": {LARGEST}, "count": {-MAX_COUNT}, "data": [5e-324, {{"a": -0.0}}]}}'
    assert Tight.model_validate_json(text).data == [5e-324, {"a": -0.0}]
    with pytest.raises(ValidationError, match="details"):
        UploadInfo.model_validate_json(
            f'{{"kind": "x", "num_rows": 1, "details": {{"a": {HUGE}}}}}'
        )
