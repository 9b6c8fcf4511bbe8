"""Tiles laid side by side: no seam, no shift, no fill on top of a measurement, and nothing where nothing was flown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform as convert

from tests.cases.scene import (
    FIELD,
    SIDE,
    SOIL,
    SOIL_NIR,
    SOIL_RED,
    Float64,
    Result,
    Scene,
    box,
    expected,
    flat,
    put,
    reflectance,
)
from tests.inprocess import tools_for
from tests.synthetic import NORTH, PIXEL_M, WEST, field, oracle_ndvi, place

Laid = tuple[int, int, Float64]


def canvas(pieces: Sequence[Laid]) -> Float64:
    """What comes of pieces at (row, col) of one grid: the first valid pixel on top, NaN where there is none."""
    height = max(row + piece.shape[0] for row, _, piece in pieces)
    width = max(col + piece.shape[1] for _, col, piece in pieces)
    whole = np.full((height, width), np.nan)
    for row, col, piece in reversed(pieces):
        under = whole[row : row + piece.shape[0], col : col + piece.shape[1]]
        under[...] = np.where(np.isnan(piece), under, piece)
    return whole


def assert_mosaic(found: Result, wanted: Float64) -> None:
    """The composite's pixels, and so its size, are these."""
    np.testing.assert_allclose(found.mosaic.values, wanted, rtol=0, atol=1e-6, equal_nan=True)


def run_pieces(folder: Path, pieces: Sequence[Any], **tools: Any) -> tuple[Result, Float64]:
    """A flight of tiles at (row, col, bands), and the canvas that they should make."""
    scene = Scene(folder)
    for i, (row, col, bands) in enumerate(pieces):
        scene.add(f"t{i}", bands, transform=place(col, row))
    found = scene.run(tools_for(folder / "state", **tools))
    return found, canvas([(row, col, expected(bands)) for row, col, bands in pieces])


# ---------------------------------------------------------------- seams


@pytest.mark.parametrize(
    ("side", "pixel", "digits", "across"),
    [(37, 0.0541234567, 9, 2), (37, 0.0541234567, 6, 2), (31, 1 / 3, 7, 3), (20, 0.1, 12, 3), (17, 0.05, 3, 3)],
)
def test_tiles_that_touch_leave_no_seam(side: int, pixel: float, digits: int, across: int, tmp_path: Path) -> None:
    """rasterio#2205, rasterio#2986, corteva/rioxarray#537: one pixel too many, and a line of nodata."""
    scene = Scene(tmp_path)
    pieces = []
    for row in range(across):
        for col in range(across):
            bands = field(side, side, seed=10 * row + col)
            x, y = round(412_345.678 + col * side * pixel, digits), round(4_651_234.567 - row * side * pixel, digits)
            scene.add(f"t{row}{col}", bands, transform=from_origin(x, y, pixel, pixel))
            pieces.append((row * side, col * side, oracle_ndvi(bands["red"], bands["nir"])))
    assert_mosaic(scene.run(), canvas(pieces))


@pytest.mark.parametrize("error", [1e-9, -1e-9, 3e-7])
def test_errors_that_add_up_along_a_row(error: float, tmp_path: Path) -> None:
    """rasterio#1837, rasterio#2174: each tile's corner is its neighbour's edge, as somebody's floats had it."""
    scene = Scene(tmp_path)
    x, pieces = WEST, []
    for i in range(6):
        bands = field(SIDE, SIDE, seed=i)
        scene.add(f"t{i}", bands, transform=from_origin(x, NORTH + i * error, PIXEL_M, PIXEL_M))
        pieces.append((0, i * SIDE, oracle_ndvi(bands["red"], bands["nir"])))
        x += SIDE * PIXEL_M + error
    found = scene.run()
    assert_mosaic(found, canvas(pieces))
    assert found.report.mosaic
    assert found.report.mosaic.max_shift_px == 0


@pytest.mark.parametrize(
    ("first", "width", "pixel"),
    [
        (0.5, 37, 1.0),  # half a pixel off, as after a mix-up of points and areas: both corners lie on .5
        (1.5, 37, 1.0),
        (0.5 - 1e-9, 37, 1.0 + 1e-10),  # and within rounding of it, on either side
        (16.495, 32, 1.0003),  # the same by a pixel size that is nearly the first tile's
        (1664.4992, 32, 1.0003),
    ],
)
def test_tiles_that_touch_stay_together_off_the_grid(first: float, width: int, pixel: float, tmp_path: Path) -> None:
    """rasterio#2205, its next of kin: two tiles that share an edge, on a grid that is not the first tile's.

    Whichever way each is rounded, no line of nodata runs between them; or they are refused.
    """
    scene = Scene(tmp_path)
    scene.add("grid", flat(shape=(SIDE, width)), transform=from_origin(WEST, NORTH, 1, 1))
    for i in range(2):
        corner = WEST + first + i * width * pixel
        bands = flat(SOIL_RED, SOIL_NIR, (SIDE, width))
        scene.add(f"t{i}", bands, transform=from_origin(corner, NORTH - SIDE, pixel, 1))
    found = scene.run()
    if found.report.mosaic is None:
        assert any(word in found.mosaic_refusal() for word in ("grid", "pixel size", "shift"))
        return
    below = found.mosaic.values[SIDE:]
    cols = np.flatnonzero(np.isfinite(below).any(axis=0))
    assert np.isfinite(below[:, cols[0] : cols[-1] + 1]).all()
    assert abs(cols.size - 2 * width) <= 1


def test_a_tile_off_the_grid_goes_to_the_nearest_pixel_and_it_is_said(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.add("grid", field(SIDE, SIDE, seed=1))
    off = Affine.translation(0.3 * PIXEL_M, -0.1 * PIXEL_M) * place(SIDE)
    scene.add("off", field(SIDE, SIDE, seed=2), transform=off)
    found = scene.run()
    pieces = [(0, i * SIDE, expected(field(SIDE, SIDE, seed=i + 1))) for i in range(2)]
    assert_mosaic(found, canvas(pieces))
    assert found.report.mosaic
    assert found.report.mosaic.max_shift_px == pytest.approx(0.3)


def test_tiles_of_one_pixel_at_the_edges(tmp_path: Path) -> None:
    """mapbox/rio-pansharpen#25: an edge tile of one row, one column or one pixel is a tile; also as the first one."""
    whole = field(SIDE + 1, SIDE + 2)

    def cut(rows: slice, cols: slice) -> dict[str, Any]:
        return {name: band[rows, cols] for name, band in whole.items()}

    last_row, last_col, first_col = slice(SIDE, SIDE + 1), slice(SIDE + 1, SIDE + 2), slice(1)
    pieces = [
        (SIDE, SIDE + 1, cut(last_row, last_col)),
        (0, 1, cut(slice(SIDE), slice(1, SIDE + 1))),
        (0, SIDE + 1, cut(slice(SIDE), last_col)),
        (SIDE, 0, cut(last_row, slice(SIDE + 1))),
        (0, 0, cut(slice(SIDE), first_col)),
    ]
    found, wanted = run_pieces(tmp_path, pieces)
    np.testing.assert_array_equal(np.isfinite(wanted), True)
    assert_mosaic(found, wanted)
    np.testing.assert_allclose(found.mosaic.values, expected(whole), atol=1e-6)


def test_a_composite_that_is_made_in_many_windows(tmp_path: Path) -> None:
    """Tiles across the windows' edges, an overlap, a hole: as if it had been made at once."""
    rng = np.random.default_rng(8)
    pieces = []
    for i, (row, col, shape) in enumerate([(0, 0, (700, 300)), (500, 250, (300, 700)), (3, 600, (130, 350))]):
        bands = field(*shape, seed=i)
        for name in ("red", "nir"):
            bands[name][rng.random(shape) < 0.3] = 0
        pieces.append((row, col, bands))
    scene = Scene(tmp_path)
    for i, (row, col, bands) in enumerate(pieces):
        scene.add(f"t{i}", bands, transform=place(col, row), nodata=0)
    found = scene.run(tools_for(tmp_path / "state", window_bytes=2**20))
    assert_mosaic(found, canvas([(row, col, expected(bands, nodata=0)) for row, col, bands in pieces]))


# ---------------------------------------------------------------- what lies on top


def test_every_tile_has_a_fill_of_its_own(tmp_path: Path) -> None:
    """xarray-contrib/xarray-spatial#1448, raster-foundry/raster-foundry#4596: the first one's was taken for all."""
    patch = box(slice(8, 16), slice(8, 16))
    fills: list[tuple[str, float]] = [
        ("uint16", 0),
        ("uint16", 65535),
        ("float32", -9999),
        ("float32", np.nan),
        ("int16", -32768),
        ("uint8", 255),
        ("float64", -1.7976931348623157e308),
    ]
    scene = Scene(tmp_path)
    for i, (dtype, fill) in enumerate(fills):
        bands = reflectance() if dtype.startswith("float") else flat(8, 32, dtype=dtype)
        bands = {name: band.astype(dtype) for name, band in bands.items()}
        for band in bands.values():
            band[patch] = fill
        scene.add(f"t{i}", bands, nodata=fill, transform=place(i * SIDE))
    found = scene.run()
    wanted = np.full((SIDE, SIDE), FIELD)
    wanted[patch] = np.nan
    for i in range(len(fills)):
        found.assert_tile(f"t{i}", wanted)
    assert_mosaic(found, np.hstack([wanted] * len(fills)))


@pytest.mark.parametrize("order", ["abc", "cba", "bac", "bca"])
def test_a_valid_pixel_is_never_hidden_by_nodata(order: str, tmp_path: Path) -> None:
    """rasterio#2848, rspatial/terra#913, jgrss/geowombat#322: nor does water lose against a fill of 0."""
    left, right = flat(), flat(3000, 1000)
    for name in ("red", "nir"):
        left[name][:, 16:] = 0
        right[name][:, :16] = 0
    sources = {"a": (0, left), "b": (16, flat(3000, 1000)), "c": (32, right)}
    scene = Scene(tmp_path)
    for tile_id in order:
        col, bands = sources[tile_id]
        scene.add(tile_id, bands, nodata=0, transform=place(col))
    wanted = np.full((SIDE, 64), -0.5)
    wanted[:, :16] = FIELD
    assert_mosaic(scene.run(), wanted)


def test_the_fill_of_a_float_raster_in_an_overlap(tmp_path: Path) -> None:
    """csiro-hydrogeology/pyela#2, rasterio#2163: fill that is not told apart makes the whole mosaic nodata."""
    half = reflectance()
    for band in half.values():
        band[:, 16:] = -3.4e38
    scene = Scene(tmp_path)
    scene.add("half", half, nodata=-3.4e38)
    scene.add("water", reflectance(0.3, 0.1), nodata=-3.4e38, transform=place(16))
    wanted = np.full((SIDE, 48), -0.5)
    wanted[:, :16] = FIELD
    assert_mosaic(scene.run(), wanted)


def test_the_first_tile_of_the_manifest_lies_on_top(tmp_path: Path) -> None:
    """rasterio#2032: the order is the manifest's, whatever the order in which the tiles were made."""
    pieces = [(0, 0, flat()), (5, 5, flat(SOIL_RED, SOIL_NIR)), (0, 0, flat(1, 2)), (9, 0, flat(3000, 1000))]
    found, wanted = run_pieces(tmp_path, pieces)
    assert_mosaic(found, wanted)


def test_where_nothing_was_flown_there_is_nothing(tmp_path: Path) -> None:
    pieces = [(0, 0, flat()), (100, 70, put(flat(), {(0, 0): (0, 0)})), (40, 200, flat(shape=(1, 1)))]
    found, wanted = run_pieces(tmp_path, pieces)
    assert_mosaic(found, wanted)
    assert found.report.mosaic
    assert found.report.mosaic.stats.count == 2 * SIDE * SIDE


# ---------------------------------------------------------------- what is no mosaic


def test_a_flight_across_two_zones(tmp_path: Path) -> None:
    """rasterio PR#2740, ranghetti/sen2r#368: eastings of two zones are not comparable; refused, or in place."""
    corners: dict[int, tuple[float, float]] = {}
    for epsg, longitude in ((32615, -90.0002), (32616, -90.0)):
        (x,), (y,) = convert("EPSG:4326", f"EPSG:{epsg}", [longitude], [42.0])
        corners[epsg] = (round(x), round(y))
    scene = Scene(tmp_path)
    for epsg, (x, y) in corners.items():
        bands = flat() if epsg == 32615 else flat(SOIL_RED, SOIL_NIR)
        scene.add(f"z{epsg}", bands, {"epsg": epsg}, crs=f"EPSG:{epsg}", transform=from_origin(x, y, 0.5, 0.5))
    found = scene.run()
    assert found.report.complete
    if found.report.mosaic is None:
        found.mosaic_refusal("32615", "32616")
        return
    assert found.mosaic.values.size < 20_000
    for epsg, (x, y) in corners.items():
        (at_x,), (at_y,) = convert(f"EPSG:{epsg}", found.mosaic.crs, [x + 8], [y - 8])
        assert found.mosaic.at(at_x, at_y) == pytest.approx(FIELD if epsg == 32615 else SOIL, abs=1e-4)


@pytest.mark.parametrize("pixel", [1.0000000000000349, 1 + 1e-10, 1 - 1e-10, float(np.float32(1.0000001))])
def test_pixel_sizes_that_differ_by_rounding_are_one(pixel: float, tmp_path: Path) -> None:
    """linz/elevation#696: 1.0 and 1.0000000000000349 are one grid."""
    scene = Scene(tmp_path)
    scene.add("one", flat(), transform=from_origin(WEST, NORTH, 1, 1))
    scene.add("nearly", flat(SOIL_RED, SOIL_NIR), transform=from_origin(WEST + SIDE, NORTH, pixel, pixel))
    wanted = np.full((SIDE, 2 * SIDE), FIELD)
    wanted[:, SIDE:] = SOIL
    assert_mosaic(scene.run(), wanted)


@pytest.mark.parametrize(("across", "down"), [(2, 2), (0.5, 0.5), (1, 2), (1.01, 1), (1.001, 1.001)])
def test_pixel_sizes_that_differ(across: float, down: float, tmp_path: Path) -> None:
    """torchgeo/torchgeo#2594, rasterio#2174: resampled in place without a seam, or refused; never laid as they are."""
    height, width = round(SIDE / down), round(SIDE / across)
    scene = Scene(tmp_path)
    scene.add("one", flat(), transform=from_origin(WEST, NORTH, 1, 1))
    other = flat(SOIL_RED, SOIL_NIR, (height, width))
    scene.add("other", other, transform=from_origin(WEST + SIDE, NORTH, across, down))
    found = scene.run()
    assert found.report.complete
    if found.report.mosaic is None:
        found.mosaic_refusal("pixel size", "one", "other")
        return
    for x in (0.5, SIDE - 0.5, SIDE + 0.5, 2 * SIDE - 1.5):
        value = found.mosaic.at(WEST + x, NORTH - SIDE / 2)
        assert value == pytest.approx(FIELD if x < SIDE else SOIL, abs=1e-6)


@pytest.mark.parametrize("zeros", [5, 7])
def test_a_tile_that_is_far_off_makes_no_giant(zeros: int, tmp_path: Path) -> None:
    """A wrong digit in one tile's corner is said; it doesn't fill the disk."""
    scene = Scene(tmp_path)
    scene.add("here", flat())
    scene.add("there", flat(), transform=from_origin(WEST + 10.0**zeros, NORTH - 10.0**zeros, PIXEL_M, PIXEL_M))
    found = scene.run()
    assert found.report.complete
    found.mosaic_refusal("extent")


def test_a_flight_with_a_hole_has_no_composite_unless_it_is_asked_for(tmp_path: Path) -> None:
    """The tile that failed is named in the product, and where it lay there is nothing."""
    scene = Scene(tmp_path)
    scene.add("a", flat())
    scene.tile("b", "src/b.tif")
    scene.add("c", flat(), transform=place(2 * SIDE))
    found = scene.run()
    assert (found.report.status, found.report.mosaic) == ("incomplete", None)
    found = scene.run(composite="any")
    wanted = np.full((SIDE, 3 * SIDE), FIELD)
    wanted[:, SIDE : 2 * SIDE] = np.nan
    assert_mosaic(found, wanted)
    assert found.report.mosaic
    assert found.report.mosaic.complete is False
