"""Vegetation indices: arrays in, float32 arrays out, NaN wherever there is no measurement.

An index is data: the bands it needs, its formula, its range and where it comes from.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# Rounding of a float64 ratio may overstep a range by this much; more is counted as out of range.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Index:
    """A vegetation index over named bands."""

    name: str
    roles: tuple[str, ...]
    # the bands it needs, by name
    formula: str
    # as recorded in products
    low: float
    high: float
    # what reflectances >= 0 can give; a value beyond is set to the nearer end, and counted
    source: str
    evaluate: Callable[[Mapping[str, Float64]], Float64]
    # a new array
    needs_reflectance: bool = False
    # a constant in the formula is in units of reflectance: pixels on another scale give another index


@dataclass(frozen=True, slots=True)
class IndexStrip:
    """One window's answer, with what had to be decided about its pixels (counts of pixels)."""

    values: NDArray[np.float32]
    # (rows, cols), NaN for no data
    negative: int
    # had data, but a reflectance below zero in a band in use
    clipped: int
    # lay outside the index's range by more than rounding and were set to its nearer end
    undefined: int
    # had data, but no value of the index (a ratio whose denominator is not positive)


def compute(index: Index, bands: Mapping[str, Float64], valid: Bool) -> IndexStrip:
    """The index of one window.

    `bands` are reflectances (or, where the index allows it, pixel values on one common scale), float64, each
    (rows, cols); `valid` says where every band in use holds a measurement. No value where the formula has none, the
    range's nearer end where it goes beyond (NDVI of a slightly negative reflectance); both are counted.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        raw = index.evaluate(bands)
    has_value = valid & np.isfinite(raw)
    np.copyto(raw, np.nan, where=~has_value)
    beyond = np.count_nonzero(raw < index.low - ROUNDING) + np.count_nonzero(raw > index.high + ROUNDING)
    np.clip(raw, index.low, index.high, out=raw)
    # Most windows hold nothing negative, which their minimum tells sooner than a look at every pixel.
    below = [bands[role] < 0 for role in index.roles if not bands[role].min() >= 0]
    return IndexStrip(
        values=raw.astype(np.float32),
        negative=int(np.count_nonzero(valid & functools.reduce(np.logical_or, below))) if below else 0,
        clipped=int(beyond),
        undefined=int(np.count_nonzero(valid) - np.count_nonzero(has_value)),
    )


def _ratio(numerator: Float64, denominator: Float64) -> Float64:
    """NaN where the denominator is not positive: with reflectances >= 0 it always is, so the ratio means nothing."""
    ratio: Float64 = np.divide(numerator, denominator, out=numerator)
    np.copyto(ratio, np.nan, where=~(denominator > 0))
    return ratio


def _normalised_difference(plus: str, minus: str) -> Callable[[Mapping[str, Float64]], Float64]:
    return lambda bands: _ratio(bands[plus] - bands[minus], bands[plus] + bands[minus])


def _msavi2(bands: Mapping[str, Float64]) -> Float64:
    ahead = 2 * bands["nir"] + 1
    return (ahead - np.sqrt(ahead**2 - 8 * (bands["nir"] - bands["red"]))) / 2


# Ratios cancel a common scale; the others carry a constant in units of reflectance.
INDICES: Mapping[str, Index] = {
    index.name: index
    for index in (
        Index(
            name="ndvi",
            roles=("red", "nir"),
            formula="(nir - red) / (nir + red)",
            low=-1.0,
            high=1.0,
            source="Rouse et al. 1974, NASA SP-351; Tucker 1979, doi:10.1016/0034-4257(79)90013-0",
            evaluate=_normalised_difference("nir", "red"),
        ),
        Index(
            name="ndre",
            roles=("rededge", "nir"),
            formula="(nir - rededge) / (nir + rededge)",
            low=-1.0,
            high=1.0,
            source="Barnes et al. 2000, 5th Int. Conf. on Precision Agriculture",
            evaluate=_normalised_difference("nir", "rededge"),
        ),
        Index(
            name="gndvi",
            roles=("green", "nir"),
            formula="(nir - green) / (nir + green)",
            low=-1.0,
            high=1.0,
            source="Gitelson et al. 1996, doi:10.1016/S0034-4257(96)00072-7",
            evaluate=_normalised_difference("nir", "green"),
        ),
        Index(
            name="ndwi",
            roles=("green", "nir"),
            formula="(green - nir) / (green + nir)",
            low=-1.0,
            high=1.0,
            source="McFeeters 1996, doi:10.1080/01431169608948714",
            evaluate=_normalised_difference("green", "nir"),
        ),
        Index(
            name="savi",
            roles=("red", "nir"),
            formula="1.5 * (nir - red) / (nir + red + 0.5)",
            low=-1.5,
            high=1.5,
            source="Huete 1988, doi:10.1016/0034-4257(88)90106-X, L = 0.5",
            evaluate=lambda b: _ratio(1.5 * (b["nir"] - b["red"]), b["nir"] + b["red"] + 0.5),
            needs_reflectance=True,
        ),
        Index(
            name="osavi",
            roles=("red", "nir"),
            formula="(nir - red) / (nir + red + 0.16)",
            low=-1.0,
            high=1.0,
            source="Rondeaux et al. 1996, doi:10.1016/0034-4257(95)00186-7",
            evaluate=lambda b: _ratio(b["nir"] - b["red"], b["nir"] + b["red"] + 0.16),
            needs_reflectance=True,
        ),
        Index(
            name="msavi2",
            roles=("red", "nir"),
            formula="(2 * nir + 1 - sqrt((2 * nir + 1)^2 - 8 * (nir - red))) / 2",
            low=-2.0,  # reached at a red reflectance of 3
            high=1.0,
            source="Qi et al. 1994, doi:10.1016/0034-4257(94)90134-1",
            evaluate=_msavi2,
            needs_reflectance=True,
        ),
        Index(
            name="evi2",
            roles=("red", "nir"),
            formula="2.5 * (nir - red) / (nir + 2.4 * red + 1)",
            low=-2.5 / 2.4,
            high=2.5,
            source="Jiang et al. 2008, doi:10.1016/j.rse.2008.06.006",
            evaluate=lambda b: _ratio(2.5 * (b["nir"] - b["red"]), b["nir"] + 2.4 * b["red"] + 1),
            needs_reflectance=True,
        ),
    )
}
