"""A flight of 40,000 tiles: what grows with them, and what must not."""

import contextlib
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

from benchmarks import tiny
from benchmarks.commands import alone
from benchmarks.fleets import embedded_tools, sending_tools
from benchmarks.inprocess import own_tools, run_of
from benchmarks.measure import peak_mb, resident_mb
from benchmarks.servers import redis_server
from benchmarks.table import Line
from fleet import UNACKED
from flights.console import board
from flights.follow import Follower
from flights.intake import load_flight
from flights.pipeline import Tools, finalise
from flights.report import FlightReport, TileOutcome, TileState
from flights.runs import load_report, load_run, save_report, save_run
from flights.settings import Settings
from flights.store import open_stores
from tasks import Post
from tests.processes import await_nobody, environment

MB = 1e6
REDIS_MB, SUBMIT_S, REPORT_KB_A_TILE = 32, 3, 10
# How often a run's command looks and redraws, and for how long that is watched.
REFRESH_S, REFRESHES = 0.1, 110
# A refresh at forty times the tiles may cost so much more, which is noise.
SAME = 1.5


def run(folder: Path, quick: bool) -> list[Line]:
    """The figures of a flight of 40,000 tiny tiles, all under the names of one file."""
    tiles = 2_000 if quick else 40_000
    manifest = tiny.write_flight(folder / "flight", tiles)
    state = folder / "state"
    env = environment(state)
    tiny.make_products(manifest, env)
    await_nobody(state)
    lines = [*_submission(folder, manifest, tiles), _memory_of_redis(folder, manifest, tiles)]
    return [*lines, *_report(folder, manifest, tiles), _display(folder, manifest, tiles)]


# ---------------------------------------------------------------- sending


def _submission(folder: Path, manifest: Path, tiles: int) -> list[Line]:
    """From the plan in hand to the last message, the first of its process; and what Redis then holds."""
    said = []
    for i in range(3):
        with redis_server(folder / f"redis{i}") as url:
            said.append(alone(environment(folder / "state", CELERY_BROKER_URL=url), __name__, "submit", manifest))
    seconds, held_mb = (statistics.median(one[name] for one in said) for name in ("seconds", "redis_mb"))
    name = f"4 {tiles:,} tiles"
    return [
        Line(f"{name}: submitted", f"< {SUBMIT_S} s", f"{seconds:.2f} s", held=seconds < SUBMIT_S),
        Line(f"{name}: Redis after that", f"< {REDIS_MB} MB", f"{held_mb:.1f} MB", held=held_mb < REDIS_MB),
    ]


def submit(manifest: str) -> dict[str, float]:
    """Send all tiles of a flight to a broker that no worker listens to."""
    tools = sending_tools()
    flight = load_flight(tools.stores, manifest)
    of_run, post = run_of(flight, tools.settings), Post(tools)
    began = time.perf_counter()
    post.submit(of_run, flight, flight.tiles)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "redis_mb": _redis_memory(tools)["used_memory"] / MB}


def _redis_memory(tools: Tools) -> dict[str, int]:
    with redis.Redis.from_url(str(tools.settings.broker_url)) as client:
        said: dict[str, int] = client.info("memory")
        return said


def _memory_of_redis(folder: Path, manifest: Path, tiles: int) -> Line:
    """The most that Redis holds while the embedded worker goes through all messages."""
    state = folder / "run-state"
    said = alone(environment(state), __name__, "whole", manifest)
    await_nobody(state)
    return Line(
        f"4 {tiles:,} tiles: the most that Redis holds, to the report",
        f"< {REDIS_MB} MB",
        f"{said['redis_mb']:.1f} MB",
        held=said["redis_mb"] < REDIS_MB,
    )


def whole(manifest: str) -> dict[str, float]:
    """Send all tiles of a flight to the embedded worker, whatever is made already, and wait for the report."""
    with embedded_tools() as tools:
        flight = load_flight(tools.stores, manifest)
        of_run = run_of(flight, tools.settings)
        save_run(tools.stores, of_run, flight)
        tools.ledger.start(of_run.run_id)
        post = Post(tools)
        post.submit(of_run, flight, flight.tiles)
        follower = Follower(run=of_run, flight=flight, sent=flight.tiles, tools=tools, courier=post)
        while not follower.step():
            time.sleep(REFRESH_S)
        if follower.report is None or not follower.report.complete:
            raise RuntimeError(f"the flight is not complete: {follower.report and follower.report.tiles}")
        return {"redis_mb": _redis_memory(tools)["used_memory_peak"] / MB}


# ---------------------------------------------------------------- the report


def _report(folder: Path, manifest: Path, tiles: int) -> list[Line]:
    """What making the report takes, its memory within a bound a tile, beside that of a quarter of the tiles."""
    few, many = tiles // 4, tiles
    said = {some: _reported(folder / f"report{some}", manifest, some) for some in (few, many)}
    lines = []
    for what, figure, unit in (("memory, above its imports", "mb", "MB"), ("time", "seconds", "s")):
        small, large = said[few][figure], said[many][figure]
        kb_a_tile = large * 1000 / many if figure == "mb" else None
        lines.append(
            Line(
                f"4 {tiles:,} tiles: the process that reports, {what}",
                f"< {REPORT_KB_A_TILE} KB a tile" if kb_a_tile else "",
                f"{large:.1f} {unit} ({few:,} tiles: {small:.1f} {unit})",
                f"{large / small:.2f} for 4 x",
                kb_a_tile < REPORT_KB_A_TILE if kb_a_tile else None,
            )
        )
    return lines


def _reported(folder: Path, manifest: Path, tiles: int) -> dict[str, float]:
    """A run of the first tiles, all made, with its record and with what its tiles told: reported on its own."""
    folder.mkdir()
    stores, settings = open_stores(), Settings(state_dir=folder)
    flight = load_flight(stores, str(tiny.first_of(manifest, tiles, folder.name)))
    of_run = run_of(flight, settings)
    save_run(stores, of_run, flight)
    told = folder / "told.jsonl"
    told.write_text("".join(f"{one.as_text()}\n" for one in _last_report(manifest).outcomes[:tiles]))
    with redis_server(folder / "redis") as url:
        return alone(environment(folder, CELERY_BROKER_URL=url), __name__, "report", of_run.record_uri, told)


def _last_report(manifest: Path) -> FlightReport:
    stores = open_stores()
    last = load_report(stores, load_flight(stores, str(manifest)))
    if last is None:
        raise RuntimeError(f"{manifest} has no report")
    return last


def report(record: str, told: str) -> dict[str, float]:
    """Make a run's report as a worker does, from outcomes that arrive one by one."""
    tools = own_tools()
    before_mb, began = resident_mb(), time.perf_counter()
    of_run, flight = load_run(tools.stores, record)
    with Path(told).open() as lines:
        made = finalise(of_run, flight, (TileOutcome.of_text(line) for line in lines), tools)
    if not made.complete:
        raise RuntimeError(f"the flight is not complete: {made.tiles}")
    return {"mb": peak_mb() - before_mb, "seconds": time.perf_counter() - began}


# ---------------------------------------------------------------- the display


def _display(folder: Path, manifest: Path, tiles: int) -> Line:
    """What one look at a run and one redraw cost, at few tiles and at many."""
    few, many = tiles // 40, tiles
    costs = {}
    for some in (few, many):
        part, last = tiny.first_of(manifest, some, f"display{some}"), _last_report(manifest)
        flight = load_flight(open_stores(), str(part))
        save_report(open_stores(), flight, last.model_copy(update={"outcomes": last.outcomes[:some]}))
        with redis_server(folder / f"display-redis{some}") as url:
            env = environment(folder / f"display-state{some}", CELERY_BROKER_URL=url, TERM="xterm")
            costs[some] = float(alone(env, __name__, "refresh", part)["seconds"]) * 1000
    ratio = costs[many] / costs[few]
    return Line(
        f"4 {tiles:,} tiles: a refresh of the display, storage looked at now and then",
        "as at few",
        f"{costs[many]:.1f} ms ({few:,} tiles: {costs[few]:.1f} ms)",
        f"{ratio:.2f}",
        ratio <= SAME,
    )


def refresh(manifest: str) -> dict[str, float]:
    """The CPU time of a look and a redraw, at the pace of a command that waits, of a flight half done.

    The report of an earlier run lies there, as it does whenever a flight is run again; storage is asked for this run's
    every few seconds.
    """
    tools = sending_tools()
    flight = load_flight(tools.stores, manifest)
    of_run = run_of(flight, tools.settings)
    for tile in flight.tiles[::2]:
        tools.ledger.note(of_run.run_id, TileOutcome(tile_id=tile.tile_id, state=TileState.DONE, dst_uri=tile.dst_uri))
    follower = Follower(
        run=of_run,
        flight=flight,
        sent=flight.tiles,
        tools=tools,
        courier=Post(tools),
        report_seen=tools.stores.stat(flight.report_uri),  # as a run's beginning tells it
    )
    tools.ledger.submitted(of_run.run_id)
    with redis.Redis.from_url(str(tools.settings.broker_url)) as client:
        client.hset(UNACKED, "tag", "a message")  # a worker has one in hand
    at_work = tools.ledger.claim("bench", tools.settings.claim_lease_s, of_run.run_id)
    with at_work, contextlib.redirect_stderr(_Terminal()), board() as live:
        began = time.process_time()
        for _ in range(REFRESHES):
            if follower.step():
                raise RuntimeError("a run that nobody reports has its report")
            live.update([follower])
            time.sleep(REFRESH_S)
        return {"seconds": (time.process_time() - began) / REFRESHES}


class _Terminal(io.StringIO):
    """Something to draw on that nobody looks at."""

    def isatty(self) -> bool:
        return True


if __name__ == "__main__":
    parts: dict[str, Callable[..., dict[str, float]]] = {
        "submit": submit,
        "whole": whole,
        "report": report,
        "refresh": refresh,
    }
    print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
