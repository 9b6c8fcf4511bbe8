"""rioxarray in chunks of 2,048 pixels with dask's threads; a GeoTIFF under dask's lock, then the COG driver."""

import threading

import dask
import numpy as np
import rioxarray

from benchmarks.peers.cog import cog_of

CHUNKS = {"band": 1, "x": 2048, "y": 2048}


def make(source: str, product: str) -> None:
    """NDVI of a local file, with two threads."""
    with cog_of(product) as pixels, rioxarray.open_rasterio(source, masked=True, chunks=CHUNKS) as bands:
        red, nir = bands.sel(band=3).astype("float32"), bands.sel(band=5).astype("float32")
        ndvi = ((nir - red) / (nir + red)).drop_attrs(deep=False).rio.write_nodata(np.nan)  # five names of bands
        with dask.config.set(scheduler="threads", num_workers=2):
            ndvi.rio.to_raster(pixels, tiled=True, blockxsize=512, blockysize=512, lock=threading.Lock())
