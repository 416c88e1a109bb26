"""Small files in the publishers' formats, with random content."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd


def write_idx(path: Path, array: np.ndarray, *, compress: bool = False) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compress else content)


def write_idx_set(folder: Path, prefixes: tuple[str, str], labels=range(10)) -> None:
    """20 gzipped training and 10 plain test images of 4 x 3 pixels."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for prefix, num, compress in zip(prefixes, (20, 10), (True, False), strict=True):
        suffix = ".gz" if compress else ""
        images, classes = draw.integers(0, 256, (num, 4, 3)), np.resize(labels, num)
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images, compress=compress)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", classes, compress=compress)


def write_cifar(path: Path, labels: np.ndarray, seed: int) -> np.ndarray:
    """Rows of random pixels behind the given labels, (N, num_labels); returns the pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072))
    path.write_bytes(np.concatenate([labels, pixels], axis=1).astype(np.uint8).tobytes())
    return pixels.reshape(-1, 3, 32, 32)


def write_table(root: Path, name: str, frame: pd.DataFrame) -> None:
    folder = root / "uci"
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".xlsx"):
        frame.to_excel(folder / name, index=False)
    else:
        separator = ";" if name.startswith("wine") else ","
        frame.to_csv(folder / name, sep=separator, index=False)


def table(name: str, num_rows: int = 50) -> tuple[str, pd.DataFrame]:
    """The file and some random rows of a table, with the publisher's columns."""
    draw = np.random.default_rng(0)
    rows = np.arange(num_rows)

    def numbers() -> np.ndarray:
        return draw.uniform(1, 20, num_rows)

    if name == "wine":
        frame = pd.DataFrame({"alcohol": numbers(), "pH": 3.3, "quality": numbers()})
        return "winequality-red.csv", frame
    if name == "bike":
        casual = draw.integers(0, 100, num_rows)
        frame = pd.DataFrame({"instant": rows, "dteday": "2011-01-01", "temp": numbers()})
        return "bike.csv", frame.assign(casual=casual, registered=2 * casual, cnt=3 * casual)
    if name == "real-estate":
        frame = pd.DataFrame({"No": 1 + rows, "X1 transaction date": numbers()})
        frame["Y house price of unit area"] = numbers()
        return "Real estate valuation data set.xlsx", frame
    if name == "forest-fires":
        frame = pd.DataFrame({"month": ["jan", "dec"] * (num_rows // 2), "day": "sun"})
        return "forestfires.csv", frame.assign(temp=numbers(), area=numbers())
    times = pd.Timestamp("2004-03-10 18:00") + pd.to_timedelta(rows[::-1], unit="h")
    frame = pd.DataFrame({"Date": times.normalize(), "Time": times.time, "CO(GT)": numbers()})
    return "AirQualityUCI.xlsx", frame.assign(**{"NMHC(GT)": -200, "T": numbers(), "RH": numbers()})


def write_hospitals(root: Path, sizes: tuple[int, ...] = (50, 30, 10, 20)) -> None:
    """Complete rows but for one per hospital; slope, ca and thal are missing everywhere."""
    folder = root / "uci" / "heart"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for hospital, size in zip(("cleveland", "hungarian", "switzerland", "va"), sizes, strict=True):
        lines = ["50,1,2,?,200,0,0,150,0,1.5,?,?,?,0"]
        for _ in range(size):
            age, chol = draw.integers(30, 70), draw.integers(100, 300)
            cp, ecg, num = draw.integers(1, 5), draw.integers(0, 3), draw.integers(0, 5)
            lines.append(f"{age},1,{cp},130,{chol},0,{ecg},150.0,1,.5,?,?,?,{num}")
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
