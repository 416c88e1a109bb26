"""Data whose form is checked, and the names of sites: what schemas share, without torch.

Whatever a form leaves open has a bound all the same (`Bounded`): the size of a number, the length
of a text and of a list. So nothing that a file says can overflow where it is used.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema

from predbayes.errors import TextError, UploadError
from predbayes.text import require_printable

_PATTERN = r"^[\w&&\P{M}]([\w .-]{0,62}[\w-])?$"
_RESERVED = {
    "all of them",
    "checkpoint",
    "common model",
    "coordinator",
    "egress",
    "evaluation",
    "holdout",
    "home",
    "kit",
    "labels",
    "ledger",
    "model",
    "plan",
    "pool",
    "reference",
    "report",
    "result",
    "results",
    "student",
    "study",
    "uploads",
}
"""Names of files of a site and of a study, and of lines in a report that are no site's."""


def _is_empty(value: object) -> bool:
    return value is None or (not isinstance(value, int | float) and not value)


T = TypeVar("T")
Sparse = Annotated[T, Field(exclude_if=_is_empty)]
"""A value that is not written where it is None or empty."""

_TEXTLESS = (float, int, bool, type(None))
_HELD_BACK = "held-back"  # begins the names of files that wait for an approval
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9])( *\..*)?")
"""Names that Windows opens as a device, whatever ending they have."""


MAX_ROWS = 10**9
"""The most rows that a site can have."""

MAX_COUNT = 2**63 - 1
"""The largest whole number, in size."""

LARGEST = 1e100
"""The largest number, in size: squares of it, added up over rows and sites, are finite."""

MAX_TEXT, MAX_ITEMS = 1_000_000, 1_000_000
"""The most letters of a text, and the most items of a list, where a form does not say."""

RowCount = Annotated[int, Field(ge=0, le=MAX_ROWS)]
"""Rows of a site, or some of them."""

Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]


def bounded(value: JsonValue) -> JsonValue:
    """Return plain data; refuse numbers that are beyond the bounds, or are not finite."""
    match value:
        case dict():
            parts: Iterable[JsonValue] = value.values()
        case list():
            parts = value
        case float() if not abs(value) <= LARGEST:
            raise ValueError("numbers must be finite" if not math.isfinite(value) else _TOO_LARGE)
        case int() if abs(value) > MAX_COUNT:
            raise ValueError(_TOO_LARGE)
        case _:
            return value
    for part in parts:
        bounded(part)
    return value


_TOO_LARGE = "numbers must not be so large"

Json = Annotated[JsonValue, AfterValidator(bounded)]
"""Plain data whose form others know."""

_LISTS = ("list", "tuple", "dict", "set", "frozenset")
_OPEN: Mapping[str, Mapping[tuple[str, ...], Any]] = {
    "int": {("le", "lt"): MAX_COUNT, ("ge", "gt"): -MAX_COUNT},
    "float": {("le", "lt"): LARGEST, ("ge", "gt"): -LARGEST, ("allow_inf_nan",): False},
    "str": {("max_length",): MAX_TEXT},
    **{kind: {("max_length",): MAX_ITEMS} for kind in _LISTS},
}
"""By the kind of a schema: the names of a bound, and what to set the first to if there is none."""

_NO_SCHEMAS = {"metadata", "config", "serialization", "default"}


class Bounded:
    """Sets bounds on all that a form leaves open: `Annotated[form, Bounded()]`."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Set the bounds of a form, and of all in it."""
        schema = handler(source)
        _set_bounds(schema, handler, set())
        return schema


def _set_bounds(part: Any, handler: GetCoreSchemaHandler, seen: set[int]) -> None:
    """Set the bounds of a schema, or of all schemas in part of one."""
    if isinstance(part, dict) and part.get("type") == "definition-ref":
        part = handler.resolve_ref_schema(cast("CoreSchema", part))
    if not isinstance(part, dict | list) or id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, dict):
        kind = part.get("type")
        for names, bound in _OPEN.get(kind, {}).items() if isinstance(kind, str) else ():
            if all(part.get(name) is None for name in names):
                part[names[0]] = bound
        inside = [value for name, value in part.items() if name not in _NO_SCHEMAS]
    else:
        inside = part
    for value in inside:
        _set_bounds(value, handler, seen)


class Strict(BaseModel):
    """Plain data; wrong types, unknown names and text that does not show what it is are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    besides: ClassVar[Mapping[str, str]] = {}  # characters that a field's text may also have

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Set bounds on what fields leave open."""
        return Bounded().__get_pydantic_core_schema__(source, handler)

    @field_validator("*")
    @classmethod
    def _printable(cls, value: Any, info: ValidationInfo) -> Any:
        for text in _texts(value):
            require_printable(text, cls.besides.get(info.field_name or "", ""))
        return value


def require_site_name(name: str) -> str:
    """Return the name of a site; refuse one that could mislead whoever reads it, or a computer."""
    try:
        require_printable(name)
        _SITE_NAME.validate_python(name)
    except TextError as error:
        raise UploadError(f"a site's name {error}") from error
    except ValidationError as error:
        raise UploadError(
            "a site's name has at most 64 letters, digits, spaces, dots, hyphens and underscores, "
            "begins with a letter or digit, and ends with neither space nor dot"
        ) from error
    folded = folded_name(name)
    if folded in _RESERVED or folded.startswith(_HELD_BACK) or _DEVICES.fullmatch(folded):
        raise UploadError(f"no site may be called {name}: a file or a device is; choose another")
    return name


def folded_name(name: str) -> str:
    """Return what two names of one site have in common: neither case nor the form of letters.

    Examples:
        >>> folded_name("BASEL") == folded_name("Basel")
        True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def valid_site_name(name: str) -> str:
    """Check a name as `require_site_name` does, in the way of a schema's validators."""
    try:
        return require_site_name(name)
    except UploadError as error:
        raise ValueError(error.reason) from error


_SITE_NAME = TypeAdapter(
    Annotated[str, StringConstraints(strict=True, pattern=_PATTERN, max_length=64)],
    config=ConfigDict(defer_build=True),  # the pattern knows every letter of Unicode: 50 ms
)

SiteName = Annotated[str, AfterValidator(valid_site_name)]
"""What a site may be called, for it stands in ledgers, in reports, in file names, on terminals."""


def _texts(value: Any) -> Iterator[str]:
    """Every text of a value; those of schemas in it have been looked at."""
    if type(value) in _TEXTLESS:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            if type(part) not in _TEXTLESS:  # asked here, too: most are thousands of numbers
                yield from _texts(part)
    elif isinstance(value, Mapping):
        for part in (*value, *value.values()):
            yield from _texts(part)
