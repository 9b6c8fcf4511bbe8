"""What of a file has to be fetched: held to GDAL's own word of where its blocks lie."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from flights.raster.layout import GAP_BYTES, Layout, read_layout

BANDS = 4


def write(path: Path, **options: Any) -> Path:
    profile: dict[str, Any] = {"driver": "GTiff", "width": 300, "height": 200, "count": BANDS, "dtype": "uint16"}
    profile |= {"crs": "EPSG:32615", "transform": Affine(0.5, 0, 500_000, 0, -0.5, 4_650_000), "interleave": "band"}
    profile |= {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"} | options
    values = np.random.default_rng(1).integers(1, 60_000, (BANDS, 200, 300), dtype=np.uint16)
    values[:, :64, :64] = 0
    with rasterio.open(path, "w", **profile) as out:
        out.descriptions = [f"band {i}" for i in range(BANDS)]
        out.write(values)
    return path


def blocks_of(path: Path, band: int) -> list[tuple[int, int]]:
    """Where GDAL says that the blocks of a band lie."""
    found = []
    with rasterio.open(path) as dataset:
        for (row, col), _ in dataset.block_windows(band):
            offset = dataset.get_tag_item(f"BLOCK_OFFSET_{col}_{row}", "TIFF", bidx=band)
            size = dataset.get_tag_item(f"BLOCK_SIZE_{col}_{row}", "TIFF", bidx=band)
            if offset:
                found.append((int(offset), int(offset) + int(size)))
    return found


OPTIONS: dict[str, Mapping[str, Any]] = {
    "tiles": {},
    "strips": {"tiled": False, "blockysize": 16, "blockxsize": 300},
    "one strip": {"tiled": False, "blockysize": 200, "blockxsize": 300},
    "sparse": {"SPARSE_OK": "TRUE"},
    "big-endian": {"ENDIANNESS": "BIG"},
    "BigTIFF": {"BIGTIFF": "YES"},
    "BigTIFF, big-endian": {"BIGTIFF": "YES", "ENDIANNESS": "BIG"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("bands", [{1}, {2, 4}, {1, 2, 3, 4}])
def test_the_ranges_hold_what_gdal_reads(tmp_path: Path, options: Mapping[str, Any], bands: set[int]) -> None:
    path = write(tmp_path / "t.tif", **options)
    layout = read_layout(path.read_bytes())
    assert layout is not None
    ranges = layout.ranges_of(bands)
    for start, stop in (block for band in bands for block in blocks_of(path, band)):
        assert any(a <= start and stop <= b for a, b in ranges)
    assert sorted(ranges) == ranges
    assert all(b[0] - a[1] >= GAP_BYTES for a, b in itertools.pairwise(ranges))


def test_distant_blocks_are_fetched_apart_and_near_ones_together() -> None:
    layout = Layout(3, [(1_000, 2_000), (2_000, 3_000), (500_000, 600_000), (700_000, 800_000), (0, 0), (9_000, 9_500)])
    assert layout.ranges_of({1}) == [(996, 3_004)]
    assert layout.ranges_of({1, 2}) == [(996, 3_004), (499_996, 800_004)]
    assert layout.ranges_of({3}) == [(8_996, 9_504)]


def pixel_interleaved(path: Path) -> None:
    write(path, interleave="pixel")


def masked(path: Path) -> None:
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(write(path), "r+") as out:
        out.write_mask(np.full((200, 300), 255, np.uint8))


def two_images(path: Path) -> None:
    rasterio.shutil.copy(write(path.with_name("one.tif")), path, driver="GTiff", INTERLEAVE="BAND")
    rasterio.shutil.copy(path.with_name("one.tif"), path, driver="GTiff", APPEND_SUBDATASET="YES", INTERLEAVE="BAND")


def uncompressed(path: Path) -> None:
    """libtiff reads a whole block of it, whatever the byte counts say."""
    write(path, compress="none")


UNUSUAL = [pixel_interleaved, masked, two_images, uncompressed]


@pytest.mark.parametrize("make", UNUSUAL, ids=lambda make: make.__name__)
def test_nothing_is_concluded_of_an_unusual_file(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "t.tif")
    assert read_layout((tmp_path / "t.tif").read_bytes()) is None


def test_overviews_are_left_where_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tif")
    before = read_layout(path.read_bytes())
    with rasterio.open(path, "r+") as out:
        out.build_overviews([2, 4])
    assert read_layout(path.read_bytes()) == before


def test_nothing_is_concluded_of_a_part_of_a_header(tmp_path: Path) -> None:
    raw = write(tmp_path / "t.tif").read_bytes()
    first = min(start for band in range(1, BANDS + 1) for start, _ in blocks_of(tmp_path / "t.tif", band))
    whole = read_layout(raw)
    told = [length for length in range(first + 1) if read_layout(raw[:length]) is not None]
    assert all(read_layout(raw[:length]) == whole for length in told)
    assert told == list(range(told[0], first + 1))
    assert told[0] > 100


@pytest.mark.parametrize("raw", [b"", b"II*\0", b"\x89PNG", b"II*\0" + b"\xff" * 40, b"II+\0" + b"\xff" * 60])
def test_nothing_is_concluded_of_something_else(raw: bytes) -> None:
    assert read_layout(raw) is None
