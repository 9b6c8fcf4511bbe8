"""rioxarray as its documentation shows it: whole bands in memory, `to_raster` with the COG driver."""

import numpy as np
import rioxarray

from benchmarks.peers.cog import OPTIONS


def make(source: str, product: str) -> None:
    """NDVI of a local file."""
    with rioxarray.open_rasterio(source, masked=True) as bands:
        red, nir = bands.sel(band=3).astype("float32"), bands.sel(band=5).astype("float32")
        ndvi = ((nir - red) / (nir + red)).drop_attrs(deep=False)  # five names of bands
        ndvi.rio.write_nodata(np.nan).rio.to_raster(product, driver="COG", **OPTIONS)
