from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

from predbayes.errors import DataError, MissingPackageError, StudyError
from predbayes.files import digests
from predbayes_study.tables.reading import read_frame
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.statement import FilesStatement, Signed
from tests.study.commands import invoke
from tests.study.world import TARGETS, home_plan, untrained

DATA = "id,ward,age\nanna,1,50\nbert,,117\ncleo,x,60\n"


def run(*arguments):
    return invoke("predict", *arguments)


def make_model(target):
    return untrained(home_plan(TARGETS[target]))


@pytest.fixture(params=TARGETS)
def model(request):
    return make_model(request.param)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(DATA)
    return path


def test_writes_the_models_predictions_to_six_digits(model, data, tmp_path):
    model.save(tmp_path / "model")
    out = tmp_path / "out.csv"
    result = run(tmp_path / "model", data, "--out", out, "--level", 0.5)
    assert result.exit_code == 0
    written = pd.read_csv(out)
    expected = model.predict(read_frame(data), level=0.5).reset_index(drop=True)
    assert list(written) == ["row", *expected]
    assert list(written["row"]) == [1, 2, 3]
    pd.testing.assert_frame_equal(written[list(expected)], expected, rtol=1e-5, check_dtype=False)
    digits = [cell.lstrip("0.").replace(".", "") for cell in out.read_text().split(",")]
    assert max(len(cell) for cell in digits if cell.isdigit()) == 6
    for odd in ("age: 1 value outside 18 to 100 (line 3)", "ward: 1 value", "wrote 3 rows"):
        assert odd in result.output
    assert run(tmp_path, data, "--out", out).exit_code == 0  # the folder of a result will do
    (tmp_path / "empty").mkdir()
    assert isinstance(run(tmp_path / "empty", data, "--out", out).exception, StudyError)


def test_nothing_of_the_inputs_is_copied_unless_asked_for(data, tmp_path):
    make_model("classes").save(tmp_path)
    run(tmp_path, data, "--out", tmp_path / "out.csv")
    assert "anna" not in (tmp_path / "out.csv").read_text()
    run(tmp_path, data, "--out", tmp_path / "out.csv", "--keep", "id", "--keep", "ward")
    written = pd.read_csv(tmp_path / "out.csv")
    assert list(written)[:3] == ["row", "id", "ward"]
    assert list(written["id"]) == ["anna", "bert", "cleo"]


def test_a_model_that_is_not_as_the_coordinator_signed_it_is_refused(data, tmp_path):
    """Whoever alters the weights can write their digest anew, but cannot sign."""
    key = CoordinatorKey.generate()
    plan = home_plan(TARGETS["classes"])
    keys = {"signing_key": key.public.signing.hex, "encryption_key": key.public.encryption}
    plan = plan.model_copy(update={"frozen": plan.frozen.model_copy(update=keys)})
    folder, out = tmp_path / "model", tmp_path / "out.csv"
    untrained(plan).save(folder)
    place = {"plan": plan.digest(), "study": "b" * 64, "head": "c" * 64, "number": 1}
    files = digests(folder, folder.rglob("*"))
    statement = Signed.of(FilesStatement(kind="model", files=files, **place), key.signing).file()
    (folder / "model.sig").write_bytes(statement)
    assert run(folder, data, "--out", out).exit_code == 0
    out.unlink()
    untrained(plan, 1).save(folder)
    result = run(folder, data, "--out", out)
    assert isinstance(result.exception, StudyError)
    assert "was altered" in str(result.exception)
    (folder / "model.sig").unlink()
    assert isinstance(run(folder, data, "--out", out).exception, StudyError)
    assert not out.exists()


def test_parquet_in_and_out(data, tmp_path):
    model = make_model("number")
    model.save(tmp_path)
    typed = pd.read_csv(data)
    typed.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "out.parquet"
    assert run(tmp_path, tmp_path / "rows.parquet", "--out", out, "--keep", "age").exit_code == 0
    written = pd.read_parquet(out)
    assert list(written["age"]) == [50, 117, 60]
    expected = model.predict(typed)
    pd.testing.assert_frame_equal(
        written[list(expected)], expected, check_exact=True, check_dtype=False
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--out", "out.xlsx"], "ends in .csv or .parquet"),
        (["--out", "nowhere/out.csv"], "there is no folder"),
        (["--out", "out.csv", "--keep", "name"], "--keep name: the table has no such column"),
        (["--out", "out.csv", "--keep", "row"], "--keep row: a column of the result has that name"),
        (["--out", "out.csv", "--keep", "id", "--keep", "id"], "--keep id: a column of the result"),
        (["--out", "out.csv", "--level", "95"], "level must be between 0 and 1"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_written(
    data, tmp_path, monkeypatch, options, says
):
    monkeypatch.chdir(tmp_path)
    data.write_text("id,row,ward,age\nanna,1,1,50\n")
    make_model("number").save(tmp_path)
    before = set(tmp_path.iterdir())
    result = run(tmp_path, data, *options)
    assert isinstance(result.exception, DataError)
    assert says in str(result.exception)
    assert set(tmp_path.iterdir()) == before


def test_the_core_package_is_enough(data, tmp_path):
    make_model("classes").save(tmp_path)
    extras = ["sklearn", "jinja2", "cryptography", "matplotlib", "pyarrow", "onnx", "onnxscript"]
    code = (
        "import sys, typer\n"
        f"sys.modules.update(dict.fromkeys({extras}))\n"  # None: not installed
        "from predbayes_study.cli.model import predict_command\n"
        "typer.run(predict_command)\n"
    )
    out = tmp_path / "out.csv"
    command = [sys.executable, "-c", code, tmp_path, data, "--out", out]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert len(out.read_text().splitlines()) == 4


def test_parquet_needs_the_extra(data, tmp_path, monkeypatch):
    make_model("classes").save(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").touch()
    for rows, out in ((data, "out.parquet"), (tmp_path / "rows.parquet", "out.csv")):
        result = run(tmp_path, rows, "--out", tmp_path / out)
        assert isinstance(result.exception, MissingPackageError)
        assert "study[parquet]" in str(result.exception)


def test_a_site_predicts_on_its_own_table_without_targets(data, tmp_path):
    """Her delimiter, decimal comma, names and units; the outcome of these patients is not known."""
    make_model("classes").save(tmp_path / "model")
    own = tmp_path / "own.csv"
    own.write_text("Pat;Station;Alter in Monaten\nanna;A;600,0\nbert;;1404\ncleo;x;720\n")
    (tmp_path / "site.toml").write_text(
        'format = 1\nname = "Basel"\n[file]\ndelimiter = ";"\ndecimal = ","\n'
        '[columns]\nage = { column = "Alter in Monaten", factor = 0.08333333333333333 }\n'
        'ward = { column = "Station", recode = { "A" = "1" } }\n[target]\ncolumn = "Befund"\n'
    )
    plain, translated = tmp_path / "plain.csv", tmp_path / "translated.csv"
    assert run(tmp_path / "model", data, "--out", plain).exit_code == 0
    arguments = (tmp_path / "model", own, "--out", translated, "--site", tmp_path / "site.toml")
    assert run(*arguments, "--keep", "Pat").exit_code == 0
    found = pd.read_csv(translated)
    assert list(found["Pat"]) == ["anna", "bert", "cleo"]
    pd.testing.assert_frame_equal(found.drop(columns="Pat"), pd.read_csv(plain))
