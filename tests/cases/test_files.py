"""What is not a raster, is half of one, or is laid out in an unusual way."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp as Colour
from rio_cogeo.cogeo import cog_validate

from tests.cases.scene import FIELD, SIDE, Scene, box, expected, flat, one, put, reflectance, write_source
from tests.synthetic import field, oracle_ndvi, place

# ---------------------------------------------------------------- not a raster

NOT_A_TIFF = {
    "page": b"<!DOCTYPE html>\n<html><head><title>503 Service Unavailable</title></head></html>\n",
    "answer": b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>',
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 2465792\n",
    "json": b'{"error": "not found"}',
    "text": b"II",
    "zeros": bytes(4096),
    "virtual": b'<VRTDataset rasterXSize="32" rasterYSize="32"><SRS>EPSG:32615</SRS></VRTDataset>',
    "newline": b"\nII*\0\x08\0\0\0",
}


def test_empty_files_do_not_stop_the_others(tmp_path: Path) -> None:
    """rasterio#2152, Esri/OptimizeRasters#4: two bad tiles are two named failures, the third tile is made."""
    scene = Scene(tmp_path)
    (tmp_path / "src").mkdir()
    for tile_id, content in (("zero", b""), ("header", b"II*\0\x08\0\0\0"), ("big", b"II+\0\x08\0\0\0")):
        (tmp_path / "src" / f"{tile_id}.tif").write_bytes(content)
        scene.tile(tile_id, f"src/{tile_id}.tif")
    scene.add("good", flat())
    found = scene.run()
    found.refusal("zero", "empty", "0 bytes")
    found.refusal("header", "header.tif", "cannot be opened")
    found.refusal("big", "big.tif", "cannot be opened")
    found.assert_tile("good", expected(flat()))
    assert (found.report.tiles.total, found.report.tiles.done, found.report.tiles.failed) == (4, 1, 3)
    assert (found.report.complete, found.report.mosaic) == (False, None)


def test_what_only_bears_the_name_of_a_tiff(tmp_path: Path) -> None:
    """ec-jrc/nrt#6, tilezen/joerd#74, CLIMADA-project/climada_python#994: said with the first bytes that are there."""
    scene = Scene(tmp_path)
    (tmp_path / "src").mkdir()
    for tile_id, content in NOT_A_TIFF.items():
        (tmp_path / "src" / f"{tile_id}.tif").write_bytes(content)
        scene.tile(tile_id, f"src/{tile_id}.tif")
    photo = write_source(tmp_path / "plain.png", flat(60, 180, dtype="uint8"), driver="PNG", crs=None, placed=False)
    photo.rename(tmp_path / "src" / "png.tif")
    Path(f"{photo}.aux.xml").unlink(missing_ok=True)
    packed = write_source(tmp_path / "packed.tif", flat())
    (tmp_path / "src" / "gzip.tif").write_bytes(gzip.compress(packed.read_bytes()))
    for tile_id in ("png", "gzip"):
        scene.tile(tile_id, f"src/{tile_id}.tif")
    (tmp_path / "src" / "folder.tif").mkdir()
    scene.tile("folder", "src/folder.tif")
    found = scene.run(composite="never")
    for tile_id, content in NOT_A_TIFF.items():
        message = found.refusal(tile_id, "not a GeoTIFF")
        assert repr(content[:12])[2:-1] in message
    found.refusal("png", "not a GeoTIFF", "PNG")
    found.refusal("gzip", "not a GeoTIFF")
    found.refusal("folder", "is a folder")
    assert found.report.tiles.failed == len(scene.tiles)


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows": {"blockysize": 1, "interleave": "pixel"},
    "deflate": {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"},
    "lzw": {"compress": "lzw", "predictor": 2},
    "zstd": {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "zstd"},
    "jpeg": {"compress": "jpeg", "photometric": "ycbcr", "interleave": "pixel", "tiled": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_a_file_is_no_tile(layout: str, tmp_path: Path) -> None:
    """Open-EO/openeo-geopyspark-driver#384: an upload that broke off opens, and reads zeros or grey at its end."""
    bands: Any = field(150, 160)
    if layout == "jpeg":
        bands = [(bands[name] % 250).astype("uint8") for name in ("red", "green", "nir")]
    scene = Scene(tmp_path)
    says = {"bands": {"red": 1, "nir": 3}} if layout == "jpeg" else {}
    content = scene.add("whole", bands, says, **LAYOUTS[layout]).read_bytes()
    for percent in (30, 60, 95):
        (tmp_path / "src" / f"{percent}.tif").write_bytes(content[: len(content) * percent // 100])
        scene.tile(f"{percent}", f"src/{percent}.tif", **says)
    found = scene.run(composite="never")
    assert found.tile("whole").valid > 0
    for percent in (30, 60, 95):
        found.refusal(f"{percent}", "corrupt", f"{percent}.tif")


@pytest.mark.parametrize("layout", ["deflate", "zstd", "lzw"])
def test_a_block_of_rubbish_is_no_tile(layout: str, tmp_path: Path) -> None:
    """geosolutions-it/aaime#2: bytes that cannot be decoded are said, once, without trying again."""
    scene = Scene(tmp_path)
    path = scene.add("t", field(150, 160), **LAYOUTS[layout])
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes([0xAA, 0x55] * 200)
    path.write_bytes(content)
    scene.run(composite="never").refusal("t", "corrupt", "t.tif")


# ---------------------------------------------------------------- layouts


def test_how_a_source_is_laid_out_does_not_leak_into_the_product(tmp_path: Path) -> None:
    """rasterio#2668, opengeos/GeoLibre#789: one strip, heights that no 16 divides, one row a strip."""
    scene = Scene(tmp_path)
    shapes = {"one-strip": (37, 41), "rows": (300, 700), "tiles": (530, 513), "wide": (3, 1500)}
    how: dict[str, dict[str, Any]] = {
        "one-strip": {"blockysize": 37, "interleave": "band"},
        "rows": {"blockysize": 1, "interleave": "pixel", "compress": "lzw", "predictor": 2},
        "tiles": {"tiled": True, "blockxsize": 16, "blockysize": 48, "interleave": "pixel"},
        "wide": {"blockysize": 2, "interleave": "band", "compress": "packbits"},
    }
    wanted = {}
    for i, (tile_id, shape) in enumerate(shapes.items()):
        bands = field(*shape, seed=i)
        scene.add(tile_id, bands, **how[tile_id])
        wanted[tile_id] = oracle_ndvi(bands["red"], bands["nir"])
    found = scene.run(composite="never")
    for tile_id, pixels in wanted.items():
        found.assert_tile(tile_id, pixels)
        uri = found.outcome(tile_id).dst_uri
        assert cog_validate(uri, strict=True, quiet=True)[:2] == (True, [])
        with rasterio.open(uri) as product:
            # Any raster up to 512 x 512 is a single block.
            assert product.profile["tiled"] or max(product.shape) <= 512
            assert product.profile["compress"] == "zstd"


def test_tiny_and_odd_sizes(tmp_path: Path) -> None:
    """rasterio#1760, cogeotiff/rio-cogeo#80, pysheds/pysheds#95: blocks are larger than the raster."""
    shapes = [(1, 1), (1, 2), (1, 50), (50, 1), (15, 17), (513, 1), (1, 513), (512, 512), (513, 513), (2, 1025)]
    scene = Scene(tmp_path)
    for i, (height, width) in enumerate(shapes):
        bands = field(height, width, seed=i)
        scene.add(f"s{height}x{width}", bands, transform=place(2000 * i))
    found = scene.run(composite="never")
    for i, (height, width) in enumerate(shapes):
        bands = field(height, width, seed=i)
        found.assert_tile(f"s{height}x{width}", oracle_ndvi(bands["red"], bands["nir"]))


@pytest.mark.parametrize("compress", ["deflate", "lzw", "zstd", "lzma", "packbits", "lerc", "lerc_zstd"])
def test_a_codec_without_loss_changes_nothing(compress: str, tmp_path: Path) -> None:
    bands = field(70, 90)
    scene = Scene(tmp_path)
    scene.add("whole", bands, compress=compress)
    scene.add("real", {name: (band / 1e4).astype("float32") for name, band in bands.items()}, compress=compress)
    found = scene.run(composite="never")
    for tile_id in ("whole", "real"):
        # Reals are rounded to float32 on the way in.
        found.assert_tile(tile_id, oracle_ndvi(bands["red"], bands["nir"]), 1e-6)


def test_fewer_bits_than_the_type_has(tmp_path: Path) -> None:
    """Twelve bits in sixteen: full scale is 4095, which is where such a sensor saturates."""
    bands = put(flat(800, 3200), {(3, 3): (4095, 4095), (4, 4): (1, 4095)})
    found = one(tmp_path, bands, NBITS=12, compress="deflate")
    found.assert_tile("t", expected(bands))
    quality = found.outcome("t").quality
    assert quality
    assert quality.saturated == 2


def test_a_photo_in_ycbcr(tmp_path: Path) -> None:
    """rasterio#3311, IGNF/FLAIR-1#23, cogeotiff/rio-cogeo#41: its photometry and its loss are the source's alone."""
    bands = flat(60, 180, (64, 64), "uint8")
    bands["red"][:, 32:], bands["nir"][:, 32:] = 150, 100
    scene = Scene(tmp_path)
    stack = [bands["red"], np.full((64, 64), 110, "uint8"), bands["nir"]]
    scene.add(
        "t",
        stack,
        compress="jpeg",
        photometric="ycbcr",
        jpeg_quality=95,
        tiled=True,
        blockxsize=64,
        blockysize=64,
        interleave="pixel",
    )
    found = scene.run(composite="never", bands={"red": 1, "nir": 3})
    away = np.r_[0:28, 36:64]  # colours run into one another where they meet
    np.testing.assert_allclose(found.tile("t").values[:, away], expected(bands)[:, away], atol=0.06)
    assert found.tile("t").valid == 64 * 64
    with rasterio.open(found.outcome("t").dst_uri) as product:
        assert product.profile["compress"] == "zstd"
        assert product.colorinterp == (Colour.gray,)


def test_a_photo_in_jpeg_with_a_mask(tmp_path: Path) -> None:
    """geosolutions-it/aaime#2: loss blurs the collar's zeros into ones and twos, so only the mask is to be trusted."""
    shape = (64, 64)
    bands = flat(60, 180, shape, "uint8")
    under = box(slice(None), slice(20), shape)
    for band in bands.values():
        band[under] = 0
    stack = [bands["red"], bands["green"], bands["nir"]]
    scene = Scene(tmp_path)
    scene.add("t", stack, shown=~under, compress="jpeg", photometric="ycbcr", interleave="pixel", jpeg_quality=75)
    found = scene.run(composite="never", bands={"red": 1, "nir": 3}).tile("t")
    np.testing.assert_array_equal(np.isnan(found.values), under)
    np.testing.assert_allclose(found.values[:, 32:], 0.5, atol=0.06)


@pytest.mark.parametrize("name", ["BigTIFF", "JPEG 2000", "COG"])
def test_other_raster_files(name: str, tmp_path: Path) -> None:
    """A COG has overviews, a BigTIFF wide offsets; JPEG 2000 comes without loss from a .jp2 by another name."""
    bands = field(70, 90)
    how: dict[str, dict[str, Any]] = {
        "BigTIFF": {"BIGTIFF": "YES"},
        "JPEG 2000": {"driver": "JP2OpenJPEG", "CODEC": "JP2", "QUALITY": "100", "REVERSIBLE": "YES"},
        "COG": {"driver": "COG", "BLOCKSIZE": 128},
    }
    found = one(tmp_path, bands, **how[name])
    found.assert_tile("t", oracle_ndvi(bands["red"], bands["nir"]))


def test_complex_numbers_are_refused(tmp_path: Path) -> None:
    bands = {name: band.astype("complex64") for name, band in reflectance().items()}
    one(tmp_path, bands).refusal("t", "complex")


def _lies(tag: int, value: int) -> Callable[[bytes], bytes]:
    """A TIFF whose header claims another value of a tag (SHORT or LONG, little-endian)."""

    def change(content: bytes) -> bytes:
        raw = bytearray(content)
        at = int.from_bytes(raw[4:8], "little")
        for entry in range(at + 2, at + 2 + 12 * int.from_bytes(raw[at : at + 2], "little"), 12):
            if int.from_bytes(raw[entry : entry + 2], "little") == tag:
                raw[entry + 2 : entry + 4] = (4).to_bytes(2, "little")
                raw[entry + 8 : entry + 12] = value.to_bytes(4, "little")
                return bytes(raw)
        raise AssertionError(f"no tag {tag}")

    return change


@pytest.mark.parametrize(("tag", "value"), [(256, 2_000_000_000), (257, 2_000_000_000), (278, 1_500_000_000)])
def test_a_header_that_claims_the_moon(tag: int, value: int, tmp_path: Path) -> None:
    """ImageWidth, ImageLength, RowsPerStrip: believed, they are terabytes; refused before a byte is set aside."""
    scene = Scene(tmp_path)
    path = scene.add("t", flat(shape=(SIDE, SIDE)))
    path.write_bytes(_lies(tag, value)(path.read_bytes()))
    found = scene.run(composite="never")
    if found.outcome("t").error is None:  # more rows a strip than there are rows is no lie that hurts
        assert tag == 278
        found.assert_tile("t", np.full((SIDE, SIDE), FIELD))
    else:
        found.refusal("t", "t.tif")
