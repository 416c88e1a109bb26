from __future__ import annotations

import pytest

from benchmarks.__main__ import main


@pytest.mark.parametrize("arguments", [["samplr"], ["sampler", "--fast"]])
def test_wrong_names_end_with_2_and_the_right_ones(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "sampler" in captured.err
