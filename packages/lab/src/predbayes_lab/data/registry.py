"""Every dataset by name: what it is, which files it has, and where its publisher offers them.

`load` is the one way in. Names of files are those of their decompressed content; hashes are of
that content as the publisher has it, and None where no copy of the publisher's was at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from predbayes.errors import DataError, no_such
from predbayes.seeding import generator
from predbayes_lab.data.dataset import Dataset, RawFiles
from predbayes_lab.data.digits import read_digits
from predbayes_lab.data.files import data_root, find_file, has_file, read_content
from predbayes_lab.data.heart import read_heart
from predbayes_lab.data.images import FEATURES, count_cifar, count_idx, read_cifar, read_idx_set
from predbayes_lab.data.tabular import read_table

# From files to rows; what has the publisher's own split needs no generator.
Reader: TypeAlias = Callable[[RawFiles, torch.Generator], Dataset]
# The number of rows in large files of these names in a folder, without reading them whole.
Counter: TypeAlias = Callable[[Path, Sequence[str]], int]


@dataclass(frozen=True, slots=True)
class Source:
    """A download: one file as it is, or an archive of several."""

    url: str
    archive: Literal["plain", "zip", "tar"]
    members: Mapping[str, str]  # from a name in the archive ("" if plain) to one in the folder
    known_hash: str | None = None  # as pooch writes it: "md5:..."


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """All that is known about a dataset before it is read."""

    title: str
    task: Literal["classification", "regression"]
    folder: str  # below the data root
    files: Mapping[str, str | None]  # name and SHA-256 of each file's decompressed content
    sources: tuple[Source, ...]
    read: Reader
    licence: str
    citation: str
    variants: tuple[str, ...] = ("default",)
    random_splits: tuple[str, ...] = ()  # variants whose test rows are drawn; else the publisher's
    count: Counter | None = None  # None: small enough to count by reading
    note: str = ""


_UCI = "https://archive.ics.uci.edu/static/public"


def _idx_files(train: str, test: str) -> list[str]:
    kinds = ("images-idx3", "labels-idx1")
    return [f"{part}-{kind}-ubyte" for part in (train, test) for kind in kinds]


def _idx_set(
    title: str,
    folder: str,
    url: str,
    sha256: Sequence[str],
    md5: Sequence[str],
    licence: str,
    citation: str,
) -> DatasetSpec:
    """MNIST's four files: the SHA-256 of their contents, and the MD5 of the compressed files."""
    names = _idx_files("train", "t10k")
    return DatasetSpec(
        title,
        "classification",
        folder,
        dict(zip(names, sha256, strict=True)),
        tuple(
            Source(f"{url}/{name}.gz", "plain", {"": f"{name}.gz"}, f"md5:{digest}")
            for name, digest in zip(names, md5, strict=True)
        ),
        lambda raw, _: read_idx_set(raw, num_classes=10),
        licence,
        citation,
        count=count_idx,
    )


def _emnist(split: str, num_classes: int, first_label: int = 0) -> DatasetSpec:
    files = _idx_files(f"emnist-{split}-train", f"emnist-{split}-test")
    source = Source(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "zip",
        {f"gzip/{name}.gz": f"{name}.gz" for name in files},
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    )
    return DatasetSpec(
        f"EMNIST, handwritten characters, split {split}",
        "classification",
        "emnist",
        dict.fromkeys(files),
        (source,),
        lambda raw, _: read_idx_set(
            raw, num_classes=num_classes, first_label=first_label, transposed=True
        ),
        "not stated; made by a public institution, NIST",
        "Cohen et al. (2017), EMNIST: an extension of MNIST to handwritten letters",
        count=count_idx,
    )


def _cifar(
    title: str,
    folder: str,
    url: str,
    md5: str,
    files: Mapping[str, str | None],
    num_classes: int,
    num_labels: int,
) -> DatasetSpec:
    members = {f"{folder}/{name}": name for name in files}
    return DatasetSpec(
        title,
        "classification",
        folder,
        files,
        (Source(url, "tar", members, f"md5:{md5}"),),
        lambda raw, _: read_cifar(raw, num_classes=num_classes, num_labels=num_labels),
        "not stated",
        "Krizhevsky (2009), Learning multiple layers of features from tiny images",
        count=partial(count_cifar, num_labels=num_labels),
        variants=("default", FEATURES),
    )


def _table(
    title: str, archive: str, member: str, sha256: str, citation: str, *, file: str = "", note: str
) -> DatasetSpec:
    """A table of one file, under the name that it has in its archive unless another is given."""
    return DatasetSpec(
        title,
        "regression",
        "uci",
        {file or member: sha256},
        (Source(f"{_UCI}/{archive}.zip", "zip", {member: file or member}),),
        lambda raw, rng: read_table(raw, rng=rng),
        "CC BY 4.0",
        citation,
        variants=("default", "released"),
        random_splits=("default",),
        note=note,
    )


_HOSPITALS_SHA256 = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
_HEART_FILES = {f"processed.{name}.data": sha256 for name, sha256 in _HOSPITALS_SHA256.items()}

DATASETS: dict[str, DatasetSpec] = {
    "mnist": _idx_set(
        "MNIST, handwritten digits",
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        licence="not stated",
        citation="LeCun et al. (1998), Gradient-based learning applied to document recognition",
    ),
    "fashion-mnist": _idx_set(
        "Fashion-MNIST, articles of clothing",
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        licence="MIT",
        citation="Xiao et al. (2017), Fashion-MNIST: a novel image dataset",
    ),
    "emnist-byclass": _emnist("byclass", 62),
    "emnist-bymerge": _emnist("bymerge", 47),
    "emnist-balanced": _emnist("balanced", 47),
    "emnist-letters": _emnist("letters", 26, first_label=1),
    "emnist-digits": _emnist("digits", 10),
    "emnist-mnist": _emnist("mnist", 10),
    "cifar10": _cifar(
        "CIFAR-10, photographs of ten kinds of things",
        "cifar-10-batches-bin",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        num_classes=10,
        num_labels=1,
    ),
    "cifar100": _cifar(
        "CIFAR-100, photographs of a hundred kinds of things",
        "cifar-100-binary",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        {"train.bin": None, "test.bin": None},
        num_classes=100,
        num_labels=2,
    ),
    "airquality": _table(
        "Air quality: carbon monoxide from cheaper sensors, hour by hour",
        "360/air+quality",
        "AirQualityUCI.xlsx",
        "c92d102bb35cd4c0b42c0b6a1336c4065ccdca7069f80a6890ee1b7e3124bd5d",
        "De Vito (2008), Air Quality, doi:10.24432/C59K5F",
        note="sorted by date and time, which are not inputs; rows with missing values dropped",
    ),
    "bike": _table(
        "Bike sharing: riders per day",
        "275/bike+sharing+dataset",
        "day.csv",
        "a6bcf826782d3c0fbfdcbeead17cd0884185a0dafe8ff10cd48a874ee7ba18be",
        "Fanaee-T (2013), Bike Sharing, doi:10.24432/C5W894",
        file="bike.csv",
        note="sorted by temperature; casual and registered riders, the target's summands, dropped",
    ),
    "wine": _table(
        "Wine quality: grades of red wines",
        "186/wine+quality",
        "winequality-red.csv",
        "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
        "Cortez et al. (2009), Wine Quality, doi:10.24432/C56S3T",
        note="sorted by alcohol; 240 of the 1,599 rows repeat an earlier one",
    ),
    "real-estate": _table(
        "Real estate: prices per unit area in New Taipei",
        "477/real+estate+valuation+data+set",
        "Real estate valuation data set.xlsx",
        "597d72fcc6c0539e6035a033ddb387db48fff3fb1f3c98fee31fe081c64a9059",
        "Yeh (2018), Real Estate Valuation, doi:10.24432/C5J30W",
        note="sorted by transaction date; row number dropped",
    ),
    "forest-fires": _table(
        "Forest fires: log(1 + hectares burnt)",
        "162/forest+fires",
        "forestfires.csv",
        "0d6586a1fa52f55bef48578aef14eb97273f1e9330e1a53423df497a77065253",
        "Cortez and Morais (2007), Forest Fires, doi:10.24432/C5D88D",
        note="sorted by temperature; month and weekday as sine and cosine",
    ),
    "heart": DatasetSpec(
        "Heart disease in four hospitals",
        "classification",
        "uci/heart",
        _HEART_FILES,
        (Source(f"{_UCI}/45/heart+disease.zip", "zip", {file: file for file in _HEART_FILES}),),
        lambda raw, rng: read_heart(raw, rng=rng),
        "CC BY 4.0",
        "Janosi et al. (1989), Heart Disease, doi:10.24432/C52P4X",
        random_splits=("default",),
        note="groups are the hospitals; cholesterol 0 in Switzerland means not measured",
    ),
    "digits": DatasetSpec(
        "Handwritten digits of 8 x 8 pixels",
        "classification",
        "",
        {},
        (),
        lambda raw, rng: read_digits(raw, rng=rng),
        "CC BY 4.0",
        "Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, "
        "doi:10.24432/C50P49",
        random_splits=("default",),
        note="comes with scikit-learn: nothing to download",
    ),
}


def lookup(name: str) -> DatasetSpec:
    """Find the spec of a dataset; name the closest one if there is none."""
    if name in DATASETS:
        return DATASETS[name]
    raise DataError(no_such("dataset", name, DATASETS))


def load(
    name: str, *, rng: torch.Generator, root: Path | None = None, variant: str = "default"
) -> Dataset:
    """Read a dataset from its publisher's files.

    Args:
        name: A key of `DATASETS`.
        rng: Draws the test rows of tables and of the heart set; images have the publisher's split.
        root: The folder that holds the datasets; the environment's by default.
        variant: ``"released"`` prepares a table as the authors' code does, leaks included.
    """
    spec = lookup(name)
    if variant not in spec.variants:
        raise DataError(f"{name} has no variant {variant!r}; there is {', '.join(spec.variants)}")
    folder = (data_root() if root is None else root) / spec.folder
    contents = {file: read_content(find_file(folder, file)) for file in spec.files}
    return spec.read(RawFiles(name, variant, contents), rng)


def is_present(name: str, root: Path) -> bool:
    """Say whether all files of a dataset are there."""
    spec = lookup(name)
    return all(has_file(root / spec.folder, file) for file in spec.files)


def count_rows(name: str, root: Path) -> int:
    """Count the rows of a dataset that is present, training and test together."""
    spec = lookup(name)
    if spec.count is not None:
        return spec.count(root / spec.folder, tuple(spec.files))
    dataset = load(name, root=root, rng=generator(0))
    return len(dataset.train_targets) + len(dataset.test_targets)
