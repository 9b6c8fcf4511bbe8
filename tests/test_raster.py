"""Rasters in, products out: pixels held to whole-array float64, headers refused before anything is read."""

import os
import re
import resource
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.enums import ColorInterp
from rasterio.transform import Affine
from rio_cogeo.cogeo import cog_info, cog_validate

from flights.errors import Code, Transient
from flights.raster.cog import CogWriter
from flights.raster.environment import Grid, gdal
from flights.raster.onepass import OnePass
from flights.raster.overviews import halved
from flights.raster.source import TileSource
from flights.report import TileOutcome
from flights.windows import Window, strips
from tests.inprocess import run_flight, tools_for
from tests.synthetic import EPSG, NORTH, WEST, field, manifest, oracle_ndvi, place, write_tif

Bands = dict[str, NDArray[Any]]
Bool = NDArray[np.bool_]

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Made:
    """What became of one tile."""

    outcome: TileOutcome
    path: Path

    @property
    def pixels(self) -> NDArray[np.float32]:
        assert self.outcome.error is None, self.outcome.error
        with rasterio.open(self.path) as dataset:
            pixels: NDArray[np.float32] = dataset.read(1)
        return pixels

    def equals(self, wanted: NDArray[np.float64]) -> None:
        """The product's pixels are these: within 1e-6, and NaN in just the same places."""
        assert self.pixels.shape == wanted.shape
        np.testing.assert_array_equal(np.isnan(self.pixels), np.isnan(wanted))
        np.testing.assert_allclose(self.pixels, wanted, rtol=0, atol=TOLERANCE)


def make(source: Path | dict[str, str], *, flight: Mapping[str, Any] | None = None, **settings: Any) -> Made:
    """One tile made of a source, in this process; `flight` are keys of its manifest."""
    folder = Path(next(iter(source.values())) if isinstance(source, dict) else source).parent
    out = folder / "out" / "product.tif"
    src = source if isinstance(source, dict) else str(source)
    body = manifest("F1", [{"tile_id": "t1", "src_uri": src, "dst_uri": str(out)}], **(flight or {}))
    tools = tools_for(folder / "state", **{"transient_attempts": 1, **settings})
    report = run_flight(body, folder, tools, composite="never")
    assert not list(tools.settings.scratch.glob("*")), "scratch is not empty"
    return Made(report.outcomes[0], out)


def ndvi_of(bands: Mapping[str, NDArray[Any]], **more: Any) -> NDArray[np.float64]:
    return oracle_ndvi(bands["red"], bands["nir"], **more)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two attempts."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: None))


# ---------------------------------------------------------------- pixels: data types, layouts, shapes

# The largest value that a band takes in each type; sums overflow the narrow ones unless promoted first.
DTYPES = {
    "int8": 127,
    "uint8": 255,
    "int16": 32767,
    "uint16": 65535,
    "int32": 2**31 - 1,
    "uint32": 2**32 - 1,
    "float32": 1.0,
    "float64": 1.0,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pixel_type(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    bands = {n: (rng.uniform(0.02, 1.0, (40, 60)) * DTYPES[dtype]).astype(dtype) for n in ("b", "g", "red", "nir")}
    made = make(write_tif(tmp_path / "t.tif", bands))
    made.equals(ndvi_of(bands))


def strips_of(rows: int) -> dict[str, Any]:
    """rasterio hands a strip's height on only beside an outspoken TILED=NO."""
    return {"TILED": "NO", "BLOCKYSIZE": rows, "compress": "deflate"}  # GDAL splits a single raw strip by itself


LAYOUTS: dict[str, dict[str, Any]] = {
    "as GDAL likes": {},
    "one row a strip": strips_of(1),
    "strips that do not divide the height": strips_of(7),
    "one strip": strips_of(203),
    "tiles of 16": {"tiled": True, "blockxsize": 16, "blockysize": 16},
    "tiles larger than the raster": {"tiled": True, "blockxsize": 512, "blockysize": 512},
    "tiles that are wide": {"tiled": True, "blockxsize": 256, "blockysize": 16},
    "tiles that are tall": {"tiled": True, "blockxsize": 16, "blockysize": 256},
    "pixel-interleaved": {"interleave": "pixel"},
    "band-interleaved": {"interleave": "band"},
    "band-interleaved tiles": {"interleave": "band", "tiled": True, "blockxsize": 64, "blockysize": 32},
    "BigTIFF": {"BIGTIFF": "YES"},
    "big-endian": {"ENDIANNESS": "BIG"},
    "big-endian BigTIFF": {"ENDIANNESS": "BIG", "BIGTIFF": "YES"},
    "deflate, predictor": {"compress": "deflate", "predictor": 2},
    "lzw": {"compress": "lzw"},
    "zstd": {"compress": "zstd"},
    "13 bits": {"NBITS": 13},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_one_window_and_in_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    bands = field(203, 291)
    options = LAYOUTS[layout]
    source = write_tif(tmp_path / "t.tif", bands, **options)
    with rasterio.open(source) as dataset:
        assert dataset.block_shapes[0][0] == options.get(
            "BLOCKYSIZE", options.get("blockysize", dataset.block_shapes[0][0])
        )
    one = make(source)
    one.equals(ndvi_of(bands))
    read: list[Window] = []
    plain = TileSource.read

    def counted(self: TileSource, window: Window) -> Any:
        read.append(window)
        return plain(self, window)

    monkeypatch.setattr(TileSource, "read", counted)
    wanted = one.pixels
    one.path.unlink()
    many = make(source, window_bytes=2**20)
    np.testing.assert_array_equal(many.pixels, wanted)
    assert many.outcome.stats is not None
    assert many.outcome.stats.count == np.isfinite(wanted).sum()
    assert len(read) > 1
    assert sum(window.height * window.width for window in read) == 203 * 291


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (1, 50), (50, 1), (513, 1), (1, 513), (512, 512), (513, 511), (1100, 700)]
)
@pytest.mark.parametrize("layout", ["as GDAL likes", "tiles of 16"])
def test_every_shape(tmp_path: Path, height: int, width: int, layout: str) -> None:
    bands = field(height, width)
    made = make(write_tif(tmp_path / "t.tif", bands, **LAYOUTS[layout]), window_bytes=2**20)
    made.equals(ndvi_of(bands))


PLACES = {
    "north up": place(),
    "fractions": Affine(1 / 3, 0, WEST + 1 / 7, 0, -1 / 3, NORTH + 1 / 9),
    "oblong pixels": Affine(0.5, 0, WEST, 0, -0.25, NORTH),
    "south up": Affine(0.5, 0, WEST, 0, 0.5, NORTH),
    "rotated": Affine(0.4, 0.3, WEST, 0.3, -0.4, NORTH),
}


@pytest.mark.parametrize("where", PLACES)
def test_a_product_lies_where_its_source_does(tmp_path: Path, where: str) -> None:
    bands = field()
    made = make(write_tif(tmp_path / "t.tif", bands, transform=PLACES[where]))
    made.equals(ndvi_of(bands))
    with rasterio.open(made.path) as product:
        assert product.transform == PLACES[where]
        assert product.crs.to_epsg() == EPSG


# The same system in other words.
ESRI_WKT = (
    'PROJCS["WGS_1984_UTM_Zone_15N",GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137.0,'
    '298.257223563]],PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],'
    'PARAMETER["False_Easting",500000.0],PARAMETER["False_Northing",0.0],PARAMETER["Central_Meridian",-93.0],'
    'PARAMETER["Scale_Factor",0.9996],PARAMETER["Latitude_Of_Origin",0.0],UNIT["Meter",1.0]]'
)
SAME_CRS = {
    "ESRI": ESRI_WKT,
    "bare ellipsoid": "+proj=utm +zone=15 +ellps=WGS84 +units=m",
    "datum": "+proj=utm +zone=15 +datum=WGS84 +units=m",
    "with a height": "EPSG:32615+5703",
}


@pytest.mark.parametrize("words", SAME_CRS)
def test_a_crs_in_other_words(tmp_path: Path, words: str) -> None:
    bands = field()
    make(write_tif(tmp_path / "t.tif", bands, crs=SAME_CRS[words])).equals(ndvi_of(bands))


def test_a_jpeg_2000_file(tmp_path: Path) -> None:
    bands = field(90, 110)
    source = write_tif(tmp_path / "t.tif", bands)
    lossless = {"driver": "JP2OpenJPEG", "QUALITY": 100, "REVERSIBLE": "YES"}
    rasterio.shutil.copy(source, tmp_path / "t.jp2", **lossless)
    make(tmp_path / "t.jp2").equals(ndvi_of(bands))


# ---------------------------------------------------------------- pixels: what is no measurement


def holes(height: int = 64, width: int = 96) -> Bool:
    """A corner, a row, a single pixel, and the last pixel."""
    hole = np.zeros((height, width), dtype=bool)
    hole[:5, :9] = hole[20, :] = hole[33, 44] = hole[-1, -1] = True
    return hole


def with_value(value: Any, *names: str, dtype: str = "uint16") -> Bands:
    """A field with one value in the holes of some bands."""
    bands = field(dtype=dtype)
    for name in names or tuple(bands):
        bands[name][holes()] = value
    return bands


def with_mask(path: Path, bands: Bands, *, internal: bool) -> Path:
    write_tif(path, bands)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as dataset:
        dataset.write_mask(~holes())
    assert path.with_name(path.name + ".msk").exists() is not internal
    return path


def with_band_masks(path: Path, bands: Bands) -> Path:
    """A .msk of a mask a band, of which only NIR's has holes."""
    write_tif(path, bands)
    each = [np.full(holes().shape, 255, "uint8") for _ in bands]
    each[-1][holes()] = 0
    msk = write_tif(path.with_name("msk.tif"), each)
    with rasterio.open(msk, "r+") as dataset:
        dataset.update_tags(**{f"INTERNAL_MASK_FLAGS_{i + 1}": "0" for i in range(len(each))})
    msk.rename(path.with_name(path.name + ".msk"))
    return path


def with_aux(path: Path, bands: Bands, band: int, inner: str) -> Path:
    """A GDAL sidecar that says something of one band."""
    write_tif(path, bands)
    text = f'<PAMDataset><PAMRasterBand band="{band}">{inner}</PAMRasterBand></PAMDataset>'
    path.with_name(path.name + ".aux.xml").write_text(text)
    return path


def with_alpha(path: Path, bands: Bands, alpha: NDArray[Any], **more: Any) -> Path:
    write_tif(path, {**bands, "alpha": alpha}, **more)
    with rasterio.open(path, "r+") as dataset:
        dataset.colorinterp = [ColorInterp.gray, *[ColorInterp.undefined] * (len(bands) - 1), ColorInterp.alpha]
    return path


def with_dataset_nodata(path: Path, bands: Bands) -> Path:
    """GDAL's NODATA_VALUES: no data where every band has its own value, and only there."""
    write_tif(path, bands)
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(NODATA_VALUES="11 12 13 14")
    return path


def tuple_holes(*names: str) -> Bands:
    bands = field()
    for name, value in zip(bands, (11, 12, 13, 14), strict=True):
        if not names or name in names:
            bands[name][holes()] = value
    return bands


NODATA_5 = "<NoDataValue>5</NoDataValue>"
LOWEST = float(np.finfo("float32").min)
Writer = Callable[[Path, Bands], Path]


def plain(**options: Any) -> Writer:
    return lambda path, bands: write_tif(path, bands, **options)


# What the file holds, how it is written, what the manifest adds; the holes are no data in each.
HOLES: dict[str, tuple[Bands, Writer, dict[str, Any]]] = {
    "nodata 0": (with_value(0), plain(nodata=0), {}),
    "nodata 65535": (with_value(65535), plain(nodata=65535), {}),
    "nodata in red only": (with_value(9, "red"), plain(nodata=9), {}),
    "nodata in NIR only": (with_value(9, "nir"), plain(nodata=9), {}),
    "nodata -9999": (with_value(-9999, dtype="int16"), plain(nodata=-9999), {}),
    "nodata NaN": (with_value(np.nan, dtype="float32"), plain(nodata=np.nan), {}),
    "nodata lowest float32": (with_value(LOWEST, dtype="float32"), plain(nodata=LOWEST), {}),
    "nodata lowest float32 in red": (with_value(LOWEST, "red", dtype="float32"), plain(nodata=LOWEST), {}),
    "nodata 0.1 in float32": (with_value(0.1, "nir", dtype="float32"), plain(nodata=0.1), {}),
    "nodata lowest int64": (with_value(-(2**63), "nir", dtype="int64"), plain(nodata=-(2**63)), {}),
    "nodata inf": (with_value(np.inf, dtype="float64"), plain(nodata=np.inf), {}),
    "NaN undeclared": (with_value(np.nan, "nir", dtype="float32"), plain(), {}),
    "NaN beside nodata 0": (with_value(np.nan, "red", dtype="float64"), plain(nodata=0), {}),
    "inf undeclared": (with_value(np.inf, "red", dtype="float32"), plain(), {}),
    "-inf undeclared": (with_value(-np.inf, "nir", dtype="float64"), plain(), {}),
    "zeros undeclared": (with_value(0), plain(), {}),
    "zeros undeclared in red and NIR": (with_value(0, "red", "nir"), plain(), {}),
    "zeros undeclared, with an offset": (with_value(0), plain(), {"scale": 1e-4, "offset": 0.1}),
    "zeros undeclared, another nodata": (with_value(0), plain(nodata=65535), {}),
    "declared": (with_value(77), plain(), {"nodata": 77}),
    "declared by band": (with_value(77, "nir"), plain(), {"nodata": {"nir": 77}}),
    "declared NaN": (with_value(np.nan, dtype="float32"), plain(), {"nodata": "nan"}),
    "alpha": (field(), lambda p, b: with_alpha(p, b, np.where(holes(), 0, 65535).astype("uint16")), {}),
    "alpha of 1 is data": (field(), lambda p, b: with_alpha(p, b, np.where(holes(), 0, 1).astype("uint16")), {}),
    "alpha and nodata": (
        with_value(9, "nir"),
        lambda p, b: with_alpha(p, b, np.full(holes().shape, 65535, "uint16"), nodata=9),
        {},
    ),
    "internal mask": (field(), lambda p, b: with_mask(p, b, internal=True), {}),
    "mask beside it": (field(), lambda p, b: with_mask(p, b, internal=False), {}),
    "a mask a band": (field(), with_band_masks, {}),
    "nodata of NIR beside it": (with_value(5, "nir"), lambda p, b: with_aux(p, b, 4, NODATA_5), {}),
    "nodata of red beside it": (with_value(5, "red"), lambda p, b: with_aux(p, b, 3, NODATA_5), {}),
    "a value a band": (tuple_holes(), with_dataset_nodata, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOLES)
def test_what_is_no_measurement_has_no_value(tmp_path: Path, case: str) -> None:
    bands, write, declared = HOLES[case]
    made = make(write(tmp_path / "t.tif", bands), flight=declared, window_bytes=2**20)
    red, nir = (bands[name].astype("float64") for name in ("red", "nir"))
    with np.errstate(all="ignore"):
        scale, offset = declared.get("scale", 1.0), declared.get("offset", 0.0)
        red, nir = red * scale + offset, nir * scale + offset
        wanted = (nir - red) / (nir + red)
    wanted[holes()] = np.nan
    assert np.isfinite(wanted[~holes()]).all()
    made.equals(wanted)


# What looks like a hole and is a measurement.
DATA: dict[str, tuple[Bands, Writer, dict[str, Any]]] = {
    "zero in red alone": (with_value(0, "red"), plain(), {}),
    "zero in NIR alone": (with_value(0, "nir"), plain(), {}),
    "nodata in a band that is not used": (with_value(9, "blue", "green"), plain(nodata=9), {}),
    "NaN in a band that is not used": (with_value(np.nan, "blue", dtype="float32"), plain(), {}),
    "nodata of another band beside it": (
        with_value(5, "red", "nir"),
        lambda p, b: with_aux(p, b, 1, NODATA_5),
        {},
    ),
    "declared nodata replaces the file's": (with_value(9, "nir"), plain(nodata=9), {"nodata": 1}),
    "declared for the other band": (with_value(77, "nir"), plain(), {"nodata": {"red": 77}}),
    "part of a value a band": (tuple_holes("red", "nir"), with_dataset_nodata, {}),
    "a NIR that is labelled alpha": (
        with_value(0, "nir"),
        lambda p, b: with_alpha(p, {k: b[k] for k in ("blue", "green", "red")}, b["nir"]),
        {},
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_what_looks_like_a_hole_is_data(tmp_path: Path, case: str) -> None:
    bands, write, declared = DATA[case]
    made = make(write(tmp_path / "t.tif", bands), flight=declared)
    red, nir = (bands[name].astype("float64") for name in ("red", "nir"))
    made.equals((nir - red) / (nir + red))


@pytest.mark.parametrize("empty", ["nodata", "masked", "zeros", "nan"])
def test_a_tile_without_a_valid_pixel_is_a_product(tmp_path: Path, empty: str) -> None:
    path, everything = tmp_path / "t.tif", np.ones((64, 96), dtype=bool)
    match empty:
        case "nodata":
            write_tif(path, {n: np.full((64, 96), 9, "uint16") for n in field()}, nodata=9)
        case "zeros":
            write_tif(path, {n: np.zeros((64, 96), "uint8") for n in field()})
        case "nan":
            write_tif(path, {n: np.full((64, 96), np.nan, "float32") for n in field()})
        case _:
            write_tif(path, field())
            with rasterio.open(path, "r+") as dataset:
                dataset.write_mask(~everything)
    made = make(path)
    assert np.isnan(made.pixels).all()
    stats = made.outcome.stats
    assert stats is not None
    assert (stats.count, stats.pixels, stats.valid_fraction) == (0, 64 * 96, 0.0)
    assert (stats.min, stats.max, stats.mean, stats.std) == (None, None, None, None)
    with rasterio.open(made.path) as product:
        assert not [key for key in product.tags(1) if key.startswith("STATISTICS")]
    assert cog_validate(made.path, strict=True, quiet=True)[0]


# ---------------------------------------------------------------- pixels: scale and offset


def calibrated(path: Path, bands: Bands, scales: tuple[float, ...], offsets: tuple[float, ...]) -> Path:
    write_tif(path, bands)
    with rasterio.open(path, "r+") as dataset:
        dataset.scales, dataset.offsets = scales, offsets
    return path


ONES, NONE = (1.0,) * 4, (0.0,) * 4

# The file's scales and offsets, what the manifest declares, and (scale, offset) of red and NIR that hold.
CALIBRATIONS: list[tuple[tuple[float, ...], tuple[float, ...], dict[str, Any], tuple[float, ...]]] = [
    (ONES, NONE, {}, (1, 0, 1, 0)),
    ((1e-4,) * 4, (-0.1,) * 4, {}, (1e-4, -0.1, 1e-4, -0.1)),
    ((1, 1, 2e-4, 1e-4), (0, 0, 0.01, -0.02), {}, (2e-4, 0.01, 1e-4, -0.02)),
    ((3.0,) * 4, (9.0,) * 4, {"scale": 1e-4, "offset": -0.1}, (1e-4, -0.1, 1e-4, -0.1)),
    ((3.0,) * 4, NONE, {"scale": 1e-4}, (1e-4, 0, 1e-4, 0)),
    (ONES, (9.0,) * 4, {"offset": -100}, (1, -100, 1, -100)),
    (ONES, NONE, {"scale": {"red": 2e-4, "nir": 1e-4}, "offset": {"nir": -0.05}}, (2e-4, 0, 1e-4, -0.05)),
    (ONES, NONE, {"scale": 1e-4, "offset": -0.2}, (1e-4, -0.2, 1e-4, -0.2)),
]


@pytest.mark.parametrize(("scales", "offsets", "declared", "held"), CALIBRATIONS)
def test_scale_and_offset(
    tmp_path: Path,
    scales: tuple[float, ...],
    offsets: tuple[float, ...],
    declared: dict[str, Any],
    held: tuple[float, ...],
) -> None:
    bands = field()
    made = make(calibrated(tmp_path / "t.tif", bands, scales, offsets), flight=declared)
    red = bands["red"].astype("float64") * held[0] + held[1]
    nir = bands["nir"].astype("float64") * held[2] + held[3]
    with np.errstate(all="ignore"):
        wanted = np.where(nir + red > 0, np.clip((nir - red) / (nir + red), -1, 1), np.nan)
    made.equals(wanted)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_the_sensors_own_scale(tmp_path: Path, dtype: str) -> None:
    """Wavelength order: blue, green, red, red edge, NIR; 32768 is 100 %. A common scale leaves NDVI as it is."""
    bands = field(dtype=dtype)
    stack = [bands["blue"], bands["green"], bands["red"], bands["green"], bands["nir"]]
    made = make(write_tif(tmp_path / "t.tif", stack), flight={"sensor": "micasense-rededge-mx"})
    made.equals(ndvi_of(bands))
    assert made.outcome.bands is not None
    assert {role: use.band for role, use in made.outcome.bands.items()} == {"red": 3, "nir": 5}
    assert {use.calibrated_by for use in made.outcome.bands.values()} == {"sensor"}


@pytest.mark.parametrize("layout", ["as GDAL likes", "tiles of 16"])
def test_a_file_a_band(tmp_path: Path, layout: str) -> None:
    """Each with its own block layout, nodata, mask and scale."""
    bands = field(203, 291)
    red = write_tif(tmp_path / "red.tif", [bands["red"]], nodata=301, **LAYOUTS[layout])
    nir = write_tif(
        tmp_path / "nir.tif", [bands["nir"].astype("float32")], **LAYOUTS["strips that do not divide the height"]
    )
    hole = holes(203, 291)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(nir, "r+") as dataset:
        dataset.scales = (2.0,)
        dataset.write_mask(~hole)
    with rasterio.open(red, "r+") as dataset:
        dataset.scales = (3.0,)
    made = make({"red": str(red), "nir": str(nir)}, window_bytes=2**20)
    r, n = bands["red"].astype("float64") * 3, bands["nir"].astype("float64") * 2
    wanted = (n - r) / (n + r)
    wanted[hole | (bands["red"] == 301)] = np.nan
    made.equals(wanted)


# ---------------------------------------------------------------- the product


@pytest.mark.parametrize("compress", ["zstd", "deflate"])
def test_what_a_product_says_of_itself(tmp_path: Path, compress: str) -> None:
    bands = with_value(0)
    bands = {name: np.tile(band, (20, 12)) for name, band in bands.items()}
    made = make(write_tif(tmp_path / "t.tif", bands), cog_compress=compress)
    made.equals(ndvi_of(bands))
    valid, errors, warnings = cog_validate(made.path, strict=True, quiet=True)
    assert (valid, errors, warnings) == (True, [], [])
    assert cog_info(made.path).COG
    with rasterio.open(made.path) as product:
        assert (product.count, product.dtypes, product.descriptions) == (1, ("float32",), ("NDVI",))
        assert np.isnan(product.nodata)
        assert product.colorinterp == (ColorInterp.gray,)
        assert product.block_shapes == [(512, 512)]
        assert product.compression.name == compress
        assert product.overviews(1) == [2, 4]
        assert (product.tags()["FLIGHT_ID"], product.tags()["TILE_ID"]) == ("F1", "t1")
        assert "nir - red" in product.tags()["FORMULA"]
        said = product.tags(1)
    pixels = made.pixels[np.isfinite(made.pixels)].astype("float64")
    wanted = {"MINIMUM": pixels.min(), "MAXIMUM": pixels.max(), "MEAN": pixels.mean(), "STDDEV": pixels.std()}
    for name, value in wanted.items():
        assert float(said[f"STATISTICS_{name}"]) == pytest.approx(value, rel=1e-9)
    assert float(said["STATISTICS_VALID_PERCENT"]) == pytest.approx(100 * pixels.size / made.pixels.size, rel=1e-3)
    stats = made.outcome.stats
    assert stats is not None
    assert (stats.count, stats.pixels) == (pixels.size, made.pixels.size)
    assert (stats.min, stats.max) == (wanted["MINIMUM"], wanted["MAXIMUM"])
    assert (stats.mean, stats.std) == pytest.approx((wanted["MEAN"], wanted["STDDEV"]), rel=1e-9)


def test_an_overview_is_the_mean_of_what_is_valid(tmp_path: Path) -> None:
    bands = {name: np.tile(band, (20, 12)) for name, band in with_value(0).items()}
    made = make(write_tif(tmp_path / "t.tif", bands))
    with rasterio.open(made.path, overview_level=0) as overview:
        found = overview.read(1)
    full = ndvi_of(bands).reshape(640, 2, 576, 2)
    count = np.isfinite(full).sum(axis=(1, 3))
    with np.errstate(invalid="ignore"):
        wanted = np.nansum(full, axis=(1, 3)) / count
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 50), (511, 300), (513, 511), (1025, 513)])
def test_a_product_of_any_shape_is_a_cog(tmp_path: Path, height: int, width: int) -> None:
    made = make(write_tif(tmp_path / "t.tif", field(height, width)))
    assert cog_validate(made.path, strict=True, quiet=True)[:2] == (True, [])


# ---------------------------------------------------------------- verification: what was written is what is read

GRID = Grid(600, 700, place(), rasterio.crs.CRS.from_epsg(EPSG))


MAKERS = pytest.mark.parametrize("rows_at_once", [512, None], ids=["one pass", "staged"])


def write_product(folder: Path, values: NDArray[np.float32], rows_at_once: int | None = 512) -> Path:
    """A product of one array, written in two windows."""
    with CogWriter(folder, GRID, "NDVI", rows_at_once=rows_at_once) as writer:
        for rows in (slice(0, 512), slice(512, 600)):
            writer.write(values[rows], Window(rows.start, 0, rows.stop - rows.start, 700))
        return writer.finish({"A": "b"}, writer.stats)


def some_values() -> NDArray[np.float32]:
    return np.random.default_rng(5).uniform(-1, 1, (600, 700)).astype("float32")


def zero_bytes(path: Path) -> None:
    """What a hole in a file reads as."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))


def flip_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size * 2 // 5)  # within the pixels of either file, past overviews, short of padding
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def cut_to_the_header(path: Path) -> None:
    os.truncate(path, 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def change(**said: Any) -> Callable[[Path], None]:
    """Something else in the header."""

    def damage(path: Path) -> None:
        with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
            for key, value in said.items():
                setattr(dataset, key, value)

    return damage


def one_pixel(path: Path) -> None:
    with rasterio.open(path, "r+", IGNORE_COG_LAYOUT_BREAK="YES") as dataset:
        dataset.write(np.zeros((1, 1), "float32"), 1, window=((599, 600), (699, 700)))


FINAL_DAMAGES: list[Callable[[Path], None]] = [
    zero_bytes, flip_bit, cut, cut_to_the_header, empty, one_pixel, change(transform=place(1)),
    change(nodata=0), change(crs=rasterio.crs.CRS.from_epsg(32616)),
]  # fmt: skip
FINAL_NAMES = ["zeros", "bit", "cut", "header", "empty", "pixel", "transform", "nodata", "crs"]


@contextmanager
def damaged(damage: Callable[[Path], None], *, before: bool, times: int = 100, level: int = 0) -> Iterator[None]:
    """Damage a file that goes into the making of a COG, the pixels of some resolution, or the one that comes out."""
    finish, copy, left = OnePass.finish, rasterio.shutil.copy, times

    def around(make: Callable[[], None], scratch: Path, final: Path) -> None:
        nonlocal left
        left -= 1
        if before and left >= 0:
            damage(scratch)
        make()
        if not before and left >= 0:
            damage(final)

    def one_pass(self: OnePass, final: Path, label: Any) -> None:
        self._wait()
        blocks, scratch = self._levels[level]._blocks, final.with_name("blocks")
        blocks.seek(0)
        scratch.write_bytes(blocks.read())
        around(lambda: put_back(scratch, blocks, lambda: finish(self, final, label)), scratch, final)

    def put_back(scratch: Path, blocks: Any, then: Callable[[], None]) -> None:
        blocks.seek(0)
        blocks.truncate()
        blocks.write(scratch.read_bytes())
        then()

    def driver(source: Any, target: Any, **options: Any) -> None:
        if options["driver"] != "COG":
            copy(source, target, **options)
            return
        name = f"overview{level - 1}.tif" if level else "strips.tif"
        around(lambda: copy(source, target, **options), Path(source).with_name(name), Path(target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnePass, "finish", one_pass)
        patch.setattr(rasterio.shutil, "copy", driver)
        yield


@MAKERS
@pytest.mark.parametrize("damage", FINAL_DAMAGES, ids=FINAL_NAMES)
def test_a_product_that_reads_otherwise_is_not_passed_on(
    tmp_path: Path, damage: Callable[[Path], None], rows_at_once: int | None
) -> None:
    with damaged(damage, before=False), pytest.raises(Transient) as caught:
        write_product(tmp_path, some_values(), rows_at_once)
    assert caught.value.code is Code.PRODUCT_INVALID


@MAKERS
@pytest.mark.parametrize(
    ("level", "damage"), [(0, zero_bytes), (0, flip_bit), (1, zero_bytes)], ids=["zeros", "bit", "overview"]
)
def test_a_scratch_file_that_reads_otherwise_is_not_passed_on(
    tmp_path: Path, damage: Callable[[Path], None], level: int, rows_at_once: int | None
) -> None:
    with damaged(damage, before=True, level=level), pytest.raises(Transient) as caught:
        write_product(tmp_path, some_values(), rows_at_once)
    assert caught.value.code is Code.PRODUCT_INVALID


@pytest.mark.parametrize("shape", [(2, 2), (1, 1), (1, 5), (5, 1), (6, 8), (7, 9)])
@pytest.mark.parametrize("valid", [0.0, 0.5, 1.0])
def test_an_overview_pixel_is_the_mean_of_its_valid_pixels(shape: tuple[int, int], valid: float) -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(-1, 1, shape).astype(np.float32)
    values[rng.random(shape) >= valid] = np.nan
    whole = np.full((shape[0] + shape[0] % 2, shape[1] + shape[1] % 2), np.nan)
    whole[: shape[0], : shape[1]] = values
    four = whole.reshape(whole.shape[0] // 2, 2, -1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the mean of nothing
        expected = np.nanmean(four, axis=(1, 3))
    np.testing.assert_allclose(halved(values), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("compress", ["zstd", "deflate"])
@pytest.mark.parametrize("empty", [np.s_[:, :], np.s_[:1024, :1024], np.s_[:, :1100], np.s_[900:, 1000:]])
def test_blocks_of_overviews_that_hold_no_data(tmp_path: Path, empty: Any, compress: str) -> None:
    """GDAL writes no block in which nothing but nodata is: what it reads back of it must be what was meant."""
    source = field(2100, 2200)
    for band in source.values():
        band[empty] = 0
    made = make(write_tif(tmp_path / "t.tif", source), cog_compress=compress)
    assert made.outcome.error is None
    with rasterio.open(made.path, overview_level=0) as overview:
        there = np.isnan(overview.read(1))
    whole = np.isnan(rasterio.open(made.path).read(1))
    assert (there == whole.reshape(1050, 2, 1100, 2).all(axis=(1, 3))).all()


@pytest.mark.parametrize(("compress", "dtype"), [("zstd", "float32"), ("deflate", "float32"), ("zstd", "int16")])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (64, 0), (300, 256), (512, 512)])  # of a block; 0: all columns
@pytest.mark.parametrize(("height", "width"), [(1, 1), (513, 511), (1025, 2100)])
def test_both_ways_make_one_product(
    tmp_path: Path, height: int, width: int, rows: int, cols: int, compress: str, dtype: str
) -> None:
    """Of windows that come strip by strip, or in parts of them: the same pixels, overviews, tags and layout."""
    values = np.random.default_rng(height + rows).uniform(-1, 1, (height, width)).astype(np.float32)
    values[: height // 2, : width // 3] = np.nan
    grid, found = Grid(height, width, GRID.transform, GRID.crs), []
    for name, rows_at_once in {"one": rows, "two": None}.items():
        (tmp_path / name).mkdir()
        with (
            gdal(),
            CogWriter(
                tmp_path / name, grid, "NDVI", compress=compress, dtype=dtype, rows_at_once=rows_at_once
            ) as writer,
        ):
            for window in strips(height, width, rows, cols or width, 64, 2**20):
                (top, bottom), (left, right) = window.slices
                writer.write(values[top:bottom, left:right], window)
            path = writer.finish({"LONG": "ä <&>" * 500}, writer.stats)
            assert isinstance(writer.maker, OnePass) == (name == "one")
        assert cog_validate(path, strict=True, quiet=True)[:2] == (True, [])
        found.append(everything_in(path))
    wanted = values if dtype == "float32" else np.where(np.isnan(values), -32768, np.rint(values.astype("f8") * 1e4))
    np.testing.assert_allclose(found[0][1][0], wanted, rtol=0, atol=0 if dtype == "float32" else 1)
    assert found[0][0] == found[1][0]
    for one, two in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(one, two)


def everything_in(path: Path) -> tuple[Any, list[NDArray[np.float32]]]:
    """What GDAL tells of a product, and the pixels of each of its resolutions."""
    with rasterio.open(path) as whole:
        said = [whole.tags(), whole.tags(1), whole.tags(ns="IMAGE_STRUCTURE"), whole.descriptions, whole.colorinterp]
        said += [whole.scales, whole.offsets]
        said += [{**whole.profile, "nodata": str(whole.nodata)}]
        pixels, overviews = [whole.read(1)], len(whole.overviews(1))
    for level in range(overviews):
        with rasterio.open(path, overview_level=level) as overview:
            pixels.append(overview.read(1))
    return said, pixels


def test_a_product_that_is_not_whole_is_none(tmp_path: Path) -> None:
    with CogWriter(tmp_path, GRID, "NDVI", rows_at_once=512) as writer:
        writer.write(some_values()[:512], Window(0, 0, 512, 700))
        with pytest.raises(ValueError, match="358400 pixels were written"):
            writer.finish({}, writer.stats)


@MAKERS
def test_overviews_are_what_gdal_would_make_of_the_product(tmp_path: Path, rows_at_once: int | None) -> None:
    """But for rounding: GDAL too makes each from the one below it."""
    path = write_product(tmp_path, some_values(), rows_at_once)
    options = {"BLOCKSIZE": 512, "OVERVIEWS": "IGNORE_EXISTING", "OVERVIEW_RESAMPLING": "AVERAGE"}
    rasterio.shutil.copy(path, tmp_path / "gdal.tif", driver="COG", **options)
    with rasterio.open(path) as ours, rasterio.open(tmp_path / "gdal.tif") as gdals:
        levels = ours.overviews(1)
        assert levels == gdals.overviews(1) != []
    for level in range(len(levels)):
        with (
            rasterio.open(path, overview_level=level) as ours,
            rasterio.open(tmp_path / "gdal.tif", overview_level=level) as gdals,
        ):
            np.testing.assert_allclose(ours.read(1), gdals.read(1), rtol=0, atol=1e-6)


@MAKERS
def test_an_undamaged_product_is_passed_on(tmp_path: Path, rows_at_once: int | None) -> None:
    values = some_values()
    with damaged(lambda _: None, before=False), rasterio.open(write_product(tmp_path, values, rows_at_once)) as product:
        np.testing.assert_array_equal(product.read(1), values)


def test_nothing_is_published_of_a_damaged_product(tmp_path: Path) -> None:
    source = write_tif(tmp_path / "t.tif", field())
    with damaged(zero_bytes, before=False):
        made = make(source)
    assert made.outcome.error is not None
    assert (made.outcome.error.code, made.outcome.error.transient) == (Code.PRODUCT_INVALID, True)
    assert not made.path.exists()


@pytest.mark.usefixtures("impatient")
def test_a_product_damaged_once_is_made_again(tmp_path: Path) -> None:
    bands = field()
    with damaged(zero_bytes, before=False, times=2):
        made = make(write_tif(tmp_path / "t.tif", bands), transient_attempts=3)
    made.equals(ndvi_of(bands))
    assert made.outcome.attempts == 3


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what a full disk looks like to GDAL."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [4096, 100_000, 1_000_000, 3_000_000])
@pytest.mark.parametrize("window_bytes", [2**20, 2**26])
def test_a_full_scratch_disk_is_not_the_sources_fault(tmp_path: Path, limit: int, window_bytes: int) -> None:
    source = write_tif(tmp_path / "t.tif", field(1024, 1024))
    with file_size_limit(limit):
        made = make(source, window_bytes=window_bytes)
    assert made.outcome.error is not None
    assert made.outcome.error.code in (Code.DISK_FULL, Code.PRODUCT_INVALID)
    assert made.outcome.error.transient
    assert not made.path.exists()


def test_a_scratch_disk_that_is_full_to_the_last_byte(tmp_path: Path) -> None:
    """What is still to be written when the files are closed does not take the place of what is told."""
    noise = np.random.default_rng(3).uniform(-1, 1, (1024, 1024)).astype("float32")
    grid = replace(GRID, height=1024, width=1024)
    full = pytest.raises(Transient, match="could not be written to scratch")
    with full, ExitStack() as limits, CogWriter(tmp_path, grid, "NDVI", rows_at_once=512) as writer:
        writer.write(noise[:512], Window(0, 0, 512, 1024))
        assert isinstance(writer.maker, OnePass)
        writer.maker._wait()
        limits.enter_context(file_size_limit(os.fstat(writer.maker._levels[0]._blocks.fileno()).st_size))
        writer.write(noise[512:], Window(512, 0, 512, 1024))
        writer.finish({}, writer.stats)


# ---------------------------------------------------------------- refused from the header


def bands_described(*descriptions: str) -> Writer:
    return lambda path, bands: write_tif(path, bands, descriptions=descriptions)


def holding(content: bytes) -> Writer:
    def write(path: Path, _: Bands) -> Path:
        path.write_bytes(content)
        return path

    return write


def with_gcps(path: Path, bands: Bands) -> Path:
    write_tif(path, bands, crs=None, transform=Affine.identity())
    points = [GroundControlPoint(r, c, WEST + c, NORTH - r) for r, c in ((0, 0), (0, 90), (60, 0), (60, 90))]
    with rasterio.open(path, "r+") as dataset:
        dataset.gcps = (points, rasterio.crs.CRS.from_epsg(EPSG))
    return path


def converted(driver: str) -> Writer:
    def write(path: Path, bands: Bands) -> Path:
        write_tif(path.with_name("honest.tif"), {n: b.astype("uint8") for n, b in list(bands.items())})
        rasterio.shutil.copy(path.with_name("honest.tif"), path, driver=driver)
        return path

    return write


def part_of(share: float, **options: Any) -> Writer:
    """The first part of an honest file."""

    def write(path: Path, bands: Bands) -> Path:
        write_tif(path, bands, **options)
        os.truncate(path, int(path.stat().st_size * share))
        return path

    return write


def damaged_inside(path: Path, bands: Bands) -> Path:
    """No stream of DEFLATE is zeros; a few zeros amid one can pass."""
    write_tif(path, bands, compress="deflate")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 10)
        file.write(bytes(size * 8 // 10))
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
HTML = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head><body></body></html>"
BIG = {"max_block_bytes": 2**20}

# What the file is; what the manifest says; the settings; the code, and what the message must name.
Refusal = tuple[Writer, dict[str, Any], dict[str, Any], Code, str]
REFUSALS: dict[str, Refusal] = {
    "complex": (
        lambda p, b: write_tif(p, {n: v.astype("complex64") for n, v in b.items()}),
        {}, {}, Code.DTYPE_UNSUPPORTED, r"complex64",
    ),
    "no CRS": (plain(crs=None), {}, {}, Code.CRS_MISSING, r"EPSG:32615"),
    "ground control points": (with_gcps, {}, {}, Code.CRS_MISSING, r"ground control points"),
    "another CRS": (plain(crs="EPSG:32616"), {}, {}, Code.CRS_MISMATCH, r"EPSG:32616.*EPSG:32615"),
    "another datum": (plain(crs="EPSG:26915"), {}, {}, Code.CRS_MISMATCH, r"EPSG:26915.*EPSG:32615"),
    "geographic CRS": (plain(crs="EPSG:4326"), {}, {}, Code.CRS_MISMATCH, r"EPSG:4326.*EPSG:32615"),
    "a CRS of its own": (
        plain(crs="+proj=laea +lat_0=40 +lon_0=-90"), {}, {}, Code.CRS_MISMATCH, r"EPSG:32615",
    ),
    "no transform": (plain(transform=Affine.identity()), {}, {}, Code.GEOREF_MISSING, r"transform"),
    "pixels without a size": (
        plain(transform=Affine(0, 0, WEST, 0, 0, NORTH)), {}, {}, Code.GEOREF_MISSING, r"t\.tif",
    ),
    "pixels without a height": (
        plain(transform=Affine(0.5, 0, WEST, 0, 0, NORTH)), {}, {}, Code.GEOREF_MISSING, r"t\.tif",
    ),
    "a transform of NaN": (
        plain(transform=Affine(np.nan, 0, WEST, 0, -1, NORTH)), {}, {}, Code.GEOREF_MISSING, r"t\.tif",
    ),
    "too many pixels": (plain(), {}, {"max_pixels": 64 * 96 - 1}, Code.SOURCE_TOO_LARGE, r"96 x 64.*6143"),
    "a huge strip": (
        lambda p, _: write_tif(p, field(600, 500), interleave="pixel", **strips_of(600)),
        {}, BIG, Code.SOURCE_TOO_LARGE, r"500 x 600.*2400000.*1048576",
    ),
    "a huge strip of one band": (
        lambda p, _: write_tif(p, field(1200, 500), interleave="band", **strips_of(1200)),
        {}, BIG, Code.SOURCE_TOO_LARGE, r"500 x 1200.*1200000.*1048576",
    ),
    "a band that is not there": (
        plain(), {"bands": {"red": 3, "nir": 5}}, {}, Code.BAND_MISSING, r"nir.*band 5.*4 bands",
    ),
    "a name that is not there": (
        bands_described("blue", "green", "red", "nir"), {"bands": {"red": "red", "nir": "IR9"}}, {},
        Code.BAND_MISSING, r"IR9",
    ),
    "one band for both": (
        bands_described("Blue", "Green", "Red", ""), {"bands": {"red": 3, "nir": "Red"}}, {},
        Code.BAND_CONTRADICTION, r"both taken from band 3",
    ),
    "a description that contradicts": (
        bands_described("Red", "Green", "Blue", "NIR"), {}, {}, Code.BAND_CONTRADICTION, r"band 3.*red.*'Blue'",
    ),
    "a sensor of five bands": (
        plain(), {"sensor": "micasense-rededge-mx"}, {}, Code.BAND_CONTRADICTION, r"5 bands.*4 bands",
    ),
    "nothing": (holding(b""), {}, {}, Code.SOURCE_NOT_RASTER, r"empty"),
    "a web page": (holding(HTML), {}, {}, Code.SOURCE_NOT_RASTER, r"DOCTYPE"),
    "a pointer of Git LFS": (holding(LFS), {}, {}, Code.SOURCE_NOT_RASTER, r"git-lfs"),
    "PNG": (converted("PNG"), {}, {}, Code.SOURCE_NOT_RASTER, r"PNG"),
    "VRT": (converted("VRT"), {}, {}, Code.SOURCE_NOT_RASTER, r"VRTDataset"),
    "gzip": (holding(b"\x1f\x8b\x08\0" + bytes(100)), {}, {}, Code.SOURCE_NOT_RASTER, "gzip file"),
    "a TIFF's first four bytes": (holding(b"II*\0"), {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
    "a TIFF's directory past its end": (holding(b"II*\0\xff\xff\xff\x7f"), {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
    "a TIFF of zeros": (holding(b"II*\0\x08\0\0\0" + bytes(1000)), {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
    "half of a file": (part_of(0.5), {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
    "nearly all of a file": (part_of(0.99), {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
    "half of a compressed file": (
        part_of(0.5, compress="deflate", tiled=True, blockxsize=16, blockysize=16), {}, {},
        Code.SOURCE_CORRUPT, r"corrupt",
    ),
    "zeros amid a compressed file": (damaged_inside, {}, {}, Code.SOURCE_CORRUPT, r"corrupt"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(tmp_path: Path, case: str) -> None:
    write, declared, settings, code, named = REFUSALS[case]
    source = write(tmp_path / "t.tif", field())
    before = source.read_bytes()
    made = make(source, flight=declared, **settings)
    problem = made.outcome.error
    assert problem is not None
    assert (problem.code, problem.transient) == (code, False), problem.message
    assert "t.tif" in problem.message
    assert re.search(named, problem.message, re.DOTALL), problem.message
    assert not made.path.exists()
    assert source.read_bytes() == before


@pytest.mark.parametrize("kind", ["missing", "fifo", "folder", "link to nothing"])
def test_a_source_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.tif"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link to nothing":
            path.symlink_to(tmp_path / "nothing")
    problem = make(path).outcome.error
    assert problem is not None
    wanted = Code.SOURCE_MISSING if kind in ("missing", "link to nothing") else Code.SOURCE_NOT_RASTER
    assert (problem.code, problem.transient) == (wanted, False)


# A file a band: what the NIR file is beside the red one.
BAND_FILES: dict[str, tuple[Writer, Code]] = {
    "another size": (lambda p, _: write_tif(p, [field(64, 95)["nir"]]), Code.GRID_MISMATCH),
    "another place": (lambda p, b: write_tif(p, [b["nir"]], transform=place(1)), Code.GRID_MISMATCH),
    "another CRS": (lambda p, b: write_tif(p, [b["nir"]], crs="EPSG:32616"), Code.CRS_MISMATCH),
    "two bands": (lambda p, b: write_tif(p, [b["nir"], b["red"]]), Code.BAND_CONTRADICTION),
    "red by its own word": (lambda p, b: write_tif(p, [b["nir"]], descriptions=["Red"]), Code.BAND_CONTRADICTION),
    "nothing": (holding(b""), Code.SOURCE_NOT_RASTER),
}


@pytest.mark.parametrize("case", BAND_FILES)
def test_files_that_do_not_belong_together(tmp_path: Path, case: str) -> None:
    bands, (write, code) = field(), BAND_FILES[case]
    red = write_tif(tmp_path / "red.tif", [bands["red"]])
    nir = write(tmp_path / "nir.tif", bands)
    flight = {"sensor": "sentinel-2-l2a"} if case == "two bands" else {}
    made = make({"red": str(red), "nir": str(nir)}, flight=flight)
    assert made.outcome.error is not None
    assert made.outcome.error.code == code, made.outcome.error.message
    assert "nir.tif" in made.outcome.error.message
