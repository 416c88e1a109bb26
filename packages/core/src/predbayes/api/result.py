"""The result of a run: one object for every method.

    predict      new inputs: by the student if there is one, else by the method's own network
    predictive   what the pool says on the reference rows
    beta, choice, gap   how the pool was tuned, or chosen, and how near the student came
    summary      all of it in a few lines of text
    save         everything that `predbayes.api.saved.load` needs to predict the same bits

What the lines of the summary say is kept as plain data, an `Account`: a loaded result has the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic import Field
from torch import nn

from predbayes.api.scaling import UNSCALED, Scaling
from predbayes.arrays import as_inputs, num_inputs, require_finite
from predbayes.errors import DataError, PoolError
from predbayes.exchange.reference import ReferenceRows
from predbayes.exchange.strict import Strict
from predbayes.learning.local import NetworkPredictor, Predictor
from predbayes.methods.description import describe_pool, name_of, pool_of
from predbayes.predictive.families import Predictive
from predbayes.predictive.metrics import nll
from predbayes.text import html_table

State = TypeVar("State")
_SHOWN_SITES = 8


class Account(Strict):
    """What is known of a run, as plain data; None is what it does not have."""

    method: str
    sites: dict[str, int]  # rows of each
    num_reference: int
    num_labels: int
    pool: str  # what was tuned or chosen, in words
    weights: dict[str, float | list[float]]
    beta: float | None = None
    nll: float | None = None  # of the pool on the labelled rows
    held_out: bool = False  # whether each of those rows was predicted by weights tuned without it
    gap: float | None = None
    nll_gap: float | None = None
    temperature: float | None = None
    num_inputs: int  # of a row
    # Why, by site; absent where all sites took part in every round.
    left_out: dict[str, str] = Field(default_factory=dict, exclude_if=lambda sites: not sites)


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[State]):
    """What a method gives.

    Args:
        state: The method's own; None in a result that was loaded.
        account: What `summary` says, as data.
        model: What predicts new inputs, where there is something.
        scaling: From the user's inputs and targets to the network's, and back.
        kept: The predictive on the reference rows, where there is no state to ask.
    """

    state: State
    account: Account
    model: Predictor | None = None
    scaling: Scaling = UNSCALED
    kept: Predictive | None = None

    def predict(self, inputs: Any) -> Predictive:
        """Predict new inputs: a tensor, an array or a table."""
        if self.model is None:
            raise PoolError(
                f"{self.account.method} has predictions on the reference rows only; to predict new "
                "inputs, run pb.Distilled(method, student=network)"
            )
        given = as_inputs(inputs, torch.float64 if self.scaling.input_mean else None)
        expected = self.account.num_inputs
        if num_inputs(given) != expected:
            raise DataError(
                f"rows have {num_inputs(given)} inputs, the model was trained on {expected}"
            )
        require_finite(given, "row")
        return self.scaling.restored(self.model.predict(self.scaling.scaled(given)))

    def module(self) -> nn.Module:
        """Return the student, or the method's network, as a torch module that evaluates.

        It takes scaled inputs, and its outputs are those before the temperature; `predict` has both
        right.
        """
        if not isinstance(self.model, NetworkPredictor):
            raise PoolError(
                f"{self.account.method} has no network of its own; run "
                "pb.Distilled(method, student=network)"
            )
        return self.model.module()

    @property
    def predictive(self) -> Predictive:
        """What the pool, or the method's network, predicts on the reference rows, in order."""
        pool: Any = pool_of(self.state)
        return self.scaling.restored(pool.predictive if self.kept is None else self.kept)

    @property
    def beta(self) -> float:
        """The weight of the product in the pool; NaN where the method has none."""
        return math.nan if self.account.beta is None else self.account.beta

    @property
    def choice(self) -> Any:
        """The pool that was chosen from several, and why; None where none was chosen.

        None in a loaded result; the summary has the words.
        """
        return getattr(pool_of(self.state), "choice", None)

    @property
    def gap(self) -> float:
        """Mean KL from pool to student in nats; NaN without a student."""
        return math.nan if self.account.gap is None else self.account.gap

    def scaled_by(self, scaling: Scaling) -> Result[State]:
        """Return the same result in the units of the user."""
        score = self.account.nll
        moved = None if score is None else score + math.log(scaling.target_scale)
        account = self.account.model_copy(update={"nll": moved})
        return replace(self, scaling=scaling, account=account)

    def summary(self) -> str:
        """Return a few lines: the sites, the pool, its NLL and what that rests on, the student."""
        return "\n".join(f"{name:<8}{said}" for name, said in _lines(self.account))

    def save(self, folder: str | Path) -> None:
        """Write a folder that `pb.load` reads: numbers and plain data, nothing pickled."""
        from predbayes.api.saved import save

        save(self, Path(folder))

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return html_table(_lines(self.account))


def account_of(
    method: Any,
    state: Any,
    num_rows: Mapping[str, int],
    reference: ReferenceRows,
    left_out: Mapping[str, str],
) -> Account:
    """Write down what is known of a run."""
    pool, student = pool_of(state), getattr(state, "distilled", None)
    choice, tuned = getattr(pool, "choice", None), getattr(pool, "tuned", None)
    score, held_out = None, False
    if len(reference.targets) and hasattr(pool, "predictive"):
        held_out = choice is not None and len(choice.losses) > 0
        score = _number(
            choice.losses.mean()
            if choice is not None and held_out
            else nll(pool.predictive[reference.labelled], reference.targets)
        )
    weights = {
        name: list(weight) if isinstance(weight, tuple) else float(weight)
        for name, weight in (tuned.weights if tuned else {}).items()
    }
    return Account(
        method=name_of(method),
        sites=dict(num_rows),
        num_reference=len(reference.inputs),
        num_labels=len(reference.targets),
        pool=describe_pool(pool),
        weights=weights,
        beta=_number(getattr(pool, "beta", None)),
        nll=score,
        held_out=held_out,
        gap=_number(getattr(state, "gap", None)),
        nll_gap=_number(getattr(state, "nll_gap", None)),
        temperature=None if student is None else 1 / student.inverse_temperature,
        num_inputs=num_inputs(reference.inputs),
        left_out=dict(left_out),
    )


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _lines(account: Account) -> list[tuple[str, str]]:
    """The lines of a summary, as pairs of a name and what it says."""
    names = [f"{name} {rows:,}" for name, rows in list(account.sites.items())[:_SHOWN_SITES]]
    others = len(account.sites) - len(names)
    more = f" and {others:,} more" if others else ""
    rows = f"{sum(account.sites.values()):,} rows: {', '.join(names)}{more}"
    lines = [("method", account.method), ("sites", f"{len(account.sites):,} with {rows}")]
    if account.left_out:
        lines.append(("without", "; ".join(f"{n}: {why}" for n, why in account.left_out.items())))
    if account.pool:
        lines.append(("pool", account.pool))
    shown = [f"{n} {w:.3g}" for n, w in account.weights.items() if isinstance(w, float) and w]
    if shown:
        lines.append(("weights", ", ".join(shown)))
    lines.append(("NLL", _rests_on(account)))
    if account.gap is not None:
        parts = [f"{abs(account.gap):.4f} nats from the pool"]  # rounding can bring it below 0
        if account.nll_gap is not None:
            size, side = f"{abs(account.nll_gap):.4f}", "above" if account.nll_gap > 0 else "below"
            parts.append(f"NLL {f'{size} {side}' if float(size) else 'equal to'} the pool's")
        if account.temperature is not None and account.temperature != 1:
            parts.append(f"temperature {account.temperature:.3f}")
        lines.append(("student", ", ".join(parts)))
    return lines


def _rests_on(account: Account) -> str:
    if not account.num_labels:
        return f"unknown: none of {account.num_reference:,} reference rows has a label"
    if account.nll is None:
        return "unknown"
    how = (
        "each under weights tuned without it"
        if account.held_out
        else "which the coordinator has seen"
    )
    return f"{account.nll:.3f} on {account.num_labels:,} labelled reference rows, {how}"
