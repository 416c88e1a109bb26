"""CPU of `study add` against that of commit ac68d8c, before intake did what `finish` does.

Both versions make the same studies, alternating, and take in five uploads each: `command` is the
whole command `predbayes study add` with one file, `small` one upload of 150 reference rows in a
process that goes on, `large` one of 20,000 rows. Ratios are of medians; the old version is read
from the repository's history.

`intake_ratio` is the CPU of one upload of 2,000 x 3 in half precision, taken in with 300 others in
one command, over that of a bare Ed25519 check and the SHA-256 of its bytes, in the same process.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from predbayes.exchange.coordinator import CoordinatorKey
from predbayes.exchange.header import Header
from predbayes.exchange.upload import Upload
from tests.study.world import World, make_world

BASE = "ac68d8c"
ROOT = Path(__file__).parents[1]
SITES = ("Alpha", "Beta", "Gamma", "Delta", "Epsilon")

_MAKE = """
import json, pathlib, sys, time
from tests.study.world import SITES, make_world
found = {}
for name, unlabelled in (("small", 50), ("large", 19_900)):
    world = make_world(pathlib.Path(sys.argv[1]) / name, unlabelled=unlabelled)
    files = [world.file(site) for site in SITES]
    study = world.begin()
    study.add(files[0])  # what is loaded once
    began = time.process_time()
    for path in files[1:]:
        study.add(path)
    found[name] = (time.process_time() - began) / len(files[1:])
world.begin("fresh")
sys.stdout.write(json.dumps(found))
"""


def run(rounds: int = 5) -> dict[str, Any]:
    """Measure both versions in turn."""
    with tempfile.TemporaryDirectory() as scratch:
        before = _checked_out(Path(scratch))
        found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for number in range(rounds):
            for name, source in (("before", before), ("now", ROOT)):
                found[name].append(_measured(source, Path(scratch) / f"{name}{number}"))
                print(name, {k: round(v, 4) for k, v in found[name][-1].items()}, flush=True)
    medians = {
        name: {kind: median(one[kind] for one in ones) for kind in ones[0]}
        for name, ones in found.items()
    }
    ratios = {kind: medians["now"][kind] / medians["before"][kind] for kind in medians["now"]}
    return {"seconds": medians, "ratio": ratios, "intake_ratio": against_bare()}


def against_bare(num_sites: int = 300) -> float:
    """CPU of taking an upload in over that of a bare check and the SHA-256 of its bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        upload = "encrypt = false\nprecision = 'float16'"
        key = CoordinatorKey.generate()
        world = make_world(Path(scratch), unlabelled=1900, upload=upload, coordinator=key)
        sites = [f"site {number}" for number in range(num_sites)]
        study = world.begin(sites=())
        study.admit_all({site: world.key(site).public for site in sites})
        files = [_saved(world, site) for site in sites]
        began = time.process_time()
        assert not any(isinstance(found, Exception) for found in study.add_all(files))
        whole = time.process_time() - began
        told = [(file.read_bytes(), Header.read(file).signature) for file in files]
        digests = [Upload.load(file).digest() for file in files]
        began = time.process_time()
        for (content, signature), digest in zip(told, digests, strict=True):
            hashlib.sha256(content).digest()
            assert signature is not None
            assert signature.verifies(digest)
        bare = time.process_time() - began
        each, least = (1e6 * seconds / num_sites for seconds in (whole, bare))
        print(f"intake: {each:.0f} us an upload, bare {least:.0f} us")
        return whole / bare


def _saved(world: World, site: str) -> Path:
    made = world.upload(site)
    half = {name: array.half() for name, array in made.arrays.items()}
    path = world.root / f"{site}.safetensors"
    replace(made, arrays=half).save(path, world.key(site))
    return path


def _checked_out(scratch: Path) -> Path:
    archive = scratch / "before.tar"
    command = ["git", "-C", str(ROOT), "archive", "-o", str(archive), BASE]
    subprocess.run(command, check=True)
    with tarfile.open(archive) as files:
        files.extractall(scratch / "before", filter="data")
    return scratch / "before"


def _measured(source: Path, folder: Path) -> dict[str, float]:
    paths = f"{source / 'src'}{os.pathsep}{source}"
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, "-c", _MAKE, str(folder)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(made.stdout)
    world = folder / "large"
    add = ["study", "add", str(world / "Alpha.safetensors"), "--study", str(world / "fresh")]
    began = _cpu_of_children()
    subprocess.run(
        [sys.executable, "-m", "predbayes", *add], env=environment, check=True, capture_output=True
    )
    return found | {"command": _cpu_of_children() - began}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
