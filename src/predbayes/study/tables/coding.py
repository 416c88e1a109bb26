"""From a table of a site's or a user's rows to the network's inputs, by the plan alone.

    cells        as they lie in the file, text or numbers, in the plan's units
    codes        (N, columns) float64: a number as it is, a category as its index, `other` as the
                 index after the last, NaN where nothing is known
    inputs       (N, plan.num_inputs) float32: what the network sees

The first step checks, and says all that is wrong at once, by column and line and without ever
repeating a cell, because messages are copied into e-mails. The second is arithmetic with numbers
frozen in the plan, so the same cells become the same inputs at every site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from predbayes.errors import DataError, PlanError
from predbayes.study.plan.schema import Category, Number, Plan
from predbayes.study.tables.cells import Array, Coded, Masks, Outside, code_column
from predbayes.study.tables.problem import Kind, Problem
from predbayes.study.tables.textfile import LINE

_BLOCK = 8192
_MAX_INPUT = 1e6  # in scales; far outside any range, and far inside float32


@dataclass(frozen=True, slots=True)
class Examined:
    """A table's codes, what makes them unusable, and what is odd but was put up with."""

    codes: Tensor  # (N, columns) float64
    problems: tuple[Problem, ...]
    oddities: tuple[Problem, ...]  # words that became `other`, numbers that were clipped


def examine(plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse") -> Examined:
    """Code a table by the plan, and note everything that is wrong or odd with it.

    Columns may come in any order; those that the plan does not name are ignored.
    """
    codes = np.full((len(frame), len(plan.columns)), np.nan)
    problems: list[Problem] = []
    oddities: list[Problem] = []
    for index, (name, column) in enumerate(plan.columns.items()):
        if column.optional and name not in frame.columns:
            continue
        if (whole := _column_problem(frame, name)) is not None:
            problems.append(whole)
            continue
        coded = code_column(column, frame[name], outside)
        codes[:, index] = coded.codes
        problems += _problems(name, column, coded.faults, frame)
        oddities += _problems(name, column, coded.oddities, frame)
    return Examined(torch.from_numpy(codes), tuple(problems), tuple(oddities))


def code_table(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return codes (N, columns) in float64; refuse a table that does not fit the plan.

    The refusal tells counts from `least` on, in steps of it and without lines; all by default.
    """
    examined = examine(plan, frame, outside)
    _require_none(examined.problems, least)
    return examined.codes


def target_problems(plan: Plan, frame: pd.DataFrame) -> list[Problem]:
    """Find everything in the target's column that would be refused; labels may be missing."""
    return _examine_targets(plan, frame)[1]


def code_targets(plan: Plan, frame: pd.DataFrame, *, least: int = 0) -> Tensor:
    """Return targets (N,) in float64: classes, or numbers in standard units; NaN is missing.

    The time to an event is in intervals of the plan, and negative where a row is censored
    (`predbayes.predictive.families.Survival`). After the last interval nothing is looked at: a row
    that was seen longer is censored at its end.

    Standard units are (t - centre) / scale of the transformed target t; a plan that has no centre
    and scale yet leaves t as it is. What is told of problems is as in `code_table`.
    """
    codes, problems = _examine_targets(plan, frame)
    _require_none(problems, least)
    return codes


def untransform(plan: Plan, values: Tensor) -> Tensor:
    """Take quantiles of a regression's target from standard units to its own unit."""
    centre, scale = target_units(plan)
    transformed = centre + scale * values
    return transformed.exp() if plan.target.transform == "log" else transformed


def target_units(plan: Plan) -> tuple[float, float]:
    """Return centre and scale of the transformed target: 0 and 1 where the plan has none yet."""
    centre, scale = plan.target.centre, plan.target.scale
    return 0.0 if centre is None else centre, 1.0 if scale is None else scale


class Encoder(nn.Module):
    """Codes (N, columns) to network inputs (N, plan.num_inputs) in float32.

    A number becomes (x - centre) / scale, a category one 0/1 input for each word; what is missing
    becomes zeros, with a 1 beside them where the plan asks for a flag.
    """

    source: Tensor  # (I,) column of each input
    centre: Tensor  # (I,)
    scale: Tensor  # (I,)
    category: Tensor  # (I,) the code that makes a 0/1 input 1
    is_number: Tensor  # (I,)
    is_flag: Tensor  # (I,)

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        inputs = _inputs(plan)
        for part in fields(_Input):
            values = np.array([getattr(one, part.name) for one in inputs])  # floats are float64
            # The plan has them already.
            self.register_buffer(part.name, torch.from_numpy(values), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Encode codes of any floating type."""
        values = codes.double().index_select(1, self.source)
        missing = values.isnan()
        numbers = (torch.where(missing, self.centre, values) - self.centre) / self.scale
        # Numerics: a cell of 1e300 would be infinite in float32.
        numbers = numbers.clamp(-_MAX_INPUT, _MAX_INPUT)
        switches = (self.is_flag & missing) | (values == self.category)
        return torch.where(self.is_number, numbers, switches.double()).float()

    def in_blocks(self, codes: Tensor) -> Tensor:
        """Encode some thousand rows at a time: a step needs far more room than its result."""
        return torch.cat([self(block) for block in torch.split(codes, _BLOCK)])


def encode(
    plan: Plan, frame: pd.DataFrame, outside: Outside = "refuse", *, least: int = 0
) -> Tensor:
    """Return a table's network inputs (N, plan.num_inputs) in float32."""
    return Encoder(plan).in_blocks(code_table(plan, frame, outside, least=least))


# Targets and problems


def _examine_targets(plan: Plan, frame: pd.DataFrame) -> tuple[Tensor, list[Problem]]:
    if plan.survival:
        return _examine_survival(plan, frame)
    target, column = plan.target, plan.target.as_column()
    if (whole := _column_problem(frame, target.name)) is not None:
        return torch.full((len(frame),), torch.nan, dtype=torch.float64), [whole]
    coded = code_column(column, frame[target.name])
    if not plan.classification:
        coded = _in_standard_units(plan, coded)
    return torch.from_numpy(coded.codes), _problems(target.name, column, coded.faults, frame)


def _examine_survival(plan: Plan, frame: pd.DataFrame) -> tuple[Tensor, list[Problem]]:
    absent = [problem for name in plan.outcomes if (problem := _column_problem(frame, name))]
    if absent:
        return torch.full((len(frame),), torch.nan, dtype=torch.float64), absent
    (time, event), forms = plan.outcomes, [plan.column(name) for name in plan.outcomes]
    times, events = code_column(forms[0], frame[time]), code_column(forms[1], frame[event])
    times = Coded(times.codes, times.faults | {Kind.NEGATIVE: times.codes < 0})
    problems = _problems(time, forms[0], times.faults, frame)
    problems += _problems(event, forms[1], events.faults, frame)
    return torch.from_numpy(in_intervals(plan, times.codes, events.codes)), problems


_AT_ONCE = 1e-6  # of an interval: a time of 0 has a sign as well


def in_intervals(plan: Plan, times: Array, events: Array) -> Array:
    """Return times in the plan's intervals, negative where events are 0; NaN is missing."""
    ends = (0.0, *plan.target.times)
    lived = np.interp(times, ends, np.arange(len(ends))).clip(_AT_ONCE)
    seen = (events == 1) & (times <= ends[-1])
    return np.where(np.isnan(times) | np.isnan(events), np.nan, np.where(seen, lived, -lived))


def _in_standard_units(plan: Plan, coded: Coded) -> Coded:
    centre, scale = target_units(plan)
    values, faults = coded.codes, coded.faults
    if plan.target.transform == "log":
        faults = faults | {Kind.NOT_POSITIVE: values <= 0}
        values = np.log(np.where(values > 0, values, np.nan))
    return Coded((values - centre) / scale, faults)


def _column_problem(frame: pd.DataFrame, name: str) -> Problem | None:
    count = int((frame.columns == name).sum())
    return None if count == 1 else Problem(Kind.REPEATED if count else Kind.ABSENT, name)


def _problems(
    name: str, column: Number | Category, masks: Masks, frame: pd.DataFrame
) -> list[Problem]:
    known = frame.index.name == LINE
    lines = frame.index.to_numpy() if known else np.arange(2, len(frame) + 2)
    return [
        Problem(kind, name, tuple(lines[rows].tolist()), _detail(kind, column))
        for kind, rows in masks.items()
        if rows.any()
    ]


def _detail(kind: Kind, column: Number | Category) -> str:
    if kind is not Kind.OUTSIDE or not isinstance(column, Number) or column.range is None:
        return ""
    return f"{column.range[0]:.12g} to {column.range[1]:.12g}"


def _require_none(problems: Sequence[Problem], least: int) -> None:
    if problems:
        told = "; ".join(problem.told(least) for problem in problems)
        raise DataError(f"the table does not fit the plan: {told}")


# Encoding


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of the network: a number, a flag, or a 0/1 input for one category."""

    source: int
    centre: float = 0.0
    scale: float = 1.0
    category: float = math.nan  # which equals no code
    is_number: bool = False
    is_flag: bool = False


def _inputs(plan: Plan) -> list[_Input]:
    inputs: list[_Input] = []
    for source, (name, column) in enumerate(plan.columns.items()):
        if isinstance(column, Category):
            num_words = len(column.categories) + column.other
            inputs += [_Input(source, category=float(code)) for code in range(num_words)]
        elif column.centre is None or column.scale is None:
            raise PlanError(f"{name} has no centre and scale yet: run `predbayes plan freeze`")
        else:
            inputs.append(_Input(source, column.centre, column.scale, is_number=True))
        if column.missing == "flag":
            inputs.append(_Input(source, is_flag=True))
    return inputs
