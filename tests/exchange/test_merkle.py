"""The tree of RFC 6962: its own test vectors, and paths that prove nothing else."""

import hashlib

import pytest

from predbayes.exchange.merkle import merkle_path, merkle_root, root_of

# Of Certificate Transparency's reference implementation.
VECTORS = [
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]  # fmt: skip
RECORDS = [bytes.fromhex(text) for text in VECTORS]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


@pytest.mark.parametrize("count", ROOTS)
def test_roots_are_those_of_certificate_transparency(count):
    assert merkle_root(RECORDS[:count]) == ROOTS[count]


@pytest.mark.parametrize("count", range(1, 20))
def test_a_path_leads_to_the_root_from_its_record_and_place_alone(count):
    records = [b"%d" % n for n in range(count)]
    root = merkle_root(records)
    for place, record in enumerate(records):
        path = merkle_path(records, place)
        assert root_of(record, place, count, path) == root
        assert root_of(b"other", place, count, path) != root
        others = [n for n in range(count) if n != place]
        assert all(root_of(record, n, count, path) != root for n in others)
        assert root_of(record, place, count, (*path, "00" * 32)) == ""
        assert not path or root_of(record, place, count, path[:-1]) == ""


def test_a_node_is_no_record():
    left, right = (hashlib.sha256(b"\0" + record).digest() for record in (b"a", b"b"))
    assert merkle_root([left + right]) != merkle_root([b"a", b"b"])


def test_no_place_beyond_the_records_is_proved():
    assert root_of(b"a", 1, 1, ()) == root_of(b"a", -1, 1, ()) == ""
