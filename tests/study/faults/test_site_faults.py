"""A site's part under bad conditions: killed, without a network, and with nobody's values told."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest

from predbayes.errors import PredbayesError
from predbayes_study.cli.app import app
from predbayes_study.tables.coding import encode
from predbayes_study.tables.reading import read_frame
from tests.study.world import make_world

SITES = ("Alpha", "Beta")
NUMBER, WORD = 41.4142, "Qanary"
LEARNER = "[learner]\nnum_epochs = 1\nmin_steps = 200\nholdout = 0.25\nname = 'any'\n"


class Blocked(Exception):
    pass


@pytest.fixture
def no_sockets(monkeypatch):
    def refuse(*arguments, **options):
        raise Blocked("a command asked for a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def run(folder, *arguments):
    with contextlib.chdir(folder):
        app(list(arguments), standalone_mode=False)


def site_folder(root, site):
    """A site's folder, with a table that has an unmistakable number and word in it."""
    folder = root / site
    folder.mkdir()
    (folder / "site.toml").write_text(
        f'format = 1\nname = "{site}"\n[columns]\nx = {{ column = "Wert" }}\n'
    )
    lines = [f"Wert,y,kind,note\n{NUMBER},{NUMBER},red,{WORD}"]
    rng = random.Random(site)
    for row in range(159):
        kind = ("red", "green", "blue")[(row + len(site)) % 3]
        lines.append(f"{rng.uniform(-30, 30):.2f},{rng.uniform(-20, 30):.2f},{kind},")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder


def everything(root, world):
    """All that the two sides do, command by command; the folders of the sites."""
    coordinator = world.root
    run(coordinator, "study", "init", "kit", "--labels", "kit-labels.json")
    folders = {site: site_folder(root, site) for site in SITES}
    kit = str(world.kit.folder)
    for site, folder in folders.items():
        run(folder, "site", "key", site)
        run(coordinator, "study", "admit", site, str(folder / f"{site}.pub"))
        run(folder, "site", "check", kit, "rows.csv")
        run(folder, "site", "approve", kit, "--by", "officer")
        learner = "logistic-regression" if site == "Alpha" else "network"
        train = ("site", "train", kit, "rows.csv", "--out", "out", "--learner", learner)
        run(folder, *train)
        run(folder, "site", "approve", "out/held-back.safetensors", "--by", "officer")
        run(folder, *train)
        run(coordinator, "study", "add", str(folder / "out" / f"{site}.safetensors"))
    run(coordinator, "study", "finish")
    model = str(coordinator / "study" / "results" / "1" / "model")
    for folder in folders.values():
        home = ("--home", "out")
        evaluate = ("site", "evaluate", model, "rows.csv", *home, "--out", "evaluation.safetensors")
        run(folder, *evaluate)
        run(folder, "site", "approve", "held-back-evaluation.safetensors", "--by", "officer")
        run(folder, *evaluate)
        run(folder, "site", "adopt", model, "rows.csv", *home, "--out", "adopted")
        run(coordinator, "study", "add", str(folder / "evaluation.safetensors"))
    run(coordinator, "study", "finish")
    run(coordinator, "study", "status")
    run(coordinator, "study", "verify")
    return folders


def spellings(world, folder):
    """The canaries as text, and as the bytes of the numbers that they become."""
    frame = read_frame(folder / "rows.csv").rename(columns={"Wert": "x"})
    inputs = encode(world.kit.plan, frame)[0]
    found = [str(NUMBER).encode(), WORD.encode(), b"41,4142"]
    for value in (NUMBER, *inputs[:2].tolist()):
        found += [struct.pack("<f", value), struct.pack("<d", value), f"{value:.6g}".encode()]
    return found


@pytest.mark.usefixtures("no_sockets")
def test_without_a_network_everything_works_and_no_value_leaves(tmp_path, capfd):
    world = make_world(tmp_path / "coordinator", learner=LEARNER, upload="release = 'manual'\n")
    folders = everything(tmp_path, world)
    said = capfd.readouterr()
    wanted = spellings(world, folders["Alpha"])
    outputs = {"stdout": said.out.encode(), "stderr": said.err.encode()}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "rows.csv":
            outputs[str(path.relative_to(tmp_path))] = path.read_bytes()
    assert len(outputs) > 30
    for name, content in outputs.items():
        found = [spelling for spelling in wanted if spelling in content]
        assert not found, f"{name} holds {found}"


BROKEN = {
    "number": f"Wert,y,kind\n{NUMBER}{WORD},1,red\n2,3,green\n",
    "range": f"Wert,y,kind\n{NUMBER}77,1,red\n2,3,green\n".replace("41.4142", "941.4142"),
    "class": f"Wert,y,kind\n1,1,{WORD}\n2,3,green\n",
    "ragged": f"Wert,y,kind\n1,1,red,{WORD}\n2,3,green\n",
    "no header": f"{NUMBER},1,{WORD}\n2,3,green\n",
}


@pytest.mark.parametrize("kind", sorted(BROKEN))
@pytest.mark.parametrize("command", ["check", "train", "evaluate", "adopt"])
def test_no_error_tells_a_value(tmp_path, capfd, kind, command, finished):
    world, model = finished
    folder = site_folder(tmp_path, "Alpha")
    world.key("Alpha").save(folder / "Alpha.key")
    (folder / "rows.csv").write_text(BROKEN[kind])
    kit = str(world.kit.folder)
    arguments = {
        "check": ["site", "check", kit, "rows.csv"],
        "train": ["site", "train", kit, "rows.csv", "--out", "out"],
        "evaluate": ["site", "evaluate", model, "rows.csv"],
        "adopt": ["site", "adopt", model, "rows.csv"],
    }[command]
    with pytest.raises(PredbayesError) as error:
        run(folder, *arguments)
    said = capfd.readouterr()
    text = said.out + said.err + str(error.value)
    assert WORD not in text
    assert "41.4142" not in text
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study with a model."""
    world = make_world(tmp_path_factory.mktemp("finished"), method="mixture")
    study = world.begin(added=SITES)
    study.finish()
    return world, str(study.result_folder(1) / "model")
