"""The benchmark `resnet` at small width: every learner trains, predicts, sends and is read."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import resnet

WIDTH = 4


def test_it_is_a_resnet_18():
    with torch.device("meta"):
        net = resnet.resnet18()
    assert sum(p.numel() for p in net.parameters()) == 11_181_642  # torchvision's, of 10 classes
    assert net(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", resnet.LEARNERS)
def test_what_is_read_is_what_was_fitted(name, frozen, capsys):
    resnet._fit_and_report(name, WIDTH, frozen)
    found = json.loads(capsys.readouterr().out)
    assert found["as_read"]
    assert found["samples"] == resnet.NUM_SAMPLES
    learnt = 4 * (8 * WIDTH + 1) * resnet.NUM_CLASSES  # bytes of the last layer
    backbone = 4 * found["parameters"] - learnt
    once = frozen or name == "laplace"
    buffers = 30_000 if name == "laplace" else 60_000
    expected = (1 if once else resnet.NUM_SAMPLES) * backbone + resnet.NUM_SAMPLES * learnt
    assert expected < found["upload_bytes"] < expected + buffers
