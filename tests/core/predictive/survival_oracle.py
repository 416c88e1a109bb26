"""What scikit-survival says of a few rows, written to `survival_oracle.json` beside this file.

`python -m tests.core.predictive.survival_oracle` writes it, where scikit-survival 0.28.0 is
installed.
Tests read the file, so that they need no more than its numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
NUM_ROWS, NUM_INTERVALS = 120, 5


def main() -> None:
    """Draw rows, ask scikit-survival, write both."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.metrics import brier_score, concordance_index_censored
    from sksurv.nonparametric import kaplan_meier_estimator

    rng = np.random.default_rng(0)
    inputs, later = rng.normal(size=(2, NUM_ROWS, 3)).round(3)
    targets, log_odds = _targets(inputs, rng)
    held_out, _ = _targets(later, rng)
    noisy = (log_odds + rng.normal(size=(NUM_ROWS, 1))).round(4)
    hazards = 1 / (1 + np.exp(-noisy))
    curve = np.cumprod(1 - hazards, axis=1)
    risk = -np.log(curve[:, -1])
    ends = np.arange(1, NUM_INTERVALS)  # strictly inside the follow-up
    outcome = _outcome(targets)
    # With ties of events and censored rows.
    tied = np.where(targets > 0, 1, -1) * np.ceil(2 * np.abs(targets)) / 2
    times, shares, interval = kaplan_meier_estimator(tied > 0, np.abs(tied), conf_type="log-log")
    cox = CoxPHSurvivalAnalysis().fit(inputs, outcome)
    answers = {
        "inputs": inputs,
        "later": later,
        "held_out": held_out,
        "log_odds": noisy,
        "targets": targets,
        "c_index": concordance_index_censored(targets > 0, np.abs(targets), risk)[0],
        "brier": brier_score(outcome, outcome, curve[:, :-1], ends)[1],
        "tied": tied,
        "tied_c_index": concordance_index_censored(tied > 0, np.abs(tied), risk)[0],
        "times": times,
        "shares": shares,
        "low": interval[0],
        "high": interval[1],
        "cox_c_index": concordance_index_censored(
            held_out > 0, np.abs(held_out), cox.predict(later)
        )[0],
    }
    told = {name: np.asarray(value).tolist() for name, value in answers.items()}
    FILE.write_text(json.dumps(told) + "\n")


def _targets(inputs: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    log_odds = -1.5 + inputs[:, :1] - 0.5 * inputs[:, 1:2] + 0.2 * np.arange(NUM_INTERVALS)
    events = rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))
    first = np.where(events.any(1), events.argmax(1), NUM_INTERVALS)
    time = first + rng.uniform(0.01, 0.99, len(inputs))
    seen = rng.uniform(0.01, 8, len(inputs))
    censored = -np.minimum(np.minimum(seen, time), NUM_INTERVALS)
    return np.where((time <= seen) & (first < NUM_INTERVALS), time, censored).round(5), log_odds


def _outcome(targets: np.ndarray) -> np.ndarray:
    kinds = [("event", bool), ("time", float)]
    return np.array([(t > 0, abs(t)) for t in targets], dtype=kinds)


if __name__ == "__main__":
    main()
