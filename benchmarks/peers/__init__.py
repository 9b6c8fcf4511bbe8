"""Other ways to the same tile, each a module with `make(source, product)`; they run in `.venv-peers`.

What makes a product is the same for all, as far as a peer has it: float32, a COG of 512-pixel blocks with average
overviews, ZSTD 1 with a predictor. What makes it quickly is the peer's own: its reading, GDAL's settings as they are.
"""
