"""Commands of a study that are killed on the way, and what is there when they are run again.

    python -m tests.study.faults.crash FOLDER [COMMAND ...]

A process of its own with one thread, so that it may fork: what commands import is imported once,
and each command is a child that runs `predbayes` as a user would. The child kills itself before
its k-th operation on a file, for every k. COMMANDS are those to kill, by default all. Each trial
begins with a copy of the same study, and prints one line of JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

import predbayes_study.cli.app as app_module
import predbayes_study.coordinator.finish as finish_module
from predbayes.errors import StudyError
from predbayes_study.coordinator.study import Study
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.statement import Receipt, Signed
from tests.study.world import SITES, make_world

Death = Callable[[], None]
"""What a child does to itself before it runs its command."""

_CLOCKED = {
    "result.json", "report.html", "report-public.html", "model-card.html", "model-card.json",
    "ledger.jsonl",
    "audit.jsonl", "kit.sig", "result.sig", "model.sig", "result.intoto.jsonl", "site.receipt",
    "Beta.deletion",
}  # fmt: skip
_OPERATIONS = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime",
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def launch(arguments: list[str], log: Path, before: Death | None = None) -> int:
    """Run a command of predbayes in a child; its process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = ["predbayes", *arguments]
        if before is not None:
            before()
        app_module.main()
        code = 0
    except SystemExit as done:
        code = int(done.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass(frozen=True)
class Picture:
    """A folder as far as the clock has no part in it."""

    paths: frozenset[str]
    contents: dict[str, str]  # digest of the bytes by path
    steps: list[str]  # of the ledger

    @classmethod
    def of(cls, folder: Path) -> Picture:
        paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
        contents = {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in paths.items()
            if path.is_file() and path.name not in _CLOCKED
        }
        return cls(frozenset(paths), contents, _steps(folder / "study"))


def _steps(folder: Path) -> list[str]:
    if not folder.exists():
        return []
    steps = []
    for entry in Study(folder).ledger.entries():
        data = dict(entry.data)
        if entry.step == "finish":
            del data["files"]  # a report says when it was written
        elif entry.step == "init":
            del data["name"]  # drawn anew for each study
        steps.append(json.dumps([entry.step, data], sort_keys=True))
    return steps


@dataclass(frozen=True)
class Scene:
    """A command, the folder it is run in, and what it makes of it when nobody disturbs it."""

    name: str
    arguments: tuple[str, ...]
    before: Path
    log: Path
    trial: Path
    after: Picture | None = None

    def set(self) -> None:
        """A copy of the study for the next trial."""
        shutil.rmtree(self.trial, ignore_errors=True)
        shutil.copytree(self.before, self.trial)

    def launch(self, death: Death | None = None) -> int:
        """Run the command in a child; its process id."""
        arguments = ["study", *self.arguments, "--study", f"{self.trial}/study"]
        return launch(arguments, self.log, death)

    def complete(self) -> None:
        """Run the command undisturbed."""
        existed = (self.trial / "study").exists()
        code = os.waitstatus_to_exitcode(os.waitpid(self.launch(), 0)[1])
        said = self.log.read_text()
        if self.name == "init" and existed:  # nothing is left to do, and that is what it says
            assert code == 2, said
            assert "exists" in said, said
        else:
            assert code == 0, said

    def with_outcome(self) -> Scene:
        self.set()
        self.complete()
        return dataclasses.replace(self, after=Picture.of(self.trial))

    def check_survivors(self) -> None:
        """Whatever was there before the command is there after the kill, and can be read."""
        study, before = self.trial / "study", self.before / "study"
        assert not (self.trial / "site.receipt").exists() or self._receipt_is_signed()
        if self.name == "init":
            assert not study.exists() or Study(study).verify() == []
            return
        ledger = (study / "ledger.jsonl").read_bytes()
        assert ledger.startswith((before / "ledger.jsonl").read_bytes())
        there, expected = Picture.of(self.trial), Picture.of(self.before)
        if self.name in ("withdraw", "delete"):  # what goes may be gone, if the ledger says so
            state = Study(study).state()
            gone = {*state.withdrawn, *state.deleted}
            going = {f"study/uploads/{digest}.safetensors" for digest in gone}
            expected = dataclasses.replace(
                expected, contents={k: v for k, v in expected.contents.items() if k not in going}
            )
        lost = expected.contents.items() - there.contents.items()
        assert not lost, f"lost: {sorted(lost)}"
        for problem in Study(study).verify():
            harmless = problem.endswith((" is not the study's", "ends in the middle of an entry"))
            assert harmless, problem

    def _receipt_is_signed(self) -> bool:
        key = Study(self.trial / "study").plan.coordinator
        assert key is not None
        return bool(Signed.read(self.trial / "site.receipt", Receipt).checked(key.signing))

    def check_outcome(self) -> None:
        """All is as if nobody had disturbed it."""
        assert self.after is not None
        assert Study(self.trial / "study").verify() == []
        made = Picture.of(self.trial)
        assert made.steps == self.after.steps, "the ledger has other steps"
        assert self.name != "receipt" or self._receipt_is_signed()
        assert made.paths == self.after.paths, sorted(made.paths ^ self.after.paths)
        assert made.contents == self.after.contents


def trial(scene: Scene, death: Death, **about: Any) -> dict[str, Any]:
    """Kill a command, run it again, and compare; what happened, for JSON."""
    scene.set()
    found = {"command": scene.name, "killed": False, "problem": None, **about}
    try:
        found["killed"] = was_killed(scene.launch(death))
        scene.check_survivors()
        found["recorded"] = _steps(scene.trial / "study") != _steps(scene.before / "study")
        scene.complete()
        scene.check_outcome()
    except (AssertionError, StudyError, OSError) as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)  # noqa: T201
    return found


def was_killed(child: int) -> bool:
    """Wait for a child; whether SIGKILL ended it."""
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_operation(last: int, root: Path) -> Death:
    """Die before the operation with this number on a file below a folder."""

    def death() -> None:
        numbers = itertools.count(1)

        def operation() -> None:
            if next(numbers) == last:
                die()

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if _changes_a_file(event, arguments, str(root)):
                operation()

        fsync = os.fsync

        def counted(handle: int) -> None:
            operation()
            fsync(handle)

        sys.addaudithook(hook)
        os.fsync = counted

    return death


def _changes_a_file(event: str, arguments: tuple[Any, ...], root: str) -> bool:
    if event == "open":
        if not isinstance(arguments[2], int) or not arguments[2] & _WRITING:
            return False
    elif event not in _OPERATIONS:
        return False
    if isinstance(arguments[0], int):
        return False
    path = os.fsdecode(arguments[0])
    return path.startswith(root) or not os.path.isabs(path)  # relative: below an open folder


def every_operation(scene: Scene) -> None:
    """Die at the first operation, at the second, until none is left to die at."""
    for number in itertools.count(1):
        if not trial(scene, at_operation(number, scene.trial), at=number)["killed"]:
            return


def remember(module: Any, name: str) -> None:
    """Let a function give again what it gave first, for each value of ``public``."""
    function, found = getattr(module, name), {}

    def remembered(*arguments: Any, **options: Any) -> Any:
        key = options.get("public")
        if key not in found:
            found[key] = function(*arguments, **options)
        return found[key]

    setattr(module, name, remembered)


def make_scenes(root: Path, names: Sequence[str]) -> dict[str, Scene]:
    """The commands, each with a study that it comes to.

    Children that die hundreds of times need not compute: the conclusion is made once, here, and
    what they do is write.
    """
    world = make_world(root / "world", coordinator=CoordinatorKey.generate())
    world.key(SITES[4]).public.save(root / "world" / "late.pub")
    kit, labels, late = (str(root / "world" / n) for n in ("kit", "kit-labels.json", "late.pub"))
    to_add = [root / f"add-{site}.safetensors" for site in SITES]
    commands = {
        "init": ("init", kit, "--labels", labels, "--key", str(world.key_path)),
        "admit": ("admit", SITES[4], late),
        "add": ("add", *map(str, to_add[2:4])),
        "receipt": ("receipt", SITES[0], "--out", f"{root / 'trial'}/site.receipt"),
        "delete": ("delete", SITES[1], "--out", str(root / "trial")),
        "finish": ("finish",),
        "withdraw": ("withdraw", SITES[1], "--yes"),
    }
    num_uploads = {"admit": 0, "add": 2, "receipt": 1, "delete": 2, "finish": 3}
    scenes = {}
    for name, arguments in commands.items():
        if names and name not in names:
            continue
        if name == "withdraw":  # from a study that has a result
            shutil.copytree(root / "trial", root / name)
        else:
            (root / name).mkdir()
        if name in num_uploads:
            study = world.begin(f"../{name}/study", SITES[:4])
            paths = [world.file(site) for site in SITES]  # of this study
            for path in paths[: num_uploads[name]]:
                study.add(path)
            if name == "add":
                for path, copy in zip(paths, to_add, strict=True):
                    shutil.copyfile(path, copy)
        if name == "finish":
            _conclude_once(root)
        scene = Scene(name, arguments, root / name, root / "log", root / "trial")
        scenes[name] = scene.with_outcome()
    return scenes


def _conclude_once(root: Path) -> None:
    for name in ("conclude_study", "render_report", "render_card"):
        remember(finish_module, name)
    shutil.copytree(root / "finish", root / "remembered")
    Study(root / "remembered" / "study").finish()


def run(root: Path, *names: str) -> None:
    # Once here, and not in every child: kills shall find commands at work, not at their imports.
    app_module.app = typer.main.get_command(app_module.app)
    if not names or "finish" in names:
        for module in ("matplotlib.figure", "matplotlib.backends.backend_svg"):
            importlib.import_module(module)
    for scene in make_scenes(root, names).values():
        every_operation(scene)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve(), *sys.argv[2:])
