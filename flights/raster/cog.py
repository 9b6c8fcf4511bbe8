"""Writing a product: one float32 band, a COG that is verified before anyone sees it."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.enums import ColorInterp
from rasterio.errors import RasterioError

from flights import crs
from flights.errors import Code, Transient
from flights.raster import onepass
from flights.raster.environment import BLOCK_PX, THREADS, THREADS_FROM_PX, Grid, gdal
from flights.raster.onepass import OnePass
from flights.raster.overviews import Checks, checksum
from flights.raster.pixels import FORMATS
from flights.raster.staged import Staged
from flights.report import Stats, pool_stats
from flights.windows import Window

PRODUCT_TAG = "FLIGHTS_PRODUCT"
_PROFILE = {"driver": "GTiff", "count": 1, "tiled": True, "blockxsize": BLOCK_PX, "blockysize": BLOCK_PX}
_ENCODINGS = {"zstd": {"COMPRESS": "ZSTD", "ZSTD_LEVEL": 1}, "deflate": {"COMPRESS": "DEFLATE", "ZLEVEL": 6}}


@contextmanager
def writing(name: str) -> Iterator[None]:
    """Turn GDAL's errors of a writer into ours; what can be wrong on this side is the scratch disk."""
    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError) as error:
        raise Transient(Code.DISK_FULL, f"{name}: the product could not be written to scratch ({error})") from error


class CogWriter:
    """Writes one band window by window, and ends with a verified COG.

    The finished file is opened again and held to what was handed over, since a full disk or a killed writer can leave a
    file that opens and reads zeros. `dtype` is one of `FORMATS`. `rows_at_once` is how many rows the windows, in the
    order of `windows.strips`, may leave unfinished; None where the windows come in another order.
    """

    def __init__(
        self,
        folder: Path,
        grid: Grid,
        description: str,
        *,
        compress: str = "zstd",
        dtype: str = "float32",
        rows_at_once: int | None = None,
    ) -> None:
        self.folder, self.grid, self.description = folder, grid, description
        self._format = FORMATS[dtype]
        self._profile = {"dtype": dtype, "nodata": self._format.nodata, **_PROFILE}
        self._encoding = {**_ENCODINGS[compress], "PREDICTOR": self._format.predictor}
        self._rows_at_once = rows_at_once
        self._stats: list[Stats] = []
        self._maker: OnePass | Staged | None = None

    def __enter__(self) -> Self:
        with writing(self.description):
            if self._rows_at_once is not None and onepass.fits(self.grid, self._rows_at_once):
                self._maker = OnePass(self.folder, self.grid, {**self._profile, **self._encoding}, self._format)
            else:
                self._maker = Staged(self.folder, self.grid, self._profile, self._encoding, self._format)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._maker is not None:
            self._maker.close()

    @property
    def maker(self) -> OnePass | Staged:
        """What makes the file, inside the `with` block."""
        assert self._maker is not None
        return self._maker

    def write(self, values: NDArray[np.float32], window: Window) -> None:
        """One window of values, (rows, cols), NaN for no data."""
        with writing(self.description):
            self.maker.write(values, window)
        self._stats.append(measure(values))

    def finish(self, tags: Mapping[str, str], stats: Stats) -> Path:
        """Make the COG and verify it; `tags` go to the dataset, `stats` to the band."""
        final = self.folder / "product.tif"
        with writing(self.description):
            self.maker.finish(final, lambda dataset: self._label(dataset, tags, stats))
        self._verify(final)
        return final

    @property
    def stats(self) -> Stats:
        """Statistics of what was written so far."""
        return pool_stats(self._stats) or Stats(pixels=0, count=0, valid_fraction=0.0)

    def _label(self, dataset: Any, tags: Mapping[str, str], stats: Stats) -> None:
        dataset.set_band_description(1, self.description)
        dataset.colorinterp = [ColorInterp.gray]
        dataset.update_tags(**tags)
        if self._format.scale != 1:
            dataset.scales = (self._format.scale,)
        if stats.count:  # QGIS stretches by these; without them it samples, and nodata can win
            names = {"MINIMUM": stats.min, "MAXIMUM": stats.max, "MEAN": stats.mean, "STDDEV": stats.std}
            # Of pixels, not of the values that they stand for.
            of_pixels = {name: (value or 0.0) / self._format.scale for name, value in names.items()}
            if self._format.scale != 1:
                of_pixels |= {name: round(of_pixels[name]) for name in ("MINIMUM", "MAXIMUM")}
            said = {f"STATISTICS_{name}": value for name, value in of_pixels.items()}
            dataset.update_tags(1, **said, STATISTICS_VALID_PERCENT=f"{100 * stats.valid_fraction:.4g}")

    def _verify(self, final: Path) -> None:
        checks, size = self.maker.checks, self.grid.height * self.grid.width
        threads = THREADS if size >= THREADS_FROM_PX else 1
        try:
            if why := self.maker.differs(final):
                raise _unverified(why)
            with rasterio.open(final, driver="GTiff", NUM_THREADS=threads) as product:
                said = (product.height, product.width, product.dtypes[0], product.transform)
                wanted = (self.grid.height, self.grid.width, self._format.dtype, self.grid.transform)
                nodata = self._format.nodata
                if said != wanted or not np.array_equal(product.nodata, nodata, equal_nan=True):
                    raise _unverified(f"it says {said}, nodata {product.nodata}; wanted {wanted}, nodata {nodata}")
                if not crs.is_same(product.crs.to_wkt(), self.grid.crs.to_wkt()):
                    raise _unverified(f"it is in {crs.name_of(product.crs.to_wkt())}")
                _compare(product, checks[0])
            for level, of_level in enumerate(checks[1:]):  # what a viewer shows first
                with rasterio.open(final, driver="GTiff", overview_level=level, NUM_THREADS=threads) as overview:
                    _compare(overview, of_level)
        except (RasterioError, OSError) as error:
            raise _unverified(str(error)) from error


def _compare(dataset: Any, checks: Checks) -> None:
    for window, wanted in checks:
        if checksum(dataset.read(1, window=window.slices)) != wanted:
            raise _unverified(f"the pixels of {window} are not those that were written")


def _unverified(why: str) -> Transient:
    return Transient(Code.PRODUCT_INVALID, f"the finished product does not read back as written: {why}")


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
