"""Whatever the dtype, scale, no-data value, mask, layout and window: the oracle's answer."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.enums import ColorInterp

from flights.indices import INDICES, compute
from flights.manifest import Radiometry
from flights.raster.cog import CogWriter
from flights.raster.environment import gdal
from flights.raster.source import TileSpec, open_tile
from flights.report import TileState
from tests.inprocess import run_flight, tools_for
from tests.synthetic import EPSG, manifest, place

Array = NDArray[Any]
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
MASKS = ("none", "alpha", "internal", ".msk")
FILL = -9999.0
quick = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, slots=True)
class Case:
    """A source and what is declared of it."""

    dtype: str = "uint16"
    height: int = 9
    width: int = 13
    seed: int = 0
    scale: float | None = None
    offset: float | None = None
    file_nodata: float | None = None
    nodata: float | None = None
    mask: str = "none"
    layout: tuple[tuple[str, Any], ...] = ()
    budget: int = 2**26
    swapped: bool = False

    @property
    def bands(self) -> tuple[int, int]:
        """Which band is red and which NIR, of three."""
        return (3, 2) if self.swapped else (2, 3)


def stack_of(case: Case) -> Array:
    """Three bands over the dtype's whole range and near it, with 0, no data, NaN and infinity strewn in."""
    rng = np.random.default_rng(case.seed)
    shape, dtype = (3, case.height, case.width), np.dtype(case.dtype)
    if dtype.kind == "f":
        stack = rng.normal(0.3, 0.3, shape).astype(dtype)
        strange = [0.0, -0.0, np.nan, np.inf, -np.inf, FILL, 1e-30, 1e30]
    else:
        info = np.iinfo(dtype)
        stack = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        small = rng.integers(0, 100, shape).astype(dtype)
        stack = np.where(rng.random(shape) < 0.5, stack, small)
        strange = [0, 1, info.min, info.max]
    strange += [v for v in (case.file_nodata, case.nodata) if v is not None]
    at = rng.random(shape) < 0.3
    with np.errstate(over="ignore"):
        stack[at] = rng.choice(np.array(strange, dtype=dtype), int(at.sum()))
    return stack


def shown_of(case: Case) -> NDArray[np.bool_]:
    """Where the mask shows the ground."""
    if case.mask == "none":
        return np.ones((case.height, case.width), bool)
    return np.random.default_rng(case.seed + 1).random((case.height, case.width)) > 0.25


@contextmanager
def written(case: Case) -> Iterator[Path]:
    """The source as a file."""
    stack, shown = stack_of(case), shown_of(case)
    if case.mask == "alpha":
        top = 1 if stack.dtype.kind == "f" else np.iinfo(stack.dtype).max
        stack = np.concatenate([stack, (shown * top).astype(stack.dtype)[None]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tile.tif"
        profile = {"driver": "GTiff", "count": len(stack), "height": case.height, "width": case.width}
        profile |= {"dtype": case.dtype, "crs": f"EPSG:{EPSG}", "transform": place(), "nodata": case.file_nodata}
        profile |= dict(case.layout) | {"photometric": "MINISBLACK"}
        with (
            rasterio.Env(GDAL_TIFF_INTERNAL_MASK=case.mask == "internal"),
            rasterio.open(path, "w", **profile) as out,
        ):
            if case.mask == "alpha":
                out.colorinterp = [*out.colorinterp[:3], ColorInterp.alpha]
            out.write(stack)
            if case.mask in ("internal", ".msk"):
                out.write_mask(shown)
        assert path.with_name("tile.tif.msk").exists() == (case.mask == ".msk")
        yield path


def ndvi_of(case: Case) -> Array:
    """The product's pixels, by way of a finished COG."""
    roles = INDICES["ndvi"].roles
    bands: dict[str, int | str] = dict(zip(roles, case.bands, strict=True))
    rule = Radiometry(bands=bands, scale=case.scale, offset=case.offset, nodata=case.nodata)
    with written(case) as path:
        spec = TileSpec({"": "tile.tif"}, roles, rule, None, EPSG, 10**6, 2**24)
        with (
            gdal(),
            open_tile({"": path}, spec) as raster,
            CogWriter(path.parent, raster.grid, "NDVI", rows_at_once=raster.rows_at_once) as writer,
        ):
            for window in raster.windows(case.budget):
                strip = raster.read(window)
                writer.write(compute(INDICES["ndvi"], strip.bands, strip.valid).values, window)
            final = writer.finish({}, writer.stats)
            with rasterio.open(final) as product:
                values: Array = product.read(1)
                return values


def expected_ndvi(case: Case) -> NDArray[np.float64]:
    """Whole arrays in float64; the no-data value as the dtype holds it."""
    stack = stack_of(case)
    r, n = (stack[i - 1] for i in case.bands)
    empty = ~shown_of(case) | ((r == 0) & (n == 0))
    nodata = case.file_nodata if case.nodata is None else case.nodata
    for band in (r, n):
        wide = band.astype(np.float64)
        empty |= ~np.isfinite(wide)
        if nodata is not None:
            empty |= wide == np.float64(np.array(nodata).astype(band.dtype))
    scale, offset = 1.0 if case.scale is None else case.scale, case.offset or 0.0
    with np.errstate(all="ignore"):
        red, nir = (band.astype(np.float64) * scale + offset for band in (r, n))
        value = np.clip((nir - red) / (nir + red), -1, 1)
        return np.where(empty | ~(nir + red > 0), np.nan, value)


def assert_ndvi(case: Case) -> None:
    np.testing.assert_allclose(ndvi_of(case), expected_ndvi(case), rtol=0, atol=1e-6, equal_nan=True)


# ---------------------------------------------------------------- strategies

scales = st.one_of(st.none(), st.sampled_from([1.0, 1e-4, 2.75e-5, 1 / 32768, 100.0]), st.floats(1e-6, 1e3))
offsets = st.one_of(st.none(), st.sampled_from([0.0, -0.1, -0.2, -1000.0]), st.floats(-1e3, 1e3))
budgets = st.one_of(st.just(2**26), st.integers(1, 200_000))
side = st.sampled_from([16, 32, 48])


def _tiled(rows: int, cols: int) -> tuple[tuple[str, Any], ...]:
    return ("tiled", True), ("blockxsize", cols), ("blockysize", rows)


layouts = st.builds(
    lambda blocks, interleave, compress: (*blocks, ("interleave", interleave), ("compress", compress)),
    st.one_of(
        st.integers(1, 40).map(lambda rows: (("blockysize", rows),)),
        st.builds(_tiled, side, side),
    ),
    st.sampled_from(["pixel", "band"]),
    st.sampled_from(["none", "deflate", "lzw", "zstd"]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(DTYPES))
    if np.dtype(dtype).kind == "f":
        kept = st.sampled_from([0.0, FILL, float("nan"), -3.4028234663852886e38, 0.25])
        told = st.one_of(kept, st.floats(-1e6, 1e6))
    else:
        info = np.iinfo(dtype)
        kept = st.one_of(st.sampled_from([0, int(info.min), int(info.max)]), st.integers(info.min, info.max)).map(float)
        told = kept
    return Case(
        dtype=dtype,
        height=draw(st.integers(1, 70)),
        width=draw(st.integers(1, 70)),
        seed=draw(st.integers(0, 2**16)),
        scale=draw(scales),
        offset=draw(offsets),
        file_nodata=draw(st.one_of(st.none(), kept)),
        nodata=draw(st.one_of(st.none(), told)),
        mask=draw(st.sampled_from(MASKS)),
        layout=draw(layouts),
        budget=draw(budgets),
    )


# ---------------------------------------------------------------- properties


@settings(quick, max_examples=200)
@given(cases())
@example(Case("uint16", file_nodata=0, mask=".msk"))
@example(Case("float32", file_nodata=-3.4e38, mask="alpha"))
@example(Case("int8", nodata=-128, mask="internal", budget=1))
@example(Case("uint32", nodata=4294967295.0, scale=1e-9, offset=-0.1))
def test_any_source_gives_the_oracles_answer(case: Case) -> None:
    assert_ndvi(case)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_under_every_mask(dtype: str, mask: str) -> None:
    assert_ndvi(Case(dtype, 40, 50, seed=3, mask=mask, file_nodata=7, scale=0.5, offset=-1.0, budget=50_000))


@quick
@given(cases())
def test_exchanging_red_and_nir_turns_the_sign(case: Case) -> None:
    there, back = ndvi_of(case), ndvi_of(replace(case, swapped=True))
    np.testing.assert_array_equal(there, -back)


@quick
@given(cases(), st.floats(1e-3, 1e3), st.integers(-20, 20))
def test_a_power_of_two_on_both_bands_changes_nothing(case: Case, scale: float, exponent: int) -> None:
    plain = replace(case, offset=None, scale=scale)
    np.testing.assert_array_equal(ndvi_of(plain), ndvi_of(replace(plain, scale=scale * 2.0**exponent)))


@quick
@given(cases(), budgets)
def test_the_window_changes_nothing(case: Case, budget: int) -> None:
    np.testing.assert_array_equal(ndvi_of(case), ndvi_of(replace(case, budget=budget)))


@quick
@given(cases(), layouts)
def test_the_layout_of_the_file_changes_nothing(case: Case, layout: tuple[tuple[str, Any], ...]) -> None:
    np.testing.assert_array_equal(ndvi_of(case), ndvi_of(replace(case, layout=layout)))


@settings(quick, max_examples=40)
@given(cases())
def test_a_whole_flight_gives_the_oracles_answer(case: Case) -> None:
    declared: dict[str, Any] = {"bands": dict(zip(("red", "nir"), case.bands, strict=True))}
    declared |= {k: v for k, v in (("scale", case.scale), ("offset", case.offset)) if v is not None}
    if case.nodata is not None:
        declared["nodata"] = "nan" if math.isnan(case.nodata) else case.nodata
    expected = expected_ndvi(case)
    with written(case) as path:
        tools = tools_for(path.parent / "state", window_bytes=2**20)
        body = manifest("F", [{"tile_id": "t", "src_uri": path.name}], out_uri="out", **declared)
        (outcome,) = run_flight(body, path.parent, tools, composite="never").outcomes
        assert outcome.state in (TileState.DONE, TileState.REVIEW), outcome.error
        with rasterio.open(outcome.dst_uri) as product:
            np.testing.assert_allclose(product.read(1), expected, rtol=0, atol=1e-6, equal_nan=True)
        assert outcome.stats is not None
        valid = expected[np.isfinite(expected)]
        assert (outcome.stats.pixels, outcome.stats.count) == (expected.size, valid.size)
        if valid.size:
            found = (outcome.stats.min, outcome.stats.max, outcome.stats.mean, outcome.stats.std)
            assert found == pytest.approx((valid.min(), valid.max(), valid.mean(), valid.std()), abs=1e-6)
