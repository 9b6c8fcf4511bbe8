"""Small rasters with known content, and the oracle: whole-array float64 numpy that shares no code with the product."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine, from_origin

EPSG = 32615
WEST, NORTH, PIXEL_M = 500_000.0, 4_650_000.0, 0.5


def place(col: int = 0, row: int = 0) -> Affine:
    """The transform of a raster whose corner lies so many pixels east and south of the common corner."""
    return from_origin(WEST + col * PIXEL_M, NORTH - row * PIXEL_M, PIXEL_M, PIXEL_M)


def field(height: int = 64, width: int = 96, seed: int = 1, dtype: str = "uint16") -> dict[str, NDArray[Any]]:
    """Blue, green, red and NIR of a made-up field, never zero in a band."""
    rng = np.random.default_rng(seed)
    shape = (height, width)
    ranges = {"blue": (300, 500), "green": (600, 900), "red": (300, 3000), "nir": (1000, 6000)}
    return {name: rng.integers(low, high, shape).astype(dtype) for name, (low, high) in ranges.items()}


def write_tif(
    path: Path,
    bands: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
    *,
    transform: Affine | None = None,
    crs: str | None = f"EPSG:{EPSG}",
    nodata: float | None = None,
    descriptions: Sequence[str] | None = None,
    **options: Any,
) -> Path:
    """A GeoTIFF of these bands, in their order."""
    stack = np.stack(list(bands.values()) if isinstance(bands, Mapping) else list(bands))
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = {"driver": "GTiff", "count": stack.shape[0], "height": stack.shape[1], "width": stack.shape[2]}
    profile |= {"dtype": stack.dtype.name, "crs": crs, "transform": transform or place(), "nodata": nodata}
    with rasterio.open(path, "w", **profile, **options) as out:
        out.write(stack)
        if descriptions:
            out.descriptions = tuple(descriptions)
    return path


def oracle_ndvi(
    red: NDArray[Any], nir: NDArray[Any], *, nodata: float | None = None, scale: float = 1.0, offset: float = 0.0
) -> NDArray[np.float64]:
    """NDVI of whole arrays: NaN where a band is nodata or not finite, both are zero, or their sum is not positive."""
    r, n = red.astype(np.float64), nir.astype(np.float64)
    bad = ~np.isfinite(r) | ~np.isfinite(n) | ((r == 0) & (n == 0))
    if nodata is not None:
        bad |= (r == nodata) | (n == nodata)
    r, n = r * scale + offset, n * scale + offset
    with np.errstate(all="ignore"):
        ndvi = np.clip((n - r) / (n + r), -1, 1)
    ndvi[bad | (n + r <= 0)] = np.nan
    return ndvi


def manifest(flight_id: str, tiles: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A manifest of four-band tiles (blue, green, red, NIR) unless said otherwise."""
    body: dict[str, Any] = {"flight_id": flight_id, "tiles": [{"epsg": EPSG, **tile} for tile in tiles], **more}
    return body if "sensor" in body or "bands" in body else body | {"bands": {"red": 3, "nir": 4}}
