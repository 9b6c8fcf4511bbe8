"""Vegetation indices: arrays in, float32 arrays out, NaN wherever there is no measurement.

An index is data: the bands it needs, its formula, its valid range and where it comes from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Index:
    """A vegetation index over named bands."""

    name: str
    roles: tuple[str, ...]
    # the bands it needs, by name
    formula: str
    # as recorded in products, in rio-calc style infix
    low: float
    high: float
    # the mathematical range for non-negative reflectance; values outside are clipped and counted
    source: str
    evaluate: Callable[[Mapping[str, Float64]], Float64]


def _normalised_difference(plus: str, minus: str) -> Callable[[Mapping[str, Float64]], Float64]:
    """(plus - minus) / (plus + minus); NaN where the sum is not positive, since the ratio then means nothing."""

    def evaluate(bands: Mapping[str, Float64]) -> Float64:
        total = bands[plus] + bands[minus]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(total > 0, (bands[plus] - bands[minus]) / total, np.nan)

    return evaluate


NDVI = Index(
    name="ndvi",
    roles=("red", "nir"),
    formula="(nir - red) / (nir + red)",
    low=-1.0,
    high=1.0,
    source="Rouse et al. 1974, NASA SP-351; Tucker 1979, doi:10.1016/0034-4257(79)90013-0",
    evaluate=_normalised_difference("nir", "red"),
)

INDICES: Mapping[str, Index] = {index.name: index for index in (NDVI,)}


@dataclass(frozen=True, slots=True)
class IndexStrip:
    """One window's answer, with what had to be decided about its pixels (counts of pixels)."""

    values: NDArray[np.float32]
    # (rows, cols), NaN for no data
    negative: int
    # had data, but a reflectance below zero in a band in use
    clipped: int
    # lay outside the index's range by more than rounding and were set to its nearest end
    undefined: int
    # had data, but no value of the index (NDVI: NIR + red <= 0)


def compute(index: Index, bands: Mapping[str, Float64], valid: Bool) -> IndexStrip:
    """The index of one window.

    `bands` are reflectances (or pixel values that share one scale), float64, each (rows, cols); `valid` says where
    every band in use holds a measurement. Impossible values: no value where the formula has none (NDVI: NIR + red
    <= 0), the range's nearest end where it goes beyond (NDVI of a slightly negative reflectance); both are counted.
    """
    raw = index.evaluate(bands)
    has_value = valid & np.isfinite(raw)
    beyond = has_value & ((raw < index.low - 1e-9) | (raw > index.high + 1e-9))
    negative = np.zeros_like(valid)
    for role in index.roles:
        negative |= valid & (bands[role] < 0)
    values = np.where(has_value, np.clip(raw, index.low, index.high), np.nan).astype(np.float32)
    return IndexStrip(
        values=values,
        negative=int(negative.sum()),
        clipped=int(beyond.sum()),
        undefined=int((valid & ~has_value).sum()),
    )
