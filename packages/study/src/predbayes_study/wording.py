"""Numbers, counts and paths as people read them, in every page and message."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_MINUS = "\N{MINUS SIGN}"


def decimals(values: Sequence[float]) -> int:
    """Decimals with which a typical one of the values has three digits; six at most.

    Examples:
        >>> decimals([0.412]), decimals([12.3]), decimals([1234.0]), decimals([0.0])
        (3, 1, 0, 3)
        >>> decimals([0.9996])  # which is written 1.00
        2
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return 3
    exponent = int(f"{statistics.median_low(sizes):.2e}".partition("e")[2])
    return min(6, max(0, 2 - exponent))


def plain(value: float, places: int | None = None) -> str:
    """A number with three digits, or as many decimals as are asked for.

    Examples:
        >>> plain(0.41234), plain(-1234.5), plain(16.0), plain(3.14159, 1)
        ('0.412', '−1,234', '16', '3.1')
    """
    if not math.isfinite(value):
        return "not finite"
    if places is None:
        whole = value == round(value)
        places = 0 if whole else decimals([value])
    text = f"{value:,.{places}f}"
    return text.replace("-", _MINUS) if float(text.replace(",", "")) else text.removeprefix("-")


def six_digits(value: float) -> float:
    """Round a number to six significant digits.

    Examples:
        >>> six_digits(1 / 3), six_digits(-1234567.0)
        (0.333333, -1234570.0)
    """
    return float(f"{value:.6g}")


def bytes_readable(num_bytes: int, places: int | None = None) -> str:
    """A size in units of a thousand, with three digits, or as many decimals as are asked for.

    Examples:
        >>> bytes_readable(812), bytes_readable(268431), bytes_readable(2_000_000_000)
        ('812 B', '268 kB', '2.00 GB')
        >>> bytes_readable(40_000, places=0)
        '40 kB'
    """
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.5 would be written with four digits.
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    if unit == "B":
        return f"{num_bytes} B"
    return f"{plain(size, decimals([size]) if places is None else places)} {unit}"


def counted(number: int, noun: str) -> str:
    """A number and its noun.

    Examples:
        >>> counted(1, "site"), counted(1200, "row")
        ('1 site', '1,200 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
