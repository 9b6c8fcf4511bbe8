"""Writing a product: one float32 band, a COG that is verified before anyone sees it."""

import math
import os
import warnings
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from flights import crs
from flights.errors import Code, Transient
from flights.raster.environment import THREADS, Grid, gdal
from flights.report import Stats, pool_stats
from flights.windows import Window, strips

BLOCK_PX = 512
# Memory for a strip of an overview with the pixels that it is made of.
_OVERVIEW_BYTES = 8 * 2**20
PRODUCT_TAG = "FLIGHTS_PRODUCT"


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn GDAL's errors of a writer into ours; what can be wrong on this side is the scratch disk."""
    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError) as error:
        raise Transient(Code.DISK_FULL, f"{name}: the product could not be written to scratch ({error})") from error


@dataclass
class CogWriter:
    """Writes one float32 band window by window, and ends with a verified COG.

    Windows go to an uncompressed tiled file, its overviews into files beside it, and the COG driver encodes them all in
    one pass. The COG is opened again and every window compared with the pixels that were handed over, since a full disk
    or a killed writer can leave a file that opens and reads zeros.
    """

    folder: Path
    grid: Grid
    description: str
    compress: str = "zstd"
    _checks: list[list[tuple[Window, int]]] = field(default_factory=lambda: [[]])
    # of the product and of each overview, the checksum of every window written
    _stats: list[Stats] = field(default_factory=list)
    _dataset: Any = None

    def __enter__(self) -> Self:
        with writing(self.description):
            place = {"crs": self.grid.crs, "transform": self.grid.transform}
            self._dataset = _create(self.folder / "strips.tif", self.grid.height, self.grid.width, **place)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._dataset is not None and not self._dataset.closed:
            self._dataset.close()

    def write(self, values: NDArray[np.float32], window: Window) -> None:
        """One window, (rows, cols), NaN for no data."""
        with writing(self.description):
            self._dataset.write(values, 1, window=window.slices)
        self._checks[0].append((window, _checksum(values)))
        self._stats.append(measure(values))

    def finish(self, tags: Mapping[str, str], stats: Stats) -> Path:
        """Make the COG and verify it; `tags` go to the dataset, `stats` to the band."""
        final = self.folder / "product.tif"
        options = {"COMPRESS": "ZSTD", "LEVEL": 1} if self.compress == "zstd" else {"COMPRESS": "DEFLATE", "LEVEL": 6}
        with writing(self.description):
            self._label(tags, stats)
            self._dataset.close()
            levels = self._overviews()
            rasterio.shutil.copy(
                _with_overviews(self.folder / "strips.tif", levels),
                final,
                driver="COG",
                PREDICTOR="YES",
                BLOCKSIZE=BLOCK_PX,
                # Not made by the driver, which encodes them to a file of its own first: a tenth of the whole tile.
                OVERVIEWS="FORCE_USE_EXISTING" if levels else "NONE",
                NUM_THREADS=self._threads,
                BIGTIFF="IF_SAFER",
                **options,
            )
            for path in (self.folder / "strips.tif", self.folder / "strips.vrt", *levels):
                path.unlink(missing_ok=True)
        self._verify(final)
        return final

    @property
    def stats(self) -> Stats:
        """Statistics of what was written so far."""
        return pool_stats(self._stats) or Stats(pixels=0, count=0, valid_fraction=0.0)

    @property
    def _threads(self) -> int:
        """A few blocks are done before threads are up."""
        return THREADS if self.grid.height * self.grid.width > 4 * BLOCK_PX**2 else 1

    def _overviews(self) -> list[Path]:
        """Files of half the size each, until one fits into a block; a pixel is the mean of its valid ones."""
        levels: list[Path] = []
        height, width, below = self.grid.height, self.grid.width, self.folder / "strips.tif"
        while max(height, width) > BLOCK_PX:
            height, width = -(-height // 2), -(-width // 2)
            level, checks = self.folder / f"overview{len(levels)}.tif", []
            with rasterio.open(below) as finer, _create(level, height, width) as coarser:
                for window in strips(height, width, BLOCK_PX, BLOCK_PX, 16, _OVERVIEW_BYTES):
                    (top, bottom), (left, right) = window.slices
                    rows, cols = (2 * top, min(2 * bottom, finer.height)), (2 * left, min(2 * right, finer.width))
                    values = halved(finer.read(1, window=(rows, cols)))
                    coarser.write(values, 1, window=window.slices)
                    checks.append((window, _checksum(values)))
            levels.append(level)
            self._checks.append(checks)
            below = level
        return levels

    def _label(self, tags: Mapping[str, str], stats: Stats) -> None:
        self._dataset.set_band_description(1, self.description)
        self._dataset.colorinterp = [ColorInterp.gray]
        self._dataset.update_tags(**tags)
        if stats.count:  # QGIS stretches by these; without them it samples, and nodata can win
            self._dataset.update_tags(
                1,
                STATISTICS_MINIMUM=stats.min,
                STATISTICS_MAXIMUM=stats.max,
                STATISTICS_MEAN=stats.mean,
                STATISTICS_STDDEV=stats.std,
                STATISTICS_VALID_PERCENT=f"{100 * stats.valid_fraction:.4g}",
            )

    def _verify(self, final: Path) -> None:
        try:
            with rasterio.open(final, driver="GTiff", NUM_THREADS=self._threads) as product:
                said = (product.height, product.width, product.dtypes[0], product.transform)
                wanted = (self.grid.height, self.grid.width, "float32", self.grid.transform)
                if said != wanted or not np.isnan(product.nodata):
                    raise _unverified(f"it says {said}, nodata {product.nodata}; wanted {wanted}, nodata nan")
                if not crs.is_same(product.crs.to_wkt(), self.grid.crs.to_wkt()):
                    raise _unverified(f"it is in {crs.name_of(product.crs.to_wkt())}")
                _compare(product, self._checks[0])
            for level, checks in enumerate(self._checks[1:]):  # what a viewer shows first
                with rasterio.open(final, driver="GTiff", overview_level=level, NUM_THREADS=self._threads) as overview:
                    _compare(overview, checks)
        except RasterioError as error:
            raise _unverified(str(error)) from error


def _create(path: Path, height: int, width: int, **place: Any) -> Any:
    """An uncompressed float32 file in blocks, open for writing."""
    profile = {"driver": "GTiff", "count": 1, "dtype": "float32", "nodata": np.nan, "BIGTIFF": "IF_SAFER"}
    blocks = {"tiled": True, "blockxsize": BLOCK_PX, "blockysize": BLOCK_PX}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # an overview takes its place from its product
        return rasterio.open(path, "w", height=height, width=width, **profile, **blocks, **place)


def halved(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Half as many rows and columns (one more where they are odd): the mean of the valid pixels, NaN where none is."""
    if values.shape[0] % 2 or values.shape[1] % 2:
        edges = [(0, side % 2) for side in values.shape]
        values = np.pad(values, edges, constant_values=np.nan)
    quarters = (values[::2, ::2], values[::2, 1::2], values[1::2, ::2], values[1::2, 1::2])
    mean: NDArray[np.float32] = ((quarters[0] + quarters[1]) + (quarters[2] + quarters[3])) * np.float32(0.25)
    partial = np.isnan(mean)
    if partial.any():  # some of four are not valid: rare but for edges
        four = np.stack([quarter[partial] for quarter in quarters])
        valid = ~np.isnan(four)
        count = valid.sum(axis=0)
        # The very NaN that is declared as nodata: GDAL leaves a block of nothing else out, and reads that one back.
        empty = np.full(count.shape, np.nan, np.float32)
        mean[partial] = np.divide(np.where(valid, four, 0).sum(axis=0), count, out=empty, where=count > 0)
    return mean


def _with_overviews(path: Path, levels: Sequence[Path]) -> Path:
    """A raster that has those files for its overviews; a VRT, since GDAL writes no overview that it has not made."""
    if not levels:
        return path
    vrt = path.with_suffix(".vrt")
    rasterio.shutil.copy(path, vrt, driver="VRT")
    tree = ElementTree.parse(vrt)
    band = tree.getroot().find("VRTRasterBand")
    assert band is not None
    for level in levels:
        overview = ElementTree.SubElement(band, "Overview")
        ElementTree.SubElement(overview, "SourceFilename", relativeToVRT="1").text = level.name
        ElementTree.SubElement(overview, "SourceBand").text = "1"
    tree.write(vrt)
    return vrt


def _compare(dataset: Any, checks: Sequence[tuple[Window, int]]) -> None:
    for window, checksum in checks:
        if _checksum(dataset.read(1, window=window.slices)) != checksum:
            raise _unverified(f"the pixels of {window} are not those that were written")


def _unverified(why: str) -> Transient:
    return Transient(Code.PRODUCT_INVALID, f"the finished product does not read back as written: {why}")


def _checksum(values: NDArray[np.float32]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)


def measure(values: NDArray[np.float32]) -> Stats:
    """Statistics of one array over its valid (not NaN) pixels, in float64."""
    valid = values[~np.isnan(values)].astype(np.float64)
    if not valid.size:
        return Stats(pixels=values.size, count=0, valid_fraction=0.0)
    low, high, mean = float(valid.min()), float(valid.max()), float(valid.mean())
    valid -= mean
    return Stats(
        pixels=values.size,
        count=valid.size,
        valid_fraction=valid.size / values.size,
        min=low,
        max=high,
        mean=mean,
        std=math.sqrt(float(np.square(valid, out=valid).mean())),
    )


def _is_whole(dataset: Any, path: str) -> bool:
    """Whether the last block of a product, which lies at the end of a COG, lies within the file."""
    height, width = dataset.block_shapes[0]
    last = f"{(dataset.width - 1) // width}_{(dataset.height - 1) // height}"
    offset, size = (dataset.get_tag_item(f"BLOCK_{what}_{last}", "TIFF", bidx=1) for what in ("OFFSET", "SIZE"))
    return bool(offset and size) and int(offset) + int(size) <= os.path.getsize(path)


def read_product_tag(path: str) -> str | None:
    """What a local product says of itself, None where the file is not one of ours, or cut off."""
    with gdal():
        try:
            with rasterio.open(path, driver="GTiff") as dataset:
                tag = dataset.tags().get(PRODUCT_TAG)
                return str(tag) if tag and _is_whole(dataset, path) else None
        except RasterioError:
            return None
