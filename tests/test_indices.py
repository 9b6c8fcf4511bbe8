"""Indices held to float64 arithmetic written out here."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flights.indices import INDICES, compute
from tests.synthetic import oracle_ndvi

NDVI = INDICES["ndvi"]
NAN = float("nan")


def column(*values: float) -> NDArray[np.float64]:
    return np.array([values], dtype=np.float64)


def ndvi(red: float, nir: float) -> float:
    strip = compute(NDVI, {"red": column(red), "nir": column(nir)}, np.ones((1, 1), bool))
    return float(strip.values[0, 0])


@pytest.mark.parametrize(
    ("red", "nir", "value", "counted"),
    [
        (0.1, 0.5, (0.5 - 0.1) / (0.5 + 0.1), {}),
        (0.5, 0.1, (0.1 - 0.5) / (0.1 + 0.5), {}),
        (0.3, 0.3, 0.0, {}),
        (0.0, 0.4, 1.0, {}),
        (0.4, 0.0, -1.0, {}),
        (3000.0, 1000.0, -0.5, {}),
        (0.0, 0.0, NAN, {"undefined": 1}),
        (-0.1, 0.5, 1.0, {"negative": 1, "clipped": 1}),  # 0.6 / 0.4
        (0.5, -0.1, -1.0, {"negative": 1, "clipped": 1}),
        (-0.1, 0.1, NAN, {"negative": 1, "undefined": 1}),  # a sum of zero
        (-0.3, 0.1, NAN, {"negative": 1, "undefined": 1}),
        (-0.1, -0.5, NAN, {"negative": 1, "undefined": 1}),  # would look like a fine 0.67
        (0.0, 5e-324, 1.0, {}),
    ],
)
def test_ndvi_of_one_pixel(red: float, nir: float, value: float, counted: dict[str, int]) -> None:
    strip = compute(NDVI, {"red": column(red), "nir": column(nir)}, np.ones((1, 1), bool))
    assert strip.values[0, 0] == pytest.approx(value, abs=1e-6, nan_ok=True)
    found = {"negative": strip.negative, "clipped": strip.clipped, "undefined": strip.undefined}
    assert found == {"negative": 0, "clipped": 0, "undefined": 0} | counted


def test_ndvi_of_a_field_is_the_oracles() -> None:
    rng = np.random.default_rng(11)
    red, nir = rng.normal(0.1, 0.1, (50, 70)), rng.normal(0.3, 0.2, (50, 70))
    valid = rng.random((50, 70)) > 0.2
    strip = compute(NDVI, {"red": red, "nir": nir}, valid)
    expected = np.where(valid, oracle_ndvi(red, nir), np.nan)
    assert strip.values.dtype == np.float32
    np.testing.assert_allclose(strip.values, expected, atol=1e-6, equal_nan=True)
    with np.errstate(all="ignore"):
        raw = (nir - red) / (nir + red)
    assert strip.negative == np.count_nonzero(valid & ((red < 0) | (nir < 0)))
    assert strip.undefined == np.count_nonzero(valid & (nir + red <= 0))
    assert strip.clipped == np.count_nonzero(valid & (nir + red > 0) & (np.abs(raw) > 1 + 1e-9))


def test_what_is_not_valid_is_neither_a_value_nor_counted() -> None:
    hidden = column(NAN, math.inf, -1.0, 0.0, 1e308)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strip = compute(NDVI, {"red": hidden, "nir": hidden}, np.zeros((1, 5), bool))
    assert np.isnan(strip.values).all()
    assert (strip.negative, strip.clipped, strip.undefined) == (0, 0, 0)


def test_the_callers_arrays_are_left_alone() -> None:
    red, nir, valid = column(-0.1, 0.2), column(0.5, 0.3), np.array([[True, False]])
    before = red.copy(), nir.copy(), valid.copy()
    compute(NDVI, {"red": red, "nir": nir}, valid)
    for now, then in zip((red, nir, valid), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_band_that_the_index_does_not_use_changes_nothing() -> None:
    bands = {"red": column(0.1), "nir": column(0.5), "blue": column(-1.0)}
    assert compute(NDVI, bands, np.ones((1, 1), bool)).negative == 0


reflectance = st.floats(0, 2, allow_subnormal=False)
anything = st.floats(-1e6, 1e6)


@settings(deadline=None)
@given(reflectance, reflectance)
def test_ndvi_is_antisymmetric(red: float, nir: float) -> None:
    there, back = ndvi(red, nir), ndvi(nir, red)
    assert there == -back or (math.isnan(there) and math.isnan(back) and red + nir == 0)


@settings(deadline=None)
@given(reflectance, reflectance, st.integers(-10, 20))
def test_ndvi_knows_no_common_scale(red: float, nir: float, power: int) -> None:
    scaled = ndvi(red * 2.0**power, nir * 2.0**power)  # exact but for underflow
    assert scaled == pytest.approx(ndvi(red, nir), abs=1e-6, nan_ok=True)


@settings(deadline=None)
@given(anything, anything)
def test_ndvi_lies_within_its_range_or_is_nan(red: float, nir: float) -> None:
    value = ndvi(red, nir)
    assert -1 <= value <= 1 or (math.isnan(value) and red + nir <= 0)


# ---------------------------------------------------------------- every index

FORMULAS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ndvi": lambda b: (b["nir"] - b["red"]) / (b["nir"] + b["red"]),
    "ndre": lambda b: (b["nir"] - b["rededge"]) / (b["nir"] + b["rededge"]),
    "gndvi": lambda b: (b["nir"] - b["green"]) / (b["nir"] + b["green"]),
    "ndwi": lambda b: (b["green"] - b["nir"]) / (b["green"] + b["nir"]),
    "savi": lambda b: (b["nir"] - b["red"]) * 1.5 / (b["nir"] + b["red"] + 0.5),
    "osavi": lambda b: (b["nir"] - b["red"]) / (b["nir"] + b["red"] + 0.16),
    "msavi2": lambda b: b["nir"] + 0.5 - (((2 * b["nir"] + 1) ** 2 - 8 * (b["nir"] - b["red"])) ** 0.5) / 2,
    "evi2": lambda b: 2.5 * (b["nir"] - b["red"]) / (b["nir"] + 2.4 * b["red"] + 1),
}


def test_every_index_is_held_to_a_formula_here() -> None:
    assert set(INDICES) <= set(FORMULAS)


@pytest.mark.parametrize("name", INDICES)
def test_index_is_its_formula(name: str) -> None:
    rng = np.random.default_rng(5)
    bands = {role: rng.uniform(0.01, 1.0, (20, 30)) for role in ("blue", "green", "red", "rededge", "nir")}
    strip = compute(INDICES[name], bands, np.ones((20, 30), bool))
    np.testing.assert_allclose(strip.values, FORMULAS[name](bands), atol=1e-6)
    assert (strip.negative, strip.clipped, strip.undefined) == (0, 0, 0)


@pytest.mark.parametrize("name", INDICES)
def test_the_formula_that_an_index_records_is_the_one_it_computes(name: str) -> None:
    bands = {"blue": 0.05, "green": 0.11, "red": 0.07, "rededge": 0.2, "nir": 0.45}
    recorded = eval(INDICES[name].formula.replace("^", "**"), {"sqrt": math.sqrt}, bands)
    assert recorded == pytest.approx(FORMULAS[name](bands), abs=1e-12)


@pytest.mark.parametrize("name", INDICES)
@settings(deadline=None)
@given(data=st.data())
def test_reflectance_never_leaves_the_range(name: str, data: st.DataObject) -> None:
    index = INDICES[name]
    bands = {role: column(data.draw(st.floats(0, 2, allow_subnormal=False))) for role in index.roles}
    strip = compute(index, bands, np.ones((1, 1), bool))
    assert strip.clipped == 0
    value = float(strip.values[0, 0])
    assert math.isnan(value) or index.low - 1e-6 <= value <= index.high + 1e-6
