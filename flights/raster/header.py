"""What a raster's header says, held to what may be read, before anything is allocated."""

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.errors import RasterioIOError
from rasterio.transform import Affine

from flights import crs
from flights.errors import Code, Refused, of_os_error
from flights.raster.environment import THREADS, THREADS_FROM_PX

# What is opened at all, by its first bytes: no VRT (it follows other files), nothing that reaches the network.
DRIVERS = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",  # BigTIFF
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JP2OpenJPEG",
}


# What is met in the place of a raster, for the message.
_OTHERS = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"PK": "ZIP file", b"\x1f\x8b": "gzip file", b"%PDF": "PDF"}


def open_raster(path: Path, name: str) -> Any:
    """An open dataset; Refused where the file, or a sidecar of it, is no raster that is read here."""
    try:
        with path.open("rb") as raw:
            start = raw.read(40)
    except OSError as error:
        raise of_os_error(error, name, Code.SOURCE_FORBIDDEN) from error
    driver = next((driver for magic, driver in DRIVERS.items() if start.startswith(magic)), None)
    if not start:
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} is empty (0 bytes)")
    if driver is None:
        kind = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), None)
        what = f"is a {kind}, not a GeoTIFF; convert it" if kind else f"is not a GeoTIFF: it starts with {start!r}"
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} {what}")
    _check_sidecars(path, name, driver)
    try:
        dataset = rasterio.open(path, driver=driver)
        # Uncompressed there is nothing to decode; a few blocks are decoded before threads are up.
        if driver == "GTiff" and dataset.compression and dataset.height * dataset.width >= THREADS_FROM_PX:
            dataset.close()
            dataset = rasterio.open(path, driver=driver, NUM_THREADS=THREADS)
        return dataset
    except RasterioIOError as error:
        detail = str(error).replace(str(path), path.name).removeprefix(f"{path.name}:").strip()
        raise Refused(
            Code.SOURCE_CORRUPT, f"{name}: corrupt or cut short, a {driver} file that cannot be opened ({detail})"
        ) from error


def _check_sidecars(path: Path, name: str, driver: str) -> None:
    """Refuse a sidecar that GDAL would pass over in silence: what it says is not known, so what is valid is not."""
    mask, metadata = path.with_name(f"{path.name}.msk"), path.with_name(f"{path.name}.aux.xml")
    if metadata.exists():
        try:
            ElementTree.fromstring(metadata.read_bytes())
        except ElementTree.ParseError as error:
            raise Refused(Code.SOURCE_CORRUPT, f"{name}.aux.xml beside it is corrupt, no XML ({error})") from error
    if mask.exists():
        try:
            with rasterio.open(mask, driver="GTiff") as there, rasterio.open(path, driver=driver) as raster:
                shapes = there.shape, raster.shape
        except RasterioIOError as error:
            detail = str(error).replace(str(mask), mask.name)
            raise Refused(Code.SOURCE_CORRUPT, f"{name}.msk beside it is corrupt, no mask ({detail})") from error
        if shapes[0] != shapes[1]:
            message = f"{name}.msk is {shapes[0]} pixels, the raster beside it {shapes[1]}: not its mask, or corrupt"
            raise Refused(Code.SOURCE_CORRUPT, message)


def check_header(dataset: Any, name: str, epsg: int, max_pixels: int, max_block_bytes: int) -> None:
    """Refuse from the header what cannot or may not be read; nothing has been allocated by then."""
    if dataset.width * dataset.height > max_pixels:
        raise Refused(
            Code.SOURCE_TOO_LARGE,
            f"{name} claims {dataset.width} x {dataset.height} pixels; FLIGHTS_MAX_PIXELS allows {max_pixels}",
        )
    if dataset.count == 0:
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} has no bands (a container of subdatasets?)")
    for dtype in dataset.dtypes:
        if dtype.startswith("complex"):
            raise Refused(Code.DTYPE_UNSUPPORTED, f"{name} holds complex numbers ({dtype}), which have no reflectance")
    if block_bytes(dataset) > max_block_bytes:
        height, width = dataset.block_shapes[0]
        raise Refused(
            Code.SOURCE_TOO_LARGE,
            f"{name}: one block is {width} x {height} pixels, {block_bytes(dataset)} bytes decoded; "
            f"FLIGHTS_MAX_BLOCK_BYTES allows {max_block_bytes}. Re-tile it (gdal_translate -co TILED=YES).",
        )
    _check_place(dataset, name, epsg)


def block_bytes(dataset: Any) -> int:
    """What one block takes decoded; of a pixel-interleaved file all its bands are decoded together."""
    height, width = dataset.block_shapes[0]
    bands = dataset.count if dataset.interleaving and dataset.interleaving.name == "pixel" else 1
    return int(height * width * np.dtype(dataset.dtypes[0]).itemsize * bands)


def _check_place(dataset: Any, name: str, epsg: int) -> None:
    if dataset.crs is None:
        has = "a transform" if dataset.transform != Affine.identity() else "no transform either"
        has = "only ground control points" if dataset.gcps[0] else "only RPCs" if dataset.rpcs else has
        raise Refused(
            Code.CRS_MISSING,
            f"{name} has no CRS (georeference: {has}); the manifest says EPSG:{epsg}. Rectify it, or assign the CRS.",
        )
    wkt = dataset.crs.to_wkt()
    if not crs.is_epsg(wkt, epsg):
        raise Refused(
            Code.CRS_MISMATCH, f"{name} is in {crs.name_of(wkt)}, the manifest says EPSG:{epsg}; one of them is wrong"
        )
    transform = dataset.transform
    size = transform.determinant  # 0 where pixels have no area
    if transform == Affine.identity() or not math.isfinite(size) or size == 0:
        raise Refused(
            Code.GEOREF_MISSING,
            f"{name} has a CRS but no transform (georeference) to go with it: {tuple(transform)[:6]} "
            "gives its pixels no place",
        )


def is_same_grid(first: Affine, other: Affine, width: int, height: int) -> bool:
    """Whether two transforms put the corners of a raster at the same places, to a hundredth of a pixel."""
    corners = ((0, 0), (width, 0), (0, height))
    moved = [(~first @ (other @ corner), corner) for corner in corners]
    return all(abs(x - col) < 0.01 and abs(y - row) < 0.01 for (x, y), (col, row) in moved)


def check_same_grid(first: Any, other: Any, name: str) -> None:
    """Refuse two bands of a tile that do not lie on one grid."""
    same = first.shape == other.shape and is_same_grid(first.transform, other.transform, first.width, first.height)
    if not same or not crs.is_same(first.crs.to_wkt(), other.crs.to_wkt()):
        raise Refused(
            Code.GRID_MISMATCH,
            f"{name} is {other.width} x {other.height} at {tuple(other.transform)[:6]}, another band of the tile "
            f"{first.width} x {first.height} at {tuple(first.transform)[:6]}; bands of a tile must share one grid",
        )
