"""The owner of rasterio: everything that opens, reads or writes a raster is in here."""
