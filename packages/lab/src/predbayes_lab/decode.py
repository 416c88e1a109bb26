"""From the tables of a TOML file to frozen dataclasses, strictly.

Keys are written with hyphens and are the fields' names. An unknown key is an error that names
the closest one; so is a value of another type. What a class refuses itself is reported with its
place in the file.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from predbayes.errors import ExperimentError, PredbayesError, no_such

T = TypeVar("T")

_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


def decode(cls: type[T], table: Mapping[str, Any], where: str = "", base: T | None = None) -> T:
    """Decode a dataclass from a table; fields not given are the defaults, or those of ``base``."""
    fields: dict[str, Any] = hints(cls)  # type: ignore[arg-type]  # a type is hashable
    given = {}
    prefix = f"{where}." if where else ""
    for key, value in table.items():
        require_known("key", [prefix + key], [prefix + name for name in fields])
        given[key.replace("-", "_")] = convert(fields[key], value, prefix + key)
    missing = [name for name in _required(cls) if name not in given]
    if missing and base is None:
        raise ExperimentError(f"{where or 'the config'} needs {', '.join(missing)}")
    try:
        return dataclasses.replace(base, **given) if base is not None else cls(**given)  # type: ignore[type-var]
    except PredbayesError as error:
        raise ExperimentError(f"{where}: {error}") from error


def convert(hint: Any, value: Any, place: str) -> Any:
    """Convert a value to a type, or raise an error that says where it is."""
    if isinstance(value, list) and any(get_origin(h) is tuple for h in (hint, *get_args(hint))):
        value = tuple(value)  # also where the field may be something else, such as None
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise ExperimentError(f"{place} = {value!r}: {problem[0].lower()}{problem[1:]}") from error


def require_known(kind: str, names: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Refuse a name that does not exist; say which is nearest."""
    for name in names:
        if name not in known:
            raise ExperimentError(where + no_such(kind, name, known))


def encode(value: Any) -> dict[str, Any]:
    """Encode a dataclass as a table, the inverse of `decode`."""
    return {
        name.replace("_", "-"): list(item) if isinstance(item, tuple) else item
        for name, item in dataclasses.asdict(value).items()
    }


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{path.name} is not TOML: {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse a dotted key and a value, as given on the command line.

    Examples:
        >>> parse_assignment("sampler.step-size=0.2"), parse_assignment("data.name=wine")
        (('sampler.step-size', 0.2), ('data.name', 'wine'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ExperimentError(f"{text!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # a word without quotes


def get_dotted(table: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or None."""
    value: Any = table
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def with_dotted(table: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy of nested tables with one value set."""
    head, _, rest = key.partition(".")
    if not rest:
        return {**table, head: value}
    inner = table.get(head, {})
    if not isinstance(inner, Mapping):
        raise ExperimentError(f"{head!r} is a value and has no key {rest!r}")
    return {**table, head: with_dotted(inner, rest, value)}


@cache
def hints(cls: type[Any]) -> dict[str, Any]:
    """Return the type of each key of a dataclass's table."""
    found = get_type_hints(cls)
    return {f.name.replace("_", "-"): found[f.name] for f in dataclasses.fields(cls)}


@cache  # making one takes a hundred times as long as using it
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=_STRICT)


def _required(cls: type[Any]) -> list[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]
