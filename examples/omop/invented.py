"""An OMOP database of people who do not exist, so that the example runs anywhere.

    python invented.py CDM.sqlite [PEOPLE [SEED]]

Who is back within 30 days depends on age, heart failure and creatinine. Half of the creatinine is
in mg/dL and half in µmol/L, as where two laboratories send their values.
"""

from __future__ import annotations

import math
import random
import sqlite3
import sys
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

HERE = Path(__file__).parent
CONCEPTS = [  # id, name, domain, vocabulary, class, code
    (8507, "MALE", "Gender", "Gender", "Gender", "M"),
    (8532, "FEMALE", "Gender", "Gender", "Gender", "F"),
    (9201, "Inpatient Visit", "Visit", "Visit", "Visit", "IP"),
    (9202, "Outpatient Visit", "Visit", "Visit", "Visit", "OP"),
    (316139, "Heart failure", "Condition", "SNOMED", "Disorder", "84114007"),
    (320128, "Essential hypertension", "Condition", "SNOMED", "Disorder", "59621000"),
    (3016723, "Creatinine [Mass/volume] in Serum or Plasma", "Measurement", "LOINC", "Lab Test",
     "2160-0"),
    (3000963, "Hemoglobin [Mass/volume] in Blood", "Measurement", "LOINC", "Lab Test", "718-7"),
    (8840, "milligram per deciliter", "Unit", "UCUM", "Unit", "mg/dL"),
    (8749, "micromole per liter", "Unit", "UCUM", "Unit", "umol/L"),
    (8713, "gram per deciliter", "Unit", "UCUM", "Unit", "g/dL"),
]  # fmt: skip
EHR = 32817  # where a record is from


class Filler:
    """Adds rows to the tables, each with a number of its own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def add(self, table: str, **values: object) -> int:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        done = self.connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values())
        )
        return int(done.lastrowid or 0)

    def concepts(self) -> None:
        names = ("concept_id", "concept_name", "domain_id", "vocabulary_id", "concept_class_id")
        dates = {"valid_start_date": "1970-01-01", "valid_end_date": "2099-12-31"}
        for *parts, code in CONCEPTS:
            named = dict(zip(names, parts, strict=True))
            self.add("concept", **named, concept_code=code, standard_concept="S", **dates)

    def person(self, draw: random.Random) -> None:
        age, fails = draw.randint(40, 90), draw.random() < 0.3
        creatinine = draw.lognormvariate(math.log(90), 0.35)
        person = self.add(
            "person",
            gender_concept_id=draw.choice([8507, 8532]),
            year_of_birth=2024 - age,
            race_concept_id=0,
            ethnicity_concept_id=0,
        )
        day = date(2024, 1, 1) + timedelta(days=draw.randint(0, 200))
        condition = 316139 if fails else 320128
        self.add(
            "condition_occurrence",
            person_id=person,
            condition_concept_id=condition,
            condition_start_date=(day - timedelta(days=400)).isoformat(),
            condition_type_concept_id=EHR,
        )
        left = self.stay(draw, person, day, creatinine)
        self.visit(person, 9202, left + timedelta(days=3), 0)  # a check-up is no readmission
        log_odds = -2.2 + 0.04 * (age - 65) + 1.2 * fails + 1.5 * math.log(creatinine / 90)
        if draw.random() < 1 / (1 + math.exp(-log_odds)):
            self.stay(draw, person, left + timedelta(days=draw.randint(5, 30)), creatinine)

    def stay(self, draw: random.Random, person: int, day: date, creatinine: float) -> date:
        nights = draw.randint(1, 12)
        visit = self.visit(person, 9201, day, nights)
        if draw.random() < 0.9:  # some were not measured
            unit = draw.choice([8840, 8749])
            value = creatinine / 88.42 if unit == 8840 else creatinine
            self.measure(person, visit, day, 3016723, round(value, 2), unit)
        self.measure(person, visit, day, 3000963, round(draw.gauss(13, 1.7), 1), 8713)
        return day + timedelta(days=nights)

    def visit(self, person: int, concept: int, day: date, nights: int) -> int:
        return self.add(
            "visit_occurrence",
            person_id=person,
            visit_concept_id=concept,
            visit_start_date=day.isoformat(),
            visit_end_date=(day + timedelta(days=nights)).isoformat(),
            visit_type_concept_id=EHR,
        )

    def measure(
        self, person: int, visit: int, day: date, concept: int, value: float, unit: int
    ) -> None:
        self.add(
            "measurement",
            person_id=person,
            visit_occurrence_id=visit,
            measurement_concept_id=concept,
            measurement_date=day.isoformat(),
            measurement_type_concept_id=EHR,
            value_as_number=value,
            unit_concept_id=unit,
        )


def invent(path: Path, num_people: int = 400, seed: int = 0) -> None:
    """Write a new database."""
    draw = random.Random(seed)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((HERE / "cdm.sql").read_text("utf-8"))
        filler = Filler(connection)
        filler.concepts()
        for _ in range(num_people):
            filler.person(draw)
        connection.commit()


if __name__ == "__main__":
    invent(Path(sys.argv[1]), *map(int, sys.argv[2:]))
