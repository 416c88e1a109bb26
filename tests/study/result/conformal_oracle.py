"""Sets of MAPIE and intervals of crepes for a few rows, in `conformal_oracle.json` beside it.

`python -m tests.study.result.conformal_oracle` writes it, where MAPIE 1.6.0 and crepes 0.9.1 are
installed. Tests read the file, so that they need no more than its numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
LEVELS = (0.6, 0.8, 0.9, 0.95)


def main() -> None:
    """Draw rows, ask both, write all of it."""
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(200, 4)) * 1.5
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(4, p=row) for row in probs])
    mean, std = rng.normal(size=200).round(3), rng.uniform(0.5, 2.0, size=200).round(3)
    numbers = (mean + 1.3 * std * rng.standard_t(4, size=200)).round(3)
    drawn = {"probs": probs, "labels": labels, "mean": mean, "std": std, "numbers": numbers}
    found = {name: values.tolist() for name, values in drawn.items()}
    found["sets"] = {str(level): sets(probs, labels, level) for level in LEVELS}
    found["ends"] = {str(level): ends(mean, std, numbers, level) for level in LEVELS}
    FILE.write_text(json.dumps(found) + "\n")


def sets(probs: np.ndarray, labels: np.ndarray, level: float) -> list[list[bool]]:
    """MAPIE's sets by the score 1 - p, for the last hundred rows from the first hundred."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """Rows are their own probabilities."""

        classes_ = np.arange(probs.shape[1])

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def fit(self, inputs, targets):
            return self

        def predict_proba(self, inputs):
            return inputs

        def predict(self, inputs):
            return inputs.argmax(1)

    split = SplitConformalClassifier(
        Given(), confidence_level=level, conformity_score="lac", prefit=True
    )
    split.conformalize(probs[:100], labels[:100])
    return split.predict_set(probs[100:])[1][:, :, 0].tolist()


def ends(mean: np.ndarray, std: np.ndarray, numbers: np.ndarray, level: float) -> list[list[float]]:
    """crepes' intervals of normalised residuals, likewise."""
    from crepes import ConformalRegressor

    regressor = ConformalRegressor()
    regressor.fit((numbers - mean)[:100], sigmas=std[:100])
    return regressor.predict_int(mean[100:], sigmas=std[100:], confidence=level).tolist()


if __name__ == "__main__":
    main()
