"""A simulated study of 1,000 sites over Flower: memory against 10 sites, time against a bare app.

Every site has its upload ready, predictions for 2,000 reference rows and 10 classes in half
precision. `wall_ratio` compares `flwr run` of the study's round, in which each upload is checked,
brought to the disk and written to the ledger, with `flwr run` of an app that exchanges as many
bytes and does nothing with them (`benchmarks/flower_bare`): whole commands, alternating, from start
to end. The bytes are those of a whole upload, its header included; both apps are held to them.
`rss_ratio` compares the peak memory of the process of the ServerApp with that of a study of 10
sites. In a simulation this process is also the SuperLink.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from benchmarks.processes import descendants
from predbayes.seeding import generator
from predbayes_flower.node import Node
from predbayes_flower.simulation import lay_out, node_config
from predbayes_study.coordinator.study import Study
from predbayes_study.kit.kit import freeze
from predbayes_study.trust.signing import PublicKey

NUM_ROWS, NUM_CLASSES, FEW = 2_000, 10, 10
APP = Path(__file__).parents[1] / "deploy" / "flower-app"
BARE = Path(__file__).parent / "flower_bare"
_BIN = Path(sys.executable).parent
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
_PLAN = f"""
format = 1
name = "many sites"
[target]
name = "digit"
task = "classification"
classes = [{", ".join(f'"{digit}"' for digit in range(NUM_CLASSES))}]
[columns]
x = {{ type = "number", range = [-50, 50] }}
y = {{ type = "number", range = [-50, 50] }}
[reference]
file = "reference.csv"
source = "drawn"
licence = "CC0"
legal_basis = "nobody's data"
labelled = 500
unlabelled = {NUM_ROWS - 500}
[model]
hidden = [20]
[learner]
name = "any"
holdout = 0.0
holdout_reason = "nobody's data"
[upload]
precision = "float16"
"""


def run(clients: int = 1_000, rounds: int = 2, finish: int = 1) -> dict[str, Any]:
    """Prepare the sites, then run both apps in turn, and a small study.

    Args:
        clients: Sites.
        rounds: Turns of both apps.
        finish: Whether to measure studies with their result, too; 0 or 1.
    """
    with tempfile.TemporaryDirectory() as scratch, simulated(Path(scratch)) as simulation:
        world = _World.make(Path(scratch) / "world", clients)
        ours, bare, peaks = [], [], []
        for turn in range(rounds):
            told = {"num-clients": clients, "num-bytes": world.num_bytes}
            bare.append(simulation.run(BARE, told, clients).seconds)
            done = simulation.study(world, clients, f"round-{turn}", finish=False)
            ours.append(done.seconds)
            peaks.append(done.peak_bytes)
            print(f"bare app {bare[-1]:.1f} s, study's round {ours[-1]:.1f} s", flush=True)
        few = simulation.study(world, FEW, "few", finish=False).peak_bytes
        print(
            f"peak RSS: {few / 1e6:.0f} MB with {FEW}, {max(peaks) / 1e6:.0f} MB with {clients}",
            flush=True,
        )
        with_result = _finished(simulation, world, clients) if finish else {}
    return {
        "clients": clients,
        "upload_bytes": world.num_bytes,
        "wall_ratio": median(o / b for o, b in zip(ours, bare, strict=True)),
        "rss_ratio": max(peaks) / few,
        "seconds": median(ours),
        "seconds_bare": median(bare),
        "peak_megabytes": max(peaks) / 1e6,
        **with_result,
    }


def _finished(simulation: Simulation, world: _World, clients: int) -> dict[str, float]:
    small = simulation.study(world, FEW, "few-finished", finish=True)
    whole = simulation.study(world, clients, "finished", finish=True)
    print(f"with its result: {whole.seconds:.1f} s, {whole.peak_bytes / 1e6:.0f} MB")
    ratio = whole.peak_bytes / small.peak_bytes
    return {"rss_ratio_finished": ratio, "seconds_finished": whole.seconds}


@dataclass(frozen=True, slots=True)
class _World:
    """A frozen plan, and sites that have trained."""

    root: Path
    keys: dict[str, PublicKey]
    num_bytes: int  # of every site's upload

    @classmethod
    def make(cls, root: Path, num_sites: int) -> _World:
        root.mkdir()
        rng = generator(0, "many sites")
        _table(NUM_ROWS, rng).to_csv(root / "reference.csv", index=False)
        (root / "plan.toml").write_text(_PLAN)
        kit = freeze(root / "plan.toml", root / "kit", root / "labels.json")
        # Names of one length, so that all uploads have one size.
        tables = {f"Site {number:06}": _table(40, rng) for number in range(num_sites)}
        learners = dict.fromkeys(tables, "logistic-regression")
        lay_out(root / "sites", kit.folder, root / "labels.json", tables, learners)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            jobs = [(root / "sites", number) for number in range(num_sites)]
            trained = pool.starmap(_train, jobs, chunksize=20)
        (num_bytes,) = {size for _, _, size in trained}
        assert num_bytes >= NUM_ROWS * NUM_CLASSES * torch.float16.itemsize
        return cls(root, {site: key for site, key, _ in trained}, num_bytes)

    def begin(self, name: str, num_sites: int) -> Study:
        study = Study.init(self.root / name, self.root / "kit", self.root / "labels.json")
        study.admit_all(dict(list(self.keys.items())[:num_sites]))
        return study


def _train(root: Path, number: int) -> tuple[str, PublicKey, int]:
    """Return a site's name and key, and the bytes of its upload."""
    node = Node.of_config(node_config({"partition-id": number}, {"simulation": str(root)}))
    upload = node.answer(node.training.kit.digest)
    assert isinstance(upload, Path)
    return node.training.site, node.training.key.public, upload.stat().st_size


def _table(num_rows: int, rng: torch.Generator) -> pd.DataFrame:
    places = (10 * torch.randn(num_rows, 2, generator=rng)).clamp(-49, 49)  # the plan's range
    angles = torch.atan2(places[:, 1], places[:, 0]) / (2 * torch.pi) + 0.5
    digits = (angles * NUM_CLASSES).long().clamp(0, NUM_CLASSES - 1)
    return pd.DataFrame({"x": places[:, 0], "y": places[:, 1], "digit": digits.numpy()}).round(3)


@dataclass(frozen=True, slots=True)
class _Done:
    seconds: float
    peak_bytes: int  # of the ServerApp's process


@dataclass(frozen=True, slots=True)
class Simulation:
    """A SuperLink for simulations, on a port and in a folder of its own."""

    folder: Path
    superlink: subprocess.Popen[bytes]

    def study(self, world: _World, num_sites: int, name: str, *, finish: bool) -> _Done:
        """A new study of the first sites."""
        study = world.begin(name, num_sites)
        config = {
            "study": study.folder,
            "simulation": world.root / "sites",
            "finish": finish,
            "ack-seconds": 0.0,  # nobody can leave
        }
        done = self.run(APP, config, num_sites)
        state = study.state()
        if len(state.uploads) != num_sites or bool(state.results) != finish:
            raise RuntimeError(f"{len(state.uploads)} of {num_sites} sites came")
        if {upload.num_bytes for upload in state.uploads.values()} != {world.num_bytes}:
            raise RuntimeError(f"uploads did not come with {world.num_bytes:,} bytes each")
        return done

    def run(self, app: Path, config: dict[str, Any], num_sites: int) -> _Done:
        """`flwr run`, timed, with the peak memory of the process that has the ServerApp."""
        told = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
        federation = f"num-supernodes={num_sites} client-resources-num-cpus=1 init-args-num-cpus=2"
        command = [_BIN / "flwr", "run", app, "bench", "--stream", "--run-config", told]
        start = time.monotonic()
        log = self.folder / "run.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*map(str, command), "--federation-config", federation],
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        peak, earlier = 0, set(descendants(self.superlink.pid))
        while process.poll() is None:
            peak = max([peak, *_peaks(self.superlink.pid, earlier)])
            time.sleep(0.5)
        seconds = time.monotonic() - start
        if process.returncode:
            raise RuntimeError(log.read_text(errors="replace")[-3000:])
        return _Done(seconds, peak)


@contextlib.contextmanager
def simulated(scratch: Path) -> Iterator[Simulation]:
    """A SuperLink that simulates; it ends with the block."""
    folder = scratch / "flwr"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.toml").write_text(
        f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "superlink.log").open("wb") as log:
        superlink = subprocess.Popen(
            [str(_BIN / "flower-superlink"), *options, "--database", str(folder / "state.db")],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _await_port(port)
        yield Simulation(folder, superlink)
    finally:
        for pid in [*descendants(superlink.pid), superlink.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        superlink.wait()


def _environment(folder: Path) -> dict[str, str]:
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **_QUIET, "FLWR_HOME": str(folder), "PATH": path}


def _await_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the SuperLink does not listen")


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value).lower()


def _peaks(pid: int, earlier: set[int]) -> Iterator[int]:
    """Peak resident bytes of the new descendants of a process that run the simulation."""
    for child in set(descendants(pid)) - earlier:
        with contextlib.suppress(OSError, StopIteration):
            if b"flwr-simulation" in Path(f"/proc/{child}/cmdline").read_bytes():
                status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
                line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
                yield int(line.split()[1]) * 1024
