"""Numbers with units, in three significant digits."""

from __future__ import annotations

import math

from attnproof.harness.model.timing import Interval, Speed

SPEED_GLYPHS: dict[Speed, str] = {"faster": "▲", "slower": "▼", "no evidence": "◇"}
"""One shape for each verdict, in text and in charts."""
TIMES = "\N{MULTIPLICATION SIGN}"
SPEEDS: tuple[Speed, ...] = ("faster", "slower", "no evidence")

_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def digits(value: float) -> str:
    """Return three significant digits, and whole numbers from 100 on: "0.823", "4,120"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    # The exponent after rounding: 9.996 becomes "10.0", not "10.00".
    exponent = int(f"{abs(value):.2e}".partition("e")[2])
    return f"{value:,.{max(0, 2 - exponent)}f}"


def time_text(nanoseconds: float) -> str:
    """Return a time in the unit with one to three digits before the point: "12.3 µs"."""
    return _scaled(nanoseconds, *_time_unit(nanoseconds))


def time_tick(nanoseconds: float) -> str:
    """Return the label of a time on an axis, without trailing zeros: "10 µs"."""
    unit, size = _time_unit(nanoseconds)
    return f"{nanoseconds / size:g} {unit}"


def ratio_tick(ratio: float) -> str:
    """Return the label of a ratio on an axis: "2" and the multiplication sign."""
    return f"{ratio:g}{TIMES}"


def interval_text(interval: Interval) -> str:
    """Return the interval around a median in the median's unit, without the unit."""
    size = _time_unit(interval.median_ns)[1]
    return between(interval.low_ns / size, interval.high_ns / size)


def ratio_text(ratio: float) -> str:
    """Return a ratio as "5.12" and the multiplication sign."""
    return f"{digits(ratio)}{TIMES}"


def between(low: float, high: float) -> str:
    """Return an interval: "4.90 to 5.31"."""
    return f"{digits(low)} to {digits(high)}"


def percent(share: float) -> str:
    """Return a share of one in percent: "3 %", "0.5 %"."""
    value = share * 100
    text = f"{value:.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.1f}"
    return f"{text} %"


def bytes_text(count: float) -> str:
    """Return a number of bytes: "96 B", "1.50 KiB"."""
    for unit, size in _BYTES:
        if count >= size:
            return f"{digits(count / size)} {unit}"
    return f"{count:,.0f} B"


def geometric_mean(ratios: list[float]) -> float:
    """Return the geometric mean, for which 2 and 1/2 average to 1; NaN for no ratios."""
    if min(ratios, default=1.0) <= 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def median(values: list[float]) -> float:
    """Return the median; NaN for no values."""
    return quantile(values, 0.5)


def quantile(values: list[float], share: float) -> float:
    """Return the quantile at `share`, interpolated linearly; NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _time_unit(nanoseconds: float) -> tuple[str, float]:
    size = abs(float(f"{nanoseconds:.2e}"))
    return next((unit for unit in _TIMES if size >= unit[1]), _TIMES[-1])


def _scaled(value: float, unit: str, size: float) -> str:
    return f"{digits(value / size)} {unit}"
