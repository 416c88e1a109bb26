"""Files that sites send beside their uploads: what the spine knows of them.

An extra adds a kind by an entry of `Extra.events`: the ledger's step for such a file, which is also
the ending of its name, and an `AttachmentKind`. Of each kind the newest file of a site counts, from
its registration on: it needs neither kit nor training. An attachment changes no model. What all of
a kind say together is in the result's `extras`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from predbayes.errors import StudyError, no_such
from predbayes.files import open_regular
from predbayes.text import printable
from predbayes_study.extra import added, load
from predbayes_study.plan.schema import Plan


@dataclass(frozen=True, slots=True)
class Attachment:
    """One file as it was read."""

    site: str
    key: str  # that it names as the one that signs it
    is_signed: bool  # with that key
    plan: str  # digest of the plan, or of its draft, that it answers
    digest: str  # of its content
    num_rows: int
    content: Any = None
    seen: str | None = None  # the ledger's head that it names; None: its kind names none


class AttachmentKind(Protocol):
    """What an extra says of a kind of attachment."""

    max_bytes: int

    def begins(self, content: bytes) -> bool:
        """Return whether a file that begins so is of this kind; no upload may."""

    def read(self, path: Path) -> Attachment:
        """Read a file; refuse one that was altered after it was signed."""

    def check(self, plan: Plan, attachment: Attachment) -> None:
        """Refuse a file that does not fit the plan, or that `conclude` could not use."""

    def conclude(
        self, plan: Plan, attachments: Sequence[Attachment], num_sites: int
    ) -> dict[str, Any] | None:
        """Return what all of them say together, as JSON has it; None if that is nothing."""


def attachment_kinds() -> list[str]:
    """Return the kinds that installed extras add."""
    return [name for name, _, _ in added("events")]


def kind_named(name: str) -> AttachmentKind:
    """Return a kind by its name."""
    return cast(AttachmentKind, load("events", name))


def kind_of(path: Path, content: bytes | None = None) -> str:
    """Return the kind of a file, whose content may be known; "" if it can only be an upload."""
    if content is None:
        try:
            with open_regular(path) as file:
                content = file.read(16)
        except (OSError, ValueError):
            return ""  # the caller reads it as an upload, and says what is wrong
    return next((name for name in attachment_kinds() if kind_named(name).begins(content)), "")


def max_bytes() -> Iterator[int]:
    """Yield the most bytes that a file of each kind may have."""
    return (kind_named(name).max_bytes for name in attachment_kinds())


def read_attachment(
    name: str, path: Path, plan: Plan, keys: Mapping[str, str], digest: str | None = None
) -> Attachment:
    """Read an attachment of a registered site.

    Args:
        name: Its kind.
        path: The file.
        plan: Of the study.
        keys: The public key of each registered site.
        digest: Digest of the content, if it is known.
    """
    kind = kind_named(name)
    found = kind.read(path)
    site = printable(found.site)
    if not found.is_signed:
        raise StudyError(f"it is not signed: it was held back at {site}")
    if found.site not in keys:
        raise StudyError(printable(no_such("admitted site", found.site, keys), 200))
    if found.key != keys[found.site]:
        raise StudyError(f"it is not signed with the key that {site} was admitted with")
    if digest not in (None, found.digest):
        raise StudyError(f"the {name} of {site} was altered; run `predbayes study verify`")
    kind.check(plan, found)
    return found
