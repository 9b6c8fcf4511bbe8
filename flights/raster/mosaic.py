"""Compositing tiles into one COG: one grid, bounded memory, a valid pixel never hidden by another tile's nodata."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.transform import Affine

from flights import crs
from flights.errors import Code, Refused
from flights.raster.cog import CogWriter
from flights.raster.environment import BLOCK_PX, Grid, gdal
from flights.raster.pixels import FORMATS
from flights.windows import Window, strips

# Working memory of a mosaic's pixel: the strip, a tile's window over it, masks between.
_BYTES_PER_PIXEL = 16
# What its windows may leave unfinished: a row of blocks.
ROWS_AT_ONCE = BLOCK_PX
# Pixel sizes that differ by less, over the whole tile, are one pixel size.
_SAME_SIZE_PX = 0.01
# A mosaic of more pixels than its tiles' times this is a mistake of place rather than a flight. (Of n tiles in a
# diagonal row the mosaic is n times their pixels.)
_MAX_EMPTINESS, _MAX_EMPTINESS_PER_TILE = 100, 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A tile's product as a local file."""

    tile_id: str
    path: Path


@dataclass(frozen=True, slots=True)
class Placed:
    """A tile at its place on the mosaic's grid, in whole pixels."""

    piece: Piece
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


def lay_out(pieces: Sequence[Piece], epsg: int) -> Layout:
    """Where every tile falls on the grid of the first; Refused where they do not share CRS, pixel size and north.

    The mosaic's CRS is the EPSG code that the tiles were declared in: each has been held to it, in whatever words.
    """
    with gdal():
        grids = [(piece, _grid_of(piece)) for piece in pieces]
    reference = grids[0][1]
    for piece, grid in grids:
        _check_fits(piece, grid, pieces[0], reference, epsg)
    offsets = [~reference.transform @ (g.transform.c, g.transform.f) for _, g in grids]
    for (piece, _), offset in zip(grids, offsets, strict=True):
        _check_shift(piece, pieces[0], offset)
    cols, rows = [round(x) for x, _ in offsets], [round(y) for _, y in offsets]
    shift = max(_shift(offset) for offset in offsets)
    left, top = min(cols), min(rows)
    width = max(c + g.width for c, (_, g) in zip(cols, grids, strict=True)) - left
    height = max(r + g.height for r, (_, g) in zip(rows, grids, strict=True)) - top
    _check_extent(width, height, [g.width * g.height for _, g in grids])
    placed = tuple(
        Placed(piece, row - top, col - left, grid.height, grid.width)
        for (piece, grid), row, col in zip(grids, rows, cols, strict=True)
    )
    transform = reference.transform @ Affine.translation(left, top)
    grid = Grid(height, width, transform, CRS.from_epsg(epsg))
    return Layout(grid, placed, shift if shift > 1e-3 else 0.0)


def write_mosaic(layout: Layout, writer: CogWriter, budget: int) -> None:
    """Write a mosaic strip by strip; where tiles overlap, the first valid pixel in the order of the tiles stands."""
    grid = layout.grid
    ends = [(t.row_off, t.row_off + t.height, t.col_off, t.col_off + t.width) for t in layout.placed]
    top, bottom, left, right = np.array(ends).T
    with gdal():
        for window in strips(grid.height, grid.width, BLOCK_PX, BLOCK_PX, _BYTES_PER_PIXEL, budget):
            values = np.full((window.height, window.width), np.nan, dtype=np.float32)
            (start, stop), (begin, end) = window.slices
            # Few of thousands of tiles reach into a window: asked at once, not one by one.
            for i in np.flatnonzero((top < stop) & (bottom > start) & (left < end) & (right > begin)):
                _lay(layout.placed[i], window, values)
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
    theirs = (row_start - tile.row_off, row_stop - tile.row_off), (col_start - tile.col_off, col_stop - tile.col_off)
    with _opened(tile.piece) as dataset:
        pixels = FORMATS[dataset.dtypes[0]].unpack(dataset.read(1, window=theirs))
    ours = values[
        row_start - window.row_off : row_stop - window.row_off, col_start - window.col_off : col_stop - window.col_off
    ]
    np.copyto(ours, pixels, where=np.isnan(ours))


@contextmanager
def _opened(piece: Piece) -> Iterator[Any]:
    """A tile's product; Refused where it cannot be read."""
    try:
        with rasterio.open(piece.path, driver="GTiff") as dataset:
            yield dataset
    except RasterioError as error:
        message = f"the product of tile {piece.tile_id} cannot be read ({error}); run the flight with --overwrite"
        raise Refused(Code.PRODUCT_INVALID, message) from error


def _grid_of(piece: Piece) -> Grid:
    with _opened(piece) as dataset:
        return Grid(dataset.height, dataset.width, dataset.transform, dataset.crs)


def _shift(offset: tuple[float, float]) -> float:
    """How far a place lies from whole pixels, the larger of both axes."""
    return max(abs(value - round(value)) for value in offset)


def _check_shift(piece: Piece, first: Piece, offset: tuple[float, float]) -> None:
    """Refuse what lies half a pixel off: which way it goes would be chance, and touching tiles might go two ways."""
    if _shift(offset) > 0.5 - _SAME_SIZE_PX:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"tile {piece.tile_id} lies half a pixel off the grid of tile {first.tile_id} (a mix of pixel-is-point and "
            "pixel-is-area?): it would have to be resampled; warp it first",
        )


def _check_fits(piece: Piece, grid: Grid, first: Piece, reference: Grid, epsg: int) -> None:
    pair = f"tile {piece.tile_id} and tile {first.tile_id}"
    mine, theirs = grid.transform, reference.transform
    turned = max(abs(mine.b * grid.height / mine.a), abs(mine.d * grid.width / mine.e)) if mine.a and mine.e else 1.0
    if turned > _SAME_SIZE_PX:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"tile {piece.tile_id} is rotated (its transform is not north-up): it would have to be resampled; "
            "warp it first",
        )
    if not crs.is_epsg(grid.crs.to_wkt(), epsg):
        raise Refused(
            Code.MOSAIC_REFUSED, f"tile {piece.tile_id} is in {crs.name_of(grid.crs.to_wkt())}, not in EPSG:{epsg}"
        )
    drift = max(abs(mine.a / theirs.a - 1) * grid.width, abs(mine.e / theirs.e - 1) * grid.height)
    if drift > _SAME_SIZE_PX:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"{pair} differ in pixel size (resolution): {mine.a} x {-mine.e}, {theirs.a} x {-theirs.e}; "
            "one of them would have to be resampled; warp it first",
        )


def _check_extent(width: int, height: int, tile_sizes: Sequence[int]) -> None:
    tile_pixels = sum(tile_sizes)
    if width * height > max(_MAX_EMPTINESS, _MAX_EMPTINESS_PER_TILE * len(tile_sizes)) * tile_pixels:
        raise Refused(
            Code.MOSAIC_REFUSED,
            f"the tiles lie so far apart that the mosaic's size would be {width} x {height} pixels, "
            f"{width * height // tile_pixels} times their own; one of them is in the wrong place (check its extent)",
        )
