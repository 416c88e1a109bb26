"""What a study was at an entry, so that a command need not replay the ledger from its beginning.

`.checkpoint` is derived from the ledger and may be deleted at any time. It has three parts:

    JSON        the entry's number and digest; the ledger's size up to there, and the SHA-256 of
                these bytes; the SHA-256 of the database
    signature   of that line, with the coordinator's key; empty where the study has none
    database    the fields of `State` as tables, of which a command reads what it asks for

It counts if the ledger begins with these very bytes and the key that its first entry names has
signed it; otherwise everything is replayed. So a forged one changes nothing where the coordinator
has a key. Where he has none, nothing is signed: whoever can write here could write a new ledger as
well, and digests are against accidents. `verify` always replays everything, and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any

from pydantic import Field, ValidationError

from predbayes import __version__
from predbayes.errors import StudyError
from predbayes.exchange.signing import PublicKey, SigningKey
from predbayes.exchange.statement import Digest
from predbayes.exchange.strict import Strict
from predbayes.files import write_bytes
from predbayes.study.coordinator.state import FinishedResult, State
from predbayes.study.result.accepted import (
    Accepted,
    AcceptedEvaluation,
    AcceptedSurvey,
    AcceptedUpload,
)
from predbayes.study.store.ledger import Ledger, Mark
from predbayes.study.store.table import PLAIN, Form, image_of, tables_of

CHECKPOINT = ".checkpoint"
MANY = 200  # steps after the last checkpoint, for which a new one is made
_FORMAT = 3  # of the database; another one whenever `State` changes


class _Head(Strict):
    format: int = _FORMAT
    version: str = __version__
    number: int
    digest: Digest
    size: Annotated[int, Field(gt=0)]
    ledger: Digest
    state: Digest


@dataclass(frozen=True, eq=False)  # equal as mappings are; without slots, for what was parsed
class _Uploads(Mapping[str, str]):
    """The uploads of a result, one digest for each site, which few commands look at."""

    text: str

    @cached_property
    def _found(self) -> dict[str, str]:
        return dict(json.loads(self.text))

    def __getitem__(self, site: str) -> str:
        return self._found[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _form_of(kind: type[Accepted]) -> Form:
    names = [field.name for field in fields(kind)]

    def unpacked(row: tuple[Any, ...]) -> Accepted:
        told = dict(zip(names, row, strict=True))
        return kind(**told | {"sealed": bool(told["sealed"])})

    return Form(attrgetter(*names), unpacked, len(names))


def _packed_result(result: FinishedResult) -> tuple[str, str]:
    told = {field.name: getattr(result, field.name) for field in fields(result)}
    uploads = told.pop("uploads")
    text = uploads.text if isinstance(uploads, _Uploads) else json.dumps(dict(uploads))
    return json.dumps(told | {n: dict(told[n]) for n in ("files",)}), text


def _result(row: tuple[str, str]) -> FinishedResult:
    told = json.loads(row[0])
    lists = {name: tuple(told[name]) for name in ("left_out", "evaluations", "surveys", "screened")}
    return FinishedResult(**told | lists, uploads=_Uploads(row[1]))


_JSON = Form(lambda value: (json.dumps(value),), lambda row: json.loads(row[0]))
_TABLES = {
    "keys": PLAIN,
    "owners": PLAIN,
    "awaited": PLAIN,
    "names": Form(lambda names: (json.dumps(names),), lambda row: tuple(json.loads(row[0]))),
    "agreed": PLAIN,
    "uploads": _form_of(AcceptedUpload),
    "evaluations": _form_of(AcceptedEvaluation),
    "surveys": _form_of(AcceptedSurvey),
    "replaced": PLAIN,
    "retired": PLAIN,
    "spent": PLAIN,
    "withdrawn": PLAIN,
    "gone": PLAIN,
    "deleted": PLAIN,
    "heads": PLAIN,
}
_RESULT = Form(_packed_result, _result, 2)
_VALUES = ("plan_digest", "files", "coordinator", "models", "num_entries", "study", "last")


def save_checkpoint(ledger: Ledger, state: State, key: SigningKey | None) -> None:
    """Write a checkpoint of the state at the ledger's end."""
    tables = {name: (form, getattr(state, name)) for name, form in _TABLES.items()}
    results = {result.number: result for result in state.results}
    tables["results"] = (_RESULT, results)
    tables["scalars"] = (_JSON, {name: getattr(state, name) for name in _VALUES})
    image, size = image_of(tables), ledger.path.stat().st_size
    head = _Head(
        number=state.num_entries,
        digest=state.last,
        size=size,
        ledger=ledger.digest(size),
        state=hashlib.sha256(image).hexdigest(),
    )
    told = head.model_dump_json().encode()
    signature = "" if key is None else key.sign("checkpoint", told)
    content = b"\n".join([told, signature.encode(), image])
    write_bytes(ledger.path.with_name(CHECKPOINT), content)


def load_checkpoint(ledger: Ledger) -> tuple[State, Mark] | None:
    """Return the state of a checkpoint and its place in the ledger; None if there is none.

    One that cannot be used is as if it were not there: `verify` says that it should not be.
    """
    try:
        return _load(ledger)
    except StudyError:
        return None


def checkpoint_problems(ledger: Ledger, state: State) -> list[str]:
    """List what is wrong with a checkpoint, given the state that a replay has found."""
    try:
        found = _load(ledger)
    except StudyError as error:
        return [f"{CHECKPOINT} cannot be used ({error}): delete it"]
    if found is None:
        return []
    resumed = found[0].replay(ledger.read(found[1]))
    names = (*_TABLES, *_VALUES, "results")
    same = all(_plain(getattr(state, n)) == _plain(getattr(resumed, n)) for n in names)
    return [] if same else [f"{CHECKPOINT} is not what the ledger says: delete it"]


def _load(ledger: Ledger) -> tuple[State, Mark] | None:
    """The checkpoint, if there is one of this version; refuse one that is not the study's."""
    path = ledger.path.with_name(CHECKPOINT)
    try:
        told, signature, image = path.read_bytes().split(b"\n", 2)
        head = _Head.model_validate_json(told)
        if (head.format, head.version) != (_FORMAT, __version__):
            return None
        _require_unaltered(ledger, head, image)
        _require_signed(ledger, told, signature.decode())
        return _state(image), Mark(head.size, head.number, head.digest)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        raise StudyError("it is not what predbayes writes") from error


def _plain(value: Any) -> Any:
    return dict(value.items()) if isinstance(value, Mapping) else value


def _require_unaltered(ledger: Ledger, head: _Head, image: bytes) -> None:
    if hashlib.sha256(image).hexdigest() != head.state:
        raise StudyError("the database was altered")
    if ledger.digest(head.size) != head.ledger:
        raise StudyError("it is of another ledger")


def _require_signed(ledger: Ledger, told: bytes, signature: str) -> None:
    key = str(ledger.entry(1).data.get("key", ""))
    signed = PublicKey(key).verifies("checkpoint", told, signature) if key else not signature
    if not signed:
        raise StudyError("it is not the coordinator's")


def _state(image: bytes) -> State:
    forms = {**_TABLES, "results": _RESULT, "scalars": _JSON}
    tables = tables_of(image, forms)
    results, scalars = tables.pop("results"), tables.pop("scalars")
    told: dict[str, Any] = {**tables, **scalars, "results": list(results.values())}
    return State(**told, resumed=True)
