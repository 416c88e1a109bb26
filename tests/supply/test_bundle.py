"""The offline bundle: the same bytes each time, valid, and installed only if nothing was altered.

`scripts/release-check --build` makes the real one, and installs from it without a network. Here the
wheels are small.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "bundle"))
TARGET = "linux-x86_64"
NAMESPACE = ["unshare", "-rn"]  # which has no way out, not even to this computer
CAN = shutil.which("unshare") and subprocess.run([*NAMESPACE, "true"], check=False).returncode == 0
NO_NETWORK = NAMESPACE if CAN else []


def make_wheel(folder: Path, name: str, *fields: str) -> Path:
    """A wheel with one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "VALUE = 1\n",
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields, "", ""]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},"
        for path, digest in digests.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> tuple[list[Path], Path]:
    """Wheels called predbayes and predbayes-study, and the folder of what they need."""
    folder = tmp_path_factory.mktemp("wheels")
    licence = "License-Expression: Apache-2.0"
    core = make_wheel(
        folder / "own", "predbayes", licence, "Requires-Dist: absent; extra == 'onnx'"
    )
    study = make_wheel(
        folder / "own",
        "predbayes_study",
        licence,
        "Requires-Dist: predbayes",
        "Requires-Dist: small_one",
        "Requires-Dist: other; extra == 'tables'",
        "Requires-Dist: absent; extra == 'storage'",
    )
    own = [core, study]
    make_wheel(folder / "others", "small_one", "License-Expression: MIT OR Apache-2.0")
    make_wheel(folder / "others", "other", "Classifier: License :: OSI Approved :: BSD License")
    return own, folder / "others"


@pytest.fixture(scope="module")
def bundle(wheels, tmp_path_factory) -> Path:
    return SCRIPT["assemble"](*wheels, TARGET, tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def unpacked(bundle, tmp_path) -> Path:
    zipfile.ZipFile(bundle).extractall(tmp_path)
    return tmp_path / bundle.stem


def install(folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """Run install.py without a network, or else with a proxy and an index that do not answer."""
    nowhere = "http://127.0.0.1:9"
    environment = {**os.environ, "https_proxy": nowhere, "PIP_INDEX_URL": nowhere}
    command = [*NO_NETWORK, sys.executable, str(folder / "install.py"), str(into)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_same_wheels_make_the_same_bytes(wheels, bundle, tmp_path):
    """Also if the wheels were fetched at another time, into another folder."""
    own, others = wheels
    folder = tmp_path / "fetched again"
    shutil.copytree(others, folder, copy_function=shutil.copy)
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    again = SCRIPT["assemble"](own, folder, TARGET, tmp_path / "out")
    assert again.read_bytes() == bundle.read_bytes()
    names = [entry.filename for entry in zipfile.ZipFile(bundle).infolist()]
    assert names == sorted(names)


def test_every_file_has_its_digest_and_every_wheel_its_hash(unpacked):
    lines = (unpacked / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {p.relative_to(unpacked).as_posix(): p for p in unpacked.rglob("*") if p.is_file()}
    del files["SHA256SUMS"]
    assert listed == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    pins = (unpacked / "requirements.txt").read_text()
    for name in ("predbayes", "predbayes_study", "small_one", "other"):
        digest = listed[f"wheels/{name}-1.0-py3-none-any.whl"]
        assert f"{name.replace('_', '-')}==1.0 --hash=sha256:{digest}\n" in pins


def test_the_sbom_is_valid_and_complete(unpacked):
    text = (unpacked / "sbom.cdx.json").read_text()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"library"', '"book"')) is not None
    bom = json.loads(text)
    assert [part["name"] for part in bom["components"]] == ["predbayes", "other", "small-one"]
    assert bom["components"][1]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert bom["components"][2]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert bom["metadata"]["component"]["name"] == "predbayes-study"
    assert bom["dependencies"][1] == {
        "ref": "pkg:pypi/predbayes-study@1.0",
        "dependsOn": ["pkg:pypi/other@1.0", "pkg:pypi/predbayes@1.0", "pkg:pypi/small-one@1.0"],
    }
    assert "| other | 1.0 | BSD License |" in (unpacked / "LICENCES.md").read_text()


def test_it_installs_without_an_index(unpacked, tmp_path):
    done = install(unpacked, tmp_path / "env")
    assert done.returncode == 0, done.stderr
    for wheel in (unpacked / "wheels").glob("predbayes*"):
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() in done.stdout
    python = tmp_path / "env" / "bin" / "python"
    code = "import predbayes, predbayes_study, small_one, other; print(predbayes.__file__)"
    found = subprocess.run([python, "-Ic", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(tmp_path / "env"))


def test_what_was_altered_added_or_lost_and_another_python_are_refused(unpacked, tmp_path):
    def refused(named: str) -> None:
        done = install(unpacked, tmp_path / "env")
        assert done.returncode == 1
        assert named in done.stderr
        assert not (tmp_path / "env").exists()

    wheel = unpacked / "wheels" / "other-1.0-py3-none-any.whl"
    for path in (wheel, unpacked / "requirements.txt"):
        kept = path.read_bytes()
        path.write_bytes(kept + b"#")
        refused(f"{path.relative_to(unpacked).as_posix()} was altered")
        path.write_bytes(kept)
    other = wheel.rename(wheel.with_name("other-2.0-py3-none-any.whl"))
    refused("is missing")
    shutil.copy(other, wheel)
    refused("2.0-py3-none-any.whl is not in SHA256SUMS")
    other.unlink()
    about = unpacked / "bundle.json"
    about.write_text(about.read_text().replace('"python": "3.', '"python": "2.'))
    refused("the bundle is for Python 2.")


def test_a_module_put_beside_the_script_does_not_run(unpacked, tmp_path):
    """Python looks first where a script lies, and `import json` comes before any check."""
    for name in ("hashlib", "json", "subprocess", "venv", "pathlib"):
        (unpacked / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "hashlib.py is not in SHA256SUMS" in install(unpacked, tmp_path / "env").stderr
    assert not (tmp_path / "ran").exists()


def test_pip_refuses_a_wheel_whose_sum_was_made_anew(unpacked, tmp_path):
    """Who alters a wheel and SHA256SUMS, and forgets requirements.txt, is stopped by pip."""
    wheel = make_wheel(tmp_path / "evil", "other", "Summary: evil")
    sums, place = unpacked / "SHA256SUMS", unpacked / "wheels" / wheel.name
    old, new = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (place, wheel))
    shutil.copy(wheel, place)
    sums.write_text(sums.read_text().replace(old, new))
    refused = install(unpacked, tmp_path / "env")
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr
