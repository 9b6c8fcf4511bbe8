"""Overviews by averaging, two by two; and checksums of pixels."""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flights.windows import Window

Checks = list[tuple[Window, int]]
# Windows of one resolution, each with the checksum of its pixels.


def checksum(pixels: NDArray[Any]) -> int:
    """Of an array's pixels, row by row."""
    return zlib.crc32(np.ascontiguousarray(pixels).data)


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
