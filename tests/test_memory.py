"""What a tile costs in memory does not depend on its size."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio

from tests.processes import PROJECT
from tests.synthetic import EPSG, place

BLOCK_PX = 512
# Of two bands, four pixels in sixteen hold something: windows and product are as large as ever, the test is quicker.
EVERY = 4

# Run on its own: makes the tile, and says what it took at most. The kernel's mark of this very program is read where
# there is one: ru_maxrss starts with what the process that forked it held.
MAKE_A_TILE = """
import logging, resource, sys
from pathlib import Path
from tests.inprocess import run_flight

logging.disable()
folder, source = Path(sys.argv[1]), sys.argv[2]
tile = {"tile_id": "t", "src_uri": source, "epsg": int(sys.argv[3])}
manifest = {"flight_id": "F", "bands": {"red": 1, "nir": 2}, "out_uri": "out", "tiles": [tile]}
(outcome,) = run_flight(manifest, folder, composite="never").outcomes
assert outcome.state == "done", outcome
status = Path("/proc/self/status")
if status.exists():
    kilobytes = int(status.read_text().split("VmHWM:")[1].split()[0])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobytes = peak // 1024 if sys.platform == "darwin" else peak
print(kilobytes, outcome.stats.pixels, outcome.stats.count)
"""


def write_source(path: Path, size_px: int) -> int:
    """A square tiled source: one block of random pixels again and again; how many of its pixels hold any."""
    block = np.random.default_rng(1).integers(1, 200, (2, BLOCK_PX, BLOCK_PX)).astype("uint8")
    profile = {"driver": "GTiff", "count": 2, "height": size_px, "width": size_px, "dtype": "uint8"}
    profile |= {"crs": f"EPSG:{EPSG}", "transform": place(), "photometric": "MINISBLACK", "interleave": "band"}
    profile |= {"tiled": True, "blockxsize": BLOCK_PX, "blockysize": BLOCK_PX, "compress": "deflate", "zlevel": 1}
    written = 0
    with rasterio.open(path, "w", SPARSE_OK=True, **profile) as out:
        for row in range(0, size_px, BLOCK_PX):
            for col in range(0, size_px, BLOCK_PX):
                if (row + col) // BLOCK_PX % EVERY == 0:
                    out.write(block, window=((row, row + BLOCK_PX), (col, col + BLOCK_PX)))
                    written += BLOCK_PX**2
    return written


def peak_of_a_tile(folder: Path, size_px: int) -> int:
    """Kilobytes that a process holds at most while it makes a tile of that size."""
    folder.mkdir()
    source = folder / "source.tif"
    written = write_source(source, size_px)
    line = [sys.executable, "-c", MAKE_A_TILE, str(folder), str(source), str(EPSG)]
    done = subprocess.run(line, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, count, valid = map(int, done.stdout.split())
    assert (count, valid) == (size_px**2, written)
    return peak


def test_sixteen_times_the_pixels_take_no_more_memory(tmp_path: Path) -> None:
    small, large = (peak_of_a_tile(tmp_path / str(size_px), size_px) for size_px in (4096, 16384))
    print(f"peak: {small // 1024} MB for 4,096 pixels square, {large // 1024} MB for 16,384")
    assert large == pytest.approx(small, rel=0.2)
