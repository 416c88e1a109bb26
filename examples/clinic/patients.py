"""Invented patients of four invented hospitals, drawn from a model that is known.

    logit p(death | x) = b_0 + b . x + what bends it

x has most columns in standard units, creatinine, CRP and lactate in logarithms. What bends it is
sodium that is too low or too high, temperature likewise, and creatinine that weighs more in the
old. About 15 % of the patients die. Hospitals differ in whom they admit (age, how ill), not in the
model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

COLUMNS = (
    "age", "sex", "creatinine", "pressure", "pulse", "sodium", "crp", "haemoglobin", "lactate",
    "temperature", "diabetes", "copd", "smoking",
)  # fmt: skip
TARGET = "death"
CHANCES = "chance of death"
SMOKING = ("never", "former", "current")


@dataclass(frozen=True)
class Admissions:
    """Whom a hospital admits: how many, how old and how ill against the average."""

    num_rows: int
    older: float = 0.0  # in standard deviations
    sicker: float = 0.0


EVERYBODY = Admissions(0)


def draw(admissions: Admissions, num_rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return so many patients in the plan's columns, words and units, with their true chances."""
    older, sicker = admissions.older, admissions.sicker
    normal = rng.standard_normal((num_rows, 9))
    age = normal[:, 0] + older
    kidney = normal[:, 1] + 0.3 * age + 0.3 * sicker
    pressure, pulse = normal[:, 2] - 0.3 * sicker, normal[:, 3] + 0.3 * sicker
    sodium, inflamed = normal[:, 4], normal[:, 5] + 0.4 * sicker
    blood = normal[:, 6] - 0.3 * kidney
    lactate, fever = normal[:, 7] + 0.4 * sicker - 0.2 * pressure, normal[:, 8] + 0.3 * inflamed
    male = rng.random(num_rows) < 0.55
    diabetes = rng.random(num_rows) < 0.25 + 0.05 * np.tanh(age)
    copd = rng.random(num_rows) < 0.15
    smoking = rng.choice(3, num_rows, p=(0.5, 0.3, 0.2))
    logit = (
        -2.5 + 0.5 * age + 0.1 * male + 0.3 * kidney - 0.3 * pressure + 0.15 * pulse
        + 0.3 * inflamed - 0.2 * blood + 0.4 * lactate + 0.25 * diabetes + 0.35 * copd
        + 0.2 * (smoking == 2)
        + 0.2 * (sodium**2 - 1) + 0.1 * (fever**2 - 1) + 0.15 * age * kidney
    )  # fmt: skip
    chance = 1 / (1 + np.exp(-logit))
    return pd.DataFrame(
        {
            "age": (66 + 14 * age).clip(18, 104).round().astype(int),
            "sex": np.where(male, "male", "female"),
            "creatinine": (92 * np.exp(0.4 * kidney)).round().astype(int),  # µmol/l
            "pressure": (130 + 22 * pressure).clip(50, 250).round().astype(int),
            "pulse": (86 + 17 * pulse).clip(30, 200).round().astype(int),
            "sodium": (138.5 + 4.5 * sodium).round(),
            "crp": (25 * np.exp(1.1 * inflamed)).clip(0.3, 600).round(1),
            "haemoglobin": (12.6 + 1.9 * blood).clip(4, 20).round(1),
            "lactate": (1.5 * np.exp(0.5 * lactate)).clip(0.3, 25).round(1),
            "temperature": (37.1 + 0.8 * fever).clip(33, 42).round(1),
            "diabetes": np.where(diabetes, "yes", "no"),
            "copd": np.where(copd, "yes", "no"),
            "smoking": np.array(SMOKING)[smoking],
            TARGET: np.where(rng.random(num_rows) < chance, "yes", "no"),
            CHANCES: chance,
        }
    )


def with_gaps(patients: pd.DataFrame, share: float, rng: np.random.Generator) -> pd.DataFrame:
    """Return patients of whom some laboratory values were never measured."""
    gaps = patients.copy()
    for name in ("sodium", "crp", "haemoglobin", "lactate", "temperature", "smoking"):
        gaps[name] = gaps[name].mask(rng.random(len(gaps)) < share)
    return gaps
