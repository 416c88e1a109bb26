from __future__ import annotations

import pytest

from benchmarks.__main__ import NAMES, main


def test_benchmarks_are_listed(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.parametrize("arguments", [["samplr"], ["sampler", "--fast"]])
def test_wrong_names_end_with_2_and_the_right_ones(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sampler" in captured.err
