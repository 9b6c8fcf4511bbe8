"""Five hundred tiles while workers and Redis are killed at random: every tile is right, or failed and says why.

The order of the deeds is drawn from a seed; when they fall, and so what they hit, is not.
"""

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fleet_process import (
    Fleet,
    assert_tiles,
    ended,
    fault,
    fleet_of,
    published_report,
)
from tests.faults.table import Table
from tests.processes import Made, await_, make_flight, strict_json

TILES = 500
# Time for a flight, and for what is left of it once the storm is over.
FLIGHT_S = 400.0


def flight_of(fleet: Fleet, tiles: int) -> Made:
    """The flight of a storm."""
    return make_flight(fleet.folder / "F", "F", [f"t{i:03}" for i in range(tiles)])


# ---------------------------------------------------------------- the benchmark


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_hundred_tiles_and_five_workers_killed(tmp_path: Path, table: Table) -> None:
    """500 tiles of half a second on two workers of two; then the same, and every 80 tiles a whole worker is killed."""
    calm_s, _, _ = _bench(tmp_path / "calm", kills=0)
    storm_s, done, again = _bench(tmp_path / "killed", kills=5)
    table.count("500 tiles of 0.5 s, 5 workers killed: done", done, TILES)
    table.row("500 tiles of 0.5 s, 5 workers killed: published twice", again, "0")
    table.row("500 tiles of 0.5 s, 5 workers killed: time, undisturbed is 1", f"{storm_s / calm_s:.2f}", "1.15")


def _bench(folder: Path, kills: int) -> tuple[float, int, int]:
    """Seconds to the answer, tiles done, and tiles published more than once."""
    slow = fault("*", "after_read", "sleep", 0, seconds=0.5)
    with fleet_of(folder, [slow], plan={"visibility_s": 10}) as fleet, fleet.kept_up():
        flight = flight_of(fleet, TILES)
        began = time.monotonic()
        run = fleet.start("run", "--json", "--composite", "never", flight.manifest)
        for turn in range(kills):
            wanted = 50 + 80 * turn
            await_(f"{wanted} products", partial(_has_reached, flight, wanted), FLIGHT_S)
            fleet.workers[turn % len(fleet.workers)].kill()
        done = ended(run, FLIGHT_S)
        seconds = time.monotonic() - began
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        puts, starts = fleet.counts("put"), fleet.counts("compute")
        # What a killed worker had in hand is begun again; nothing else is.
        assert sum(starts.values()) - TILES <= kills * fleet.concurrency
        again = sum(n - 1 for n in puts.values())
        assert again == 0
        # Nor does a killed worker take more than one message along.
        assert sum(map(int, re.findall("tiles sent again: ([0-9]+)", done.said))) <= kills
        fleet.assert_nothing_left(flight)
    return seconds, int(done.report["tiles"]["done"]), again


def _has_reached(flight: Made, products: int) -> bool:
    return len(flight.products) >= products


# ---------------------------------------------------------------- storms


@dataclass
class Storm:
    """Kills what it meets, in a thread of its own."""

    fleet: Fleet
    rng: random.Random
    every_s: tuple[float, float]
    deeds: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def raging(self) -> Iterator[None]:
        """Until the block ends."""
        over = threading.Event()
        thread = threading.Thread(target=self._rage, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _rage(self, over: threading.Event) -> None:
        while not over.wait(self.rng.uniform(*self.every_s)):
            worker = self.rng.choice(self.fleet.workers)
            deed = self.rng.choices(["child", "worker", "redis"], [5, 3, 2])[0]
            self.deeds[deed] += 1
            if deed == "child":
                worker.kill_child(self.rng)
            elif deed == "worker":
                worker.kill()
            else:
                self.fleet.server.restart(after_s=self.rng.uniform(0.1, 2))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "tiles", "driver"),
    [
        (0, 120, "waits"),
        *(pytest.param(s, TILES, "is killed" if s % 2 else "waits", marks=pytest.mark.long) for s in range(1, 11)),
    ],
)
def test_a_storm(seed: int, tiles: int, driver: str, tmp_path: Path, table: Table) -> None:
    rng = random.Random(seed)
    slow = fault("*", "after_read", "sleep", 0, seconds=rng.uniform(0.05, 0.1))
    with fleet_of(tmp_path / "fleet", [slow]) as fleet, fleet.kept_up():
        flight = flight_of(fleet, tiles)
        storm = Storm(fleet, rng, (1.0, 3.0) if tiles == TILES else (1.0, 2.0))
        run = fleet.start("run", "--json", "--composite", "never", flight.manifest)
        await_("the first product", partial(_has_reached, flight, 1))
        with storm.raging():
            if driver == "is killed":
                await_("some products", lambda: len(flight.products) > tiles // 5, FLIGHT_S)
                run.kill()
            _await_most(flight, tiles)
        done = ended(run, FLIGHT_S)
        assert done.status in ((-9,) if driver == "is killed" else (0, 3)), done.said
        report = _swept(fleet, flight) if driver == "is killed" else done.report
        again = sum(n - 1 for n in fleet.counts("put").values())
        _judge(fleet, flight, report)
        table.count("storms: tiles right, or failed with a reason", tiles, tiles)
        table.count("storms: flights with one report that is right", 1)
        killed = ", ".join(f"{n} x {deed}" for deed, n in sorted(storm.deeds.items()))
        failed = report["tiles"]["failed"]
        table.row(f"storm {seed:2}, driver {driver}", f"{failed} failed, {again} made twice; {killed}", "complete")


def _await_most(flight: Made, tiles: int) -> None:
    """The storm is over when the flight almost is, or by the clock: it need not wait for a tile that is lost."""
    deadline = time.monotonic() + 90
    while len(flight.products) < tiles * 0.95 and time.monotonic() < deadline:
        time.sleep(0.1)


def _swept(fleet: Fleet, flight: Made) -> Any:
    """The report that the sweep brings about."""
    deadline = time.monotonic() + FLIGHT_S / 2
    while (report := published_report(flight)) is None:
        assert time.monotonic() < deadline, "no report, however often the sweep ran"
        fleet.sweep()
        time.sleep(1)
    return report


def _judge(fleet: Fleet, flight: Made, report: Any) -> None:
    """Every tile right or honestly failed, one report that says just that, nothing left behind."""
    failed = {o["tile_id"]: o["error"]["code"] for o in report["outcomes"] if o["state"] == "failed"}
    assert set(failed.values()) <= {"worker_lost"}, failed
    assert_tiles(flight, report, failed=failed)
    assert report["tiles"]["done"] + len(failed) == len(flight.expected)
    await_("every worker is up", lambda: all(worker.alive and " ready." in worker.said for worker in fleet.workers))
    fleet.assert_nothing_left(flight)
    reports = list(flight.manifest.parent.rglob("*.report.json"))
    assert len(reports) == 1
    assert strict_json(reports[0].read_text())["tiles"] == report["tiles"]
    derived = fleet.run("report", "--json", "F").report
    assert {key: derived[key] for key in ("status", "run_id")} == {key: report[key] for key in ("status", "run_id")}
