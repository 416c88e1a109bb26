"""The head of an upload: what it may say, and what is refused before an array is read."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from predbayes.errors import UploadError
from predbayes.exchange.header import Header, Signature, from_metadata
from predbayes.exchange.upload import Upload, spec_of

KINDS = ["weights", "classes", "numbers"]
SIGNED = Signature(key="0a" * 32, signature="0b" * 64)


def packed(header, body=b""):
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def declaring(**entries):
    """The header of an upload that declares these arrays."""
    info = '{"kind": "weights", "num_rows": 1}'
    return {"__metadata__": {"predbayes": info}, **entries}


def entry(**fields):
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **fields}


class TestHeader:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_header_says_what_the_file_holds(self, kind, uploads, tmp_path):
        upload = uploads[kind].named("basel")
        upload.save(tmp_path / "u", SIGNED)
        header = Header.read(tmp_path / "u")
        assert header.info == upload.info
        assert header.arrays == {name: spec_of(a) for name, a in upload.arrays.items()}
        assert {n: spec.num_bytes for n, spec in header.arrays.items()} == {
            n: a.nbytes for n, a in upload.arrays.items()
        }
        assert header.signature == SIGNED

    def test_it_is_read_without_the_arrays(self, uploads, tmp_path):
        uploads["classes"].save(tmp_path / "u")
        content = (tmp_path / "u").read_bytes()
        length = int.from_bytes(content[:8], "little")
        (tmp_path / "u").write_bytes(content[: 8 + length])
        assert Header.read(tmp_path / "u").signature is None
        with pytest.raises(UploadError, match="cannot be read as an upload"):
            Upload.load(tmp_path / "u")

    @pytest.mark.parametrize(
        "declared",
        [
            7,
            {},
            entry(dtype=[]),
            entry(dtype="F8_E4M3"),
            entry(dtype=None),
            entry(shape=4),
            entry(shape=[True]),
            entry(shape=[1.0]),
            entry(shape=[1] * 70),
            entry(more=1),
        ],
    )
    def test_arrays_have_a_type_and_a_shape(self, declared, tmp_path):
        path = tmp_path / "u"
        path.write_bytes(packed(declaring(a=declared), bytes(4)))
        with pytest.raises(UploadError, match="of a type that no upload has"):
            Upload.load(path)

    @pytest.mark.parametrize("shape", [[2**63, 0], [2**64, 0], [2**62, 4], [-1], [2]])
    def test_shapes_that_no_tensor_has_are_refused(self, shape, tmp_path):
        path = tmp_path / "u"
        path.write_bytes(packed(declaring(a=entry(shape=shape, data_offsets=[0, 0]))))
        with pytest.raises(UploadError, match="cannot be read as an upload"):
            Upload.load(path)

    def test_a_name_comes_once(self, tmp_path):
        """Of two readers one takes the first, the other the last."""
        path = tmp_path / "u"
        text = json.dumps(declaring(a=entry())).encode()
        path.write_bytes(packed(text, bytes(4)))
        assert set(Upload.load(path).arrays) == {"a"}
        other = json.dumps({"a": entry(shape=[1, 1])}).encode()
        path.write_bytes(packed(other[:-1] + b"," + text[1:], bytes(4)))
        with pytest.raises(UploadError, match="every name once"):
            Upload.load(path)

    @pytest.mark.parametrize(
        "text", [b"{" * 200_000, b"[]", b"null", b"\xff", b'{"a": NaN', "{}".encode("utf-16")]
    )
    def test_other_headers_are_refused(self, text, tmp_path):
        path = tmp_path / "u"
        path.write_bytes(packed(text))
        with pytest.raises(UploadError, match="not a safetensors file"):
            Header.read(path)

    def test_metadata_is_an_uploads_and_short(self, tmp_path):
        path = tmp_path / "u"
        many = '{"kind": "weights", "num_rows": 1, "class_rows": [' + "-1," * 200_000 + "-1]}"
        for metadata in ({"predbayes": many}, {"predbayes": "{}", "x": ""}, {"predbayes": 1}):
            path.write_bytes(packed({"__metadata__": metadata}))
            with pytest.raises(UploadError, match="metadata that no upload has"):
                Header.read(path)

    def test_a_strangers_words_are_shown_on_one_line(self, tmp_path):
        path = tmp_path / "a\nb"
        info = json.dumps({"kind": "weights", "num_rows": 1, "\x1b[2J\n" * 99: 1})
        path.write_bytes(packed({"__metadata__": {"predbayes": info}}))
        with pytest.raises(UploadError) as caught:
            Header.read(path)
        assert str(caught.value).startswith("a\\nb: \\x1b[2J\\n\\x1b[2J\\n")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


class TestSignature:
    @pytest.mark.parametrize(
        "fields",
        [
            {"key": "ab", "signature": "cd" * 64},
            {"key": "AB" * 32, "signature": "cd" * 64},
            {"key": "ab" * 32, "signature": "cd" * 64 + "\n"},
            {"key": "ab" * 32},
            {"key": "ab" * 32, "signature": "cd" * 64, "algorithm": "none"},
        ],
    )
    def test_it_is_two_numbers_and_nothing_else(self, fields):
        with pytest.raises(ValidationError):
            Signature(**fields)


class TestMetadata:
    @pytest.mark.parametrize("metadata", [None, [], {}, {"signature": "{}"}])
    def test_what_has_no_head_is_no_upload(self, metadata):
        with pytest.raises(UploadError, match=r"^a message: it is not an upload of predbayes"):
            from_metadata(metadata, "a message")
