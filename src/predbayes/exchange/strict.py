"""Data whose form is checked, and the names of sites: what schemas share, without torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from predbayes.errors import UploadError

SITE_PATTERN = r"^[\w&&\P{DI}][[\w .-]&&\P{DI}]{0,63}$"
"""What a site may be called, for it stands in ledgers, in reports and on terminals.

Letters, digits and a few marks of any script, none of them invisible (DI: default ignorable).
"""


class Strict(BaseModel):
    """Plain data; wrong types and unknown names are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def require_site_name(name: str) -> None:
    """Refuse a name that could mislead whoever reads it."""
    try:
        _SITE_NAME.validate_python(name)
    except ValidationError as error:
        raise UploadError(
            "a site's name has at most 64 letters, digits, spaces, dots, hyphens and underscores, "
            "and begins with a letter or digit"
        ) from error


_SITE_NAME = TypeAdapter(Annotated[str, StringConstraints(strict=True, pattern=SITE_PATTERN)])
