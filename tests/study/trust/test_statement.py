"""Statements: what the coordinator says of a study, and that nobody else can say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predbayes.errors import StudyError
from predbayes.files import digests
from predbayes_study.trust.signing import SigningKey
from predbayes_study.trust.statement import FilesStatement, Folder, Receipt, Signed

KEY = SigningKey.generate()
PLACE = {"plan": "aa" * 32, "study": "bb" * 32, "head": "cc" * 32, "number": 7}
RECEIPT = Receipt(at="2026-01-01T00:00:00Z", site="Basel", key="dd" * 32, **PLACE)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "Basel.receipt").write_bytes(Signed.of(RECEIPT, KEY).file())
    return tmp_path / "Basel.receipt"


def test_it_comes_back(path):
    assert Signed.read(path, Receipt).checked(KEY.public, site="Basel") == RECEIPT


def test_another_key_did_not_sign_it(path):
    other = SigningKey.generate().public
    with pytest.raises(StudyError, match=r"^Basel.receipt is not signed with the coordinator's"):
        Signed.read(path, Receipt).checked(other)


@pytest.mark.parametrize("name", ["plan", "study", "head", "site"])
def test_one_of_something_else_is_refused(path, name):
    with pytest.raises(StudyError, match=f"a different {name}"):
        Signed.read(path, Receipt).checked(KEY.public, **{name: "ee" * 32})


def test_a_statement_of_one_kind_is_none_of_another(tmp_path):
    path = tmp_path / "model.sig"
    path.write_bytes(Signed.of(FilesStatement(kind="model", files={}, **PLACE), KEY).file())
    with pytest.raises(StudyError, match="a different kind"):
        Signed.read(path, FilesStatement).checked(KEY.public, kind="result")
    content = path.read_bytes().replace(b'"kind":"model"', b'"kind":"result"')
    path.write_bytes(content)
    with pytest.raises(StudyError, match="is not signed"):
        Signed.read(path, FilesStatement).checked(KEY.public, kind="result")


@given(content=st.binary(max_size=300))
def test_any_other_file_is_refused_in_one_line(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "kit.sig"
    path.write_bytes(content)
    for kind in (Receipt, FilesStatement):
        with pytest.raises(StudyError, match=r"^[^\n]+$"):
            Signed.read(path, kind).checked(KEY.public)


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "model").mkdir()
        for name in ("a.txt", "model/b.txt"):
            (tmp_path / name).write_text(name)
        return tmp_path

    @pytest.fixture
    def statement(self, folder):
        return FilesStatement(kind="result", files=digests(folder, folder.rglob("*")), **PLACE)

    def test_all_is_as_it_was_signed(self, folder, statement):
        (folder / "result.sig").write_text("itself")
        assert statement.problems(Folder.read(folder), "result.sig") == []

    def test_what_is_not_is_named(self, folder, statement):
        (folder / "a.txt").unlink()
        (folder / "model" / "b.txt").write_text("other")
        (folder / "c.txt").write_text("new")
        assert statement.problems(Folder.read(folder), "result.sig") == [
            "a.txt is missing",
            "c.txt is not signed",
            "model/b.txt was altered",
        ]

    @pytest.mark.parametrize("name", ["../a", "/a", "a//b", "a/../b", ".a", "a\nb", ""])
    def test_names_that_lead_elsewhere_are_refused(self, name):
        with pytest.raises(ValueError, match="files"):
            FilesStatement(kind="kit", files={name: "aa" * 32}, **PLACE)
