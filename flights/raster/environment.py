"""GDAL as this package uses it, and what a raster's place is."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rasterio
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import Affine

# A raster without a place is refused with our own words; for all threads, which is why it is set once.
warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

_GDAL = {
    "GDAL_CACHEMAX": 64,  # MB; the default of 5 % of memory is taken by every process of a worker
    "GDAL_NUM_THREADS": 1,  # parallelism is processes; a thread pool of GDAL does not survive a fork
    "COG_TMP_COMPRESSION": "NONE",  # the driver's LZW costs a quarter of the whole tile
}


@contextmanager
def gdal() -> Iterator[None]:
    """GDAL as this package uses it."""
    with rasterio.Env(**_GDAL):
        yield


@dataclass(frozen=True, slots=True)
class Grid:
    """Where a raster's pixels lie."""

    height: int
    width: int
    transform: Affine
    crs: Any
    # a rasterio CRS
