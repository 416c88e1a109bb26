from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from predbayes.errors import UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.posterior.samples import WeightSamples
from predbayes.predictive.families import Categorical, Gaussian
from tests.core.oracles import random_categorical

KINDS = ["weights", "classes", "numbers"]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_file_round_trip_is_bit_exact(self, kind, uploads, tmp_path):
        upload = uploads[kind].named("basel")
        upload.save(tmp_path / "u.safetensors")
        again = Upload.load(tmp_path / "u.safetensors")
        assert again.info == upload.info
        assert again.digest() == upload.digest()
        for name, array in upload.arrays.items():
            assert torch.equal(again.arrays[name], array)

    def test_digest_sees_every_part(self, kind, uploads):
        upload = uploads[kind]
        assert upload.digest() != upload.named("basel").digest()
        for name, array in upload.arrays.items():
            changed = array.clone()
            changed.view(-1)[-1] += 1e-3
            assert Upload(upload.info, {**upload.arrays, name: changed}).digest() != upload.digest()
            renamed = {("x" + n if n == name else n): a for n, a in upload.arrays.items()}
            assert Upload(upload.info, renamed).digest() != upload.digest()

    def test_arrays_must_be_finite(self, kind, uploads):
        upload = uploads[kind]
        name, array = next(iter(upload.arrays.items()))
        with pytest.raises(UploadError, match="not finite"):
            Upload(upload.info, {**upload.arrays, name: array * math.nan})


class Buffers(nn.Module):
    TYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float64")

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        for name in self.TYPES:
            self.register_buffer(f"a_{name}", torch.tensor([1, 0, 1]).to(getattr(torch, name)))


def test_weights_with_buffers_of_any_type_come_back(tmp_path):
    module = Buffers()
    upload = Upload.of_weights(WeightSamples.of(module), num_rows=3)
    upload.save(str(tmp_path / "u.safetensors"))
    again = Upload.load(str(tmp_path / "u.safetensors"))
    assert again.digest() == upload.digest()
    fresh = Buffers()
    again.samples().load_into(fresh)
    for name, value in module.state_dict().items():
        found = fresh.state_dict()[name]
        assert found.dtype == value.dtype
        assert torch.equal(found, value)


def test_a_gaussian_without_a_split_is_all_noise():
    upload = Upload.of_predictions(Gaussian(torch.zeros(2), torch.ones(2)), num_rows=1)
    assert upload.arrays["epistemic_var"].tolist() == [0.0, 0.0]


def test_impossible_classes_are_sent_as_the_floor():
    upload = Upload.of_predictions(Categorical(torch.tensor([[0.0, -math.inf]])), num_rows=1)
    assert upload.arrays["log_probs"].tolist() == [[0.0, -80.0]]


def test_half_precision_halves_the_upload_and_costs_little(rng):
    """2,000 inputs × 10 classes in fp16 are 40 kB."""
    p = random_categorical(rng, num_rows=2000, num_classes=10)
    upload = Upload.of_predictions(p, num_rows=1, dtype=torch.float16)
    assert sum(a.nbytes for a in upload.arrays.values()) == 40_000
    assert float(p.kl(Categorical(upload.predictive().log_probs.double())).abs().max()) < 1e-2


class TestErrors:
    def test_what_has_no_end_is_refused(self):
        with pytest.raises(UploadError, match="not a safetensors file"):
            Upload.load("/dev/zero")

    def test_kinds_are_not_confused(self, uploads):
        with pytest.raises(UploadError, match="are not the predictions"):
            uploads["weights"].predictive()
        with pytest.raises(UploadError, match="sent predictions, not weights"):
            uploads["classes"].samples()

    @pytest.mark.parametrize(
        "arrays",
        [
            {"probs": torch.zeros(2, 3)},
            {"log_probs": torch.zeros(2)},
            {"log_probs": torch.tensor([[0.0, 30.0]])},
            {"mean": torch.zeros(2), "epistemic_var": torch.zeros(3), "noise_var": torch.ones(2)},
            {"mean": torch.zeros(2), "epistemic_var": -torch.ones(2), "noise_var": torch.ones(2)},
            {"mean": torch.zeros(2), "epistemic_var": torch.zeros(2), "noise_var": torch.zeros(2)},
            {
                "mean": torch.zeros(1),
                "epistemic_var": torch.ones(1),
                "noise_var": -torch.ones(1) / 2,
            },
        ],
    )
    def test_arrays_must_be_predictions(self, arrays):
        with pytest.raises(UploadError):
            Upload(UploadInfo(kind="predictions", num_rows=1), arrays).predictive()

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ('{"format_version": 2, "kind": "weights", "num_rows": 1}', "format_version"),
            ('{"format_version": 1, "kind": "Gradients", "num_rows": 1}', "kind"),
            ('{"format_version": 1, "kind": "weights", "num_rows": 0}', "num_rows"),
            ('{"format_version": 1, "kind": "weights", "num_rows": 1, "extra": 1}', "extra"),
            ('{"kind": "x", "num_rows": 1, "details": {"a": NaN}}', "details"),
            ('{"kind": "x", "num_rows": 1, "details": {"a": [1e999]}}', "details"),
            ("{", "header"),
        ],
    )
    def test_headers_are_strict(self, header, message, tmp_path):
        path = tmp_path / "u.safetensors"
        save_file({"a": torch.zeros(1)}, path, metadata={"predbayes": header})
        with pytest.raises(UploadError, match=message):
            Upload.load(path)

    def test_other_files_are_refused(self, tmp_path):
        path = tmp_path / "u.safetensors"
        path.write_bytes(b"\x80\x04K\x01.")  # a pickle of the number 1
        with pytest.raises(UploadError, match="not a safetensors file"):
            Upload.load(path)
        with pytest.raises(UploadError, match=r"absent\.safetensors: it cannot be read"):
            Upload.load(tmp_path / "absent.safetensors")


class TestWords:
    def test_an_upload_is_told_what_it_is_for(self, uploads):
        upload = uploads["classes"].for_plan("ab" * 32, "random-forest").named("Zürich 2")
        info = upload.info
        assert (info.plan, info.learner, info.site) == ("ab" * 32, "random-forest", "Zürich 2")
        assert upload.arrays is uploads["classes"].arrays

    @pytest.mark.parametrize("name", ["é", "Αθήνα", "東京 3", "a.b-c_d", "x" * 64, "עברית"])
    def test_sites_have_names_of_any_script(self, name, uploads):
        assert uploads["weights"].named(name).info.site == name

    @pytest.mark.parametrize(
        "name",
        [
            "../x", "/x", "a/b", "a\\b", ".", "-x", " x", "a\nb", "a\n", "\x1b[31m", "a\x00",
            "a\u202eb", "a\u200db", "a\ufe0f", "\u3164", "<b>", "x" * 65,
        ],
    )  # fmt: skip
    def test_names_that_could_mislead_are_refused(self, name, uploads):
        with pytest.raises(UploadError, match="site") as caught:
            uploads["weights"].named(name)
        assert str(caught.value).isprintable()

    def test_plans_and_learners_are_plain(self, uploads):
        for plan, learner in (("ab", ""), ("AB" * 32, ""), ("ab" * 32, "a\nb")):
            with pytest.raises(UploadError):
                uploads["weights"].for_plan(plan, learner)
