"""Inputs: spatially correlated vegetation in five bands, in a MicaSense order (blue, green, red, red edge, NIR)."""

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

BANDS = ("Blue", "Green", "Red", "Red edge", "NIR")
SENSOR = "micasense-rededge-mx"
EPSG = 32615
PIXEL_M = 0.05
NODATA = 0


def vegetation(height: int, width: int, seed: int = 0, row: int = 0, col: int = 0) -> NDArray[np.uint16]:
    """Bands of uint16 reflectance x 32768, (5, height, width); a collar of 5 % holds no data.

    Cover is a sum of smooth noise at five scales, bands follow it, and each pixel has sensor noise of its own, which is
    what keeps real tiles from compressing to nothing.
    """
    rng = np.random.default_rng([seed, row, col])
    cover = np.zeros((height, width), np.float32)
    for step, weight in ((512, 0.35), (128, 0.25), (32, 0.2), (8, 0.12), (2, 0.08)):
        coarse = rng.random((height // step + 2, width // step + 2), dtype=np.float32)
        cover += weight * _stretched(coarse, step)[:height, :width]
    bands = np.empty((5, height, width), np.uint16)
    for i, (bare, green) in enumerate(((0.08, 0.03), (0.11, 0.08), (0.16, 0.04), (0.18, 0.25), (0.22, 0.48))):
        reflectance = bare + (green - bare) * cover
        reflectance += rng.normal(0, 0.004, (height, width)).astype(np.float32)
        bands[i] = np.clip(reflectance * 32768, 1, 65535).astype(np.uint16)
    collar = max(1, width // 20)
    bands[:, :, :collar] = NODATA
    return bands


def _stretched(coarse: NDArray[np.float32], step: int) -> NDArray[np.float32]:
    """A coarse grid, bilinearly, `step` times as fine."""
    along = np.linspace(0, 1, step, endpoint=False, dtype=np.float32)
    rows = coarse[:-1, None] * (1 - along)[:, None] + coarse[1:, None] * along[:, None]
    rows = rows.reshape(-1, coarse.shape[1])
    cols = rows[:, :-1, None] * (1 - along) + rows[:, 1:, None] * along
    return np.ascontiguousarray(cols.reshape(rows.shape[0], -1))


def write_scene(
    path: Path,
    pixels: int,
    *,
    dtype: str = "uint16",
    interleave: str = "pixel",
    compress: str = "deflate",
    seed: int = 0,
    row: int = 0,
    col: int = 0,
) -> Path:
    """A square tile, tiled in blocks of 512 and without overviews; `row` and `col` count tiles on the ground.

    float32 tiles hold reflectance itself.
    """
    values: NDArray[Any] = vegetation(pixels, pixels, seed, row, col)
    if dtype == "float32":
        values = values.astype(np.float32) / 32768
    size = pixels * PIXEL_M
    transform = Affine(PIXEL_M, 0, 500_000 + col * size, 0, -PIXEL_M, 4_650_000 - row * size)
    profile: dict[str, Any] = {"height": pixels, "width": pixels, "count": 5, "dtype": dtype, "crs": f"EPSG:{EPSG}"}
    profile |= {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512, "interleave": interleave}
    profile |= {"compress": compress, "predictor": 3 if dtype == "float32" else 2, "BIGTIFF": "IF_SAFER"}
    with rasterio.open(path, "w", **profile, transform=transform, nodata=NODATA) as out:
        out.descriptions = BANDS  # before the pixels, so that the header stays at the start
        out.write(values)
    return path
