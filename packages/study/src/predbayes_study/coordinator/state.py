"""What a study is at a point in time, read from its ledger and nothing else.

    init      the plan, its files and the labels' digest; the coordinator's key, if he has one
    admit     a site, its key and perhaps the rows agreed; admitting again replaces them
    add       a site's upload, by its digest
    evaluate  how a result's model does on a site's own rows; a newer one takes its place
    withdraw  a site takes all that it sent back; the bytes go, the digest stays
    delete    the bytes of files go, as when their time is over; results stay as they are
    finish    a numbered result: of which uploads, and its files
    ...       a site's attachment, by the kind that an extra adds; a newer one takes its place

A site has one upload at most. One that withdrew is not admitted any more, and a key that was
replaced or withdrawn is never taken again for that site: nobody can put an old upload back. A key
of which nothing was taken in yet may move to another name, for names are mistyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from predbayes.errors import StudyError
from predbayes.exchange.strict import Bounded, folded_name
from predbayes_study.attachments import attachment_kinds
from predbayes_study.result.accepted import (
    WEIGHTS_FILE,
    Accepted,
    AcceptedAttachment,
    AcceptedEvaluation,
    AcceptedUpload,
    Digest,
)
from predbayes_study.store.ledger import FIRST, Entry

KIT, LABELS, LEDGER = "kit", "labels.json", "ledger.jsonl"
UPLOADS, RESULTS = "uploads", "results"
"""Where a study's folder has its files."""

MODEL_FOLDER = "model"
"""Where a result has its model."""


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """A result, and what it was made of."""

    number: int
    at: str
    uploads: Mapping[str, str]  # digest by site
    left_out: tuple[str, ...]  # by hand
    files: Mapping[str, str]  # digest of the bytes, by path in the result's folder
    outcome: str  # digest of what was found: equal for equal sets of uploads
    ledger: str  # digest of the entry before
    evaluations: tuple[str, ...] = ()  # digests of those that it shows, ascending
    attachments: tuple[str, ...] = ()  # that were in, likewise
    screened: tuple[str, ...] = ()  # left out by screening

    @property
    def out(self) -> frozenset[str]:
        """Sites whose uploads are not in it, for whatever reason."""
        return frozenset({*self.left_out, *self.screened})

    @property
    def model(self) -> str:
        """Digest of the model's weights, which results of the same uploads share."""
        return self.files.get(f"{MODEL_FOLDER}/{WEIGHTS_FILE}", "")

    def serves(self, left_out: frozenset[str], files: Sequence[str]) -> bool:
        """Say whether it is what one would make with these sites left out, and has these files."""
        return frozenset(self.left_out) == left_out and set(files) <= self.files.keys()


@dataclass(frozen=True, slots=True)
class _Begun:
    plan: Digest
    files: Mapping[str, str]
    key: str = ""


@dataclass(frozen=True, slots=True)
class _Admitted:
    site: str
    key: Digest
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class _Withdrawn:
    site: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class _Deleted:
    digests: tuple[Digest, ...]
    at: str


_FORMS: dict[str, TypeAdapter[Any]] = {
    "init": TypeAdapter(Annotated[_Begun, Bounded()]),
    "admit": TypeAdapter(Annotated[_Admitted, Bounded()]),
    "add": TypeAdapter(Annotated[AcceptedUpload, Bounded()]),
    "evaluate": TypeAdapter(Annotated[AcceptedEvaluation, Bounded()]),
    "withdraw": TypeAdapter(Annotated[_Withdrawn, Bounded()]),
    "delete": TypeAdapter(Annotated[_Deleted, Bounded()]),
    "finish": TypeAdapter(Annotated[FinishedResult, Bounded()]),
}
# Of the steps that extras add.
_ATTACHED: TypeAdapter[Any] = TypeAdapter(Annotated[AcceptedAttachment, Bounded()])


@dataclass(slots=True)
class State:
    """Sites, uploads and results of a study."""

    plan_digest: str = ""
    files: dict[str, str] = field(default_factory=dict)  # of kit and labels
    coordinator: str = ""  # his public key; empty: nothing of his is signed
    keys: dict[str, str] = field(default_factory=dict)  # of admitted sites
    owners: dict[str, str] = field(default_factory=dict)  # the same, site by key
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of sites that were ever
    # admitted, by what the spellings of one name have in common
    awaited: dict[str, str] = field(default_factory=dict)  # keys of sites without an upload
    agreed: dict[str, int] = field(default_factory=dict)  # rows, of sites that were asked
    uploads: dict[str, AcceptedUpload] = field(default_factory=dict)  # by site
    # By site and model.
    evaluations: dict[tuple[str, str], AcceptedEvaluation] = field(default_factory=dict)
    # By site and kind.
    attachments: dict[tuple[str, str], AcceptedAttachment] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)  # site by digest that counts no more
    retired: dict[str, str] = field(default_factory=dict)  # site by key that was in use
    spent: dict[str, str] = field(default_factory=dict)  # site by key that signed an added file
    models: dict[str, None] = field(default_factory=dict)  # that were ever evaluated
    withdrawn: dict[str, str] = field(default_factory=dict)  # site by digest
    gone: dict[str, str] = field(default_factory=dict)  # digest withdrawn last, by site
    deleted: dict[str, str] = field(default_factory=dict)  # when, by digest of what still counts
    results: list[FinishedResult] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)  # number by digest of every entry
    num_entries: int = 0
    study: str = FIRST  # digest of the first entry, by which statements name the study
    last: str = FIRST  # digest of the last entry
    unsigned: int | None = None  # the last entry, if it lacks the coordinator's signature

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> State:
        """Replay a ledger."""
        state, entry = cls(), None
        for entry in entries:
            state.take(entry)
        if not state.plan_digest:
            raise StudyError("the ledger is empty: the study was never begun")
        # The last signature covers all entries before.
        if entry is not None and not entry.is_signed_by(state.coordinator):
            state.unsigned = entry.number
        return state

    def take(self, entry: Entry) -> None:
        """Take one more entry."""
        match self._read(entry):
            case _Begun(plan=plan, files=files, key=key):
                self.plan_digest, self.files, self.coordinator = plan, dict(files), key
            case _Admitted(site=site, key=key, rows=rows):
                if self.keys.get(site) != key:
                    self._retire(site)
                self._move(key)
                self.keys[site], self.owners[key] = key, site
                if site not in self.uploads:
                    self.awaited[site] = key
                spellings = self.names.get(folded_name(site), ())
                if site not in spellings:
                    self.names[folded_name(site)] = (*spellings, site)
                if rows is not None:
                    self.agreed[site] = rows
            case AcceptedUpload() as accepted:
                self.spent[accepted.key] = accepted.site
                self.uploads[accepted.site] = accepted
                self.awaited.pop(accepted.site, None)
            case AcceptedAttachment() as accepted:
                self.spent[accepted.key] = accepted.site
                self._replace(self.attachments, (accepted.site, accepted.kind))
                self.attachments[accepted.site, accepted.kind] = accepted
            case AcceptedEvaluation() as accepted:
                self.spent[accepted.key] = accepted.site
                self._replace(self.evaluations, (accepted.site, accepted.model))
                self.models[accepted.model] = None
                self.evaluations[accepted.site, accepted.model] = accepted
            case _Withdrawn(site=site, digest=digest):
                self._withdraw(site)
                self.withdrawn[digest], self.gone[site] = site, digest
            case _Deleted(digests=digests, at=at):
                self.deleted.update(dict.fromkeys(digests, at))
            case FinishedResult() as result:
                self.results.append(result)
        self.num_entries, self.last = entry.number, entry.digest
        self.heads[entry.digest] = entry.number
        if entry.number == 1:
            self.study = entry.digest

    def _read(self, entry: Entry) -> Any:
        """An entry as what it says; a chain of digests does not make it sensible."""
        attached = entry.step in attachment_kinds()
        form = _ATTACHED if attached else _FORMS.get(str(entry.step))
        if form is None:
            raise StudyError(f"the ledger has a step {entry.step!r} that this version lacks")
        try:
            told = dict(entry.data)
            if attached:
                told["kind"] = entry.step
            if attached or entry.step in ("add", "evaluate"):
                key = self.keys.get(told["site"], "")  # that its site had then
                told |= {"at": entry.at, "number": entry.number, "key": key}
            if entry.step in ("delete", "finish"):
                told |= {"at": entry.at, "ledger": self.last}
            return form.validate_python(told)
        except (ValidationError, TypeError, ValueError, KeyError) as error:
            where = f"entry {entry.number} of ledger.jsonl"
            raise StudyError(f"{where} is not as steps are") from error

    def _withdraw(self, site: str) -> None:
        self.uploads.pop(site, None)
        for kind in attachment_kinds():
            self._replace(self.attachments, (site, kind))
        for model in self.models:
            self._replace(self.evaluations, (site, model))
        self._retire(site)
        self.agreed.pop(site, None)

    def _retire(self, site: str) -> None:
        key = self.keys.pop(site, None)
        if key is not None:
            self.retired[key] = site
            self.owners.pop(key, None)
            self.awaited.pop(site, None)

    def _move(self, key: str) -> None:
        """Take a key from the name that it was admitted under by mistake, if it was."""
        site = self.owners.pop(key, None)
        if site is not None:
            self.keys.pop(site, None)
            self.awaited.pop(site, None)
            self.agreed.pop(site, None)

    def _replace(self, table: dict[tuple[str, str], Any], place: tuple[str, str]) -> None:
        """Take a file out, whose digest then counts no more."""
        before = table.pop(place, None)
        if before is not None:
            self.replaced[before.digest] = before.site

    @property
    def accepted(self) -> list[Accepted]:
        """Every file that counts, uploads first."""
        sent: Iterable[Mapping[Any, Accepted]]
        sent = (self.uploads, self.evaluations, self.attachments)
        return [accepted for table in sent for accepted in table.values()]

    @property
    def kept(self) -> list[Accepted]:
        """Every file that counts and whose bytes are there."""
        return [accepted for accepted in self.accepted if accepted.digest not in self.deleted]

    def removed(self, site: str) -> dict[str, str]:
        """Return when the bytes of a site's files were deleted, by digest."""
        sent = [a.digest for a in self.sent_by(site)]
        return {digest: self.deleted[digest] for digest in sent if digest in self.deleted}

    def sent_by(self, site: str) -> list[Accepted]:
        """All that counts of a site, its upload first."""
        tried = [self.evaluations.get((site, model)) for model in self.models]
        attached = [self.attachments.get((site, kind)) for kind in attachment_kinds()]
        found = [self.uploads.get(site), *tried, *attached]
        return [accepted for accepted in found if accepted is not None]

    def too_like(self, site: str, owner: str) -> str | None:
        """Return another site that people or a file system would take this name for.

        Args:
            site: The name.
            owner: Whose key it comes with: a name that was mistyped is given up.
        """
        for name in self.names.get(folded_name(site), ()):
            counts = name in self.keys and name != owner
            if name != site and (counts or name in self.uploads or name in self.gone):
                return name
        return None

    def rows_of(self, site: str) -> int | None:
        """Return the rows that a site trained on, or those agreed; None if none is known."""
        sent = self.uploads.get(site)
        return self.agreed.get(site) if sent is None else sent.num_rows

    def evaluations_of(self, model: str) -> list[AcceptedEvaluation]:
        """Return the sites' evaluations of a model, in the order of digests."""
        found = [accepted for accepted in self.evaluations.values() if accepted.model == model]
        return sorted(found, key=lambda accepted: accepted.digest)

    @property
    def in_order(self) -> list[AcceptedUpload]:
        """Accepted uploads in the order of their digests, in which they are folded."""
        return sorted(self.uploads.values(), key=lambda upload: upload.digest)

    @property
    def next_number(self) -> int:
        """Of the result that comes next."""
        return self.results[-1].number + 1 if self.results else 1

    @property
    def of_these_uploads(self) -> FinishedResult | None:
        """The last result, if it is of the uploads that count now."""
        last = self.results[-1] if self.results else None
        if last is None or len(last.uploads) != len(self.uploads):
            return None  # at once: there may be very many
        now = {upload.site: upload.digest for upload in self.uploads.values()}
        return last if dict(last.uploads) == now else None

    @property
    def current(self) -> FinishedResult | None:
        """That result, if it also shows the evaluations and attachments that count now."""
        last = self.of_these_uploads
        if last is None:
            return None
        now = tuple(accepted.digest for accepted in self.evaluations_of(last.model))
        is_shown = last.evaluations == now and last.attachments == self.attachment_digests
        return last if is_shown else None

    @property
    def attachment_digests(self) -> tuple[str, ...]:
        """The digests of the attachments that count, ascending."""
        return tuple(sorted(accepted.digest for accepted in self.attachments.values()))
