"""Words under masks: sums are exact, seals are good once, and nothing else can be read."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
import torch

from predbayes.errors import PoolError, StudyError, UploadError
from predbayes.exchange.header import UploadInfo
from predbayes.exchange.upload import Upload
from predbayes.predictive.families import Categorical
from predbayes_study.extras.sealed.fixed_point import FixedPoint
from predbayes_study.extras.sealed.masking import (
    WORDS,
    Request,
    check_seals,
    masked,
    opening_of,
    read_opening,
    read_request,
    requests_of,
    sum_of_masks,
    summed_masks,
    unmasked,
    words_digest,
)
from predbayes_study.extras.sealed.secure_sum import from_words, to_words
from predbayes_study.payloads.details import Details, save_signed
from predbayes_study.trust.coordinator import CoordinatorKey
from predbayes_study.trust.signing import SigningKey

PLAN = "ab" * 32
FORM = FixedPoint(40, 3, -12.0, 100_000, 100)
HOLDERS = [CoordinatorKey.generate(), CoordinatorKey.generate()]
RECIPIENTS = [key.public.encryption for key in HOLDERS]


def words_of(seed, sharpness=2.0):
    rng = torch.Generator().manual_seed(seed)
    predictive = Categorical.from_natural(sharpness * torch.randn(40, 3, generator=rng))
    counts = torch.randint(5, 200, (3,), generator=rng).double()
    return to_words(FORM, predictive, float(counts.sum()), counts)


def sent(site, words, key=None, holders=RECIPIENTS):
    key = key or SigningKey.generate()
    info = UploadInfo(kind="predictions", num_rows=9, site=site, plan=PLAN, class_rows=(9.0,))
    return masked(Upload(info, {}), words, holders, key), key.public.hex


@pytest.fixture(scope="module")
def sites():
    return {name: sent(name, words_of(number)) for number, name in enumerate("abcde")}


def openings(sites, folder):
    paths = []
    asked = requests_of(PLAN, sites.values(), RECIPIENTS)
    for number, (request, key) in enumerate(zip(asked, HOLDERS, strict=True)):
        path = folder / f"{number}.opening"
        path.write_bytes(opening_of(request, summed_masks(request, key, FORM.size), key.signing))
        paths.append(path)
    return paths


def total_of(sites):
    return sum(upload.arrays[WORDS] for upload, _ in sites.values())


def digests_of(sites):
    return {name: words_digest(upload.arrays[WORDS]) for name, (upload, _) in sites.items()}


PUBLIC = [key.public for key in HOLDERS]


class TestSums:
    def test_the_opened_sum_is_that_of_the_words_to_the_bit_in_any_order(self, sites, tmp_path):
        wanted = sum(words_of(number) for number in range(5))
        paths = openings(sites, tmp_path)
        for some in (paths, paths[::-1]):
            found = unmasked(total_of(sites), digests_of(sites), some, PLAN, PUBLIC)
            assert torch.equal(found, wanted)
        backwards = dict(reversed(sites.items()))
        found = unmasked(total_of(backwards), digests_of(sites), paths, PLAN, PUBLIC)
        assert torch.equal(found, wanted)

    def test_the_holders_masks_are_each_needed(self, sites, tmp_path):
        one, _ = openings(sites, tmp_path)
        with pytest.raises(StudyError, match="the sum is sealed: give --opening"):
            unmasked(total_of(sites), digests_of(sites), [one], PLAN, PUBLIC)
        with pytest.raises(StudyError, match="or of one given before"):
            unmasked(total_of(sites), digests_of(sites), [one, one], PLAN, PUBLIC)

    def test_eight_bytes_a_number_and_few_for_each_holder(self, tmp_path):
        form = FixedPoint(300, 2, -12.0, 100_000, 100)
        words = torch.zeros(form.size, dtype=torch.int64)
        upload, _ = sent("site", words, holders=RECIPIENTS[:1])
        save_signed(upload, tmp_path / "file", SigningKey.generate())
        assert (tmp_path / "file").stat().st_size <= 8 * form.size + 4000


class TestRefusals:
    def test_a_seal_of_another_site_plan_words_or_maker(self, sites):
        asked = requests_of(PLAN, sites.values(), RECIPIENTS)[0]
        moved = {"z": asked.sites["a"]}
        other = asked.sites | {"a": asked.sites["a"].model_copy(update={"words": "cd" * 32})}
        (forged, _), (_, real) = sent("a", words_of(0)), sites["a"]
        for wrong in (
            asked.model_copy(update={"sites": moved}),
            asked.model_copy(update={"plan": "cd" * 32}),
            asked.model_copy(update={"sites": other}),
            requests_of(PLAN, [(forged, real)], RECIPIENTS)[0],
        ):
            with pytest.raises(StudyError, match="did not sign this seal"):
                summed_masks(wrong, HOLDERS[0], FORM.size)

    def test_a_seal_for_another_holder(self, sites):
        asked = requests_of(PLAN, sites.values(), RECIPIENTS)[0]
        with pytest.raises(StudyError, match="for another key holder"):
            summed_masks(asked, HOLDERS[1], FORM.size)

    def test_a_site_twice(self, sites, tmp_path):
        asked = requests_of(PLAN, sites.values(), RECIPIENTS)[0].model_dump_json()
        a = json.dumps(json.loads(asked)["sites"]["a"])
        path = tmp_path / "a.request"
        path.write_text(asked.replace('"sites":{', f'"sites":{{"a":{a},'))
        with pytest.raises(StudyError, match="is no request"):
            read_request(path)
        path.write_text(asked)
        assert isinstance(read_request(path), Request)

    def test_an_upload_whose_words_were_altered(self, sites):
        upload, key = sites["a"]
        check_seals(upload, RECIPIENTS, key)
        altered = Upload(upload.info, {WORDS: upload.arrays[WORDS] + 1})
        with pytest.raises(UploadError, match="not signed by the site for these words"):
            check_seals(altered, RECIPIENTS, key)
        with pytest.raises(UploadError, match="one seal for each key holder"):
            check_seals(upload, RECIPIENTS[:1], key)

    def test_an_opening_that_was_altered_or_is_of_others(self, sites, tmp_path):
        paths = openings(sites, tmp_path)
        content = paths[0].read_bytes()
        path = tmp_path / "other"
        for wrong in (content[:-1] + bytes([content[-1] ^ 1]), content[:-8], content + b"12345678"):
            path.write_bytes(wrong)
            with pytest.raises(StudyError, match=r"does not hold the|larger than"):
                read_opening(path, FORM.size)
        path.write_bytes(content.replace(b'"size":', b'"size": '))
        with pytest.raises(StudyError, match="not signed with the key that it names"):
            read_opening(path, FORM.size)
        fewer = {name: sites[name] for name in "abcd"}
        with pytest.raises(StudyError, match="other uploads than are in the study"):
            unmasked(total_of(fewer), digests_of(fewer), paths, PLAN, PUBLIC)
        with pytest.raises(StudyError, match="a different plan"):
            unmasked(total_of(sites), digests_of(sites), paths, "cd" * 32, PUBLIC)

    def test_masks_that_are_not_those_of_the_words(self, sites, tmp_path):
        paths = openings(sites, tmp_path)
        found = unmasked(total_of(sites), digests_of(sites), paths, PLAN, PUBLIC)
        from_words(FORM, found, 5)
        with pytest.raises(PoolError, match="beyond what 5 sites can have"):
            from_words(FORM, found + sum_of_masks([bytes(32)], FORM.size), 5)


class TestSecrecy:
    """What the coordinator has: every masked array, the summed masks, and n - 1 seeds."""

    def view(self, secret, tmp_path):
        """The n-th site's words, if all other words and seeds are known and taken away."""
        others = {name: sent(name, words_of(number)) for number, name in enumerate("abcd")}
        hidden, _ = sent("target", secret)
        folder_sum = total_of(others) + hidden.arrays[WORDS]
        asked = requests_of(PLAN, others.values(), RECIPIENTS)
        known = sum(
            summed_masks(request, key, FORM.size)
            for request, key in zip(asked, HOLDERS, strict=True)
        )
        return folder_sum - known - sum(words_of(number) for number in range(4))

    def test_words_under_a_mask_are_uniform_whatever_the_secret(self, tmp_path):
        for secret in (torch.zeros(FORM.size, dtype=torch.int64), words_of(1, sharpness=20.0)):
            seen = torch.cat([self.view(secret, tmp_path) for _ in range(50)])
            octets = seen.view(torch.uint8)
            counts = torch.bincount(octets.long(), minlength=256).double()
            expected = len(octets) / 256
            chi = float(((counts - expected).square() / expected).sum())
            # 255 degrees of freedom: five deviations of its normal limit.
            assert abs(chi - 255) < 5 * math.sqrt(2 * 255)
            bits = (seen.unsqueeze(1) >> torch.arange(64)) & 1
            share = bits.double().mean(0)
            assert float((share - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(len(seen))

    @pytest.mark.slow("hundreds of sealed sums")
    def test_two_secrets_cannot_be_told_apart_by_correlating_with_them(self, tmp_path):
        one, other = words_of(1), words_of(2)
        guesses = [secret.double() - secret.double().mean() for secret in (one, other)]
        differences = []
        for secret in (one, other):
            seen = [self.view(secret, tmp_path).double() for _ in range(200)]
            differences.append([float((s * (guesses[0] - guesses[1])).sum()) for s in seen])
        first, second = (torch.tensor(values) for values in differences)
        pooled = math.sqrt(float(first.var() + second.var()) / 200)
        assert abs(float(first.mean() - second.mean())) < 4 * pooled

    def test_the_opened_sum_less_the_known_sites_is_all_that_there_is(self, sites, tmp_path):
        """With the words of all others known, the sum gives the last: two sites are not enough."""
        paths = openings(sites, tmp_path)
        found = unmasked(total_of(sites), digests_of(sites), paths, PLAN, PUBLIC)
        known = sum(words_of(number) for number in range(1, 5))
        assert torch.equal(found - known, words_of(0))

    def test_equal_words_never_look_alike(self):
        one, _ = sent("a", words_of(0))
        other, _ = sent("a", words_of(0))
        assert float((one.arrays[WORDS] == other.arrays[WORDS]).double().mean()) < 0.01
        assert Details.of(one.info).seals[0].sealed != Details.of(other.info).seals[0].sealed


def test_masks_are_the_stream_of_the_cipher():
    """AES-256 in counter mode from zero, as any other library has it: a known answer."""
    found = sum_of_masks([bytes(32)], 2).numpy().tobytes()
    # NIST's AES-256 of a block of zeros under a key of zeros.
    assert found.hex() == "dc95c078a2408989ad48a21492842087"
    assert hashlib.sha256(found).hexdigest() == words_digest(sum_of_masks([bytes(32)], 2))
