"""A whole flight on the embedded default, beside what its tiles alone cost: is the rest small?"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bare, scenes, tiny
from benchmarks.commands import alone_at_once, run_batch
from benchmarks.inprocess import own_tools, run_of
from benchmarks.servers import redis_server
from benchmarks.table import Line
from flights.intake import load_flight
from flights.pipeline import tile, write_tile
from flights.report import TileState
from flights.runs import Job
from tests.processes import await_nobody, environment

WORKERS = 2
PIXELS = 1_024
# So many scenes under all names: a tile's cost depends on what it holds.
SCENES = 4
WARM_UP_TILES = 2


def run(folder: Path, quick: bool) -> list[Line]:
    """A flight of ordinary tiles, and one of tiny tiles for what a tile costs beside its pixels."""
    return [
        _of_tiles(folder / "tiles", 40 if quick else 400),
        _of_tiny_tiles(folder / "tiny", 200 if quick else 2_000, 1 if quick else 3),
    ]


def _of_tiles(folder: Path, tiles: int) -> Line:
    """The time in which a run makes its tiles, against their CPU time spread over the cores.

    The CPU time is of `write_tile` in as many processes at once as the run has workers (so memory and caches are
    shared alike), before the run and after it. The run's time is of the whole command, without what a run of one tile
    takes beside that tile.
    """
    folder.mkdir()
    scene = [scenes.write_scene(folder / f"scene{i}.tif", PIXELS, seed=i) for i in range(SCENES)]
    for i in range(tiles):
        os.link(scene[i % SCENES], folder / f"{i:04}.tif")
    sources = [f"{i:04}.tif" for i in range(tiles)]
    sample = max(SCENES, tiles // 20)
    costs = [_cost(folder, sources, "before", sample, WORKERS)]
    wall_s, start_s = _time_run(folder, sources, WORKERS)
    costs.append(_cost(folder, sources, "after", sample, WORKERS))
    tile_s = statistics.mean(cost["tile_cpu_s"] for cost in costs)
    phase_s, ideal_s = wall_s - (start_s - tile_s), tiles * tile_s / WORKERS
    ratio = phase_s / ideal_s
    return Line(
        f"3 a flight: {tiles} tiles of {PIXELS:,} px, {WORKERS} workers, against its tiles' CPU time / {WORKERS}",
        "<= 1.15 x",
        f"{phase_s:.1f} s against {ideal_s:.1f} s ({tile_s * 1000:.0f} ms a tile; start and report {start_s:.1f} s)",
        f"{ratio:.2f}",
        ratio <= 1.15,
    )


def _of_tiny_tiles(folder: Path, tiles: int, rounds: int) -> Line:
    """What a tile costs beside its pixels on one worker process: message, claim, looks at storage, outcome.

    The median round's, and beside it, of the same minute, what a Celery task that does nothing costs.
    """
    manifest = tiny.write_flight(folder, tiles)
    sources = [tile["src_uri"] for tile in json.loads(manifest.read_text())["tiles"]]
    said = [_beside_pixels_ms(folder, sources, str(i)) for i in range(rounds)]
    wall_ms, pixels_ms, beside_ms, bare_ms = sorted(said, key=lambda one: one[2])[rounds // 2]
    return Line(
        f"3 a tile beside its pixels, local files, 1 worker, {tiles:,} tiny tiles, against a bare Celery task",
        "< 6 ms",
        f"{beside_ms:.1f} ms against {bare_ms:.1f} ms ({wall_ms:.1f} ms a tile, CPU of its pixels {pixels_ms:.1f} ms); "
        f"rounds {', '.join(f'{one[2]:.1f} against {one[3]:.1f}' for one in said)}",
        f"{beside_ms / bare_ms:.2f}",
        held=beside_ms < 6,
    )


def _beside_pixels_ms(folder: Path, sources: list[str], name: str) -> tuple[float, float, float, float]:
    """The time of a tile, the CPU time of its pixels, the difference, and the time of a task that does nothing."""
    costs = [_cost(folder, sources, f"before{name}", 100, 1)]
    wall_s, start_s = _time_run(folder, sources, 1, name)
    costs.append(_cost(folder, sources, f"after{name}", 100, 1))
    wall_ms = (wall_s - start_s) / (len(sources) - 1) * 1000
    pixels_ms = statistics.mean(cost["pixels_cpu_s"] for cost in costs) * 1000
    return wall_ms, pixels_ms, wall_ms - pixels_ms, bare.task_s(folder / f"bare{name}", len(sources)) * 1000


def _time_run(folder: Path, sources: list[str], workers: int, of: str = "") -> tuple[float, float]:
    """How long a run of all sources takes, and the median of runs of one of them, each on a fleet of its own."""

    def timed(name: str, parts: list[str]) -> float:
        name += of
        manifest = tiny.write_manifest(folder, parts, name, f"{name}-out")
        state = folder / f"{name}-state"
        seconds = run_batch(_environment(state, workers), "run", manifest, "--composite", "never")
        await_nobody(state)
        return seconds

    starts = [timed(f"one{i}", sources[:1]) for i in range(2)]
    whole = timed("all", sources)
    return whole, statistics.median([*starts, timed("one2", sources[:1])])


def _environment(state: Path, workers: int) -> dict[str, str]:
    return environment(state, FLIGHTS_WORKERS=str(workers))


# ---------------------------------------------------------------- tiles without a queue


def _cost(folder: Path, sources: list[str], name: str, sample: int, processes: int) -> dict[str, float]:
    """The mean CPU time of a tile, and of its pixels alone, over a sample in so many processes at once."""
    parts = [sources[i : i + sample + WARM_UP_TILES] for i in range(processes)]
    manifests = [tiny.write_manifest(folder, part, f"{name}-{i}", f"{name}-{i}-out") for i, part in enumerate(parts)]
    with redis_server(folder / f"{name}-redis") as url:
        env = environment(folder / f"{name}-state", CELERY_BROKER_URL=url)
        said = alone_at_once(env, __name__, [[manifest] for manifest in manifests])
    return {figure: statistics.mean(one[figure] for one in said) for figure in said[0]}


def make_tiles(manifest: str) -> dict[str, float]:
    """Make a flight's tiles in this process: what one takes, after the first ones, and what of it `_compute` does."""
    tools = own_tools()
    flight = load_flight(tools.stores, manifest)
    of_run = run_of(flight, tools.settings)
    with _clocked(tile, "_compute") as spent:
        for i, one in enumerate(flight.tiles):
            if i == WARM_UP_TILES:
                began_s, spent[:] = _cpu_s(), []
            outcome = write_tile(Job.of(of_run, flight, [one]), one, tools)
            if outcome.state is not TileState.DONE or outcome.cached:
                raise RuntimeError(f"not made: {outcome}")
    tiles = len(flight.tiles) - WARM_UP_TILES
    return {"tile_cpu_s": (_cpu_s() - began_s) / tiles, "pixels_cpu_s": sum(spent) / tiles}


@contextmanager
def _clocked(module: Any, name: str) -> Iterator[list[float]]:
    """The CPU seconds of every call of a function of a module while the block runs."""
    spent: list[float] = []
    function = getattr(module, name)

    def clocked(*arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            spent.append(time.process_time() - began)

    setattr(module, name, clocked)
    try:
        yield spent
    finally:
        setattr(module, name, function)


def _cpu_s() -> float:
    """CPU time of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    print(json.dumps(make_tiles(sys.argv[1])))
