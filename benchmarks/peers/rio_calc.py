"""`rio calc`, then the COG driver; as a function call, so that starting the command is not counted.

It cannot write another nodata than its source's, which is 0: an NDVI of exactly 0 becomes no data.
"""

from rasterio.rio.main import main_group

from benchmarks.peers.cog import cog_of

NDVI = "(/ (- (read 1 5 'float32') (read 1 3 'float32')) (+ (read 1 5 'float32') (read 1 3 'float32')))"


def make(source: str, product: str) -> None:
    """NDVI of a local file."""
    with cog_of(product) as pixels:
        main_group(["calc", NDVI, source, pixels, "--dtype", "float32", "--overwrite"], standalone_mode=False)
