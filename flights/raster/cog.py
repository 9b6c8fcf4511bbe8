"""Writing a product: one float32 band, a COG that is verified before anyone sees it."""

import os
import zlib
from collections.abc import Iterator, Mapping
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
from rasterio.errors import RasterioError

from flights import crs
from flights.errors import Code, Transient
from flights.raster.environment import Grid, gdal
from flights.report import Stats, pool_stats
from flights.windows import Window

BLOCK_PX = 512
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

    Windows go to an uncompressed tiled file, from which the COG driver runs once; the COG is opened again and every
    window compared with the pixels that were handed over, since a full disk or a killed writer can leave a file
    that opens and reads zeros.
    """

    folder: Path
    grid: Grid
    description: str
    compress: str = "zstd"
    _checks: list[tuple[Window, int]] = field(default_factory=list)
    _stats: list[Stats] = field(default_factory=list)
    _dataset: Any = None

    def __enter__(self) -> Self:
        with writing(self.description):
            self._dataset = rasterio.open(
                self.folder / "strips.tif",
                "w",
                driver="GTiff",
                height=self.grid.height,
                width=self.grid.width,
                count=1,
                dtype="float32",
                crs=self.grid.crs,
                transform=self.grid.transform,
                nodata=np.nan,
                tiled=True,
                blockxsize=BLOCK_PX,
                blockysize=BLOCK_PX,
                BIGTIFF="IF_SAFER",
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._dataset is not None and not self._dataset.closed:
            self._dataset.close()

    def write(self, values: NDArray[np.float32], window: Window) -> None:
        """One window, (rows, cols), NaN for no data."""
        with writing(self.description):
            self._dataset.write(values, 1, window=window.slices)
        self._checks.append((window, _checksum(values)))
        self._stats.append(measure(values))

    def finish(self, tags: Mapping[str, str], stats: Stats) -> Path:
        """Make the COG and verify it; `tags` go to the dataset, `stats` to the band."""
        final = self.folder / "product.tif"
        options = {"COMPRESS": "ZSTD", "LEVEL": 1} if self.compress == "zstd" else {"COMPRESS": "DEFLATE", "LEVEL": 6}
        with writing(self.description):
            self._label(tags, stats)
            self._dataset.close()
            rasterio.shutil.copy(
                self.folder / "strips.tif",
                final,
                driver="COG",
                PREDICTOR="YES",
                BLOCKSIZE=BLOCK_PX,
                OVERVIEW_RESAMPLING="AVERAGE",
                BIGTIFF="IF_SAFER",
                **options,
            )
            os.unlink(self.folder / "strips.tif")
        self._verify(final)
        return final

    @property
    def stats(self) -> Stats:
        """Statistics of what was written so far."""
        return pool_stats(self._stats) or Stats(pixels=0, count=0, valid_fraction=0.0)

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
            with rasterio.open(final, driver="GTiff") as product:
                said = (product.height, product.width, product.dtypes[0], product.transform)
                wanted = (self.grid.height, self.grid.width, "float32", self.grid.transform)
                if said != wanted or not np.isnan(product.nodata):
                    raise _unverified(f"it says {said}, nodata {product.nodata}; wanted {wanted}, nodata nan")
                if not crs.is_same(product.crs.to_wkt(), self.grid.crs.to_wkt()):
                    raise _unverified(f"it is in {crs.name_of(product.crs.to_wkt())}")
                for window, checksum in self._checks:
                    if _checksum(product.read(1, window=window.slices)) != checksum:
                        raise _unverified(f"the pixels of {window} are not those that were written")
                levels = len(product.overviews(1))
            for level in range(levels):  # what a viewer shows first
                with rasterio.open(final, driver="GTiff", overview_level=level) as overview:
                    for _, window in overview.block_windows(1):
                        overview.read(1, window=window)
        except RasterioError as error:
            raise _unverified(str(error)) from error


def _unverified(why: str) -> Transient:
    return Transient(Code.PRODUCT_INVALID, f"the finished product does not read back as written: {why}")


def _checksum(values: NDArray[np.float32]) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data)


def measure(values: NDArray[np.float32]) -> Stats:
    """Statistics of one array over its valid (not NaN) pixels, in float64."""
    valid = values[~np.isnan(values)].astype(np.float64)
    if not valid.size:
        return Stats(pixels=values.size, count=0, valid_fraction=0.0)
    return Stats(
        pixels=values.size,
        count=valid.size,
        valid_fraction=valid.size / values.size,
        min=float(valid.min()),
        max=float(valid.max()),
        mean=float(valid.mean()),
        std=float(valid.std()),
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
