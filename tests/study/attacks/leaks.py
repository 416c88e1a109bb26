"""A study with many numeric columns, and the inversions of a site's upload that the tests try.

The attacker is the coordinator: it knows the plan, the reference rows, and what a site sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from predbayes.exchange.upload import Upload
from predbayes_study.kit.kit import Kit, freeze
from predbayes_study.site.fitting import make_upload

NUM_REFERENCE = 400
NUM_ROWS = 160

Array = npt.NDArray[Any]

_TARGETS = {
    "regression": 'task = "regression"\ncentre = 0.0\nscale = 1.0',
    "classification": 'task = "classification"\nclasses = ["no", "yes"]',
}


@dataclass(frozen=True)
class Hospitals:
    """A kit, and patients of whom none is among the reference rows."""

    kit: Kit
    inputs: Tensor  # (N, D)
    targets: Tensor  # (N,)

    def upload(self, chosen: Array, learner: str) -> Upload:
        """What a site with these patients sends, by the code that sites run."""
        rows = torch.as_tensor(chosen)
        return make_upload(
            self.kit, "Basel", (self.inputs[rows], self.targets[rows]), learner=learner
        )

    def draw(self, seed: int, shift: float = 0.0) -> Array:
        """Patients of a site; with a shift mostly those with a large first column."""
        weights = np.exp(shift * self.inputs[:, 0].double().numpy())
        drawn: Array = np.random.default_rng(seed).choice(
            len(self.inputs), NUM_ROWS, replace=False, p=weights / weights.sum()
        )
        return drawn


def make_hospitals(root: Path, task: str, num_columns: int, num_patients: int = 1200) -> Hospitals:
    """Correlated columns, a skewed one, and a target that depends on them."""
    rng = np.random.default_rng(0)
    total = NUM_REFERENCE + num_patients
    table = rng.normal(size=(total, num_columns)) @ (
        np.eye(num_columns) + 0.3 * rng.normal(size=(num_columns, num_columns))
    )
    table[:, 1] = np.exp(0.5 * table[:, 1])
    table = (table - table.mean(0)) / table.std(0)
    score = table @ rng.normal(size=num_columns) / np.sqrt(num_columns)
    values = score + rng.normal(size=total)
    targets = values if task == "regression" else np.where(values > 0, "yes", "no")
    names = [f"x{index}" for index in range(num_columns)]
    columns = "\n".join(f'{n} = {{ type = "number", centre = 0.0, scale = 1.0 }}' for n in names)
    frame = pd.DataFrame(table, columns=names).assign(outcome=targets)
    frame[:NUM_REFERENCE].to_csv(root / "reference.csv", index=False)
    (root / "plan.toml").write_text(
        f'format = 1\nname = "leaks"\n[target]\nname = "outcome"\n{_TARGETS[task]}\n'
        f"[columns]\n{columns}\n"
        '[reference]\nfile = "reference.csv"\nsource = "drawn"\nlicence = "CC0"\n'
        f'legal_basis = "nobody\'s data"\nlabelled = 100\nunlabelled = {NUM_REFERENCE - 100}\n'
        '[learner]\nname = "any"\nmin_steps = 300\n'
        'holdout = 0.0\nholdout_reason = "the worst case"\n'
    )
    kit = freeze(root / "plan.toml", root / "kit", root / "labels.json")
    own = targets[NUM_REFERENCE:]
    coded = own.astype(np.float32) if task == "regression" else (own == "yes").astype(np.int64)
    return Hospitals(kit, torch.as_tensor(table[NUM_REFERENCE:]).float(), torch.as_tensor(coded))


def quadratic_centre(inputs: Array, values: Array) -> tuple[Array, Array]:
    """The centre m and the inverse form of the quadratic (x - m)' S (x - m) nearest to values.

    Where the values are the variance of one linear regression, m are the means of the site's
    columns, and the inverse of S is their scatter matrix but for a factor.
    """
    num_columns = inputs.shape[1]
    upper = np.triu_indices(num_columns)
    products = inputs[:, upper[0]] * inputs[:, upper[1]] * np.where(upper[0] == upper[1], 1, 2)
    terms = np.c_[np.ones(len(inputs)), inputs, products]
    found = np.linalg.lstsq(terms, values, rcond=None)[0]
    form = np.zeros((num_columns, num_columns))
    form[upper] = found[1 + num_columns :]
    form = form + form.T - np.diag(np.diag(form))
    centre = np.linalg.lstsq(form, -found[1 : 1 + num_columns] / 2, rcond=None)[0]
    least = found[0] - centre @ form @ centre
    return centre, np.linalg.pinv(form) * least


def linear_difference(inputs: Array, before: Array, after: Array) -> Array:
    """The row that was taken out, up to a factor, as two linear fits would tell it.

    One Newton step from fit to fit: the difference of coefficients is H^-1 x times a residual; H is
    guessed from the reference rows.
    """
    terms = np.c_[np.ones(len(inputs)), inputs]
    change = np.linalg.lstsq(terms, before - after, rcond=None)[0]
    gradient = terms.T @ terms @ change
    row: Array = gradient[1:] / gradient[0]
    return row
