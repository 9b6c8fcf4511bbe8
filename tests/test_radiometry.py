"""Pixels that are measurements, and what turns them into reflectance."""

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flights.bands import BandFacts
from flights.errors import Code, Refused
from flights.radiometry import Calibration, both_zero, calibration, is_removed, is_saturated
from flights.sensors import QualityMask, SensorProfile

NAN, INF = float("nan"), float("inf")
FLOAT32_MIN = -3.4028234663852886e38  # the lowest float32, as GDAL keeps it: a double


def fills(*values: float) -> Calibration:
    return Calibration(1.0, 0.0, "none", values)


@pytest.mark.parametrize(
    ("dtype", "fill", "pixels", "measured"),
    [
        ("uint16", (), [0, 1, 65535], [True, True, True]),
        ("uint16", (0,), [0, 1, 65535], [False, True, True]),
        ("uint16", (65535,), [0, 1, 65535], [True, True, False]),
        ("uint16", (0, 65535), [0, 1, 65535], [False, True, False]),
        ("uint16", (-1,), [0, 1, 65535], [True, True, True]),  # must not wrap to 65535
        ("uint16", (-9999,), [0, 55537, 1], [True, True, True]),  # -9999 modulo 2**16 is 55537
        ("uint16", (65536,), [0, 1, 2], [True, True, True]),  # must not wrap to 0
        ("uint16", (0.5,), [0, 1, 2], [True, True, True]),  # must not be cut to 0
        ("uint16", (NAN,), [0, 1, 2], [True, True, True]),
        ("uint16", (INF,), [0, 1, 65535], [True, True, True]),
        ("uint16", (-INF,), [0, 1, 65535], [True, True, True]),
        ("uint8", (255,), [0, 254, 255], [True, True, False]),
        ("uint8", (256,), [0, 1, 255], [True, True, True]),
        ("int8", (-128,), [-128, 0, 127], [False, True, True]),
        ("int16", (-9999,), [-9999, -9998, 0], [False, True, True]),
        ("int32", (-2147483648,), [-2147483648, 0, 2147483647], [False, True, True]),
        ("uint32", (4294967295,), [4294967295, 0, 1], [False, True, True]),
        ("float32", (), [NAN, INF, -INF, 0.0, 1.0], [False, False, False, True, True]),
        ("float32", (0,), [0.0, -0.0, 1e-30, 1.0], [False, False, True, True]),
        ("float32", (NAN,), [NAN, 0.0, 1.0], [False, True, True]),
        ("float32", (-9999,), [-9999.0, 0.0, NAN], [False, True, False]),
        ("float32", (0.1,), [0.1, 0.2], [False, True]),  # 0.1 is another number as a single and as a double
        ("float32", (-3.4e38,), [-3.4e38, -3.39e38], [False, True]),
        ("float32", (FLOAT32_MIN,), [FLOAT32_MIN, 0.0], [False, True]),
        ("float32", (-1.7976931348623157e308,), [FLOAT32_MIN, 0.0], [False, True]),  # float64's lowest, clamped
        ("float32", (1e39,), [-FLOAT32_MIN, 0.0, FLOAT32_MIN], [False, True, True]),
        ("float64", (0.1,), [0.1, 0.1 + 1e-12, NAN], [False, True, False]),
        ("float64", (-1.7976931348623157e308,), [-1.7976931348623157e308, FLOAT32_MIN], [False, True]),
    ],
)
def test_is_measured(dtype: str, fill: tuple[float, ...], pixels: list[float], measured: list[bool]) -> None:
    stored = np.array([pixels], dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would be said once a window
        found = fills(*fill).is_measured(stored)
    assert found.tolist() == [measured]


@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        ("uint16", 1.0, 0.0),
        ("uint16", 1e-4, -0.1),
        ("uint16", 2.75e-5, -0.2),
        ("uint8", 1 / 255, 0.0),
        ("int16", 1e-4, 0.0),
        ("float32", 2.0, 0.5),
        ("float64", 1.0, -0.1),
        ("uint32", 1.0, -1000.0),
    ],
)
def test_reflectance_is_float64_from_the_first_step(dtype: str, scale: float, offset: float) -> None:
    top = 200 if dtype == "uint8" else 30_000
    pixels = np.random.default_rng(3).integers(1, top, (7, 11)).astype(dtype)
    before = pixels.copy()
    found = Calibration(scale, offset, "manifest", ()).reflectance(pixels)
    assert found.dtype == np.float64
    assert found.tolist() == [[float(p) * scale + offset for p in row] for row in pixels.tolist()]
    assert found is not pixels
    np.testing.assert_array_equal(pixels, before)  # the caller's pixels are still theirs


def test_reflectance_neither_wraps_nor_rounds_at_the_end_of_the_dtype() -> None:
    assert Calibration(10.0, 5.0, "manifest", ()).reflectance(np.array([65535], "uint16")).tolist() == [655355.0]
    big = np.array([4294967295], "uint32")
    assert Calibration(1.0, 0.25, "manifest", ()).reflectance(big).tolist() == [4294967295.25]


# ---------------------------------------------------------------- who says it


SENSOR = SensorProfile(
    "made-up", "made up", "bands", ("red", "nir"), (0.0, 0.0), "this test",
    scale={"uint16": 1e-4, "float32": 1.0}, offset={"uint16": -0.1, "float32": 0.0}, nodata=0,
)  # fmt: skip


def band(dtype: str = "uint16", scale: float = 1.0, offset: float = 0.0, nodata: float | None = None) -> BandFacts:
    return BandFacts(index=1, dtype=dtype, scale=scale, offset=offset, nodata=nodata)


@pytest.mark.parametrize(
    ("facts", "profile", "declared", "expected"),
    [
        (band(), None, {}, (1.0, 0.0, "none")),
        (band(scale=0.5), None, {}, (0.5, 0.0, "file")),
        (band(offset=-1.0), None, {}, (1.0, -1.0, "file")),
        (band(scale=0.5, offset=-1.0), SENSOR, {}, (1e-4, -0.1, "sensor")),
        (band("float32", scale=0.5), SENSOR, {}, (1.0, 0.0, "sensor")),  # a known scale of one is a word, too
        (band("uint8"), SENSOR, {}, (1.0, 0.0, "none")),
        (band("uint8", scale=0.5), SENSOR, {}, (0.5, 0.0, "file")),
        (band(scale=0.5, offset=-1.0), SENSOR, {"scale": 2e-4, "offset": 0.3}, (2e-4, 0.3, "manifest")),
        (band(scale=0.5), None, {"scale": 2e-4}, (2e-4, 0.0, "manifest")),
        (band(offset=-1.0), None, {"offset": 0}, (1.0, 0.0, "manifest")),  # that there is none is a word, too
    ],
)
def test_who_calibrates(
    facts: BandFacts,
    profile: SensorProfile | None,
    declared: Mapping[str, float],
    expected: tuple[float, float, str],
) -> None:
    found = calibration(facts, profile, declared.get("scale"), declared.get("offset"), None)
    assert (found.scale, found.offset, found.origin) == expected


@pytest.mark.parametrize(
    ("facts", "profile", "declared", "names"),
    [
        (band(), SENSOR, {"scale": 2e-4}, ["`scale`", "0.0002", "offset -0.1"]),
        (band(), SENSOR, {"offset": 0}, ["`offset`", "scale 0.0001"]),
        (band(scale=0.5, offset=-1.0), None, {"scale": 1}, ["`scale`", "offset -1"]),
        (band(scale=0.5, offset=-1.0), None, {"offset": 0.3}, ["`offset`", "scale 0.5"]),
    ],
)
def test_half_a_calibration_is_not_completed_from_elsewhere(
    facts: BandFacts, profile: SensorProfile | None, declared: Mapping[str, float], names: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        calibration(facts, profile, declared.get("scale"), declared.get("offset"), None)
    assert refused.value.code == "calibration_contradiction"
    assert [name for name in names if name not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("facts", "overruled"),
    [
        (band(), ()),
        (band(scale=1e-4, offset=-0.1), ()),
        (band(scale=1e-4), ("scale 0.0001, offset 0 by the sensor profile",)),
    ],
)
def test_calibration_tags_that_a_profile_overrules_are_told(facts: BandFacts, overruled: tuple[str, ...]) -> None:
    assert calibration(facts, SENSOR, None, None, None).overruled == overruled


@pytest.mark.parametrize("tags", [{"scale": math.nan}, {"offset": math.nan}, {"scale": math.inf}])
def test_tags_that_are_no_numbers_calibrate_nothing(tags: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="declare `scale` and `offset`") as refused:
        calibration(band(**tags), None, None, None, None)
    assert refused.value.code is Code.CALIBRATION_CONTRADICTION
    assert calibration(band(**tags), None, 2e-4, 0.3, None).scale == 2e-4
    assert calibration(band(**tags), SENSOR, None, None, None).origin == "sensor"


def test_calibration_tags_that_the_manifest_overrules_are_told() -> None:
    tagged = band(scale=0.5, offset=-1.0)
    assert calibration(tagged, None, 2e-4, 0.3, None).overruled == ("scale 0.5, offset -1 by the manifest",)
    assert calibration(tagged, SENSOR, 0.5, -1, None).overruled == ()
    assert calibration(band(), None, 2e-4, 0.3, None).overruled == ()


@pytest.mark.parametrize(
    ("dtype", "tag", "declared", "overruled"),
    [
        ("uint16", 65535, math.nan, ("nodata 65535 by the manifest's nan",)),
        ("uint16", 65535, 0, ("nodata 65535 by the manifest's 0",)),
        ("uint16", 65535, 65535, ()),
        ("uint16", -9999, 65535, ()),  # a tag that means nothing
        ("uint16", None, math.nan, ()),
        ("float32", -3.4028234663852886e38, -3.4e38, ("nodata -3.4028234663852886e+38 by the manifest's -3.4e+38",)),
        ("float32", -3.4028235e38, -3.4028234663852886e38, ()),  # both are the dtype's end
        ("int64", -(2.0**63), 0, ("nodata -9.223372036854776e+18 by the manifest's 0",)),
        ("float32", math.nan, -9999, ()),  # NaN is never a measurement, nor is
        ("float32", math.inf, -9999, ()),
        ("float32", math.nan, math.nan, ()),
    ],
)
def test_a_nodata_that_the_manifest_overrules_is_told(
    dtype: str, tag: float | None, declared: float, overruled: tuple[str, ...]
) -> None:
    for sensor, scale in ((None, 1.0), (None, None), (SENSOR, None)):
        facts = band(dtype, nodata=tag)
        assert calibration(facts, sensor, scale, scale and 0.0, declared).overruled == overruled


@pytest.mark.parametrize(
    ("file", "profile", "declared", "expected"),
    [
        (None, None, None, set()),
        (7, None, None, {7}),
        (0, None, None, {0}),
        (None, SENSOR, None, {0}),
        (7, SENSOR, None, {0, 7}),
        (0, SENSOR, None, {0}),
        (7, SENSOR, 9, {9}),
        (7, None, 0, {0}),  # a declared 0 is not "nothing declared"
        (7, SENSOR, 0, {0}),
    ],
)
def test_who_says_what_is_no_data(
    file: float | None, profile: SensorProfile | None, declared: float | None, expected: set[float]
) -> None:
    found = calibration(band(nodata=file), profile, None, None, declared).fills
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("dtype", "held", "not_held"),
    [
        ("uint8", [0, 255], [-1, 256, 0.5]),
        ("uint16", [0, 65535], [-9999, 65536, -3.4e38, math.inf]),
        ("int16", [-32768, 32767], [-32769, 32768]),
        ("float32", [-9999, 65536, 1e300, math.nan, math.inf], []),
    ],
)
def test_a_declared_nodata_that_no_pixel_can_hold_is_refused(
    dtype: str, held: list[float], not_held: list[float]
) -> None:
    for value in held:
        assert len(calibration(band(dtype), None, 1.0, 0.0, value).fills) == 1
        assert len(calibration(band(dtype, nodata=value), None, 1.0, 0.0, None).fills) == 1
    for value in not_held:
        shown = re.escape(repr(value).removesuffix(".0"))
        with pytest.raises(Refused, match=f"{shown} .*{dtype}") as refused:
            calibration(band(dtype), None, 1.0, 0.0, value)
        assert refused.value.code is Code.CALIBRATION_CONTRADICTION
        assert "own tag" not in str(refused.value)
        with pytest.raises(Refused, match=f"the file's own tag says {held[0]:g}\\)"):
            calibration(band(dtype, nodata=held[0]), None, 1.0, 0.0, value)
        calibration(band(dtype, nodata=value), None, 1.0, 0.0, None)  # files say such things of themselves


def test_nan_of_whole_numbers_says_that_every_value_is_data() -> None:
    found = calibration(band("uint8", nodata=255), None, 1.0, 0.0, math.nan)
    assert found.is_measured(np.array([[0, 255]], np.uint8)).all()


# ---------------------------------------------------------------- black collars


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_both_zero(dtype: str) -> None:
    red, nir = np.array([[0, 0, 5, 5]], dtype), np.array([[0, 5, 0, 5]], dtype)
    assert both_zero({"red": red, "nir": nir}).tolist() == [[True, False, False, False]]


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_zero_in_every_band_and_no_fewer(rows: list[tuple[int, int, int]]) -> None:
    columns: dict[str, Any] = {name: np.array([r[i] for r in rows], "uint8") for i, name in enumerate("abc")}
    assert both_zero(columns).tolist() == [r == (0, 0, 0) for r in rows]


# ---------------------------------------------------------------- saturation, quality bands


@pytest.mark.parametrize(
    ("dtype", "bits", "pixels", "saturated"),
    [
        ("uint8", None, [0, 254, 255], [False, False, True]),
        ("uint16", None, [255, 65534, 65535], [False, False, True]),
        ("int16", None, [-32768, 32766, 32767], [False, False, True]),
        ("uint16", 12, [4094, 4095, 65535], [False, True, True]),
        ("uint16", 16, [4095, 65534, 65535], [False, False, True]),
        ("uint32", None, [65535, 4294967294, 4294967295], [False, False, True]),
        ("float32", None, [1.0, 3e38, 65535.0], [False, False, False]),
    ],
)
def test_is_saturated(dtype: str, bits: int | None, pixels: list[float], saturated: list[bool]) -> None:
    found = is_saturated(np.array([pixels], dtype=dtype), bits)
    assert (found is not None) == any(saturated)
    assert found is None or found.tolist() == [saturated]


@pytest.mark.parametrize(
    ("kind", "classes", "chosen", "quality", "removed"),
    [
        ("values", {"cloud": (8, 9), "shadow": (3,)}, ["cloud"], [[3, 8, 9, 11]], [False, True, True, False]),
        ("values", {"cloud": (8, 9), "shadow": (3,)}, ["cloud", "shadow"], [[3, 8, 9, 11]], [True, True, True, False]),
        ("values", {"cloud": (8, 9)}, [], [[3, 8, 9, 11]], [False] * 4),
        ("bits", {"cloud": (3,), "fill": (0,)}, ["cloud"], [[0, 8, 9, 7]], [False, True, True, False]),
        ("bits", {"cloud": (3,), "fill": (0,)}, ["fill", "cloud"], [[0, 8, 1, 6]], [False, True, True, False]),
        ("bits", {"top": (15,)}, ["top"], [[32768, 65535, 32767, 0]], [True, True, False, False]),
        ("bands", {"haze": (2,)}, ["haze"], [[1, 1, 0, 0], [0, 1, 2, 0]], [False, True, True, False]),
    ],
)
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_is_removed(
    kind: Any,
    classes: dict[str, tuple[int, ...]],
    chosen: list[str],
    quality: list[list[int]],
    removed: list[bool],
    dtype: str,
) -> None:
    bands = np.array(quality, dtype=dtype)[:, np.newaxis, :]
    assert is_removed(bands, QualityMask(kind, classes, ()), chosen).tolist() == [removed]
