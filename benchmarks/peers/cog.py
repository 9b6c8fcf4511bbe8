"""The last step of most peers: the COG driver, from a GeoTIFF that holds the pixels."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rasterio.shutil

OPTIONS = {
    "COMPRESS": "ZSTD",
    "LEVEL": "1",
    "PREDICTOR": "YES",
    "BLOCKSIZE": "512",
    "OVERVIEW_RESAMPLING": "AVERAGE",
}


@contextmanager
def cog_of(product: str, **options: str) -> Iterator[str]:
    """A path for a GeoTIFF, on the product's file system; it becomes the COG `product` when the block ends."""
    with tempfile.TemporaryDirectory(dir=Path(product).parent) as folder:
        pixels = str(Path(folder) / "pixels.tif")
        yield pixels
        rasterio.shutil.copy(pixels, product, driver="COG", **(OPTIONS | options))
