"""One harness for every file that a command reads: bytes in, a broken file out, commands on it.

An input is bytes. A `Source` takes decisions from them: which file to break, where and how. So the
same harness serves hypothesis, which shrinks bytes, a coverage-guided fuzzer, which mutates them,
and a corpus of files. Commands run in this process. Whatever the file, each ends with exit code 0
or with one of our errors; prints nothing that a terminal obeys; and what one step accepted, no
later step refuses.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tomlkit
import typer
from click.testing import CliRunner

from predbayes.errors import PredbayesError
from predbayes.text import printable
from predbayes_study.cli.app import app
from predbayes_study.coordinator.study import Study
from predbayes_study.kit.kit import FINGERPRINT_FILE
from predbayes_study.result import conclude
from predbayes_study.store.ledger import FIRST, Entry
from tests.study.faults.malformed import Draft, Signed, site_key
from tests.study.world import World, make_world, quick_results

COMMAND = typer.main.get_command(app)
SITES = ("Alpha", "Beta", "Gamma")
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 10**12, -(10**30), 0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e-45),
    *(math.nan, math.inf, -math.inf, True, False, None, [], {}, [[]], {"a": 1}, [1, "a"]),
    *("", " ", "a", "Beta", "Alpha", "beta", "x", "kind", "\x1b[8m", "a\nb", "\u202e", "\u200b"),
    *("u\u0308", "\udc80", "=1+1", "../x", "/etc", "a" * 3000, "0" * 64, "f" * 128, "nan", "CON"),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, -80.0, -80.01, 5e-4, 2e-3, 1e-12, 1e-45, 1e4, 2e4, 3e38, math.inf)


@dataclass(slots=True)
class Source:
    """Decisions from bytes; when they are used up, every one is the first."""

    data: bytes
    place: int = 0

    def below(self, number: int) -> int:
        self.place += 2
        return int.from_bytes(self.data[self.place - 2 : self.place], "little") % number

    def one_of(self, choices: Any) -> Any:
        return choices[self.below(len(choices))]

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.below(1 << 16))


@dataclass(frozen=True)
class Ground:
    """A study with a result, a site's files, and a copy of all to begin from again."""

    root: Path
    world: World
    drafts: dict[str, Draft]

    @property
    def study(self) -> Path:
        return self.root / "now" / "study"

    def path(self, *parts: str) -> Path:
        return self.root.joinpath("now", *parts)

    def reset(self) -> None:
        shutil.rmtree(self.root / "now", ignore_errors=True)
        shutil.copytree(self.root / "before", self.root / "now")


class Broken(AssertionError):
    """What must not happen."""


def make_ground(root: Path, *, regression: bool) -> Ground:
    """Make a study of two sites with a result; Gamma is admitted and has sent nothing."""
    world = make_world(root / "before", regression=regression, labelled=40, evaluate=20)
    world.keys.update({site: site_key(site) for site in SITES})
    study = world.begin(sites=SITES, added=SITES[:2])
    recorded, _ = study.finish()
    (world.kit.folder / FINGERPRINT_FILE).unlink()  # it would refuse every other plan
    names = ("x", "y", "height" if regression else "kind")
    last = ("170.5", "160", "171") if regression else ("red", "green", "blue")
    rows = [f"{i % 9 - 4},{i % 5},{last[i % 3]}" for i in range(40)]
    (world.root / "rows.csv").write_text("\n".join([",".join(names), *rows]) + "\n")
    (world.root / "site.toml").write_text(
        'format = 1\nname = "Gamma"\n[missing]\ncodes = ["-9"]\n[columns]\n'
        'x = { column = "x", factor = 1.5, offset = 0.5, missing = ["7"] }\n'
        f'[target]\ncolumn = "{names[2]}"\n'
    )
    site_key("Gamma").save(world.root / "Gamma.key")
    return Ground(root, world, _drafts(world, recorded.model))


def _drafts(world: World, model: str) -> dict[str, Draft]:
    """An honest upload of Gamma's, and an evaluation."""
    upload = world.upload("Gamma")
    arrays = {name: array.numpy().copy() for name, array in upload.arrays.items()}
    sums = {"total": 30.0, "squares": 25.0}
    classes = {"nll": sums, "accuracy": {"total": 20.0, "squares": 20.0}, "brier": sums}
    numbers = {"nll": sums, "rmse": sums, "width_95": sums, "crps": sums}
    numbers["coverage_95"] = {"total": 30.0, "squares": 30.0}
    metrics = classes if world.kit.plan.target.classes else numbers
    told = json.loads(upload.info.model_dump_json()) | {
        "kind": "evaluation",
        "num_rows": 40,
        "class_rows": None,
        "details": {
            "evaluation": {"model": model, "metrics": dict(sorted(metrics.items())), "bins": None}
        },
    }
    info = json.loads(upload.info.model_dump_json())
    return {"upload": Signed(info, arrays), "evaluation": Signed(told, {})}


@contextmanager
def cheaply() -> Iterator[None]:
    """Files need not survive a power cut here, and results need not be good."""
    short = dataclasses.replace(conclude.DISTILLATION, num_epochs=1, min_steps=2)
    quick = mock.patch.object(conclude, "DISTILLATION", short)
    with mock.patch("os.fsync"), quick_results(), quick:
        yield


def attack(ground: Ground, data: bytes) -> str:
    """Break one file as the bytes say, run commands on it, and return what was done."""
    source = Source(data)
    ground.reset()
    way = source.one_of(WAYS)
    source.below(16)  # unused: the corpus has two bytes for it
    done = way(ground, source)
    return f"{way.__name__}: {'taken' if done else 'refused'}"


def run(ground: Ground, *arguments: str) -> bool:
    """Run a command; whether it took what it was given."""
    before = os.getcwd()
    os.chdir(ground.path())
    try:
        result = CliRunner().invoke(COMMAND, arguments)
    finally:
        os.chdir(before)
    error = result.exception
    if error is not None and not isinstance(error, PredbayesError | SystemExit | OSError):
        raise Broken(f"{arguments[:2]}: {type(error).__name__}: {error}") from error
    for line in result.output.split("\n"):  # an error is printed by `main`, which escapes it
        if printable(line, None) != line:
            raise Broken(f"{arguments[:2]} printed {line!a}")
    return result.exit_code == 0


def must(ground: Ground, *arguments: str) -> None:
    if not run(ground, *arguments):
        raise Broken(f"accepted before, refused by {arguments[:2]}")


# What is broken, and which commands then look at it.


def sent_upload(ground: Ground, source: Source) -> bool:
    """A signed upload with odd fields or arrays goes through every later step."""
    draft = ground.drafts["upload"]
    draft = draft.holding({name: array.copy() for name, array in draft.arrays.items()})
    for _ in range(1 + source.below(3)):
        draft = source.one_of((_told, _altered, _other_law))(draft, source)
    if source.below(DEEP):  # to finish takes a second
        content = _content(draft)
        return content is not None and _taken(ground, content)
    return _add(ground, draft)


def sent_evaluation(ground: Ground, source: Source) -> bool:
    draft = ground.drafts["evaluation"]
    for _ in range(source.below(3)):
        draft = _plausible(draft, source)
    return _add(ground, _told(draft, source) if source.below(3) else draft)


def sent_bytes(ground: Ground, source: Source) -> bool:
    content = source.one_of(list(ground.drafts.values())).file(site_key("Gamma"))
    return _add_file(ground, _bytes(content, source))


def kit(ground: Ground, source: Source) -> bool:
    """An altered plan; a plan that passes its own check is shown by every other command."""
    path = ground.path("kit", "plan.toml")
    path.write_bytes(_toml(path.read_bytes(), source))
    taken = run(ground, "plan", "check", "kit")
    run(ground, "site", "check", "kit", "rows.csv")
    return taken


def study_plan(ground: Ground, source: Source) -> bool:
    path = ground.path("study", "kit", "plan.toml")
    path.write_bytes(_toml(path.read_bytes(), source))
    run(ground, "study", "status")
    return run(ground, "study", "verify")


def site_file(ground: Ground, source: Source) -> bool:
    path = ground.path("site.toml")
    path.write_bytes(_toml(path.read_bytes(), source))
    taken = run(ground, "site", "check", "kit", "rows.csv")
    if source.below(8) == 0 and taken:
        must(ground, "predict", "study/results/1", "rows.csv", "--site", "site.toml", *OUT)
    return taken


def table(ground: Ground, source: Source) -> bool:
    path = ground.path("rows.csv")
    path.write_bytes(_bytes(path.read_bytes(), source))
    taken = run(ground, "site", "check", "kit", "rows.csv")
    run(ground, "predict", "study/results/1", "rows.csv", "--keep", "x", *OUT)
    return taken


def model(ground: Ground, source: Source) -> bool:
    """A model that is read can predict, and be adopted."""
    folder = ground.path("study", "results", "1", "model")
    if source.below(3):
        path = folder / "model.json"
        path.write_bytes(source.one_of((_json, _bytes))(path.read_bytes(), source))
    else:
        path = folder / "model.safetensors"
        path.write_bytes(_bytes(path.read_bytes(), source))
    taken = run(ground, "predict", "study/results/1", "rows.csv", *OUT)
    if source.below(8) == 0:
        run(ground, "site", "adopt", "study/results/1", "rows.csv")
    return taken


def ledger(ground: Ground, source: Source) -> bool:
    """A ledger that was damaged, or written anew by somebody who keeps its chain."""
    path = ground.path("study", "ledger.jsonl")
    change = source.one_of((_bytes, _chained))
    path.write_bytes(change(path.read_bytes(), source))
    taken = run(ground, "study", "status")
    run(ground, "study", "verify")
    return taken


def result(ground: Ground, source: Source) -> bool:
    path = ground.path("study", "results", "1", "result.json")
    path.write_bytes(source.one_of((_json, _bytes))(path.read_bytes(), source))
    run(ground, "study", "verify")
    return run(ground, "study", "status")


def labels(ground: Ground, source: Source) -> bool:
    path = ground.path("study", "labels.json")
    path.write_bytes(source.one_of((_json, _bytes))(path.read_bytes(), source))
    run(ground, "study", "verify")
    return run(ground, "study", "finish", "--leave-out", "Beta")


WAYS: tuple[Callable[[Ground, Source], bool], ...] = (
    *(sent_upload, sent_upload, sent_evaluation, sent_bytes, kit, kit, study_plan),
    *(site_file, site_file, table, model, ledger, ledger, result, labels),
)
DEEP = 16
OUT = ("--out", "predictions.csv")


def _content(draft: Draft) -> bytes | None:
    try:
        return draft.file(site_key("Gamma"))
    except (UnicodeEncodeError, ValueError, KeyError, OverflowError):
        return None  # not even a file


def _taken(ground: Ground, content: bytes) -> bool:
    ground.path("incoming.safetensors").write_bytes(content)
    return run(ground, "study", "add", "incoming.safetensors")


def _add(ground: Ground, draft: Draft) -> bool:
    content = _content(draft)
    return content is not None and _add_file(ground, content)


def _add_file(ground: Ground, content: bytes) -> bool:
    if not _taken(ground, content):
        return False
    for command in ("finish", "status", "verify"):
        must(ground, "study", command)
    number = len(Study(ground.study).state().results)
    must(ground, "predict", f"study/results/{number}", "rows.csv", *OUT)
    return True


# How it is broken.


def _told(draft: Draft, source: Source) -> Draft:
    return dataclasses.replace(draft, info=_changed(draft.info, source))


def _altered(draft: Draft, source: Source) -> Draft:
    """One cell, one row, or one whole array is an odd number."""
    name = source.one_of(sorted(draft.arrays))
    array = draft.arrays[name].copy()
    where = source.one_of((slice(None), 0, (0,) * array.ndim))
    array[where] = source.one_of(FLOATS) * source.one_of((1, -1, 0.999))
    return draft.holding({**draft.arrays, name: array})


def _other_law(draft: Draft, source: Source) -> Draft:
    """Predictions that could be somebody's, as sure as they can be."""
    rng, scale = source.rng(), source.one_of((1e-6, 0.1, 1.0, 30.0, 1e4))
    if "log_probs" in draft.arrays:
        logits = scale * rng.standard_normal(draft.arrays["log_probs"].shape)
        log_probs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        return draft.holding({"log_probs": log_probs.clip(-80).astype(np.float32)})
    shape = draft.arrays["mean"].shape
    arrays = {
        "mean": (scale * rng.standard_normal(shape)).clip(-1e4, 1e4),
        "epistemic_var": np.full(shape, source.one_of((0, 1e-12, 1.0, 5e3))),
        "noise_var": np.full(shape, source.one_of((1e-12, 1.001e-12, 1e-6, 1.0, 5e3))),
    }
    return draft.holding({name: array.astype(np.float32) for name, array in arrays.items()})


def _plausible(draft: Draft, source: Source) -> Draft:
    """Sums that could be somebody's, of any size."""
    told = json.loads(json.dumps(draft.info))
    metric = source.one_of(sorted(told["details"]["evaluation"]["metrics"]))
    rows, size = told["num_rows"], source.one_of((0.0, 1e-300, 1.0, 1e3, 1e6, 1e30))
    squares = source.one_of((1.0, rows, 1e-3)) * rows * size * size
    told["details"]["evaluation"]["metrics"][metric] = {"total": rows * size, "squares": squares}
    return dataclasses.replace(draft, info=told)


def _changed(value: Any, source: Source) -> Any:
    """The same with another value, one fewer, or one more, somewhere inside."""
    if isinstance(value, dict) and value and source.below(8):
        key = source.one_of(list(value))
        match source.below(10):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {str(source.one_of(VALUES)): source.one_of(VALUES)}
            case _:
                return value | {key: _changed(value[key], source)}
    if isinstance(value, list) and value and source.below(8):
        place = source.below(len(value))
        parts = [value[place]] * source.below(3)
        return [*value[:place], *(_changed(part, source) for part in parts), *value[place + 1 :]]
    return source.one_of(VALUES)


def _json(content: bytes, source: Source) -> bytes:
    return json.dumps(_changed(json.loads(content), source)).encode()


def _toml(content: bytes, source: Source) -> bytes:
    if source.below(3) == 0:
        return _bytes(content, source)
    tables = tomllib.loads(content.decode())
    for _ in range(1 + source.below(2)):
        tables = _changed(tables, source)
    try:
        return tomlkit.dumps(tables).encode(errors="surrogatepass")
    except (TypeError, ValueError, AttributeError, RecursionError):
        return _bytes(content, source)  # what TOML cannot say


def _bytes(content: bytes, source: Source) -> bytes:
    """Bytes flipped, cut out, doubled or put in."""
    place = source.below(len(content) + 1)
    size = source.below(40)
    match source.below(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + content[place + size :]
        case 2:
            return content[: place + size] + content[place:]
        case 3:
            odd = str(source.one_of(VALUES)).encode(errors="surrogatepass")
            return content[:place] + odd + content[place + size :]
        case 4:
            lines = content.split(b"\n")
            line = source.below(len(lines))
            return b"\n".join([*lines[:line], *lines[line + 1 :]])
        case _:
            flipped = bytearray(content)
            if place < len(flipped):
                flipped[place] ^= 1 << source.below(8)
            return bytes(flipped)


def _chained(content: bytes, source: Source) -> bytes:
    """Entries altered, left out or doubled, and chained as if they had been written so."""
    entries = [json.loads(line)["entry"] for line in content.splitlines()]
    changed, previous, lines = _changed(entries, source), FIRST, []
    for number, entry in enumerate(changed if isinstance(changed, list) else [changed], start=1):
        try:
            made = Entry(**(entry | {"number": number, "previous": previous}))
            lines.append(made.line())
        except (TypeError, ValueError):
            continue
        previous = made.digest
    return b"".join(lines)
