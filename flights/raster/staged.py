"""A COG in two passes, of any size in bounded memory: pixels to uncompressed files, then GDAL's COG driver over them.

Costs a third more than `onepass`, which needs rows of blocks in memory.
"""

import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning

from flights.raster.environment import BLOCK_PX, THREADS, Grid
from flights.raster.overviews import Checks, checksum, halved
from flights.raster.pixels import PixelFormat
from flights.windows import Window, strips

# Memory for a strip of an overview with the pixels that it is made of.
_OVERVIEW_BYTES = 8 * 2**20


class Staged:
    """Takes windows in any order, and ends with a COG."""

    def __init__(
        self, folder: Path, grid: Grid, profile: Mapping[str, Any], encoding: Mapping[str, Any], form: PixelFormat
    ) -> None:
        self._folder, self._grid, self._profile, self._encoding, self._form = folder, grid, profile, encoding, form
        self.checks: list[Checks] = [[]]
        # All the windows of every resolution: each is to be decoded and compared.
        self._dataset = self._create("strips.tif", grid.height, grid.width, crs=grid.crs, transform=grid.transform)

    def close(self) -> None:
        if not self._dataset.closed:
            self._dataset.close()

    def write(self, values: NDArray[np.float32], window: Window) -> None:
        pixels = self._form.pack(values)
        self._dataset.write(pixels, 1, window=window.slices)
        self.checks[0].append((window, checksum(pixels)))

    def finish(self, final: Path, label: Callable[[Any], None]) -> None:
        """Make the COG; `label` is given a dataset, for its tags."""
        label(self._dataset)
        self._dataset.close()
        levels = self._overviews()
        rasterio.shutil.copy(
            _with_overviews(self._folder / "strips.tif", levels),
            final,
            driver="COG",
            BLOCKSIZE=BLOCK_PX,
            # Not made by the driver, which encodes them to a file of its own first: a tenth of the whole tile.
            OVERVIEWS="FORCE_USE_EXISTING" if levels else "NONE",
            NUM_THREADS=THREADS,
            BIGTIFF="IF_SAFER",
            COMPRESS=self._encoding["COMPRESS"],
            LEVEL=self._encoding.get("ZSTD_LEVEL") or self._encoding["ZLEVEL"],
            PREDICTOR="YES",
        )
        for path in (self._folder / "strips.tif", self._folder / "strips.vrt", *levels):
            path.unlink(missing_ok=True)

    def differs(self, final: Path) -> str:
        """Nothing: its bytes are the driver's, and tell nothing before they are decoded."""
        del final
        return ""

    def _overviews(self) -> list[Path]:
        """Files of half the size each, until one fits into a block; a pixel is the mean of its valid ones."""
        levels: list[Path] = []
        height, width, below = self._grid.height, self._grid.width, self._folder / "strips.tif"
        while max(height, width) > BLOCK_PX:
            height, width = -(-height // 2), -(-width // 2)
            name, of_level = f"overview{len(levels)}.tif", []
            with rasterio.open(below) as finer, self._create(name, height, width) as coarser:
                for window in strips(height, width, BLOCK_PX, BLOCK_PX, 16, _OVERVIEW_BYTES):
                    (top, bottom), (left, right) = window.slices
                    rows, cols = (2 * top, min(2 * bottom, finer.height)), (2 * left, min(2 * right, finer.width))
                    pixels = self._form.pack(halved(self._form.unpack(finer.read(1, window=(rows, cols)))))
                    coarser.write(pixels, 1, window=window.slices)
                    of_level.append((window, checksum(pixels)))
            below = self._folder / name
            levels.append(below)
            self.checks.append(of_level)
        return levels

    def _create(self, name: str, height: int, width: int, **place: Any) -> Any:
        """An uncompressed file in blocks, open for writing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)  # an overview takes its place from its product
            size = {"height": height, "width": width, "BIGTIFF": "IF_SAFER"}
            return rasterio.open(self._folder / name, "w", **size, **self._profile, **place)


def _with_overviews(path: Path, levels: Sequence[Path]) -> Path:
    """A raster that has those files for its overviews; a VRT, since GDAL writes no overview that it has not made."""
    if not levels:
        return path
    vrt = path.with_suffix(".vrt")
    rasterio.shutil.copy(path, vrt, driver="VRT")
    tree = ElementTree.parse(vrt)
    band = tree.getroot().find("VRTRasterBand")
    assert band is not None
    for level in levels:
        overview = ElementTree.SubElement(band, "Overview")
        ElementTree.SubElement(overview, "SourceFilename", relativeToVRT="1").text = level.name
        ElementTree.SubElement(overview, "SourceBand").text = "1"
    tree.write(vrt)
    return vrt
