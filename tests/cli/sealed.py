"""A study of sealed sums by commands alone, each party in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tests.cli.test_app import predbayes
from tests.cli.test_moments import patients

CLASSES = 'name = "ill"\ntask = "classification"\nclasses = ["no", "yes"]'
PLAN = f"""
format = 1
name = "sealed"
description = "for a test"
[target]
{CLASSES}
[columns]
age = {{ type = "number", unit = "years" }}
marker = {{ type = "number", unit = "1" }}
sex = {{ type = "category", categories = ["female", "male"], other = false }}
[reference]
file = "reference.csv"
source = "drawn"
licence = "none"
legal_basis = "nobody's"
labelled = 120
evaluate = 60
unlabelled = 120
[learner]
name = "logistic-regression"
[pool]
own = "logistic-regression"
[model]
hidden = [8]
[rules]
quorum = 3
"""
PRIVACY = """[privacy]
mode = "sealed"
holders = [%s]
minimum = 3
max_sites = 20
"""


def reference_rows():
    rows = patients(300, seed=99).drop(columns="days")
    rows.loc[180:, "ill"] = ""
    return rows


@dataclass(frozen=True)
class Consortium:
    """A coordinator, key holders and sites, by name."""

    root: Path
    holders: Sequence[str] = ("trustee",)

    @property
    def home(self) -> Path:
        """The coordinator's folder."""
        return self.root / "coordinator"

    def __call__(self, at: str, *line: str | Path, code: int = 0) -> str:
        """Run a command in somebody's folder; a refusal is one line."""
        (self.root / at).mkdir(exist_ok=True)
        done = predbayes(*line, cwd=self.root / at)
        assert done.returncode == code, f"{line}: {done.stdout} {done.stderr}"
        assert code == 0 or done.stderr.count("\n") == 1
        return done.stdout if code == 0 else done.stderr

    def begin(
        self, plan: str = PLAN, privacy: str = PRIVACY, rows: pd.DataFrame | None = None
    ) -> None:
        """Make the holders' keys, freeze a plan with them, begin its study."""
        keys = [self(holder, "holder", "keys").split('"')[1] for holder in self.holders]
        self.home.mkdir()
        rows = reference_rows() if rows is None else rows
        rows.to_csv(self.home / "reference.csv", index=False)
        named = ", ".join(f'"{key}"' for key in keys)
        (self.home / "plan.toml").write_text(plan + privacy % named)
        self("coordinator", "plan", "check", "plan.toml")
        self("coordinator", "plan", "freeze", "plan.toml", "--out", "kit")
        self("coordinator", "study", "init", "kit", "--labels", "kit-labels.json")

    def join(self, site: str, table: pd.DataFrame) -> None:
        """Let a site train, and everybody admit it."""
        folder = self.root / site
        folder.mkdir()
        table.to_csv(folder / "patients.csv", index=False)
        (folder / "site.toml").write_text(f'format = 1\nname = "{site}"\n[columns]\n')
        self(site, "site", "key", site)
        self("coordinator", "study", "admit", site, folder / f"{site}.pub")
        self(site, "site", "train", self.home / "kit", "patients.csv", "--out", "out")
        self("coordinator", "study", "add", folder / "out" / f"{site}.safetensors")
        for holder in self.holders:
            self(holder, "holder", "admit", site, folder / f"{site}.pub")

    def opened(self, holder: str = "trustee", number: int = 1) -> Path:
        """Let a holder open the sum that it was asked for."""
        request = self.home / f"holder-{number}.request"
        self(holder, "holder", "open", self.home / "kit", request, "--out", "sum.opening")
        return self.root / holder / "sum.opening"
