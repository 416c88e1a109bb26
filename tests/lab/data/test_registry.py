from __future__ import annotations

import re

import pytest

from predbayes.errors import DataError
from predbayes_lab.data.registry import DATASETS, load


@pytest.mark.parametrize("name", DATASETS)
class TestEverySpec:
    def test_downloads_give_exactly_its_files(self, name):
        spec = DATASETS[name]
        files = [file for source in spec.sources for file in source.members.values()]
        assert [file.removesuffix(".gz") for file in files] == list(spec.files)

    def test_every_file_can_be_verified(self, name):
        """By its own hash, or by that of the one download it comes from."""
        spec = DATASETS[name]
        hashes = [sha256 for sha256 in spec.files.values() if sha256 is not None]
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in hashes)
        known = [source.known_hash for source in spec.sources]
        assert all(re.fullmatch("md5:[0-9a-f]{32}", value) for value in known if value)
        assert len(hashes) == len(spec.files) or all(known)


def test_unknown_names_are_answered_with_the_closest(tmp_path, rng):
    with pytest.raises(DataError, match=r"no dataset 'vine'; did you mean 'wine'\?"):
        load("vine", root=tmp_path, rng=rng)
    with pytest.raises(DataError, match="there are airquality, bike, cifar10"):
        load("zzz", root=tmp_path, rng=rng)


def test_unknown_variants_are_refused(tmp_path, rng):
    with pytest.raises(DataError, match="mnist has no variant 'released'; there is default"):
        load("mnist", root=tmp_path, rng=rng, variant="released")
    with pytest.raises(DataError, match="there is default, released"):
        load("wine", root=tmp_path, rng=rng, variant="paper")
