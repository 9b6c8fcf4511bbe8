"""What a process that makes one tile holds at most: the same for any size of the tile."""

import json
import sys
from pathlib import Path

from benchmarks import scenes, tiny
from benchmarks.commands import alone
from benchmarks.inprocess import own_tools, run_of
from benchmarks.measure import peak_mb
from benchmarks.servers import redis_server
from benchmarks.table import Line
from flights.intake import load_flight
from flights.pipeline import write_tile
from flights.raster.environment import keep_memory
from flights.report import TileState
from flights.runs import Job
from tests.processes import environment

LIMIT_MB, SAME = 300, 1.15


def run(folder: Path, quick: bool) -> list[Line]:
    """An ordinary tile and one of many times its pixels."""
    small, large = sizes = (2_048, 4_096 if quick else 10_000)
    peaks = {pixels: max(_peak_mb(folder / f"{pixels}", pixels, 1 if quick else 2)) for pixels in sizes}
    lines = [
        Line(
            f"6 a tile of {pixels:,} px: peak of its process",
            f"< {LIMIT_MB} MB",
            f"{peaks[pixels]:.0f} MB",
            held=peaks[pixels] < LIMIT_MB,
        )
        for pixels in sizes
    ]
    ratio = peaks[large] / peaks[small]
    return [*lines, Line(f"6 {large:,} px against {small:,}", f"<= {SAME} x", "", f"{ratio:.2f}", ratio <= SAME)]


def _peak_mb(folder: Path, pixels: int, times: int) -> list[float]:
    folder.mkdir()
    scenes.write_scene(folder / "scene.tif", pixels)
    peaks = []
    with redis_server(folder / "redis") as url:
        env = environment(folder / "state", CELERY_BROKER_URL=url)
        for i in range(times):
            manifest = tiny.write_manifest(folder, ["scene.tif"], f"run{i}", f"out{i}")
            peaks.append(alone(env, __name__, manifest)["mb"])
    return peaks


def make_tile(manifest: str) -> dict[str, float]:
    """Make a flight's one tile in this process, and nothing else."""
    keep_memory()  # as a worker's process does
    tools = own_tools()
    flight = load_flight(tools.stores, manifest)
    (tile,) = flight.tiles
    outcome = write_tile(Job.of(run_of(flight, tools.settings), flight, [tile]), tile, tools)
    if outcome.state is not TileState.DONE:
        raise RuntimeError(f"not made: {outcome}")
    return {"mb": peak_mb()}


if __name__ == "__main__":
    print(json.dumps(make_tile(sys.argv[1])))
