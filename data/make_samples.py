"""Make the sample flights beside this file: invented fields, real five-band COGs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.errors import RasterioIOError
from rasterio.io import MemoryFile
from rasterio.transform import from_origin
from rasterio.windows import Window

# 64 bits, so that another machine's last-digit differences do not reach the steps.
Plane = NDArray[np.float64]
Bands = NDArray[np.uint16]
Place = tuple[float, float, float]  # x, y, radius in pixels

HERE = Path(__file__).resolve().parent
EPSG = 32615
PIXEL_M = 0.1
TILE_PX = 512
GRID = 2  # tiles a side
FIELD_PX = GRID * TILE_PX
NODATA = 0
DN_PER_REFLECTANCE = 32768
# Noise in all 16 bits hardly deflates; steps of 1/512 keep the samples small.
DN_STEP = 64
NOISE = 0.0005  # reflectance, one sigma

COG = {
    "driver": "COG",
    "compress": "deflate",
    "level": 9,
    "predictor": 2,
    "blocksize": 256,
    # Averaging would undo the steps: the overview would outweigh the tile.
    "overview_resampling": "nearest",
}

BAND_NAMES = ("Blue", "Green", "Red", "Red edge", "NIR")
CANOPY = (0.03, 0.08, 0.04, 0.25, 0.45)
SOIL = (0.08, 0.12, 0.17, 0.21, 0.26)
WATER = (0.06, 0.07, 0.06, 0.045, 0.03)

ROW_PX = 7.6  # maize in 30-inch rows
BOOM_PX = 240  # sprayer passes 24 m apart
WHEEL_PX = 9  # middle of a pass to its wheel track
TRACK_PX = 2.5  # half a wheel track


@dataclass(frozen=True)
class Flight:
    flight_id: str
    acquired: str
    seed: int
    corner: tuple[float, float]  # west, north
    row_degrees: float
    pond: Place
    patch: Place
    corrupt_tile: str | None = None


NORTH = Flight(
    flight_id="north-field",
    acquired="2026-06-14T17:03:00Z",
    seed=20260614,
    corner=(403_920.0, 4_709_360.0),
    row_degrees=7,
    pond=(700, 330, 95),
    patch=(330, 690, 120),
)
SOUTH = Flight(
    flight_id="south-field",
    acquired="2026-06-14T17:41:00Z",
    seed=20260615,
    corner=(403_920.0, 4_709_200.0),
    row_degrees=-4,
    pond=(270, 300, 80),
    patch=(690, 640, 140),
    corrupt_tile="r1c0",
)


def pixel_grid() -> tuple[Plane, Plane]:
    y, x = np.mgrid[0:FIELD_PX, 0:FIELD_PX].astype(np.float64)
    return x, y


def blob(rng: np.random.Generator, place: Place, soft: float, power: int = 2) -> Plane:
    """Cover (0 to 1) of an irregular outline; a higher `power` makes it squarer."""
    x, y = pixel_grid()
    dx, dy = x - place[0], y - place[1]
    theta = np.arctan2(dy, dx)
    wobble = np.zeros_like(x)
    for lobe in range(2, 9):
        phase = rng.uniform(0, 2 * np.pi)
        wobble += rng.normal(0, 0.16 / lobe) * np.cos(lobe * theta + phase)
    distance = (np.abs(dx) ** power + np.abs(dy) ** power) ** (1 / power)
    # A square field's edge has far less room to wander than a pond's shore.
    radius = place[2] * (1 + wobble * 2 / power)
    cover: Plane = np.clip((radius - distance) / soft + 0.5, 0, 1)
    return cover


def vigour(rng: np.random.Generator) -> Plane:
    """Smooth variation, mostly in long waves, as soil and drainage leave it."""
    x, y = pixel_grid()
    total = np.zeros_like(x)
    for wavelength in np.geomspace(50, 1300, 28):
        heading, phase = rng.uniform(0, 2 * np.pi, 2)
        along = x * np.cos(heading) + y * np.sin(heading)
        total += wavelength**0.8 * np.cos(2 * np.pi * along / wavelength + phase)
    scaled: Plane = 0.36 + 0.62 * (total - total.min()) / np.ptp(total)
    return scaled


def crop_rows(degrees: float) -> Plane:
    """Share of full canopy: rows near the x axis, cut by the sprayer's wheels."""
    x, y = pixel_grid()
    across = y * np.cos(np.radians(degrees)) - x * np.sin(np.radians(degrees))
    rows = 0.72 + 0.28 * np.cos(2 * np.pi * across / ROW_PX)
    from_pass = np.abs(across % BOOM_PX - BOOM_PX / 2)
    return np.where(np.abs(from_pass - WHEEL_PX) < TRACK_PX, 0.15, rows)


def field_bands(flight: Flight) -> Bands:
    """The field as one array, so that rows and shores run on across tile edges."""
    rng = np.random.default_rng(flight.seed)
    patch = blob(rng, flight.patch, soft=60)
    pond = blob(rng, flight.pond, soft=10)
    middle = FIELD_PX / 2
    flown = blob(rng, (middle, middle, middle * 0.93), soft=1, power=8) > 0.5
    canopy = vigour(rng) * crop_rows(flight.row_degrees) * (1 - patch)
    bands = np.empty((len(BAND_NAMES), FIELD_PX, FIELD_PX), np.uint16)
    for band, leaf, soil, water in zip(bands, CANOPY, SOIL, WATER, strict=True):
        land = canopy * leaf + (1 - canopy) * soil
        noise = rng.normal(0, NOISE, land.shape)
        reflectance = pond * water + (1 - pond) * land + noise
        steps = np.round(reflectance * DN_PER_REFLECTANCE / DN_STEP)
        # A measured pixel never equals nodata, however dark it is.
        band[:] = np.where(flown, np.maximum(steps, 1) * DN_STEP, NODATA)
    return bands


def tile_windows() -> Iterator[tuple[str, Window]]:
    for row, col in np.ndindex(GRID, GRID):
        window = Window(col * TILE_PX, row * TILE_PX, TILE_PX, TILE_PX)
        yield f"r{row}c{col}", window


def write_cog(path: Path, flight: Flight, field: Bands, window: Window) -> None:
    west = flight.corner[0] + window.col_off * PIXEL_M
    north = flight.corner[1] - window.row_off * PIXEL_M
    profile = {
        "driver": "GTiff",
        "width": TILE_PX,
        "height": TILE_PX,
        "count": len(BAND_NAMES),
        "dtype": "uint16",
        "nodata": NODATA,
        "crs": f"EPSG:{EPSG}",
        "transform": from_origin(west, north, PIXEL_M, PIXEL_M),
    }
    # The COG driver only copies, so the tile is a plain GeoTIFF in memory first.
    with MemoryFile() as memory:
        with memory.open(**profile) as tile:
            tile.write(field[:, *window.toslices()])
            tile.descriptions = BAND_NAMES
        rasterio.shutil.copy(memory.name, path, **COG)


def corrupt(path: Path) -> None:
    """Zero half of one block, as lost disk sectors read: the file still opens."""
    with rasterio.open(path) as tile:
        # Block column 1, row 0; pixel-interleaved, so all five bands are in it.
        offset = int(tile.get_tag_item("BLOCK_OFFSET_1_0", "TIFF", bidx=1))
        size = int(tile.get_tag_item("BLOCK_SIZE_1_0", "TIFF", bidx=1))
    with path.open("r+b") as raw:
        # From its first byte, where a DEFLATE stream has its header: a stream spoiled
        # further on may decode to as many bytes as are due, and libtiff takes those.
        raw.seek(offset)
        raw.write(bytes(size // 2))


def check_unreadable(path: Path) -> None:
    """Fail if a decoder lets the spoiled block through: the sample would be good."""
    with rasterio.open(path) as tile:
        for name in ("Red", "NIR"):
            try:
                tile.read(BAND_NAMES.index(name) + 1)
            except RasterioIOError:
                continue
            raise RuntimeError(f"{path.name}: {name} still decodes")


def write_manifest(path: Path, flight: Flight) -> None:
    head = {
        "flight_id": flight.flight_id,
        "sensor": "micasense-rededge-mx",
        "acquired": flight.acquired,
        "out_uri": "out",
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(head[key])}," for key in head]
    tiles = []
    for tile_id, _ in tile_windows():
        tile = {"tile_id": tile_id, "src_uri": f"tiles/{tile_id}.tif", "epsg": EPSG}
        tiles.append(f"    {json.dumps(tile)}")
    # One tile a line, so that a diff or a grep shows a whole tile.
    text = "\n".join(["{", *lines, '  "tiles": [', ",\n".join(tiles), "  ]", "}", ""])
    path.write_text(text, encoding="utf-8")


def write_flight(flight: Flight) -> None:
    folder = HERE / flight.flight_id
    (folder / "tiles").mkdir(parents=True, exist_ok=True)
    field = field_bands(flight)
    for tile_id, window in tile_windows():
        path = folder / "tiles" / f"{tile_id}.tif"
        write_cog(path, flight, field, window)
        if tile_id == flight.corrupt_tile:
            corrupt(path)
            check_unreadable(path)
    write_manifest(folder / "manifest.json", flight)


if __name__ == "__main__":
    write_flight(NORTH)
    write_flight(SOUTH)
