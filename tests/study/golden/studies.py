"""Whole studies with known keys and salts, and a digest of every array and prediction they leave.

    python -m tests.study.golden.studies [NAME...]    prints {study: {file: digest}} and figures as
    JSON

The digests cover the arrays of uploads and models, and tables of predictions. They don't cover
headers, ledgers and pages: a file format may change while every number stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[3]
PINNED = {
    # The same bits on every processor: no kernel that only some of them have.
    "ATEN_CPU_CAPABILITY": "default",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Prescott",
    "OPENBLAS_NUM_THREADS": "1",
}


@contextmanager
def known_secrets(seed: int) -> Iterator[None]:
    """Keys and salts that are the same in every run."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    salts, keys = random.Random(seed), random.Random(seed + 1)

    def generate() -> Any:
        return Ed25519PrivateKey.from_private_bytes(keys.randbytes(32))

    with ExitStack() as stack:
        stack.enter_context(mock.patch("secrets.token_bytes", salts.randbytes))
        stack.enter_context(mock.patch.object(Ed25519PrivateKey, "generate", generate))
        yield


def demo(out: Path) -> None:
    """The demo, and its model on the reference rows."""
    from benchmarks.by_commands import run_quietly

    run_quietly(out, ["demo", "--out", "demo"])
    run_quietly(
        out, ["predict", "demo/study/results/1", "demo/reference.csv", "--out", "predicted.csv"]
    )


def hospitals(out: Path) -> None:
    """The four hospitals by commands, and what an adopted model predicts."""
    from benchmarks.by_commands import example, run_quietly, uci

    example().main(uci("heart", "heart"), out / "four", 0, run_quietly)
    for site in ("cleveland", "va"):
        at = out / "four" / site
        run_quietly(at, ["site", "evaluate", "model", "patients.csv", "--home", "out"])
        run_quietly(at, ["predict", "adopted", "later-patients.csv", "--out", "predicted.csv"])


def regression(out: Path) -> None:
    """Red wines by commands, and what the study's model predicts."""
    from benchmarks import regression as wines
    from benchmarks.by_commands import run_quietly

    wines.conduct(out / "wines", 0)
    at = out / "wines" / "coordinator"
    run_quietly(at, ["predict", "study/results/1", "reference.csv", "--out", "predicted.csv"])


def survival(out: Path) -> None:
    """The example of a time to an event, and what its model predicts."""
    from benchmarks.by_commands import as_module, run_quietly

    with chdir(out), redirect_stdout(StringIO()):
        as_module("survival_example", ROOT / "examples" / "survival.py")
    run_quietly(out, ["predict", "study/results/1", "reference.csv", "--out", "predicted.csv"])


STUDIES = {"demo": demo, "hospitals": hospitals, "regression": regression, "survival": survival}


def digests(root: Path) -> dict[str, str]:
    """A digest of every file of arrays and of every table of predictions.

    A study's copies of uploads are left out: their names depend on headers.
    """
    paths = [*root.rglob("*.safetensors"), *root.rglob("predicted.csv")]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(_content(path)).hexdigest()[:16]
        for path in sorted(paths)
        if path.parent.name != "uploads"
    }


def figures(root: Path) -> dict[str, float]:
    """The scores of the first result: what can be compared where processors round differently."""
    path = next(root.rglob("results/1/result.json"))
    scores = json.loads(path.read_bytes())["student"]["scores"]["metrics"]
    return {name: score["value"] for name, score in scores.items()}


def _content(path: Path) -> bytes:
    """The bytes of a table, or the arrays of a safetensors file in the order of their names."""
    content = path.read_bytes()
    if path.suffix != ".safetensors":
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    parts = []
    for name, array in sorted(header.items()):
        first, last = array["data_offsets"]
        parts.append(f"{name} {array['dtype']} {array['shape']}".encode())
        parts.append(content[end + first : end + last])
    return b"".join(parts)


def probe() -> str:
    """Digest of some arithmetic by each library: another one means other bits everywhere."""
    import numpy as np
    import scipy.linalg
    import torch

    values = np.random.default_rng(0).standard_normal((64, 64))
    tensor = torch.from_numpy(values)
    parts = [
        values @ values,
        np.exp(values),
        np.log1p(np.abs(values)),
        scipy.linalg.cho_factor(values @ values.T + 64 * np.eye(64))[0],
        (tensor.float() @ tensor.float()).numpy(),
        tensor.float().log_softmax(-1).numpy(),
        torch.nn.functional.linear(tensor.float(), tensor.float()).tanh().numpy(),
    ]
    content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return hashlib.sha256(content).hexdigest()[:16]


def main(names: list[str]) -> None:
    """Run some studies and print what they leave."""
    import torch

    from predbayes_study.kit import kit

    torch.set_num_threads(1)
    kit.software_digest = lambda: ""  # type: ignore[assignment]  # a wheel has one, sources none
    found: dict[str, Any] = {"probe": probe(), "figures": {}}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, known_secrets(7):
            STUDIES[name](Path(folder))
            found[name] = digests(Path(folder))
            found["figures"][name] = figures(Path(folder))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if not PINNED.items() <= os.environ.items():  # libraries read it when they are loaded
        command = [sys.executable, "-m", "tests.study.golden.studies", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | PINNED)
    main(sys.argv[1:] or [*STUDIES])
