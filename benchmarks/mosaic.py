"""A flight's mosaic, beside GDAL's own way from the same tiles to the same file."""

import json
import shutil
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import rasterio
import rasterio.shutil
from rasterio.crs import CRS
from rasterio.transform import Affine

from benchmarks import scenes
from benchmarks.commands import alone
from benchmarks.measure import Times, peak_mb
from benchmarks.table import Line
from flights.raster.cog import CogWriter
from flights.raster.environment import BLOCK_PX, Grid, gdal
from flights.raster.mosaic import Piece, lay_out, write_mosaic
from flights.settings import Settings
from flights.windows import Window
from tests.processes import environment

PIXELS = 1_024
WEST, NORTH = 500_000, 4_650_000
RED, NIR = (scenes.BANDS.index(name) for name in ("Red", "NIR"))
# So many products under all names, each name at its own place.
PRODUCTS = 4
AGAINST_GDAL, AGAINST_FEW, MEMORY = 1.3, 1.3, 1.25


def run(folder: Path, quick: bool) -> list[Line]:
    """A mosaic of few tiles and one of many, in squares."""
    few, many = (5, 10) if quick else (10, 50)
    small = _measured(folder / "few", few, rounds=1 if quick else 3)
    large = _measured(folder / "many", many, rounds=1)
    pixels = (many / few) ** 2
    growth, of_gdal = large.seconds / small.seconds / pixels, large.gdal_seconds / small.gdal_seconds / pixels
    of_cpu = large.cpu_seconds / small.cpu_seconds / pixels
    memory = large.peak_mb / small.peak_mb
    name = f"7 a mosaic: {many**2:,} tiles beside {few**2:,}"
    return [
        _line(few, small),
        _line(many, large),
        Line(
            f"{name}, CPU time a pixel",
            f"<= {AGAINST_FEW} x",
            f"{_per_pixel(many, large.cpu_seconds):.0f} ns, {_per_pixel(few, small.cpu_seconds):.0f} ns",
            f"{of_cpu:.2f}",
            of_cpu <= AGAINST_FEW,
        ),
        # What no longer fits into the page cache has to come from the disk, for GDAL as for us.
        Line(
            f"{name}, time a pixel / the same of GDAL",
            f"<= {AGAINST_FEW} x",
            f"{growth:.2f} / {of_gdal:.2f}",
            f"{growth / of_gdal:.2f}",
            growth <= AGAINST_FEW * of_gdal,
        ),
        Line(
            f"{name}, peak memory",
            f"<= {MEMORY} x",
            f"{large.peak_mb:.0f} MB, {small.peak_mb:.0f} MB (GDAL: {large.gdal_mb:.0f}, {small.gdal_mb:.0f})",
            f"{memory:.2f}",
            memory <= MEMORY,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Measured:
    """A mosaic of one size."""

    seconds: float
    gdal_seconds: float
    # of GDAL's faster way: its temporary files compressed (its default) or not
    gdal_way: str
    ratio: float
    # against it
    cpu_seconds: float
    gdal_cpu_seconds: float
    # at least; on a busy machine they say more than the wall does
    peak_mb: float
    gdal_mb: float


def _line(side: int, of: Measured) -> Line:
    return Line(
        f"7 a mosaic of {side**2:,} tiles of {PIXELS:,} px, against GDAL (VRT to COG by way of {of.gdal_way})",
        f"<= {AGAINST_GDAL} x",
        f"{of.seconds:.1f} s against {of.gdal_seconds:.1f} s (CPU {of.cpu_seconds:.1f} s, {of.gdal_cpu_seconds:.1f} s)",
        f"{of.ratio:.2f}",
        of.ratio <= AGAINST_GDAL,
    )


def _per_pixel(side: int, seconds: float) -> float:
    return seconds / (side * PIXELS) ** 2 * 1e9


def _measured(folder: Path, side: int, rounds: int) -> Measured:
    """Ours and GDAL's, in turn, each in a process of its own, from its first look at the tiles to the finished file."""
    write_products(folder / "tiles", side)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    peaks: dict[str, float] = dict.fromkeys(WAYS, 0.0)
    cpus: dict[str, float] = dict.fromkeys(WAYS, float("inf"))
    for _ in range(rounds):
        for name in WAYS:
            (folder / "out").mkdir()
            said = alone(environment(folder), __name__, name, folder / "tiles", folder / "out", side)
            seconds[name].append(said["seconds"])
            peaks[name], cpus[name] = max(peaks[name], said["mb"]), min(cpus[name], said["cpu"])
            shutil.rmtree(folder / "out")
    shutil.rmtree(folder / "tiles")
    times = Times(seconds)
    best = min((name for name in WAYS if name != "ours"), key=times.median)
    return Measured(
        seconds=times.median("ours"),
        gdal_seconds=times.median(best),
        gdal_way=best,
        ratio=times.ratio("ours", best),
        cpu_seconds=cpus["ours"],
        gdal_cpu_seconds=cpus[best],
        peak_mb=peaks["ours"],
        gdal_mb=peaks[best],
    )


# ---------------------------------------------------------------- the tiles


def write_products(folder: Path, side: int) -> None:
    """A square of NDVI products without gaps: a few are made, the rest are copies of them at places of their own."""
    folder.mkdir(parents=True)
    made = [_write_product(folder / f"made{i}", i) for i in range(min(PRODUCTS, side))]
    for row in range(side):
        for col in range(side):
            content = made[(row * 3 + col) % len(made)]
            path_of(folder, row, col).write_bytes(content.replace(_tiepoint(0, 0), _tiepoint(row, col)))


def path_of(folder: Path, row: int, col: int) -> Path:
    """The product at a place."""
    return folder / f"{row:03}-{col:03}.tif"


def _write_product(folder: Path, seed: int) -> bytes:
    """The bytes of a product at the square's north-west corner, as a worker writes it."""
    folder.mkdir()
    red, nir = scenes.vegetation(PIXELS, PIXELS, seed).astype(np.float32)[[RED, NIR]]
    with np.errstate(invalid="ignore"):
        values = np.where(red > 0, (nir - red) / (nir + red), np.float32(np.nan))
    with gdal(), CogWriter(folder, Grid(PIXELS, PIXELS, _place(0, 0), CRS.from_epsg(scenes.EPSG)), "NDVI") as writer:
        writer.write(values, Window(0, 0, PIXELS, PIXELS))
        content = writer.finish({}, writer.stats).read_bytes()
    if content.count(_tiepoint(0, 0)) != 1:
        raise RuntimeError("a product does not say its place in the way that is expected here")
    return content


def _place(row: int, col: int) -> Affine:
    size = PIXELS * scenes.PIXEL_M
    return Affine(scenes.PIXEL_M, 0, WEST + col * size, 0, -scenes.PIXEL_M, NORTH - row * size)


def _tiepoint(row: int, col: int) -> bytes:
    """A GeoTIFF's ModelTiepointTag: pixel (0, 0, 0) lies there."""
    place = _place(row, col)
    return struct.pack("<6d", 0, 0, 0, place.c, place.f, 0)


# ---------------------------------------------------------------- the ways


def ours(tiles: Path, out: Path, side: int) -> None:
    """The product's way, verification of the finished file included."""
    places = [(row, col) for row in range(side) for col in range(side)]
    layout = lay_out([Piece(f"{r}-{c}", path_of(tiles, r, c)) for r, c in places], scenes.EPSG)
    with gdal(), CogWriter(out, layout.grid, "NDVI", rows_at_once=BLOCK_PX) as writer:
        write_mosaic(layout, writer, Settings().window_bytes)
        writer.finish({}, writer.stats)


def by_gdal(tiles: Path, out: Path, side: int, temporary: str) -> None:
    """`gdalbuildvrt`, then a COG with the product's options, in the same GDAL."""
    (out / "mosaic.vrt").write_text(_vrt(tiles, side))
    with gdal(), rasterio.Env(COG_TMP_COMPRESSION=temporary):
        rasterio.shutil.copy(
            out / "mosaic.vrt",
            out / "mosaic.tif",
            driver="COG",
            COMPRESS="ZSTD",
            LEVEL=1,
            PREDICTOR="YES",
            BLOCKSIZE=BLOCK_PX,
            OVERVIEW_RESAMPLING="AVERAGE",
            BIGTIFF="IF_SAFER",
        )


def _vrt(tiles: Path, side: int) -> str:
    """What `gdalbuildvrt` writes for tiles that share a grid, and whose nodata is NaN."""
    whole, wkt = side * PIXELS, escape(CRS.from_epsg(scenes.EPSG).to_wkt())
    place = ", ".join(map(str, _place(0, 0).to_gdal()))
    head = (
        f'<VRTDataset rasterXSize="{whole}" rasterYSize="{whole}"><SRS>{wkt}</SRS><GeoTransform>{place}</GeoTransform>'
    )
    head += '<VRTRasterBand dataType="Float32" band="1"><NoDataValue>nan</NoDataValue><ColorInterp>Gray</ColorInterp>'
    sources = [_vrt_source(tiles, row, col) for row in range(side) for col in range(side)]
    return head + "".join(sources) + "</VRTRasterBand></VRTDataset>"


def _vrt_source(tiles: Path, row: int, col: int) -> str:
    size = f'xSize="{PIXELS}" ySize="{PIXELS}"'
    block = f'BlockXSize="{BLOCK_PX}" BlockYSize="{BLOCK_PX}"'
    return (
        f'<ComplexSource><SourceFilename relativeToVRT="0">{path_of(tiles, row, col)}</SourceFilename>'
        "<SourceBand>1</SourceBand>"
        f'<SourceProperties RasterXSize="{PIXELS}" RasterYSize="{PIXELS}" DataType="Float32" {block} />'
        f'<SrcRect xOff="0" yOff="0" {size} /><DstRect xOff="{col * PIXELS}" yOff="{row * PIXELS}" {size} />'
        "<NODATA>nan</NODATA></ComplexSource>"
    )


WAYS: dict[str, Callable[[Path, Path, int], None]] = {
    "ours": ours,
    "LZW": partial(by_gdal, temporary="LZW"),
    "NONE": partial(by_gdal, temporary="NONE"),
}


def make(way: str, tiles: str, out: str, side: str) -> dict[str, float]:
    """Make a mosaic in this process, and nothing else."""
    began = time.perf_counter()
    WAYS[way](Path(tiles), Path(out), int(side))
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time(), "mb": peak_mb()}


if __name__ == "__main__":
    print(json.dumps(make(*sys.argv[1:])))
