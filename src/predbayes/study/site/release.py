"""What people at a site approved, and what may leave it: the same for files and for Flower.

    the plan      needs an approval before training if it says `release = "manual"`, and always if
                  a message from outside asks for training: nobody sits there who could refuse
    an upload     needs an approval before it is signed if the plan says `release = "manual"`

Approvals are recorded in `approvals.jsonl` beside the site's `site.toml`, a hash-chained ledger:
who approved what, when. They are by digest: a plan or an upload that changes needs a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from predbayes.errors import StudyError
from predbayes.files import remove, write_whole
from predbayes.study.store.ledger import Ledger
from predbayes.study.wording import quoted

if TYPE_CHECKING:  # a Flower node reads approvals without torch
    from predbayes.exchange.signing import SigningKey
    from predbayes.exchange.upload import Upload
    from predbayes.study.kit.kit import Kit
    from predbayes.study.plan.schema import Plan

FILE = "approvals.jsonl"


@dataclass(frozen=True, slots=True)
class Approvals:
    """The approvals of one site, and what they allow."""

    folder: Path

    def record(self, what: Literal["plan", "upload"], digest: str, by: str) -> bool:
        """Record an approval; False if it was given before."""
        if self.given(what, digest):
            return False
        if self._ledger.path.exists():
            self._ledger.mend()
        self._ledger.append("approve", {"what": what, "digest": digest, "by": by})
        return True

    def given(self, what: Literal["plan", "upload"], digest: str) -> bool:
        """Return whether this digest was approved."""
        return digest in self._digests(what)

    def plans(self) -> tuple[str, ...]:
        """Return the digests of all plans that were approved."""
        return self._digests("plan")

    def may_train(self, kit: Kit, *, by_message: bool = False) -> bool:
        """Return whether a site may train, if somebody there asks for it or a message does."""
        asks = by_message or _asks_people(kit.plan)
        return not asks or self.given("plan", kit.digest)

    def require_plan(self, kit: Kit, option: str = "") -> None:
        """Refuse to train for a plan that waits for an approval.

        The command that gives it must be told the option besides.
        """
        if not self.may_train(kit):
            raise StudyError(
                "the plan asks for an approval before training: predbayes site approve "
                f"{quoted(kit.folder)} --by NAME{option}"
            )

    def may_leave(self, plan: Plan, upload: Upload) -> bool:
        """Return whether an upload may be signed."""
        return not _asks_people(plan) or self.given("upload", upload.digest())

    def _digests(self, what: str) -> tuple[str, ...]:
        if not self._ledger.path.exists():
            return ()
        given = (entry.data for entry in self._ledger.entries())
        return tuple(str(data["digest"]) for data in given if data.get("what") == what)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.folder / FILE)


def write_upload(upload: Upload, key: SigningKey | None, signed: Path, held_back: Path) -> Path:
    """Write an upload signed or, without a key, held back; the other file is removed."""
    path, other = (held_back, signed) if key is None else (signed, held_back)
    write_whole(path, lambda partial: upload.save(partial, key))
    remove(other)  # of an earlier run, perhaps
    return path


def _asks_people(plan: Plan) -> bool:
    return plan.upload.release == "manual"
