"""A study by commands alone, each party in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tests.study.commands import predbayes


@dataclass(frozen=True)
class Consortium:
    """A coordinator, sites, and the holders of the keys of sealed sums, by name."""

    root: Path
    holders: Sequence[str] = ()

    @property
    def home(self) -> Path:
        """The coordinator's folder."""
        return self.root / "coordinator"

    def __call__(self, at: str, *line: str | Path, code: int = 0) -> str:
        """Run a command in somebody's folder; a refusal is one line."""
        (self.root / at).mkdir(exist_ok=True)
        done = predbayes(*line, cwd=self.root / at)
        assert done.code == code, f"{line}: {done.out} {done.err}"
        assert code == 0 or done.err.count("\n") == 1
        return done.out if code == 0 else done.err

    def begin(self, plan: str, privacy: str = "", rows: pd.DataFrame | None = None) -> None:
        """Make the holders' keys, freeze a plan with them, begin its study."""
        keys = [self(holder, "holder", "keys").split('"')[1] for holder in self.holders]
        self.home.mkdir(exist_ok=True)
        if rows is not None:
            rows.to_csv(self.home / "reference.csv", index=False)
        named = ", ".join(f'"{key}"' for key in keys)
        (self.home / "plan.toml").write_text(plan + (privacy % named if keys else ""))
        assert "no errors" in self("coordinator", "plan", "check", "plan.toml")
        self("coordinator", "plan", "freeze", "plan.toml", "--out", "kit")
        self("coordinator", "study", "init", "kit", "--labels", "kit-labels.json")

    def join(self, site: str, table: pd.DataFrame | None = None, columns: str = "") -> None:
        """Let a site train on its table, and everybody admit it."""
        folder = self.root / site
        folder.mkdir(exist_ok=True)
        if table is not None:
            table.to_csv(folder / "patients.csv", index=False)
        text = f'format = 1\nname = "{site}"\n[columns]\n{columns}'
        (folder / "site.toml").write_text(text)
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
