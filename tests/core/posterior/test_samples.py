from __future__ import annotations

import json
import struct

import pytest
import torch
from torch import nn

from predbayes.errors import TrainingError, UploadError
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


def test_file_round_trip_is_bit_exact(samples, tmp_path):
    samples.save(tmp_path / "w.safetensors")
    assert_equal(WeightSamples.load(tmp_path / "w.safetensors"), samples)
    assert_equal(WeightSamples.load(str(tmp_path / "w.safetensors")), samples)


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


def half_frozen(seed: int, backbone: int = 0) -> nn.Module:
    with isolated(generator(backbone)):
        body = nn.Linear(30, 40).requires_grad_(False)
    with isolated(generator(seed)):
        return nn.Sequential(body, nn.Linear(40, 2))


def bytes_of(samples: WeightSamples) -> int:
    return sum(array.nbytes for array in samples.arrays().values())


class TestWhatAllSamplesShare:
    @pytest.fixture
    def shared(self) -> WeightSamples:
        return WeightSamples.concat([WeightSamples.of(half_frozen(seed)) for seed in range(6)])

    def test_frozen_parameters_are_held_and_stored_once(self, shared, tmp_path):
        frozen, learnt = 4 * (30 * 40 + 40), 4 * (40 * 2 + 2)
        assert bytes_of(shared) == frozen + 6 * learnt
        assert shared.parameters["0.weight"].untyped_storage().nbytes() == 4 * 30 * 40
        shared.save(tmp_path / "w.safetensors")
        assert (tmp_path / "w.safetensors").stat().st_size < frozen + 6 * learnt + 600

    def test_they_are_there_in_every_sample(self, shared, tmp_path):
        shared.save(tmp_path / "w.safetensors")
        for samples in (shared, WeightSamples.load(tmp_path / "w.safetensors")):
            assert len(samples) == 6
            for index in range(6):
                module = half_frozen(9, backbone=9)
                samples.load_into(module, index)
                assert_equal(WeightSamples.of(module), WeightSamples.of(half_frozen(index)))
            assert samples.vectors()[0].shape == (6, 30 * 40 + 40 + 40 * 2 + 2)
            assert samples.shapes()["parameter/0.weight"] == (40, 30)

    def test_backbones_that_differ_are_kept_apart(self):
        both = [WeightSamples.of(half_frozen(0, backbone=seed)) for seed in range(2)]
        joined = WeightSamples.concat(both)
        assert bytes_of(joined) == 2 * bytes_of(both[0])
        assert torch.equal(joined.parameters["0.bias"][1], both[1].parameters["0.bias"][0])

    def test_weights_that_only_happen_to_be_equal_are_not_shared(self):
        twice = WeightSamples.concat([WeightSamples.of(network()) for _ in range(2)])
        assert {len(array) for array in twice.arrays().values()} == {2}

    def test_few_numbers_cannot_stand_for_any_number_of_networks(self):
        arrays = {"parameter/a": torch.zeros(1001), "parameter/b": torch.zeros(1, 50, 50)}
        with pytest.raises(UploadError, match="more than 1,000 weight samples cannot share"):
            WeightSamples.from_arrays(arrays)


class TestOnDisk:
    """Samples that are large together lie in a file; nobody notices but by their memory."""

    @pytest.fixture(autouse=True)
    def _all_large(self, monkeypatch):
        monkeypatch.setattr("predbayes.posterior.samples.IN_MEMORY_BYTES", 0)

    def test_they_are_the_same_samples(self, samples, monkeypatch, tmp_path):
        ones = [WeightSamples.of(network(seed)) for seed in range(3)]
        assert_equal(WeightSamples.concat(ones), samples)
        monkeypatch.setattr("predbayes.posterior.samples.IN_MEMORY_BYTES", 10**9)
        assert_equal(WeightSamples.concat(ones), samples)
        samples.save(tmp_path / "w.safetensors")
        assert_equal(WeightSamples.load(tmp_path / "w.safetensors"), samples)
        module = network(9)
        samples.load_into(module, 1)
        assert_equal(WeightSamples.of(module), samples[1:2])

    def test_their_file_has_no_name_and_outlives_no_process(self, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        samples = WeightSamples.concat([WeightSamples.of(network(seed)) for seed in range(3)])
        assert not list(tmp_path.iterdir())
        assert samples.parameters["0.weight"].abs().sum() > 0

    def test_a_full_disk_is_one_line_before_anything_is_lost(self, monkeypatch):
        monkeypatch.setattr("os.posix_fallocate", full_disk)
        with pytest.raises(TrainingError, match=r"^there is no room for [^\n]* set TMPDIR [^\n]*$"):
            WeightSamples.concat([WeightSamples.of(network())])


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


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
