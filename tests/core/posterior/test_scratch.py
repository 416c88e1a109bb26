"""Samples of a large network in memory: one, however many there are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
import torch
from torch import nn
from predbayes.posterior.samples import SampleStack, WeightSamples

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
net = nn.Linear(2_000, 2_000)  # 16 MB
before, stack = peak(), SampleStack(40)
for index in range(40):
    with torch.no_grad():
        net.bias.fill_(index)
    stack.add(WeightSamples.of(net))
samples = stack.taken()
seen = []
for index in range(40):
    samples.load_into(net, index)
    seen.append(float(net(torch.zeros(1, 2_000)).mean()))
print(json.dumps({"grown": peak() - before, "seen": seen}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system decides what it keeps")
def test_forty_samples_take_the_memory_of_a_few():
    """640 MB of samples, taken and predicted with, in less than 150 MB."""
    command = [sys.executable, "-c", PROGRAM]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(finished.stdout)
    assert found["seen"] == [float(index) for index in range(40)]
    assert found["grown"] < 150e6
