"""Data whose form is checked, and the names of sites: what schemas share, without torch."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

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


class Strict(BaseModel):
    """Plain data; wrong types, unknown names and text that does not show what it is are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    besides: ClassVar[Mapping[str, str]] = {}  # characters that a field's text may also have

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
    Annotated[str, StringConstraints(strict=True, pattern=_PATTERN)],
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
