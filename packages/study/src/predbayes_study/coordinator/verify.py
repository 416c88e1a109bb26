"""Is a study as its ledger says, byte by byte? And do its files give the last result again?

    files         those that the ledger names are there, unaltered, and no others
    sites         each file of a site is signed with the key that the site had then, and the ledger
                  head that it had seen comes before it in the ledger: sites are witnesses
    coordinator   if the plan names a key: each entry, the kit, each result and model are signed

All of this needs public keys alone, so anyone with a copy of the folder can do it. An extra may
write copies without data (`Extra.copies`). Such a copy is checked in the same way, except that the
files withheld from it are only digests in the ledger. Its own list says what else is in it, and
must have the ledger's digests. Receipts in it are checked with the coordinator's key.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from predbayes.errors import PredbayesError, StudyError, checking
from predbayes.files import file_digest, leaves_of
from predbayes.text import printable
from predbayes_study.attachments import read_attachment
from predbayes_study.coordinator.finish import conclude_study, evaluated, kept_openings, outcome
from predbayes_study.coordinator.run_status import RUN_FILE
from predbayes_study.coordinator.signer import KEY_PATH, stated
from predbayes_study.coordinator.state import (
    KIT,
    LABELS,
    LEDGER,
    MODEL_FOLDER,
    RESULTS,
    UPLOADS,
    State,
)
from predbayes_study.coordinator.study import Study
from predbayes_study.extra import added
from predbayes_study.payloads.details import seen_by
from predbayes_study.plan.schema import REFERENCE_FILE, VECTORS_FILE
from predbayes_study.result.accepted import AcceptedAttachment
from predbayes_study.result.analysis import ResultMeta
from predbayes_study.result.model import HEADER_FILE, read_header
from predbayes_study.store.audit import AUDIT_FILE, AUDIT_LOCK
from predbayes_study.store.files import LOCK, RUN_LOCK
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.signing import PublicKey, fingerprint
from predbayes_study.trust.statement import (
    DELETION,
    KIT_SIGNATURE,
    MODEL_SIGNATURE,
    RECEIPT,
    RESULT_SIGNATURE,
    Deletion,
    FilesStatement,
    Folder,
    Receipt,
    Signed,
)

_KIT_SIGNATURE = f"{KIT}/{KIT_SIGNATURE}"
_ROWS = (REFERENCE_FILE, VECTORS_FILE)  # of the kit, which no copy without data has
_PASSING = {
    LEDGER, LOCK, RUN_LOCK, RUN_FILE, AUDIT_FILE, AUDIT_LOCK, KEY_PATH, _KIT_SIGNATURE,
}  # fmt: skip
"""Files that no entry names."""


def verify(
    study: Study,
    *,
    rebuild: bool = False,
    key: CoordinatorPublicKey | None = None,
    contains: Iterable[str] = (),
) -> list[str]:
    """Return everything that is not as the ledger says: see `Study.verify`."""
    problems = study.ledger.problems() or study.audit.problems()
    if problems:
        return problems
    try:
        check = _Check(study, study.state(), *(listed(study.folder) or ("", {})))
        problems = check.altered() or [
            *check.unsigned(key),
            *(check.not_of_copy() if check.listing else check.not_of_sites()),
            *check.not_contained(contains),
        ]
    except PredbayesError as error:  # a ledger or a plan that nobody could have written
        return [str(error)]
    if rebuild and check.listing:
        return ["an export has not what a result is made of; rebuild it from the study itself"]
    return problems if problems or not rebuild else check.rebuilt()


def listed(folder: Path) -> tuple[str, Mapping[str, str]] | None:
    """Return the name of a copy's list of files, and their digests; None for the study itself."""
    for name, extra, reference in added("copies"):
        if (folder / name).is_file():
            return name, extra.load(reference)(folder)
    return None


def recorded(study: Study, state: State) -> dict[str, str]:
    """Return the digest of every file that the ledger names, by path."""
    files = dict(state.files)
    for accepted in state.kept:
        name = study.upload_path(accepted).relative_to(study.folder).as_posix()
        files[name] = accepted.file_digest
    for result in state.results:
        files |= {f"{RESULTS}/{result.number}/{p}": d for p, d in result.files.items()}
    return files


def withheld(files: Iterable[str]) -> frozenset[str]:
    """Return those files that a copy without data lacks: rows, labels, and what sites sent."""
    own = {LABELS, *(f"{KIT}/{name}" for name in _ROWS)}
    return frozenset(name for name in files if name in own or name.startswith(f"{UPLOADS}/"))


@dataclass(frozen=True)  # without slots, where what is read once is kept
class _Check:
    study: Study
    state: State
    listing: str  # name of a copy's list; empty for the study itself
    listed: Mapping[str, str]  # digests of the files in it

    @cached_property
    def recorded(self) -> dict[str, str]:
        return recorded(self.study, self.state)

    def altered(self) -> list[str]:
        """Files that are missing, altered, or not the study's."""
        expected, folder = self.recorded, self.study.folder
        if self.listing:
            more = {n: d for n, d in self.listed.items() if n not in {*expected, *_PASSING}}
            hidden = withheld(expected)
            expected = {n: d for n, d in expected.items() if n not in hidden} | more
        leaves = (path for path in leaves_of(folder) if path.is_symlink() or not path.is_dir())
        there = {path.relative_to(folder).as_posix(): path for path in leaves}
        strange = sorted(there.keys() - expected.keys() - _PASSING - {self.listing})
        both = sorted(name for name in expected.keys() & there.keys() if there[name].is_file())
        return [
            *(f"{name} is missing" for name in sorted(expected.keys() - {*both})),
            *(f"{name} is not the study's" for name in strange),
            *(f"{name} was altered" for name in both if file_digest(there[name]) != expected[name]),
        ]

    def unsigned(self, key: CoordinatorPublicKey | None) -> Iterator[str]:
        """Yield what lacks the coordinator's signature."""
        state, named = self.state, self.study.plan.coordinator
        if key is not None and key != named:
            yield "the plan does not name this coordinator's key"
        if state.coordinator != ("" if named is None else named.signing.hex):
            yield "the ledger does not begin with the key that the plan names"
            return
        for entry in self.study.ledger.read():
            if not entry.is_signed_by(state.coordinator):
                yield f"entry {entry.number} of ledger.jsonl is not signed by the coordinator"
        if named is not None:
            yield from self._unsigned_files(named.signing)
        elif (self.study.folder / _KIT_SIGNATURE).exists():
            yield f"{_KIT_SIGNATURE} is not the study's"

    def _unsigned_files(self, key: PublicKey) -> Iterator[str]:
        study, state = self.study, self.state
        places = [(study.folder / KIT, "kit", KIT_SIGNATURE, state.study)]
        for result in state.results:
            folder = study.result_folder(result.number)
            places.append((folder, "result", RESULT_SIGNATURE, result.ledger))
            places.append((folder / MODEL_FOLDER, "model", MODEL_SIGNATURE, result.ledger))
        for folder, kind, name, head in places:
            where = (folder / name).relative_to(study.folder).parent.as_posix()
            without = _ROWS if kind == "kit" and self.listing else ()
            try:
                statement = Signed.read(folder / name, FilesStatement).checked(
                    key, kind=kind, plan=state.plan_digest, study=state.study, head=head
                )
                problems = statement.problems(Folder.read(folder), name, without)
            except StudyError as error:
                problems = [str(error)]
            yield from (f"{where}: {problem}" for problem in problems)

    def not_of_sites(self) -> Iterator[str]:
        """Yield files that their sites did not sign, or whose sites have seen another ledger."""
        study, state = self.study, self.state
        for accepted in state.kept:
            try:
                with checking(StudyError, f"a file of {accepted.site}"):
                    if isinstance(accepted, AcceptedAttachment):
                        path, keys = study.upload_path(accepted), {accepted.site: accepted.key}
                        sent = read_attachment(accepted.kind, path, study.plan, keys)
                        if sent.seen is None or sent.plan != state.plan_digest:
                            continue  # it was made before there was a study
                        seen = sent.seen
                    else:
                        seen = seen_by(study.read(accepted).info)
            except PredbayesError as error:
                yield str(error)
                continue
            before = state.heads.get(seen, accepted.number) < accepted.number
            if not before and (seen or state.coordinator):
                yield (
                    f"{accepted.site} has seen another ledger than this one before it sent its file"
                )

    def not_of_copy(self) -> Iterator[str]:
        """Yield what a copy says otherwise than the ledger, or in the coordinator's name."""
        study, hidden = self.study, withheld(self.recorded)
        own = (name for name in (LEDGER, _KIT_SIGNATURE) if (study.folder / name).is_file())
        seen = {name: digest for name, digest in self.recorded.items() if name not in hidden}
        seen |= {name: file_digest(study.folder / name) for name in own}
        for name in sorted({*seen, *(hidden & self.listed.keys())}):
            if self.listed.get(name) != seen.get(name):
                yield f"{self.listing} does not list {name} as it is"
        if study.plan.coordinator is None:
            return
        for path in sorted(study.folder.rglob("*")):
            if path.suffix not in (RECEIPT, DELETION):
                continue
            where = path.relative_to(study.folder).as_posix()
            yield from (f"{where}: {wrong}" for wrong in self._false(path, site=path.stem))

    def _false(self, path: Path, **says: str) -> Iterator[str]:
        """Yield what a receipt states otherwise than the ledger at the entry where it was made."""
        state, named = self.state, self.study.plan.coordinator
        if named is None:
            yield "the plan names no coordinator's key, so nothing is signed"
            return
        says |= {"plan": state.plan_digest, "study": state.study}
        try:
            told: Receipt | Deletion
            if path.suffix == DELETION:
                told = Signed.read(path, Deletion).checked(named.signing, **says)
            else:
                told = Signed.read(path, Receipt).checked(named.signing, **says)
        except StudyError as error:
            yield str(error)
            return
        if any(state.heads.get(digest) != number for number, digest in told.heads.items()):
            yield "it is of another ledger than this one"
            return
        then = self._then(told.number)
        if isinstance(told, Receipt):
            is_true = told.site in then.keys and all(
                getattr(told, name) == value for name, value in stated(then, told.site).items()
            )
        else:
            is_true = told.removed == then.removed(told.site)
        if not is_true:
            yield f"it states otherwise than the ledger at its entry {told.number}"

    def _then(self, number: int) -> State:
        """Return the study as it was at an entry."""
        if number == self.state.num_entries:
            return self.state
        return State.of(itertools.islice(self.study.ledger.read(), number))

    def not_contained(self, noted: Iterable[str]) -> Iterator[str]:
        """Yield heads that someone noted, or receipts, that are not of the ledger."""
        known = {*self.state.heads, *map(fingerprint, self.state.heads)}
        for one in noted:
            if one.endswith((RECEIPT, DELETION)):
                yield from (f"{printable(one)}: {wrong}" for wrong in self._false(Path(one)))
            elif one.strip().lower() not in known:
                yield f"the ledger does not contain {printable(one)}: it is another, or was cut"

    def rebuilt(self) -> list[str]:
        """Make the last result again from the files, and compare every file of it."""
        study, state = self.study, self.state
        if not state.results:
            return ["there is no result to rebuild; run `predbayes study finish`"]
        last = state.results[-1]
        if state.current is None:
            return [f"result {last.number} is of files that have changed since; finish again"]
        if state.deleted:
            return [f"result {last.number} cannot be made again: files that it is of were deleted"]
        before = study.result(last.number)
        meta = ResultMeta(last.number, last.at, last.ledger, before.withdrawn)
        left_out, openings = frozenset(last.left_out), kept_openings(study, last)
        found = conclude_study(study, state, meta, left_out, openings=openings)
        if outcome(found) != last.outcome:
            made, here = before.versions, found.result.versions
            other = [f"{n} {made.get(n)}, here {v}" for n, v in here.items() if made.get(n) != v]
            why = f" (it was made with {'; '.join(other)})" if other else ""
            return [f"rebuilding gives another result than number {last.number}{why}"]
        made_again = evaluated(study, state, found)
        shown = made_again.result
        header = read_header(study.result_folder(last.number) / MODEL_FOLDER / HEADER_FILE)
        if header.level != made_again.model.level:
            return [f"the model of result {last.number} is not as sure as the sites' figures say"]
        if shown.at_sites != before.at_sites:
            return [f"result {last.number} does not show what the sites' evaluations say"]
        if shown.extras != before.extras:
            return [f"result {last.number} does not show what the sites' attachments say"]
        return []
