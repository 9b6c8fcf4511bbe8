"""Flights of very many very small tiles: what is left of a tile when its pixels cost next to nothing."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rasterio
from rasterio.transform import from_origin

from benchmarks import scenes
from benchmarks.commands import run_batch
from flights.fingerprint import tile_fingerprint
from flights.intake import load_flight
from flights.raster.cog import read_product_tag
from flights.store import open_stores
from flights.survey import look_at_source

TILE_PX = 16
PER_FOLDER = 1_000


def write_tile(path: Path) -> Path:
    """A tile in five bands and one strip."""
    profile: dict[str, Any] = {"driver": "GTiff", "height": TILE_PX, "width": TILE_PX, "count": 5, "dtype": "uint16"}
    profile |= {"crs": f"EPSG:{scenes.EPSG}", "transform": from_origin(500_000, 4_650_000, 0.05, 0.05)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **profile, nodata=scenes.NODATA) as out:
        out.descriptions = scenes.BANDS
        out.write(scenes.vegetation(TILE_PX, TILE_PX))
    return path


def tile_id_of(number: int) -> str:
    """All as long as one another."""
    return f"t{number:06}"


def write_flight(folder: Path, tiles: int, flight_id: str = "giant") -> Path:
    """The manifest of a flight whose sources are one file under so many names, in folders of a thousand."""
    first = write_tile(folder / "tile.tif")
    names = [f"src/{i // PER_FOLDER:03}/{tile_id_of(i)}.tif" for i in range(tiles)]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(first, path)
    return write_manifest(folder, names, flight_id)


def write_manifest(folder: Path, sources: Sequence[str], flight_id: str, out_uri: str = "out") -> Path:
    """A manifest of these sources, in their order, whose products go to `out`."""
    path = folder / f"{flight_id}.json"
    tiles = [{"tile_id": tile_id_of(i), "src_uri": uri, "epsg": scenes.EPSG} for i, uri in enumerate(sources)]
    path.write_text(json.dumps({"flight_id": flight_id, "sensor": scenes.SENSOR, "out_uri": out_uri, "tiles": tiles}))
    return path


def first_of(manifest: Path, tiles: int, flight_id: str) -> Path:
    """A flight of the first tiles of another one, with the same sources and the same products."""
    body = json.loads(manifest.read_text())
    path = manifest.with_name(f"{flight_id}.json")
    path.write_text(json.dumps(body | {"flight_id": flight_id, "tiles": body["tiles"][:tiles]}))
    return path


def make_products(manifest: Path, env: dict[str, str]) -> None:
    """Every product of a flight of one file under many names: the first is made, the rest are copies of it.

    What differs between them is the fingerprint, which tells of a source's path, and the name of the tile: each copy
    gets its own. So a flight of 40,000 is there in seconds, and a run finds every product current.
    """
    run_batch(env, "run", first_of(manifest, 1, "one"), "--composite", "never")
    stores = open_stores()
    flight = load_flight(stores, str(manifest))
    made = Path(flight.tiles[0].dst_uri)
    content, said = made.read_bytes(), json.loads(read_product_tag(str(made)) or "{}")
    for tile in flight.tiles[1:]:
        own = tile_fingerprint(flight, tile, look_at_source(stores, tile).identity)
        copy = content.replace(said["fingerprint"].encode(), own.encode())
        Path(tile.dst_uri).write_bytes(copy.replace(flight.tiles[0].tile_id.encode(), tile.tile_id.encode()))
