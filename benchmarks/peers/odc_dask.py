"""odc-geo's own COG writer, `save_cog_with_dask`, with two threads: compressing and overviews are dask's too."""

import dask
import numpy as np
import rioxarray
from odc.geo.cog import save_cog_with_dask

CHUNKS = {"band": 1, "x": 2048, "y": 2048}


def make(source: str, product: str) -> None:
    """NDVI of a local file, with two threads."""
    with (
        rioxarray.open_rasterio(source, masked=True, chunks=CHUNKS, lock=False) as bands,
        dask.config.set(scheduler="threads", num_workers=2),
    ):
        red, nir = bands.sel(band=3).astype("float32"), bands.sel(band=5).astype("float32")
        ndvi = ((nir - red) / (nir + red)).drop_attrs(deep=False).rio.write_nodata(np.nan)
        options = {"compression": "ZSTD", "level": 1, "predictor": 3, "overview_resampling": "average"}
        save_cog_with_dask(ndvi, product, blocksize=512, **options).compute()
