"""`predbayes site train` killed at random moments, and run again until it is done.

    python -m tests.faults.crash_train FOLDER KILLS

One process with one thread imports what the command needs and forks a child for each run. It
trains once undisturbed, then again in a new folder with as many kills as asked for, each at a
moment drawn from how long training takes; every second one waits for a checkpoint first, however
busy the machine is. It prints what it found as one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from predbayes.learning.checkpoint import Checkpoint
from tests.faults.crash import launch
from tests.study.world import make_world

SITE = "Alpha"
LEARNER = "[learner]\nnum_epochs = 1\nmin_steps = 6000\nholdout = 0.25\n"


def main(folder: Path, num_kills: int) -> None:
    world = make_world(folder / "world", learner=LEARNER, model="hidden = [64, 64]")
    world.key(SITE).save(folder / f"{SITE}.key")
    (folder / "site.toml").write_text(f'format = 1\nname = "{SITE}"\n')
    _write_rows(folder / "rows.csv")
    began = time.monotonic()
    assert _wait(_launch(folder, "straight")) == 0, (folder / "log").read_text()
    seconds = time.monotonic() - began
    drawn = random.Random(3)
    killed = checkpoints = 0
    checkpoint = folder / "disturbed" / "home" / "checkpoint.safetensors"
    while killed < num_kills:
        child = _launch(folder, "disturbed")
        if killed % 2:
            _wait_for(checkpoint, seconds)
            time.sleep(drawn.uniform(0, 0.1) * seconds)
        else:
            time.sleep(drawn.uniform(0.05, 0.4) * seconds)
        os.kill(child, signal.SIGKILL)
        if _wait(child) != -signal.SIGKILL:
            break  # it was done before
        killed += 1
        checkpoints += checkpoint.exists()
    assert _wait(_launch(folder, "disturbed")) == 0, (folder / "log").read_text()
    one, two = (folder / name / f"{SITE}.safetensors" for name in ("straight", "disturbed"))
    left = sorted(path.name for path in (folder / "disturbed").rglob("*") if path.is_file())
    print(  # noqa: T201
        json.dumps(
            {
                "killed": killed,
                "checkpoints": checkpoints,
                "same": one.read_bytes() == two.read_bytes(),
                "holdout": _holdout(folder, "straight") == _holdout(folder, "disturbed"),
                "left": left,
            }
        )
    )


def _launch(folder: Path, out: str) -> int:
    def prepare() -> None:
        os.chdir(folder)
        # Often, so that kills find a checkpoint in a training of seconds.
        Checkpoint.__init__.__defaults__ = (0.1, *Checkpoint.__init__.__defaults__[1:])

    arguments = ["site", "train", "world/kit", "rows.csv", "--out", out]
    return launch(arguments, folder / "log", prepare)


def _wait_for(path: Path, seconds: float) -> None:
    """Until a file is there, but no longer than training takes."""
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _holdout(folder: Path, out: str) -> bytes:
    """The file but for its metadata, whose order is random."""
    content = (folder / out / "home" / "holdout.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def _write_rows(path: Path) -> None:
    drawn = random.Random(0)
    lines = ["x,y,kind"]
    for _ in range(300):
        x, y = drawn.gauss(0, 10), drawn.gauss(0, 10)
        lines.append(f"{x:.3f},{y:.3f},{'red' if x > 5 else 'green' if y > 0 else 'blue'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
