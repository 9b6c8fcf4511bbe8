"""How a raster is walked: full-width strips of whole block rows, within a byte budget."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of pixels."""

    row_off: int
    col_off: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """((row_start, row_stop), (col_start, col_stop)), as rasterio takes windows."""
        return (self.row_off, self.row_off + self.height), (self.col_off, self.col_off + self.width)


def strips(
    height: int, width: int, block_height: int, block_width: int, bytes_per_pixel: int, budget: int
) -> Iterator[Window]:
    """Windows that cover every pixel once, block row by block row.

    Each holds as many whole block rows as fit the budget, at least one; a block row above the budget is split at
    block columns, so that every block is decoded once, whatever the raster's width. A single block above the budget
    (one huge strip) is split into rows: then the reader has to keep the decoded block.
    """
    cols = width
    if block_height * width * bytes_per_pixel > budget and block_width < width:
        cols = min(width, max(1, budget // (block_height * block_width * bytes_per_pixel)) * block_width)
    whole_rows = budget // (block_height * cols * bytes_per_pixel) * block_height
    for band_off in range(0, height, whole_rows or block_height):
        band_end = min(height, band_off + (whole_rows or block_height))
        rows = whole_rows or max(1, budget // (cols * bytes_per_pixel))
        for col_off in range(0, width, cols):
            for row_off in range(band_off, band_end, rows):
                yield Window(row_off, col_off, min(rows, band_end - row_off), min(cols, width - col_off))
