"""Whole studies with known keys, salts and clock, and a digest of everything they leave.

    python -m tests.golden.studies NAME...    prints {study: {file: digest}} and figures as JSON

What is random in a study, and its time, is fixed here; everything else must repeat to the bit.
Pages are left out: their wording may change. So are the digests of pages that a ledger has, and
what follows from those.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

LEDGER = "predbayes.study.store.ledger"
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
_PAGES = (".html", ".txt", "model-card.json")
_FOLLOWS = {"at", "previous", "ledger_digest", "versions", "result.json"}


@contextmanager
def known_secrets(seed: int) -> Iterator[None]:
    """Keys, salts and times that are the same in every run."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    salts, keys = random.Random(seed), random.Random(seed + 1)

    def generate() -> Any:
        return Ed25519PrivateKey.from_private_bytes(keys.randbytes(32))

    clock = mock.Mock()
    clock.now.return_value = datetime(2026, 1, 1, tzinfo=UTC)
    with ExitStack() as stack:
        stack.enter_context(mock.patch("secrets.token_bytes", salts.randbytes))
        stack.enter_context(mock.patch.object(Ed25519PrivateKey, "generate", generate))
        stack.enter_context(mock.patch(f"{LEDGER}.datetime", clock))
        # Plans of the first version had no gates; what leaves without them has stayed the same.
        stack.enter_context(mock.patch("predbayes.study.kit.draft.GATE", None))
        # Nor did they choose a learner, or stratify what is held out.
        stack.enter_context(mock.patch("predbayes.study.kit.draft.LEARNER", "network"))
        stack.enter_context(mock.patch("predbayes.study.kit.draft.SPLIT", "any"))
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


STUDIES = {"demo": demo, "hospitals": hospitals, "regression": regression}


def digests(root: Path) -> dict[str, str]:
    """A digest of every file that has no words for people in it."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(_content(path)).hexdigest()[:16]
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(_PAGES) and not _is_of_the_day(path.name)
    }


def _is_of_the_day(name: str) -> bool:
    """Whether a file tells who ran what when."""
    return name.startswith(".lock") or name == "audit.jsonl"


def figures(root: Path) -> dict[str, float]:
    """The scores of the first result: what can be compared where processors round differently."""
    path = next(root.rglob("results/1/result.json"))
    scores = json.loads(path.read_bytes())["student"]["scores"]["metrics"]
    return {name: score["value"] for name, score in scores.items()}


def _content(path: Path) -> bytes:
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        # A line of the ledger carries its own digest, which covers digests of pages.
        entries = [line.get("entry", line) for line in lines]
        return json.dumps(_bare(entries), sort_keys=True).encode()
    if path.suffix == ".json":
        return json.dumps(_bare(json.loads(path.read_bytes()))).encode()
    return _in_order(path.read_bytes()) if path.suffix == ".safetensors" else path.read_bytes()


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its header's keys in order: several of metadata are in none."""
    length = 8 + int.from_bytes(content[:8], "little")
    return json.dumps(json.loads(content[8:length]), sort_keys=True).encode() + content[length:]


def _bare(value: Any) -> Any:
    """JSON without times, versions, digests of pages, and what follows from them."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _bare(item)
        for name, item in value.items()
        if name not in _FOLLOWS and not name.endswith(_PAGES)
    }


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

    from predbayes.study.kit import kit

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
        command = [sys.executable, "-m", "tests.golden.studies", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | PINNED)
    main(sys.argv[1:])
