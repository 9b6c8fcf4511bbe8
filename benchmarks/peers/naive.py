"""The loop that everyone writes first: windows of 1,024 pixels, a read a band, deflate; then the COG driver.

It knows nothing of nodata: 0 and 0 make 0.
"""

import numpy as np
import rasterio
from rasterio.windows import Window

from benchmarks.peers.cog import cog_of

WINDOW_PX = 1024


def make(source: str, product: str) -> None:
    """NDVI of a local file, or of one that GDAL reads where it lies."""
    with cog_of(product, COMPRESS="DEFLATE", LEVEL="6") as pixels:
        _loop(source, pixels)


def _loop(source: str, pixels: str) -> None:
    with rasterio.open(source) as src:
        profile = src.profile | {"count": 1, "dtype": "float32", "compress": "deflate"}
        with rasterio.open(pixels, "w", **profile) as out:
            for row in range(0, src.height, WINDOW_PX):
                for col in range(0, src.width, WINDOW_PX):
                    window = Window(col, row, min(WINDOW_PX, src.width - col), min(WINDOW_PX, src.height - row))
                    red = src.read(3, window=window).astype("float32")
                    nir = src.read(5, window=window).astype("float32")
                    total = nir + red
                    out.write(np.divide(nir - red, total, out=np.zeros_like(red), where=total != 0), 1, window=window)
