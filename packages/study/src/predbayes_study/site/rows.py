"""A site's rows as the plan encodes them, and which of them are held out.

A share of the rows is never trained on. Rows of one patient are on one side, and so are copies of
a row and each class's share if the plan says `stratified`; rows that a reference row is near to
are held out first (`study.site.blindspot`). Which they are derives from the plan's seed and the
site's name, unless the plan's payload draws them otherwise.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from predbayes.errors import DataError
from predbayes.spill import blocks, row_bytes, take
from predbayes_study.kit.kit import Kit
from predbayes_study.payload import payload_of
from predbayes_study.plan.draws import site_rng
from predbayes_study.plan.schema import Plan
from predbayes_study.site.blindspot import near_groups, with_blind_spot
from predbayes_study.site.holdout import connected, hold_out
from predbayes_study.tables.coding import Encoder, Examined, code_targets, examine
from predbayes_study.tables.column import Outside
from predbayes_study.tables.mapping import PATIENT
from predbayes_study.tables.plausible import require_right_way
from predbayes_study.tables.problem import least_cell
from predbayes_study.tables.sitefile import SiteFile
from predbayes_study.tasks import task_of

_LEAST_ROWS = 2


@dataclass(frozen=True)  # without slots, where what is made once is kept
class SiteRows:
    """A site's rows as the plan encodes them; rows without a target are left out."""

    inputs: Tensor  # (N, plan.num_inputs)
    targets: Tensor  # (N,)
    num_dropped: int = 0
    patients: Tensor | None = None  # (N,) rows of one patient have one number
    lines: Tensor | None = None  # (N,) where they are in the site's file; its header is line 1
    secret: bytes = field(default=b"", repr=False)  # the site's, if the payload needs one

    @classmethod
    def of(
        cls,
        plan: Plan,
        frame: pd.DataFrame,
        examined: Examined | None = None,
        *,
        secret: bytes = b"",
    ) -> SiteRows:
        """Encode a table in the plan's columns and units; or what was examined of it already."""
        least, payload = least_cell(plan), payload_of(plan)
        outside: Outside = "clip few" if payload.refusals_tell else "row by row"
        strict: Outside = "refuse" if payload.refusals_tell else outside
        targets = code_targets(plan, frame, strict, least=least)
        usable = payload.usable(plan, frame)
        known = ~targets.isnan() if usable is None else ~targets.isnan() & usable
        if payload.refusals_tell and int(known.sum()) < _LEAST_ROWS:
            raise DataError(f"fewer than {_LEAST_ROWS} rows have a {plan.target.name}")
        if examined is None or not payload.refusals_tell:
            examined = examine(plan, frame, outside)
        examined.require_sound(least)
        inputs = take(Encoder(plan).in_blocks(examined), known.nonzero()[:, 0])
        kept = targets[known].to(task_of(plan).dtype)
        patients = _numbered(frame[PATIENT])[known] if PATIENT in frame else None
        numbered = pd.api.types.is_integer_dtype(frame.index)
        lines = torch.tensor(frame.index.to_numpy(), dtype=torch.int64)[known] if numbered else None
        return cls(inputs, kept, int((~known).sum()), patients, lines, secret)

    @classmethod
    def to_train(cls, plan: Plan, own: SiteFile, frame: pd.DataFrame) -> SiteRows:
        """Encode the rows that an upload is made of; refuse a target that looks swapped."""
        payload = payload_of(plan)
        if not payload.refusals_tell:
            return cls.of(plan, frame, secret=payload.secret(own))
        examined = examine(plan, frame, "clip few")
        rows = cls.of(plan, frame, examined, secret=payload.secret(own))
        targets = code_targets(plan, frame).numpy()
        require_right_way(plan, own, examined.codes.numpy(), targets)
        return rows

    def digest(self) -> str:
        """SHA-256 of the encoded rows."""
        content = hashlib.sha256(str(tuple(self.inputs.shape)).encode())
        parts = (self.inputs, self.targets, self.patients)
        for part in (part for part in parts if part is not None):
            content.update(part.contiguous().numpy().tobytes())
        return content.hexdigest()

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return take(self.inputs, rows), self.targets[rows]

    def line_of(self, row: int) -> int:
        """The line of a row in the site's file, or without one its place among the rows, from 1."""
        return row + 1 if self.lines is None else int(self.lines[row])

    def patients_of(self, rows: Tensor) -> Tensor | None:
        """The patients' numbers of some rows, if they are known."""
        return None if self.patients is None else self.patients[rows]

    def one_each(self, plan: Plan, rows: Tensor) -> Tensor:
        """Return one of some rows for each patient, by lot of the plan's seed, ascending.

        What is counted in rows then counts people, so rules about few rows are about few people.
        """
        if self.patients is None:
            return rows
        order = torch.randperm(len(rows), generator=site_rng(plan, "one of each"))
        dealt = self.patients[rows][order]
        _, whose = torch.unique(dealt, return_inverse=True)
        places = torch.arange(len(rows))
        first = torch.full((len(rows),), len(rows)).scatter_reduce(0, whose, places, "amin")
        return rows[order[first[first < len(rows)]]].sort().values

    def split(
        self, plan: Plan, site: str, reference: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows to train on and rows held out, ascending; the same whenever it is asked.

        Rows of one patient are on one side. If the plan says `stratified`, so are copies of a row,
        and each class has its share on both. With the reference inputs, rows that these are near
        to are held out in the place of others (`study.site.blindspot`).
        """
        held_out = payload_of(plan).hold_out(plan, site, self)
        if held_out is None:
            held_out = self._drawn(plan, site)
            if reference is not None and bool(held_out.any()):
                held_out = self._blind(plan, site, reference, held_out)
        return (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]

    def split_for(self, kit: Kit, site: str) -> tuple[Tensor, Tensor]:
        """The rows that a site trains on for a kit, and those held out.

        Where no predictions leave, reference rows are not asked about: there is no blind spot.
        """
        return self.split(kit.plan, site, kit.inputs if payload_of(kit.plan).predicts else None)

    def rule(self, plan: Plan) -> str:
        """Say by which rule `split_for` holds rows out, in a few words."""
        if told := payload_of(plan).holdout_rule(plan):
            return told
        if not plan.learner.holdout:
            return "none, as the plan says"
        parts = [f"{plan.learner.holdout:.0%} by lot of the plan's seed"]
        if self.patients is not None:
            parts.append("rows of one patient together")
        if plan.learner.split == "stratified":
            parts.append("of each class its share" if task_of(plan).by_class else "")
            parts.append("equal rows together")
        if payload_of(plan).predicts:
            parts.append("those near a reference row first")
        return ", ".join(filter(None, parts))

    def _drawn(self, plan: Plan, site: str) -> Tensor:
        """Which rows are held out by lot, (N,)."""
        stratified = plan.learner.split == "stratified"
        if stratified:
            groups = self.alike
        elif self.patients is not None:
            groups = connected([self.patients])
        else:
            drawn = torch.zeros(len(self.targets), dtype=torch.bool)
            drawn[split_rows(plan, site, len(self.targets))[1]] = True
            return drawn
        strata = self.targets if stratified and task_of(plan).by_class else None
        rng = site_rng(plan, "holdout", site)
        return hold_out(groups, strata, plan.learner.holdout, rng)

    def _blind(self, plan: Plan, site: str, reference: Tensor, held_out: Tensor) -> Tensor:
        known = self._near.get(id(reference))
        if known is None:  # it is asked several times, and takes a while
            known = reference, near_groups(reference, self.inputs, self.alike)
            self._near[id(reference)] = known
        groups, near = self.alike, known[1]
        # Without strata nothing that is held out, not even its class, has a part in what is sent.
        stratified = plan.learner.split == "stratified"
        if not stratified:  # copies are on both sides: each row goes alone
            one_by_one = torch.arange(len(self.targets))
            groups = one_by_one if self.patients is None else connected([self.patients])
            places = {group: place for place, group in enumerate(near)}
            order = sorted(
                (places[number], own)
                for number, own in zip(self.alike.tolist(), groups.tolist(), strict=True)
                if number in places
            )
            near = list(dict.fromkeys(own for _, own in order))
        classes = self.targets if stratified and task_of(plan).by_class else None
        rng = site_rng(plan, "blind spot", site)
        return with_blind_spot(held_out, groups, classes, near, rng)

    @cached_property
    def _near(self) -> dict[int, tuple[Tensor, list[int]]]:
        """Groups near reference inputs, by the identity of these, which is kept with them."""
        return {}

    @cached_property
    def alike(self) -> Tensor:
        """Numbers of groups of rows of one patient, and of copies; finding them takes a while."""
        numbers = _equal_rows(self.inputs)
        num_distinct = int(numbers.max()) + 1
        # In a table of few categories rows are equal by chance, and are no copies. The target does
        # not part equal rows: held-out ones would be of another p(y | x).
        copies = numbers if 2 * num_distinct >= len(numbers) else torch.arange(len(numbers))
        return connected([copies] if self.patients is None else [self.patients, copies])


def _equal_rows(inputs: Tensor) -> Tensor:
    """The same number for equal rows, (N,)."""
    seen: dict[bytes, int] = {}
    numbers = torch.empty(len(inputs), dtype=torch.int64)
    for part in blocks(len(inputs), row_bytes(inputs)):
        rows = (inputs[part] + 0.0).contiguous().numpy()  # there are two zeros
        numbers[part] = torch.tensor(
            [seen.setdefault(hashlib.sha256(row).digest(), len(seen)) for row in rows]
        )
    return numbers


def _numbered(patients: pd.Series) -> Tensor:
    """Numbers of patients; a row that names none is of a patient of its own."""
    codes = torch.tensor(pd.factorize(patients)[0], dtype=torch.int64)
    empty = torch.tensor((patients == "").to_numpy(bool))
    return torch.where(empty, len(codes) + torch.arange(len(codes)), codes)


def split_rows(plan: Plan, site: str, num_rows: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows held out, ascending, whatever they are."""
    order = torch.randperm(num_rows, generator=site_rng(plan, "holdout", site))
    num_held_out = int(plan.learner.holdout * num_rows)
    return order[num_held_out:].sort().values, order[:num_held_out].sort().values
