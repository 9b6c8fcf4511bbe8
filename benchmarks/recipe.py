"""The GDAL recipe: what someone who knows GDAL well writes with rasterio alone, in one thread and bounded memory.

It verifies nothing, keeps no statistics and no tags, and publishes nothing: the pixels of the product, made quickly.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil

from benchmarks.contender import NIR, RED

COG = {
    "driver": "COG",
    "COMPRESS": "ZSTD",
    "LEVEL": 1,
    "PREDICTOR": "YES",
    "BLOCKSIZE": 512,
    "OVERVIEW_RESAMPLING": "AVERAGE",
    "BIGTIFF": "IF_SAFER",
}
ENVIRONMENT = {"GDAL_CACHEMAX": 64 * 2**20, "GDAL_NUM_THREADS": 1, "COG_TMP_COMPRESSION": "NONE"}

Rows = tuple[tuple[int, int], tuple[int, int]]


def make(source: str, product: str) -> None:
    """NDVI of a local file, in strips of one block row; NaN where a band is nodata."""
    with rasterio.Env(**ENVIRONMENT), tempfile.TemporaryDirectory(dir=Path(product).parent) as folder:
        pixels = Path(folder) / "strips.tif"
        with rasterio.open(source) as src, rasterio.open(pixels, "w", **strips_profile(src)) as out:
            for window in block_rows(src):
                red, nir = src.read([RED, NIR], window=window)
                missing = (red == src.nodata) | (nir == src.nodata)
                red, nir = red.astype(np.float32), nir.astype(np.float32)
                with np.errstate(invalid="ignore"):
                    ndvi = (nir - red) / (nir + red)
                ndvi[missing] = np.nan
                out.write(ndvi, 1, window=window)
        rasterio.shutil.copy(pixels, product, **COG)


def strips_profile(src: Any) -> dict[str, Any]:
    """An uncompressed tiled file of one float32 band on the source's grid."""
    profile: dict[str, Any] = {"driver": "GTiff", "height": src.height, "width": src.width, "count": 1}
    profile |= {"dtype": "float32", "crs": src.crs, "transform": src.transform, "nodata": np.nan}
    return profile | {"tiled": True, "blockxsize": 512, "blockysize": 512, "BIGTIFF": "IF_SAFER"}


def block_rows(src: Any) -> Iterator[Rows]:
    """Windows of the whole width and one row of blocks."""
    height = src.block_shapes[0][0]
    for row in range(0, src.height, height):
        yield (row, min(row + height, src.height)), (0, src.width)
