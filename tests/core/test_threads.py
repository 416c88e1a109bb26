"""A block has its number of threads, and whatever comes after it has the one before."""

import pytest
import torch

from predbayes.threads import threads


def test_threads_are_as_before_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        _ = 1 / (torch.get_num_threads() - before - 1)
    assert torch.get_num_threads() == before
