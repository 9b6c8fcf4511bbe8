"""Compositing tiles into one COG: one grid, bounded memory, a valid pixel never hidden by another tile's nodata."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import Affine

from flights import crs
from flights.errors import Code, Refused
from flights.raster.cog import BLOCK_PX, CogWriter
from flights.raster.environment import Grid, gdal
from flights.windows import Window, strips

# Working memory of a mosaic's pixel: the strip, a tile's window over it, masks between.
_BYTES_PER_PIXEL = 16
# Pixel sizes that differ by less, over the whole tile, are one pixel size.
_SAME_SIZE_PX = 0.01
# A mosaic with more empty ground than this, in pixels of its tiles, is a mistake of place rather than a flight.
_MAX_EMPTINESS = 100


@dataclass(frozen=True, slots=True)
class Piece:
    """A tile's product as a local file."""

    tile_id: str
    path: Path


@dataclass(frozen=True, slots=True)
class Placed:
    """A tile at its place on the mosaic's grid, in whole pixels."""

    path: Path
    row_off: int
    col_off: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A mosaic before its pixels."""

    grid: Grid
    placed: tuple[Placed, ...]
    # earlier tiles lie on top
    max_shift_px: float
    # how far a tile's own grid lies from the mosaic's, the larger of both axes


def lay_out(pieces: Sequence[Piece]) -> Layout:
    """Where every tile falls on the grid of the first; Refused where they do not share CRS, pixel size and north."""
    with gdal():
        grids = [(piece, _grid_of(piece)) for piece in pieces]
    reference = grids[0][1]
    for piece, grid in grids:
        _check_fits(piece, grid, pieces[0], reference)
    offsets = [~reference.transform * (g.transform.c, g.transform.f) for _, g in grids]
    cols, rows = [round(x) for x, _ in offsets], [round(y) for _, y in offsets]
    shift = max(max(abs(x - round(x)), abs(y - round(y))) for x, y in offsets)
    left, top = min(cols), min(rows)
    width = max(c + g.width for c, (_, g) in zip(cols, grids, strict=True)) - left
    height = max(r + g.height for r, (_, g) in zip(rows, grids, strict=True)) - top
    _check_extent(width, height, sum(g.width * g.height for _, g in grids))
    placed = tuple(
        Placed(piece.path, row - top, col - left, grid.height, grid.width)
        for (piece, grid), row, col in zip(grids, rows, cols, strict=True)
    )
    transform = reference.transform * Affine.translation(left, top)
    return Layout(Grid(height, width, transform, reference.crs), placed, shift if shift > 1e-3 else 0.0)


def write_mosaic(layout: Layout, writer: CogWriter, budget: int) -> None:
    """Write a mosaic strip by strip; where tiles overlap, the first valid pixel in the order of the tiles stands."""
    grid = layout.grid
    with gdal():
        for window in strips(grid.height, grid.width, BLOCK_PX, BLOCK_PX, _BYTES_PER_PIXEL, budget):
            values = np.full((window.height, window.width), np.nan, dtype=np.float32)
            for tile in layout.placed:
                _lay(tile, window, values)
            writer.write(values, window)


def _lay(tile: Placed, window: Window, values: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    row_start, row_stop = (
        max(tile.row_off, window.row_off),
        min(tile.row_off + tile.height, window.row_off + window.height),
    )
    col_start, col_stop = (
        max(tile.col_off, window.col_off),
        min(tile.col_off + tile.width, window.col_off + window.width),
    )
    if row_start >= row_stop or col_start >= col_stop:
        return
    theirs = (row_start - tile.row_off, row_stop - tile.row_off), (col_start - tile.col_off, col_stop - tile.col_off)
    with rasterio.open(tile.path, driver="GTiff") as dataset:
        pixels = dataset.read(1, window=theirs)
    ours = values[
        row_start - window.row_off : row_stop - window.row_off, col_start - window.col_off : col_stop - window.col_off
    ]
    np.copyto(ours, pixels, where=np.isnan(ours))


def _grid_of(piece: Piece) -> Grid:
    with rasterio.open(piece.path, driver="GTiff") as dataset:
        return Grid(dataset.height, dataset.width, dataset.transform, dataset.crs)


def _check_fits(piece: Piece, grid: Grid, first: Piece, reference: Grid) -> None:
    pair = f"tile {piece.tile_id} and tile {first.tile_id}"
    mine, theirs = grid.transform, reference.transform
    if mine.b or mine.d:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"tile {piece.tile_id} is rotated (its transform is not north-up): it would have to be resampled; "
            "warp it first",
        )
    if not crs.is_same(grid.crs.to_wkt(), reference.crs.to_wkt()):
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"{pair} differ in CRS: {crs.name_of(grid.crs.to_wkt())}, {crs.name_of(reference.crs.to_wkt())}",
        )
    drift = max(abs(mine.a / theirs.a - 1) * grid.width, abs(mine.e / theirs.e - 1) * grid.height)
    if drift > _SAME_SIZE_PX:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"{pair} differ in pixel size (resolution): {mine.a} x {-mine.e}, {theirs.a} x {-theirs.e}; "
            "one of them would have to be resampled; warp it first",
        )


def _check_extent(width: int, height: int, tile_pixels: int) -> None:
    if width * height > _MAX_EMPTINESS * tile_pixels:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"the tiles lie so far apart that the mosaic's size would be {width} x {height} pixels, "
            f"{width * height // tile_pixels} times their own; one of them is in the wrong place (check its extent)",
        )
