"""What people at a site approved, and what may leave it: the same for files and for Flower.

    the plan      needs an approval before training if it says `release = "manual"`, and always if
                  a message from outside asks for training: nobody sits there who could refuse
    an upload     needs an approval before it is signed if the plan says `release = "manual"`
    attachments   the same: what extras have a site send beside its upload

Each of them is asked by one function, `Approvals.why_not`, before a file is signed and again
before a node sends it. What was signed is noted in `released.jsonl` by the digest of its bytes,
with what is in it: nobody at the site can read an encrypted file. A file that is not noted there is
not sent. What may not leave any more is taken back from where it was written (`recall`).

Approvals are recorded in `approvals.jsonl` beside the site's `site.toml`, a hash-chained ledger:
who approved what, when. They are by digest: a plan or an upload that changes needs a new one.

An approval may be signed with the officer's own key. If `site.toml` names that key, no other
approval counts. What is signed names plan, site, kind of upload, network and the site's policy, so
it is good for nothing else. Each is good once: a revocation ends what came before it, and the same
signed approval, put back afterwards, is no new one. Anybody may revoke, for a no needs no proof.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import quote, unquote

from pydantic import Field

from predbayes.errors import NotApprovedError, StudyError, TextError
from predbayes.exchange.strict import Strict
from predbayes.files import (
    file_digest,
    remove,
    scratch_beside,
    write_bytes,
)
from predbayes.system import quoted
from predbayes.text import require_printable
from predbayes_study.payload import EVALUATION
from predbayes_study.site.policy import NO_POLICY, Asked, SitePolicy
from predbayes_study.store.journal import Journal
from predbayes_study.trust.sealed import SUFFIX, is_sealed, seal
from predbayes_study.trust.statement import Digest, Signed, Statement, unsigned

if TYPE_CHECKING:  # a Flower node reads approvals without torch
    from predbayes.exchange.upload import Upload
    from predbayes_study.kit.kit import Kit
    from predbayes_study.plan.schema import Plan
    from predbayes_study.tables.sitefile import SiteFile
    from predbayes_study.trust.signing import SigningKey

FILE, RELEASED = "approvals.jsonl", "released.jsonl"
Act = Literal["approve", "revoke"]


class Approval(Statement):
    """What an officer signs."""

    kind: Literal["approval"] = "approval"
    act: Act
    what: str
    digest: str
    plan: str = ""  # digest of the plan that it is for
    leaves: str = ""  # kind of what leaves
    network: str = ""  # code of others that runs
    site: str
    policy: str  # digest
    by: str
    at: str
    key: Digest  # the officer's

    @property
    def signer(self) -> str:
        """The officer's key."""
        return self.key


class _Word(Strict):
    """What an entry of the file says."""

    besides: ClassVar[Mapping[str, str]] = {"signed": "\n"}

    what: str
    digest: str
    by: str
    # An `Approval`, as in a file of its own.
    signed: Annotated[str, Field(pattern=r"^(\{[^\n]*\}\n[0-9a-f]{128}\n)?$")] = ""


class Leaving(Strict):
    """What would leave."""

    what: str  # `upload`, or the kind of an attachment
    digest: str  # of its content
    plan: str  # digest
    kinds: tuple[str, ...]  # in the words of a policy
    manual: bool  # whether the plan asks for an approval
    masked: bool | None = None  # as the policy is asked

    @classmethod
    def of(cls, plan: Plan, upload: Upload) -> Leaving:
        """Describe an upload or an evaluation."""
        kind = upload.info.kind
        asked = Asked.of_file(kind) if kind == EVALUATION else Asked.of(plan)
        manual = plan.upload.release == "manual"
        return cls(
            what="upload",
            digest=upload.digest(),
            plan=plan.digest(),
            kinds=asked.leaving,
            manual=manual,
            masked=asked.masked,
        )


class _Released(Leaving):
    """A file that was signed."""

    policy: str  # digest of the site's policy, then
    file: Digest  # of its bytes
    path: str  # quoted, as a path may have any character
    plain: str  # where its content is kept unsigned, the same way


@dataclass(frozen=True, slots=True)
class Approvals:
    """The approvals of one site, and what they allow.

    Args:
        folder: Of the site, where its approvals are.
        site: Its name.
        officer: The public key whose approvals alone count, as hexadecimal digits; empty: none.
        policy: The site's policy; a signed approval is good for one policy.
        notes: Where books are that a node writes too; by default the folder.
    """

    folder: Path
    site: str = ""
    officer: str = ""
    policy: SitePolicy = NO_POLICY
    notes: Path | None = None

    @property
    def books(self) -> Path:
        """The folder of what is noted of releases and heads."""
        return self.folder if self.notes is None else self.notes

    @classmethod
    def of(cls, own: SiteFile) -> Approvals:
        """Return the approvals beside a site's file, as it and its policy want them."""
        return cls(own.folder, own.name, own.officer_key, SitePolicy.of(own), own.books)

    def record(
        self,
        what: str,
        digest: str,
        by: str,
        *,
        act: Act = "approve",
        key: SigningKey | None = None,
        about: Mapping[str, str] | None = None,
    ) -> bool:
        """Record an approval, or that it is taken back; False if that was the last word already.

        Args:
            what: `plan`, `upload`, the kind of an attachment, or a further release.
            digest: Its own.
            by: Who says so; a name that can be seen.
            act: Yes or no.
            key: The officer's own, to sign with.
            about: Plan, kind of what leaves and network, which are signed, too.
        """
        _require_name(by)
        if act == "approve" and self.officer and (key is None or key.public.hex != self.officer):
            whose = "none" if key is None else "another"
            raise StudyError(f"site.toml names the officer's key, and this is {whose}: give --key")
        with self._journal.writing() as note:
            if dict(self._words(what)).get(digest) == act:
                return False
            word = _Word(what=what, digest=digest, by=by)
            if key is not None:
                fields: dict[str, Any] = dict(about or {})
                approval = Approval(
                    act=act,
                    what=what,
                    digest=digest,
                    **fields,
                    site=self.site,
                    policy=self.policy.digest,
                    by=by,
                    at=datetime.now(UTC).isoformat(),
                    key=key.public.hex,
                )
                signed = Signed.of(approval, key).file().decode()
                word = _Word(what=what, digest=digest, by=by, signed=signed)
            note(act, word)
        return True

    def given(self, what: str, digest: str) -> bool:
        """Return whether this digest is approved."""
        return dict(self._words(what)).get(digest) == "approve"

    def revoked(self, what: str, digest: str) -> bool:
        """Return whether the last word on this digest is no."""
        return dict(self._words(what)).get(digest) == "revoke"

    def may_train(self, kit: Kit, *, by_message: bool = False) -> bool:
        """Return whether a site may train, if somebody there asks for it or a message does."""
        return self._allows(kit.plan, asks=by_message)

    def require_plan(self, kit: Kit, option: str = "", learner: str = "") -> None:
        """Refuse to train for a plan that waits for an approval, or that the policy forbids.

        It is asked before rows are encoded, which may take more memory than the policy allows.

        Args:
            kit: The study's kit.
            option: What the command that gives an approval must be told besides.
            learner: What is fitted; by default the plan's.
        """
        if not self.may_train(kit):
            revoked = self.revoked("plan", kit.digest)
            why = "the approval of this plan was revoked; a new one"
            raise NotApprovedError(
                f"{why if revoked else 'the plan asks for an approval before training'}: predbayes "
                f"site approve {quoted(kit.folder)} --by NAME{option}"
            )
        self.policy.require(Asked.of(kit.plan, learner))

    def require_evaluation(self, plan: Plan) -> None:
        """Refuse to tell how a model does if the site would not train for its plan."""
        require_no_promise(plan, "an evaluation")
        self.policy.require(Asked.of(plan))
        self.policy.require(Asked(leaving=("evaluation",)))
        if not self._allows(plan):
            raise StudyError(
                "the plan is not approved, or no more, so nothing leaves for it: predbayes site "
                "approve KIT --by NAME"
            )

    def _allows(self, plan: Plan, *, asks: bool = False) -> bool:
        """Whether nobody said no to a plan and, where that is asked for, somebody said yes."""
        digest = plan.digest()
        asks = asks or self.policy.asks_release(plan)
        return self.given("plan", digest) if asks else not self.revoked("plan", digest)

    def why_not(self, leaving: Leaving, *, by_message: bool = False) -> str:
        """Say why something may not leave now; empty if it may.

        Args:
            leaving: What would leave.
            by_message: Whether a message from outside asks for it.
        """
        if self.revoked("plan", leaving.plan):
            return "the approval of its plan was revoked"
        if self.revoked(leaving.what, leaving.digest):
            return "its approval was revoked"
        for problem in self.policy.problems(Asked(leaving=leaving.kinds, masked=leaving.masked)):
            return f"the site's policy forbids it: {problem}"
        asks = leaving.manual or self.policy.is_manual
        of_plan = by_message or (asks and leaving.what == "upload")  # a survey comes before plans
        if of_plan and not self.given("plan", leaving.plan):
            return "its plan is not approved"
        if asks and not self.given(leaving.what, leaving.digest):
            return "it is not approved"
        return ""

    def why_not_sent(self, file: str, *, by_message: bool = False) -> str:
        """Say why a file may not leave now; empty if it may.

        Args:
            file: Digest of its bytes.
            by_message: Whether a message from outside asks for it.
        """
        released = self.released(file)
        if released is None:
            return f"it is not in {RELEASED} as a file that was signed here"
        if released.policy != self.policy.digest:
            return "the site's policy was changed after it was signed"
        return self.why_not(released, by_message=by_message)

    def released(self, file: str) -> _Released | None:
        """Return what is in a file that was signed here, by the digest of its bytes."""
        # Of the same bytes the last word counts.
        return {note.file: note for _, note in self._releases.read()}.get(file)

    def note_released(self, leaving: Leaving, path: Path, content: bytes, plain: Path) -> None:
        """Note a file that was signed.

        Args:
            leaving: What is in it.
            path: The file.
            content: Its bytes, as they were written: on a share they may be others by now.
            plain: Where its content is kept unsigned, if it is taken back.
        """
        note = _Released(
            **leaving.model_dump(),
            policy=self.policy.digest,
            file=hashlib.sha256(content).hexdigest(),
            path=_noted(path),
            plain=_noted(plain),
        )
        with self._releases.writing() as append:
            if self.released(note.file) != note:
                append("release", note)

    def recall(self, folder: Path | None = None) -> list[Path]:
        """Take back what was signed and may not leave any more; return the files.

        Their content is kept beside them without a signature. A file that was altered since, or
        taken elsewhere, is left.

        Args:
            folder: Where to look, also for what another policy let out; None: whatever was revoked.
        """
        gone = []
        for _, note in self._releases.read():  # of the same bytes in two folders both
            path, plain = Path(unquote(note.path)), Path(unquote(note.plain))
            if folder is None:
                no = self.revoked("plan", note.plan) or self.revoked(note.what, note.digest)
            else:
                no = _noted(path.parent) == _noted(folder) and bool(self.why_not_sent(note.file))
            if not no or path.is_symlink() or not path.is_file() or file_digest(path) != note.file:
                continue
            if plain.exists() or is_sealed(path):
                pass  # nobody here can read an encrypted file: without its plain copy it is lost
            elif note.what == "upload":
                from predbayes.exchange.upload import Upload  # here, as a survey needs no torch

                write_bytes(plain, Upload.load(path).to_bytes())
            else:
                write_bytes(plain, unsigned(path.read_bytes()))
            remove(path)
            gone.append(path)
        return gone

    @property
    def _releases(self) -> Journal[_Released]:
        return Journal(self.books / RELEASED, {"release": _Released})

    def release(
        self,
        plan: Plan,
        upload: Upload,
        key: Callable[[], SigningKey],
        signed: Path,
        held_back: Path,
    ) -> tuple[Path, bool]:
        """Write an upload signed, and encrypted if the plan says so, or hold it back.

        Return the file that was written, and whether it may leave.

        Args:
            plan: That it is for.
            upload: The upload.
            key: Reads the site's key, if it is needed.
            signed: Where the signed file goes; an encrypted one has another suffix.
            held_back: Where it goes unsigned.
        """
        leaving = Leaving.of(plan, upload)
        may_leave = not self.why_not(leaving)
        own = key() if may_leave else None
        path, content = write_upload(plan, upload, own, signed, held_back)
        if may_leave:
            self.note_released(leaving, path, content, held_back)
        return path, may_leave

    def _words(self, what: str) -> Iterator[tuple[str, Act]]:
        """Yield what was said about each digest, in order."""
        seen: set[bytes] = set()
        for act, word in self._journal.read():
            if word.what != what:
                continue
            if act == "revoke":
                yield word.digest, "revoke"
            elif self._counts(word, seen):
                yield word.digest, "approve"

    def _counts(self, word: _Word, seen: set[bytes]) -> bool:
        """Say whether an entry is an approval here, and not one that was there before."""
        if not word.signed:
            return not self.officer
        try:
            signed = Signed.parse(Approval, word.signed.encode(), FILE)
        except StudyError:
            return False
        said = signed.statement
        if signed.content in seen or (self.officer and said.key != self.officer):
            return False
        seen.add(signed.content)
        of = said.what, said.digest, said.act, said.policy
        named = not self.site or said.site == self.site
        is_of = of == (word.what, word.digest, "approve", self.policy.digest) and named
        return is_of and signed.is_by(said.key)

    @property
    def _journal(self) -> Journal[_Word]:
        return Journal(self.folder / FILE, {"approve": _Word, "revoke": _Word})


def _noted(path: Path) -> str:
    """Return a path as a note has it: whatever characters it has, and from wherever it is read."""
    return quote(os.path.abspath(path))


def require_no_promise(plan: Plan, what: str) -> None:
    """Refuse what has no noise, where the plan promises that all that leaves has."""
    if plan.promise is not None:
        raise StudyError(
            f"{what} does not leave: the plan promises {plan.promise.text}, and {what} is exact"
        )


def _require_name(by: str) -> None:
    """Refuse who is nobody, or would show as somebody else."""
    try:
        named = require_printable(by).strip()
    except TextError as error:
        raise StudyError(f"the name of who says so {error}") from error
    if not named:
        raise StudyError("nobody is named who says so: give --by NAME")


def write_upload(
    plan: Plan, upload: Upload, key: SigningKey | None, signed: Path, held_back: Path
) -> tuple[Path, bytes]:
    """Write what leaves: an upload signed, and sealed if the plan says so; or, without a key, none.

    What is not to leave is held back, unsigned. It also stays beside a sealed file, which the site
    itself cannot read. Other files, of an earlier run perhaps, are removed. Return the file and
    its bytes.
    """
    from predbayes_study.payloads.details import sign

    sealed = signed.with_suffix(SUFFIX)
    for path in (signed, sealed):
        scratch_beside(path)
    if key is None:
        path, kept, content = held_back, {held_back}, upload.to_bytes()
    else:
        path, kept, content = signed, {signed}, upload.to_bytes(sign(upload, key))
        if plan.recipient:
            info = upload.info
            path, kept = sealed, {sealed, held_back}
            content = seal(content, plan=info.plan, site=info.site, to=plan.recipient)
            write_bytes(held_back, upload.to_bytes())
    write_bytes(path, content)
    for other in {signed, sealed, held_back} - kept:
        remove(other)
    return path, content
