"""Own tables over a SuperLink and SuperNodes: docs/flower-methods.md, followed to the letter."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

import predbayes as pb
from tests.flower.deployment import BIN, QUIET, ROOT, deployed, free_port, listens, run, until

PAGE = (ROOT / "docs" / "flower-methods.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Your own tables")[2].partition("\n## ")[0]
SECURE = SECTION.partition("### Over TLS")[2].partition("\n### ")[0]
STAY = ("flower-superlink", "flower-supernode")  # at work until they are ended


def fenced(language, text=SECTION):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text):
    """The commands in a part of the page, in their order."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S).replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^    (.*)$", prose, re.M)]


def write_tables(folder):
    """Invented people at two sites, and the coordinator's; older ones are ill more often."""
    rng = np.random.default_rng(0)
    for name, num_rows in {"basel": 120, "bern": 100, "reference": 300}.items():
        numbers = rng.normal([60, 135, 230], [10, 15, 40], (num_rows, 3)).round()
        table = pandas.DataFrame(numbers, columns=["age", "blood_pressure", "cholesterol"])
        table["ill"] = np.where(rng.normal(table["age"], 5) > 60, "yes", "no")
        table.to_csv(folder / f"{name}.csv", index=False)


def in_process(folder):
    """The same without Flower."""
    task: dict = {}
    exec(fenced("python")[0], task)  # the page's own code

    def context(name):
        own = {"data": folder / f"{name}.csv"}
        return SimpleNamespace(node_config=own, run_config={"reference": folder / "reference.csv"})

    sites = {name: task["rows"](context(name.lower())) for name in ("Basel", "Bern")}
    return pb.run(task["method"](None), sites, task["reference"](context("reference")))


def write_app(folder, root):
    """The four files of the page, as an app called hearts."""
    package = folder / "hearts"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "task.py").write_text(fenced("python")[0])
    for name in ("client_app", "server_app"):
        path = ROOT / "examples" / "flower-any-method" / "digits" / f"{name}.py"
        (package / f"{name}.py").write_text(path.read_text().replace("digits", "hearts"))
    about = fenced("toml", PAGE)[0].partition("[tool.flwr.app.config]")[0]
    config = fenced("toml")[0].replace("/srv", str(root))
    (folder / "pyproject.toml").write_text(about.replace("digits", "hearts") + config)


def test_the_task_of_the_page_learns_what_the_tables_hold(tmp_path):
    write_tables(tmp_path)
    result = in_process(tmp_path)
    assert result.account.sites == {"Basel": 120, "Bern": 100}
    table = pandas.read_csv(tmp_path / "reference.csv")
    inputs = (table[["age", "blood_pressure", "cholesterol"]] - [60, 135, 230]) / [10, 15, 40]
    targets = torch.tensor((table["ill"] == "yes").to_numpy(), dtype=torch.long)
    assert pb.metrics.nll(result.predict(inputs), targets) < 0.45  # 0.69 says nothing


@pytest.mark.slow("starts Flower's programs four times")
def test_every_option_of_the_commands_is_one_of_flowers(tmp_path):
    asked = [c for c in commands(SECTION) if c[0].startswith("fl")]
    assert len(asked) == 4 + 6
    quiet = {**os.environ, **QUIET, "FLWR_HOME": str(tmp_path), "COLUMNS": "200"}
    programs: dict = {}
    for command in asked:
        named = 1 if command[0] in STAY else 2 if command[1] == "run" else 3
        options = {part for part in command[named:] if part.startswith("--")}
        programs.setdefault(tuple(command[:named]), set()).update(options)
    assert len(programs) == 4
    for (name, *more), options in programs.items():
        told = [BIN / name, *more, "--help"]
        done = subprocess.run(told, capture_output=True, text=True, env=quiet, check=True)
        assert [option for option in options if option not in done.stdout] == []


@pytest.mark.slow("a SuperLink and two SuperNodes")
def test_the_commands_over_tls_have_the_bits_of_one_process(tmp_path):
    root = tmp_path / "srv"
    ports = {"9393": free_port(), "9401": free_port(), "9402": free_port()}

    def ours(text):
        text = text.replace("/srv", str(root))
        return re.sub("|".join(ports), lambda found: str(ports[found.group()]), text)

    with deployed(tmp_path / "deployment") as deployment:
        root.mkdir()
        write_tables(root)
        write_app(tmp_path / "app", root)
        (deployment.root / "flwr" / "config.toml").write_text(ours(fenced("toml", SECURE)[0]))
        for name, *parts in commands(SECURE):
            told = [ours(part) for part in parts]
            if name in STAY:
                started = deployment.start(name, BIN / name, *told)
                port = int(told[told.index("--port") + 1])
                until(lambda port=port: listens(port), 60, f"{name} listens", started)
            elif parts[0] == "run":
                ended = deployment.start("run", BIN / name, "run", tmp_path / "app", *told[2:])
                assert ended.wait(300) == 0
            else:
                program = BIN / name if name == "flwr" else ROOT / name
                run(program, *told, env=deployment.environment)
    saved = pb.load(root / "result")
    assert torch.equal(saved.predictive.natural(), in_process(root).predictive.natural())
