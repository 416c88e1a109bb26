from __future__ import annotations

import json
import struct

import pytest
import torch
from torch import nn

from predbayes.errors import UploadError
from predbayes.posterior.samples import WeightSamples
from predbayes.seeding import generator, isolated


def network(seed: int = 0) -> nn.Module:
    with isolated(generator(seed)):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def samples() -> WeightSamples:
    return WeightSamples.concat([WeightSamples.of(network(seed)) for seed in range(3)])


def assert_equal(first: WeightSamples, second: WeightSamples) -> None:
    a, b = first.arrays(), second.arrays()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_parameters_and_buffers_are_stacked(samples):
    assert len(samples) == 3
    assert samples.parameters["0.weight"].shape == (3, 4, 3)
    assert samples.buffers["1.running_mean"].shape == (3, 4)
    assert samples.buffers["1.num_batches_tracked"].dtype == torch.int64


def test_a_sample_is_a_copy():
    module = network()
    sample = WeightSamples.of(module)
    with torch.no_grad():
        module[0].weight.zero_()
    assert sample.parameters["0.weight"].abs().sum() > 0


def test_file_round_trip_is_bit_exact(samples, tmp_path):
    samples.save(tmp_path / "w.safetensors")
    assert_equal(WeightSamples.load(tmp_path / "w.safetensors"), samples)
    assert_equal(WeightSamples.load(str(tmp_path / "w.safetensors")), samples)


def test_a_file_that_is_missing_is_refused_in_one_line(tmp_path):
    with pytest.raises(UploadError, match=r"^there is no file .*nowhere\.safetensors$"):
        WeightSamples.load(str(tmp_path / "nowhere.safetensors"))


def test_the_file_is_plain_safetensors(samples, tmp_path):
    path = tmp_path / "w.safetensors"
    samples.save(path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert "parameter/0.weight" in json.loads(content[8 : 8 + length])


def test_weights_go_back_into_a_network(samples):
    module = network(9)
    samples.load_into(module, 1)
    assert_equal(WeightSamples.of(module), samples[1:2])


def test_a_slice_keeps_the_last(samples):
    assert_equal(samples[-1:], WeightSamples.of(network(2)))


class TestErrors:
    def test_other_networks_are_refused(self, samples):
        with pytest.raises(UploadError, match="not of this network"):
            samples.load_into(nn.Linear(3, 4))
        with pytest.raises(UploadError, match="different networks"):
            WeightSamples.concat([samples, WeightSamples.of(nn.Linear(3, 4))])

    def test_stray_arrays_are_refused(self):
        with pytest.raises(UploadError, match="neither a parameter nor a buffer"):
            WeightSamples.from_arrays({"weights": torch.zeros(1)})

    def test_sample_counts_must_agree(self):
        with pytest.raises(UploadError, match="one number of samples"):
            WeightSamples({"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)}, {})
        with pytest.raises(UploadError, match="need parameters"):
            WeightSamples({}, {})

    def test_other_files_are_refused(self, tmp_path):
        path = tmp_path / "w.safetensors"
        path.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
        with pytest.raises(UploadError, match="not a safetensors file"):
            WeightSamples.load(path)
