"""From stored pixels to reflectance, and which pixels are measurements at all."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flights.bands import BandFacts
from flights.errors import Code, Refused
from flights.sensors import QualityMask, SensorProfile

Number = int | float
_UNTAGGED = (1.0, 0.0)
_OF_ORIGIN = {"manifest": "manifest", "sensor": "sensor profile"}


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the pixels of one band are read: reflectance = pixel * scale + offset."""

    scale: float
    offset: float
    origin: str
    # who said so: "manifest", "sensor", "file", or "none" (pixels are used as they are)
    fills: tuple[float, ...]
    # the pixel values that mean "no data"
    overruled: tuple[str, ...] = ()
    # what the file's own tags say and who has another word, in words for a report

    def reflectance(self, pixels: NDArray[np.generic]) -> NDArray[np.float64]:
        """The band in float64, promoted before any arithmetic; fills are calibrated like any value."""
        values = pixels.astype(np.float64)
        if self.scale != 1.0:
            values *= self.scale
        if self.offset != 0.0:
            values += self.offset
        return values

    def is_measured(self, pixels: NDArray[np.generic]) -> NDArray[np.bool_]:
        """True where a pixel is neither a fill value nor NaN nor infinite."""
        measured = np.isfinite(pixels) if pixels.dtype.kind == "f" else np.ones(pixels.shape, dtype=bool)
        for fill in self.fills:
            for value in _as_stored(fill, pixels.dtype):
                measured &= pixels != value
        return measured

    @property
    def is_known(self) -> bool:
        """Whether anybody said what turns these pixels into reflectance."""
        return self.origin != "none"


def is_saturated(pixels: NDArray[Any], bits: int | None) -> NDArray[np.bool_] | None:
    """True where an integer pixel lies at the top of its range: the sensor may have seen more. None where none does."""
    if pixels.dtype.kind not in "iu":
        return None
    top = 2**bits - 1 if bits else np.iinfo(pixels.dtype).max
    at_top: NDArray[np.bool_] | None = np.greater_equal(pixels, top) if pixels.max() >= top else None
    return at_top


def is_removed(quality: NDArray[np.generic], mask: QualityMask, classes: Sequence[str]) -> NDArray[np.bool_]:
    """True where a quality band (bands, rows, cols) says that a pixel belongs to one of these classes."""
    removed = np.zeros(quality.shape[1:], dtype=bool)
    for number in (n for name in classes for n in mask.classes[name]):
        if mask.kind == "bands":
            removed |= quality[number - 1] != 0
        elif mask.kind == "bits":
            removed |= (quality[0].astype(np.int64) & (1 << number)) != 0
        else:
            removed |= quality[0] == number
    return removed


def _as_stored(fill: float, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The values that a fill takes in this dtype: none where it cannot occur, rounded where the dtype is coarser.

    GDAL keeps nodata as a double, the pixels of a float32 raster are singles: -3.4e38 is another number in each.
    """
    if dtype.kind == "f":
        end = float(np.finfo(dtype).max)
        # Beyond the dtype writers clamp a fill to the dtype's end.
        return (dtype.type(min(max(fill, -end), end) if np.isfinite(fill) else fill),)
    info = np.iinfo(dtype)
    if fill == float(info.max):  # of 64 bits the double is one above what the band can hold
        return (dtype.type(info.max),)
    if not np.isfinite(fill) or fill != int(fill) or not info.min <= fill <= info.max:
        return ()
    return (dtype.type(int(fill)),)


def calibration(
    facts: BandFacts,
    profile: SensorProfile | None,
    scale: Number | None,
    offset: Number | None,
    nodata: Number | None,
) -> Calibration:
    """The calibration of one band: declared values win over the sensor profile, that over the file's own tags.

    Scale and offset come from one place together: half a calibration from each would be a third one. So a lone declared
    half is refused where somebody else knows another half. Declared nodata replaces the file's; the profile's is added
    to it.
    """
    tags, sensor = (facts.scale, facts.offset), None
    if profile is not None and facts.dtype in profile.scale:
        sensor = (profile.scale[facts.dtype], profile.offset[facts.dtype])
    if scale is not None or offset is not None:
        _check_halves(scale, offset, sensor or tags)
        used, origin = (1.0 if scale is None else float(scale), 0.0 if offset is None else float(offset)), "manifest"
    elif sensor is not None:
        used, origin = sensor, "sensor"
    else:
        used, origin = tags, "none" if tags == _UNTAGGED else "file"
        if not np.isfinite(tags).all():
            raise Refused(
                Code.CALIBRATION_CONTRADICTION,
                f"the file's own tags say scale {tags[0]:g}, offset {tags[1]:g}; declare `scale` and `offset`",
            )
    overruled = []
    if tags != _UNTAGGED and not np.allclose(tags, used, rtol=1e-6, atol=1e-12):
        overruled.append(f"scale {tags[0]:g}, offset {tags[1]:g} by the {_OF_ORIGIN[origin]}")
    if nodata is None:
        known = (facts.nodata, profile.nodata if profile else None)
        fills = tuple(dict.fromkeys(float(v) for v in known if v is not None))
    else:
        fills = (_declared_fill(float(nodata), facts),)
        if _tagged_fill(facts) not in ((), _as_stored(fills[0], np.dtype(facts.dtype))):
            overruled.append(f"nodata {_shown(facts.nodata)} by the manifest's {_shown(nodata)}")
    return Calibration(*used, origin, fills, tuple(overruled))


def _declared_fill(nodata: float, facts: BandFacts) -> float:
    if math.isnan(nodata) or _as_stored(nodata, np.dtype(facts.dtype)):
        return nodata
    own = f" (the file's own tag says {_shown(facts.nodata)})" if _tagged_fill(facts) else ""
    raise Refused(
        Code.CALIBRATION_CONTRADICTION,
        f"nodata {_shown(nodata)} is declared, which no pixel of {facts.dtype} can hold; declare the value that pixels "
        f'without data have{own}, leave `nodata` out, or say "nan" where every value is data',
    )


def _shown(value: Number | None) -> str:
    """The shortest decimal that is this double, so that what is copied from a message is the same number."""
    return repr(value).removesuffix(".0")


def _tagged_fill(facts: BandFacts) -> tuple[Any, ...]:
    """The file's own nodata as its pixels hold it; none where it has none, or what is never a measurement anyway."""
    if facts.nodata is None or not math.isfinite(facts.nodata):
        return ()
    return _as_stored(float(facts.nodata), np.dtype(facts.dtype))


def _check_halves(scale: Number | None, offset: Number | None, other: tuple[float, float]) -> None:
    if scale is None and other[0] != 1.0:
        raise Refused(
            Code.CALIBRATION_CONTRADICTION,
            f"only `offset` ({offset:g}) is declared, and the sensor or the file has scale {other[0]:g}: declare both",
        )
    if offset is None and other[1] != 0.0:
        raise Refused(
            Code.CALIBRATION_CONTRADICTION,
            f"only `scale` ({scale:g}) is declared, and the sensor or the file has offset {other[1]:g}: declare both",
        )


def both_zero(pixels: Mapping[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
    """True where every band in use stores 0: the black collar that nobody declared, whatever the offset makes of it."""
    zero: NDArray[np.bool_] = functools.reduce(np.logical_and, [band == 0 for band in pixels.values()])
    return zero
