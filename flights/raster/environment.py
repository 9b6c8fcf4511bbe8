"""GDAL as this package uses it, and what a raster's place is."""

import contextlib
import ctypes
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import rasterio
from rasterio.errors import NotGeoreferencedWarning
from rasterio.session import DummySession
from rasterio.transform import Affine

# A raster without a place is refused with our own words; for all threads, which is why it is set once.
warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

# A side of a product's blocks.
BLOCK_PX = 512
# Of decoding, encoding and reading back one file. Where the other core is free a tile takes a third less time; where it
# is at another tile, no more and no less. GDAL makes them at first use, in the process that reads: after any fork.
THREADS, THREADS_FROM_PX = 2, 2 * BLOCK_PX**2
# GDAL's default of 5 % of memory would be taken by every process of a worker.
CACHE_BYTES = 32 * 2**20

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_GDAL = {
    "GDAL_NUM_THREADS": 1,  # where nothing else is said: parallelism is processes
    "COG_TMP_COMPRESSION": "NONE",  # the driver's LZW costs a quarter of the whole tile
}


def keep_memory() -> None:
    """Let this process keep what it frees (glibc only): to be called before it has threads.

    A window's arrays would else be asked of the kernel, and zeroed by it, for each window again: a fifth of the
    throughput of a worker. One arena, since with one a thread the peak is 50 MB higher.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, 32 * 2**20), (_M_TRIM_THRESHOLD, 256 * 2**20)):
            mallopt(option, value)


@contextlib.contextmanager
def gdal(cache_bytes: int = CACHE_BYTES) -> Iterator[None]:
    """GDAL as this package uses it; `cache_bytes` is what its block cache may hold."""
    # rasterio hands a number on as bytes, whatever GDAL's own configuration option takes a small one for.
    with plain_env(GDAL_CACHEMAX=cache_bytes, **_GDAL):
        yield


def plain_env(**options: Any) -> Any:
    """A rasterio environment, which each thread needs for itself, without the credentials of AWS.

    GDAL reads local files only. Left to itself, rasterio makes a boto3 session for every environment where
    AWS_ACCESS_KEY_ID is set: a sixth of the time of a tile on S3.
    """
    return rasterio.Env(DummySession(), **options)


@dataclass(frozen=True, slots=True)
class Grid:
    """Where a raster's pixels lie."""

    height: int
    width: int
    transform: Affine
    crs: Any
    # a rasterio CRS
