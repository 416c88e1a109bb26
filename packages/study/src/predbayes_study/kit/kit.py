"""The kit: a frozen plan and the reference inputs, one folder that fits on a USB stick.

    plan.toml         frozen: centres, scales and digests are in
    reference.csv     the reference inputs, in the plan's units
    reference.safetensors   their vectors, if the plan has any
    FINGERPRINT.txt   eight words by which people make sure that they hold the same plan
    README.txt        what the folder is
    kit.sig           signed by the coordinator: these files, and the study that they belong to;
                      put in by `predbayes study init` if the plan names a key

Labels are not in it. Screening sites against labelled rows means nothing if a poisoner knows their
labels, or only which rows have one: it would behave on those. So rows come in a random order, roles
are drawn with a secret salt, and the plan holds a salted digest of roles and labels, by which the
coordinator cannot change them later unnoticed. Beside it the plan tells, if its author leaves them
in, how frequent the second class is and a rough correlation of each number. Order and roles have
generators of their own: an order can be found out by whoever has the original table and tries
seeds, and must not tell the roles.

Digests are of parsed content, so line endings and spaces change nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import torch
from pydantic import Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor

import predbayes
from predbayes.errors import DataError, PlanError, PoolError
from predbayes.exchange.reference import ReferenceRows
from predbayes.files import PRIVATE, open_new, put, remove, scratch_beside, sync_tree
from predbayes.seeding import generator
from predbayes.spill import blocks, row_bytes, take
from predbayes_study.kit.review import Review, require_sound
from predbayes_study.payload import payload_of
from predbayes_study.plan.models import freeze_network
from predbayes_study.plan.schema import (
    MAX_WEIGHT,
    PLAN_FILE,
    REFERENCE_FILE,
    VECTORS_FILE,
    Column,
    Frozen,
    Plan,
    Section,
)
from predbayes_study.plan.software import software_digest
from predbayes_study.plan.text import dump
from predbayes_study.tables.coding import Encoder, Examined, code_targets, moments, sound
from predbayes_study.tables.reading import from_csv, read_frame, to_csv
from predbayes_study.tables.vectors import kit_vectors
from predbayes_study.tasks import task_of
from predbayes_study.trust.coordinator import CoordinatorPublicKey
from predbayes_study.trust.statement import KIT_SIGNATURE, FilesStatement, Folder, Signed
from predbayes_study.wording import six_digits

FINGERPRINT_FILE = "FINGERPRINT.txt"
README_FILE = "README.txt"
FILES = (PLAN_FILE, REFERENCE_FILE, FINGERPRINT_FILE, README_FILE)

_MAX_NUMBERS = 1_000_000_000  # of all reference inputs; 4 GB
_SALT_BYTES = 32


@dataclass(frozen=True)  # without slots, where the digest is kept
class Kit:
    """What every party holds."""

    folder: Path
    plan: Plan
    rows: Examined  # the reference inputs as codes and vectors, in the order of the file

    @classmethod
    def load(cls, folder: str | Path, *, meant: Examined | None = None) -> Kit:
        """Read a kit, and make sure that its parts belong together.

        Args:
            folder: Folder of the kit.
            meant: Rows that were just written: compare with them instead of a digest.
        """
        folder = Path(folder)
        plan = Plan.load(folder / PLAN_FILE)
        if plan.frozen is None:
            raise PlanError(f"{folder / PLAN_FILE} is a draft: run `predbayes plan freeze`")
        if not plan.reference.num_rows and payload_of(plan).predicts:
            raise PlanError(f"{folder / PLAN_FILE} has no reference rows")
        # Vectors are as large as their file, and need not be in memory.
        num_inputs = sum(column.width for column in plan.scalars.values())
        if plan.reference.num_rows * num_inputs > _MAX_NUMBERS:
            raise PlanError(
                f"{plan.reference.num_rows:,} reference rows of {num_inputs:,} network inputs "
                f"are more than {_MAX_NUMBERS:,} numbers, which no kit may ask a computer to hold"
            )
        rows = _reference_codes(plan, folder)
        if meant is None:
            is_same = inputs_digest(plan, rows.codes, rows.vectors) == plan.frozen.inputs_digest
        else:
            is_same = _equal(rows, meant)
        if not is_same:
            raise PlanError(f"{REFERENCE_FILE} is not the plan's: some row was changed")
        if len(rows.codes) != plan.reference.num_rows:
            raise PlanError(
                f"{REFERENCE_FILE} has {len(rows.codes)} rows, the plan {plan.reference.num_rows}"
            )
        kit = cls(folder, plan, rows)
        _require_fingerprint(kit)
        if (folder / KIT_SIGNATURE).exists():
            _ = kit.signed  # or it is refused
        return kit

    @cached_property
    def inputs(self) -> Tensor:
        """The reference inputs (R, plan.num_inputs) in float32; many more bytes than the rows."""
        return Encoder(self.plan).in_blocks(self.rows)

    def __len__(self) -> int:
        return len(self.rows.codes)

    @cached_property
    def digest(self) -> str:
        """Of the plan, and by its digests of everything else."""
        return self.plan.digest()

    @property
    def fingerprint(self) -> str:
        """The digest as words."""
        return self.plan.fingerprint

    @property
    def head(self) -> str:
        """The ledger's head that it carries; empty if the coordinator has no key."""
        return "" if self.signed is None else self.signed.head

    @cached_property
    def signed(self) -> FilesStatement | None:
        """What the coordinator signed of it; None if he has no key.

        A kit whose plan names a key, and that has no signature of it, is refused: what is made
        with it would be of no study. So is one of which a file was altered, added or taken away.
        What is read of it here was compared before, with digests in the plan.
        """
        if self.plan.coordinator is None:
            return None
        if not (self.folder / KIT_SIGNATURE).is_file():
            raise PlanError(
                f"{self.folder} is not signed: ask the coordinator for the kit that `predbayes "
                "study init` made, in the folder of the study"
            )
        key = self.plan.coordinator.signing
        signed = Signed.read(self.folder / KIT_SIGNATURE, FilesStatement)
        statement = signed.checked(key, kind="kit", plan=self.digest)
        for problem in statement.problems(Folder.read(self.folder), KIT_SIGNATURE):
            raise PlanError(
                f"{self.folder}: {problem}; get the kit anew from the coordinator, or take out "
                "what is not of it"
            )
        return statement

    @property
    def num_bytes(self) -> int:
        """Size of all its files."""
        paths = [self.folder / name for name in (*FILES, VECTORS_FILE)]
        return sum(path.stat().st_size for path in paths if path.is_file())


class _Part(Section):
    rows: list[Annotated[int, Field(ge=0)]]  # of the kit's reference file, from 0
    labels: list[str] | list[float]  # classes, numbers in the target's unit, or times in intervals


class _Contents(Section):
    """The file of labels."""

    format: Literal[1] = 1
    salt: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _SALT_BYTES}}}$")]
    labelled: _Part
    evaluate: _Part

    def digest(self) -> str:
        """Return the SHA-256 of the salt and of both parts as canonical JSON."""
        parts = self.model_dump(include={"labelled", "evaluate"})
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(bytes.fromhex(self.salt) + text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Labels:
    """What the coordinator alone holds: which reference row is for what, and the labels."""

    reference: ReferenceRows  # labelled, unlabelled, evaluate
    order: Tensor  # (R,) the kit's row of each reference row
    evaluate_targets: Tensor  # (E,)

    @classmethod
    def load(cls, path: str | Path, kit: Kit) -> Labels:
        """Read a kit's labels; others than those it was frozen with are refused."""
        path = Path(path)
        contents, labelled, evaluate = _read_labels(path, kit)
        is_unlabelled = torch.ones(len(kit), dtype=torch.bool)
        is_unlabelled[torch.cat([labelled, evaluate])] = False
        order = torch.cat([labelled, is_unlabelled.nonzero()[:, 0], evaluate])
        targets = _targets(kit.plan, contents.labelled.labels)
        reference = ReferenceRows(take(kit.inputs, order), targets, len(evaluate))
        return cls(reference, order, _targets(kit.plan, contents.evaluate.labels))


def freeze(
    plan_path: Path,
    out: Path,
    labels_out: Path | None = None,
    *,
    key: CoordinatorPublicKey | None = None,
    salt: bytes | None = None,
) -> Kit:
    """Make a kit of a plan and its reference rows.

    Args:
        plan_path: A plan that has no errors left.
        out: The kit; a folder that does not exist.
        labels_out: Where roles and labels go, outside the kit; beside it by default.
        key: The coordinator's, by which everything that he says of the study is signed.
        salt: 32 secret bytes; drawn if None. The same ones give the same kit.
    """
    labels_out = labels_path(out) if labels_out is None else labels_out
    _require_new(out, labels_out)
    draft = _limited(Plan.load(plan_path))
    network = freeze_network(draft)
    table = Review(draft, plan_path.parent, network)
    require_sound(table)
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    frame = table.frame
    roles = _deal(draft, frame, salt)
    rows = table.examined.at(roles.kit)
    plan = _scaled(draft, rows, frame, roles)
    labelled, evaluate = (
        _part(draft, frame, r, roles.kit) for r in (roles.labelled, roles.evaluate)
    )
    contents = _Contents(salt=salt.hex(), labelled=labelled, evaluate=evaluate)
    frozen = Frozen(
        inputs_digest=inputs_digest(plan, rows.codes, rows.vectors),
        labels_digest=contents.digest(),
        version=predbayes.__version__,
        software=software_digest(),
        network=network,
        signing_key="" if key is None else key.signing.hex,
        encryption_key="" if key is None else key.encryption,
    )
    reference = plan.reference.model_copy(update={"file": ""})
    plan = plan.model_copy(update={"reference": reference, "frozen": frozen})
    inputs = _table(plan, frame.iloc[roles.kit.tolist()], rows.codes)
    return _write(plan, inputs, rows, contents, out, labels_out)


def _reference_codes(plan: Plan, folder: Path) -> Examined:
    """The reference inputs in a kit, as codes; of a plan without any the file is not looked at."""
    if not plan.reference.num_rows:
        return Review(plan, folder).examined
    try:
        frame = from_csv(read_frame(folder / REFERENCE_FILE))
        return sound(plan, kit_vectors(plan, frame, folder / VECTORS_FILE))
    except DataError as error:
        raise PlanError(f"{REFERENCE_FILE} is not the plan's: {error}") from error


def _limited(plan: Plan) -> Plan:
    """The plan with a limit to the weight of a site, if it has none yet."""
    is_weighed = plan.may_have("rules.max_weight")
    if plan.frozen is not None or plan.rules.max_weight is not None or not is_weighed:
        return plan
    rules = plan.rules.model_copy(update={"max_weight": MAX_WEIGHT})
    return plan.model_copy(update={"rules": rules})


def labels_path(out: Path) -> Path:
    """Return where the labels of a kit go by default: beside it."""
    return out.with_name(f"{out.name}-labels.json")


def _equal(one: Examined, other: Examined) -> bool:
    return (
        torch.equal(one.codes.nan_to_num(math.inf), other.codes.nan_to_num(math.inf))
        and one.vectors.keys() == other.vectors.keys()
        and all(torch.equal(one.vectors[name], other.vectors[name]) for name in one.vectors)
    )


def inputs_digest(plan: Plan, codes: Tensor, vectors: Mapping[str, Tensor] | None = None) -> str:
    """Return the SHA-256 of reference inputs (R, columns): names, then all cells as float64.

    Behind them comes each column of vectors: name, type, shape and bytes.
    """
    content = hashlib.sha256(json.dumps(list(plan.columns)).encode())
    # One NaN and one zero of the several that there are; one byte order.
    canonical = torch.where(codes.isnan(), torch.nan, codes.double()) + 0.0
    content.update(canonical.contiguous().numpy().astype("<f8").tobytes())
    for name, values in (vectors or {}).items():
        content.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        for part in blocks(len(values), row_bytes(values)):
            numbers = values[part].numpy()
            content.update(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).data)
    return content.hexdigest()


@dataclass(frozen=True, slots=True)
class _Roles:
    """Rows of the original table by role, and in the order of the kit."""

    labelled: Tensor
    evaluate: Tensor
    kit: Tensor


def _deal(plan: Plan, frame: pd.DataFrame, salt: bytes) -> _Roles:
    """Draw the rows of each role, and an order that does not tell them."""
    reference = plan.reference
    num_scored = reference.labelled + reference.evaluate
    rows = torch.randperm(len(frame), generator=_generator(plan, "roles", salt))
    has_label = torch.zeros(len(frame), dtype=torch.bool)
    if plan.target.name in frame.columns:
        has_label = ~code_targets(plan, frame).isnan()
    with_label = rows[has_label[rows]][:num_scored]
    others = rows[~torch.isin(rows, with_label)][: reference.unlabelled]
    used = torch.cat([with_label, others]).sort().values
    order = torch.randperm(len(used), generator=_generator(plan, "order", salt))
    return _Roles(with_label[: reference.labelled], with_label[reference.labelled :], used[order])


def _generator(plan: Plan, use: str, salt: bytes) -> torch.Generator:
    """The plan's seed is known to everybody, the salt is not."""
    return generator(plan.seed, "reference", use, salt.hex())


def _scaled(plan: Plan, rows: Examined, frame: pd.DataFrame, roles: _Roles) -> Plan:
    """The plan with centres and scales of the rows that the kit will have."""
    if not len(roles.kit):
        return plan  # whose author has written them
    columns: dict[str, Column] = {}
    for (name, column), values in zip(plan.columns.items(), rows.codes.T, strict=True):
        columns[name] = column
        if name in plan.vectors:
            found = moments(rows.vectors.get(name)) or (0.0, 1.0)
            columns[name] = column.model_copy(update=_rounded(*found))
        elif column.is_scaled:
            columns[name] = column.model_copy(update=_centre_and_scale(values))
    target = plan.target
    if task_of(plan).is_scaled and len(roles.labelled):  # labels of evaluate rows stay unopened
        bare = target.model_copy(update={"centre": None, "scale": None})
        labelled = frame.iloc[roles.labelled.tolist()]
        values = code_targets(plan.model_copy(update={"target": bare}), labelled)
        target = target.model_copy(update=_centre_and_scale(values))
    return plan.model_copy(update={"columns": columns, "target": target})


def _centre_and_scale(values: Tensor) -> dict[str, float]:
    """Mean and deviation of what is known; 0 and 1 where they mean nothing."""
    known = values[~values.isnan()]
    if not len(known):
        return {"centre": 0.0, "scale": 1.0}
    return _rounded(float(known.mean()), float(known.std(correction=0)))


def _rounded(mean: float, std: float) -> dict[str, float]:
    # Numerics: the deviation of a constant column may be a rounding error instead of zero.
    varies = math.isfinite(std) and std > 1e-12 * abs(mean)
    # They are printed, and need not be exact.
    return {"centre": six_digits(mean), "scale": six_digits(std) if varies else 1.0}


def _part(plan: Plan, frame: pd.DataFrame, rows: Tensor, kit: Tensor) -> _Part:
    """Labels by rows of the kit, ascending."""
    if not len(rows):
        return _Part(rows=[], labels=[])
    kit_rows = torch.isin(kit, rows).nonzero()[:, 0]
    labelled = frame.iloc[kit[kit_rows].tolist()]
    bare = plan.target.model_copy(update={"transform": "none", "centre": None, "scale": None})
    values = code_targets(plan.model_copy(update={"target": bare}), labelled).tolist()
    labels = task_of(plan).to_labels(plan, values)
    return _Part(rows=kit_rows.tolist(), labels=labels)


def _table(plan: Plan, frame: pd.DataFrame, codes: Tensor) -> pd.DataFrame:
    """The plan's columns, written alike in every row: 1 and 1.0 could tell where a row is from."""
    table = {}
    for (name, column), values in zip(plan.columns.items(), codes.T.tolist(), strict=True):
        if name not in frame.columns:
            continue  # optional, and nobody knows it here
        if name in plan.vectors:  # rows of the file of vectors
            table[name] = [
                "" if math.isnan(value) else str(row) for row, value in enumerate(values)
            ]
        elif column.words:
            words = (*column.words, None)  # other words stay as they are
            table[name] = [
                "" if math.isnan(value) else words[int(value)] or str(cell)
                for value, cell in zip(values, frame[name], strict=True)
            ]
        else:
            table[name] = [
                "" if math.isnan(value) else repr(value).removesuffix(".0") for value in values
            ]
    return pd.DataFrame(table)


def _write(
    plan: Plan,
    inputs: pd.DataFrame,
    rows: Examined,
    contents: _Contents,
    out: Path,
    labels_out: Path,
) -> Kit:
    """Both or, if something goes wrong, none; the kit comes last."""
    kit_part, labels_part = scratch_beside(out), scratch_beside(labels_out)
    try:
        _write_secret(labels_part, contents.model_dump_json())
        kit_part.mkdir()
        _write_text(kit_part / PLAN_FILE, dump(plan))
        _write_text(kit_part / REFERENCE_FILE, to_csv(inputs))
        if rows.vectors:
            save_file(rows.vectors, kit_part / VECTORS_FILE)
            shutil.copymode(kit_part / REFERENCE_FILE, kit_part / VECTORS_FILE)
        for name in (FINGERPRINT_FILE, README_FILE):
            _write_text(kit_part / name, _told(plan, name))
        kit = Kit.load(kit_part, meant=rows)
        _read_labels(labels_part, kit)  # what was written is what was meant
        sync_tree(kit_part)
        put(labels_part, labels_out)
        put(kit_part, out)
    except OSError as error:
        raise PlanError(f"cannot write {error.filename or out}: {error.strerror}") from error
    finally:
        remove(kit_part)
        remove(labels_part)
    return replace(kit, folder=out)


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode())  # no line endings of the system's


def _write_secret(path: Path, text: str) -> None:
    """A file that nobody else on the computer may read, from its first byte."""
    with open_new(path, PRIVATE) as file:
        file.write(text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _require_new(out: Path, labels_out: Path) -> None:
    if out.resolve() in (labels_out.resolve(), *labels_out.resolve().parents):
        raise PlanError(f"labels must not go into the kit: not to {labels_out}")
    for path in (out, labels_out):
        if path.exists():
            raise PlanError(f"{path} exists already; choose another name, or remove it first")
        if not path.absolute().parent.is_dir():
            raise PlanError(f"there is no folder {path.absolute().parent}")


def _told(plan: Plan, name: str) -> str:
    """What a kit's text file says; that with the words never changes, as it is compared."""
    text = resources.files(__package__).joinpath("texts", name).read_text("utf-8")
    cautions = "".join(f"\n\n{textwrap.fill(words, 96)}\n" for words in plan.cautions)
    return text.format(name=plan.name, words=plan.fingerprint, cautions=cautions)


def _require_fingerprint(kit: Kit) -> None:
    """A file that is read out on the telephone must say what we would write, and nothing else."""
    path, told = kit.folder / FINGERPRINT_FILE, _told(kit.plan, FINGERPRINT_FILE).encode()
    if path.is_file() and path.read_bytes().replace(b"\r\n", b"\n") != told:
        raise PlanError(f"{FINGERPRINT_FILE} is not the plan's, whose words are {kit.fingerprint}")


def _read_labels(path: Path, kit: Kit) -> tuple[_Contents, Tensor, Tensor]:
    """What a file of labels has, and the rows that are labelled and for evaluation."""
    try:
        contents = _Contents.model_validate_json(path.read_bytes())
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        # Which place is wrong would repeat a label.
        raise PlanError(f"{path.name} is not a file of labels, as plan freeze writes it") from error
    if kit.plan.frozen is None or contents.digest() != kit.plan.frozen.labels_digest:
        raise PlanError(f"{path.name} does not hold the labels that the plan was frozen with")
    labelled, evaluate = (_rows(part, kit) for part in (contents.labelled, contents.evaluate))
    num_distinct = len(set(torch.cat([labelled, evaluate]).tolist()))
    counts = (len(labelled), len(evaluate), len(kit) - num_distinct)
    agreed = kit.plan.reference
    if counts != (agreed.labelled, agreed.evaluate, agreed.unlabelled):
        raise PlanError(f"{path.name} does not have as many rows in each role as the plan")
    return contents, labelled, evaluate


def _rows(part: _Part, kit: Kit) -> Tensor:
    rows = torch.tensor(part.rows, dtype=torch.int64)
    if len(part.labels) != len(rows) or bool((rows >= len(kit)).any()):
        raise PlanError("the labels do not fit the rows of the kit")
    return rows


def _targets(plan: Plan, labels: Sequence[str] | Sequence[float]) -> Tensor:
    """Labels as learners take them: class indices, or float32 in standard units."""
    try:
        return task_of(plan).from_labels(plan, labels)
    except PoolError as error:
        raise PlanError(f"the labels are not the plan's: {error}") from error
