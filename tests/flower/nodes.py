"""Sites as Flower nodes find them: a folder each, with table, key, site.toml, kit and approvals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from predbayes_flower.round import RoundSettings
from predbayes_study.site.release import Approvals
from tests.study.world import World

QUICK = RoundSettings(
    deadline_seconds=60, poll_seconds=0.02, retry_seconds=0.2, report_seconds=1, ack_seconds=2
)
SHORT = replace(QUICK, deadline_seconds=2, ack_seconds=0.2)
LEARNER = "[learner]\nname = 'any'\nnum_epochs = 1\nmin_steps = 200\nholdout = 0.2\n"


def write_rows(path: Path, offset: int = 0, num_rows: int = 90) -> None:
    lines = ["x,y,kind"]
    for row in range(num_rows):
        x, y = ((row + offset) * 37) % 60 - 30, ((row + offset) * 17) % 50 - 20
        lines.append(f"{x},{y},{'red' if x > 8 else 'green' if y > 0 else 'blue'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_node(
    world: World,
    root: Path,
    site: str,
    *,
    approve: bool = True,
    learner: str = "logistic-regression",
) -> dict[str, Any]:
    """A site's folder; its node configuration."""
    folder = root / site
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text(f'format = 1\nname = "{site}"\n')
    world.key(site).save(folder / f"{site}.key")
    write_rows(folder / "rows.csv", offset=len(site))
    shutil.copytree(world.kit.folder, folder / "kit")
    if approve:
        Approvals(folder).record("plan", world.kit.digest, "officer")
    return {
        "site": str(folder / "site.toml"),
        "data": str(folder / "rows.csv"),
        "kit": str(folder / "kit"),
        "out": str(folder / "out"),
        "learner": learner,
    }
