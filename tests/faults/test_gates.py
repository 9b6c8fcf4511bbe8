"""The gates of the other modules with what holds them switched off: each then fails, so that it means something."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fleet import KEY_PREFIX
from tests.conftest import PROJECT
from tests.faults.fleet_process import (
    Fleet,
    assert_tiles,
    ended,
    fault,
    fleet_of,
    published_report,
)
from tests.faults.table import Table
from tests.faults.test_poison import MAX_DELIVERIES, flight_of, garbage
from tests.processes import await_

# A flight of 40 tiles of 0.1 s on four processes has long ended by then.
GIVEN_UP_S = 30.0


def _unanswered(fleet: Fleet, flight_id: str, table: Table, gate: str) -> None:
    """A command that does not mend waits in vain."""
    flight = flight_of(fleet, flight_id, 40)
    run = fleet.start("run", "--json", "--timeout", str(GIVEN_UP_S), flight.manifest, faulty=True)
    await_("the first products", lambda: len(flight.products) >= 8)
    if gate.startswith("FLUSHALL"):
        fleet.server.client.flushall()
    else:
        fleet.workers[0].kill()
        fleet.start_worker(0)
    done = ended(run)
    table.row(f"{gate}, protection off", f"{len(flight.products)} of 40, no answer", "no answer")
    assert done.status == 75, done.said
    assert published_report(flight) is None


@pytest.mark.long
def test_without_mending_a_flushed_broker_costs_the_answer(tmp_path: Path, table: Table) -> None:
    slow = fault("*", "after_read", "sleep", 0, seconds=0.1)
    with fleet_of(tmp_path / "fleet", [slow], plan={"off": ["mending"]}) as fleet:
        _unanswered(fleet, "F", table, "FLUSHALL mid-flight")


@pytest.mark.long
def test_without_late_acknowledgement_and_mending_a_killed_worker_costs_its_tiles(tmp_path: Path, table: Table) -> None:
    slow = fault("*", "after_read", "sleep", 0, seconds=0.1)
    with fleet_of(tmp_path / "fleet", [slow], plan={"off": ["mending", "late acknowledgement"]}) as fleet:
        _unanswered(fleet, "F", table, "a worker killed mid-flight")


@pytest.mark.long
def test_without_a_count_of_deliveries_poison_goes_round_for_ever(tmp_path: Path, table: Table) -> None:
    with fleet_of(
        tmp_path / "fleet", [fault("F-1", "after_read", "kill", 0)], settings={"FLIGHTS_MAX_DELIVERIES": "1000000"}
    ) as fleet:
        flight = flight_of(fleet, "F", 4)
        run = fleet.start("run", "--json", flight.manifest)
        await_("more deliveries than are allowed", lambda: fleet.counts()["F-1"] > 2 * MAX_DELIVERIES, 120)
        table.row(
            "a tile that kills its worker, deliveries not counted", f"{fleet.counts()['F-1']} and on", "on and on"
        )
        assert run.poll() is None
        run.kill()
        run.communicate()


@pytest.mark.long
def test_without_quarantine_an_unreadable_message_ends_worker_after_worker(tmp_path: Path, table: Table) -> None:
    lives = {}
    for off in ([], ["quarantine"]):
        with fleet_of(tmp_path / f"fleet{len(off)}", workers=1, plan={"off": off}) as fleet, fleet.kept_up(0.2):
            fleet.server.client.rpush(KEY_PREFIX + "tiles", garbage("put back"))
            seen = {fleet.workers[0].process.pid}
            if off:
                await_("more workers than one end by it", partial(_more_than, fleet, seen, 2))
            else:
                await_("another worker", partial(_more_than, fleet, seen, 1))
                fleet.workers[0].await_ready()
                fleet.await_idle()
            _more_than(fleet, seen, 0)
            lives[bool(off)] = len(seen)
    table.row(
        "an unreadable message: lives of a worker, with quarantine and without",
        f"{lives[False]}, {lives[True]} and on",
        "2, on and on",
    )
    assert lives[False] == 2


def _more_than(fleet: Fleet, seen: set[int], lives: int) -> bool:
    """Whether a worker has been started so often that more processes have been seen."""
    seen |= {worker.process.pid for worker in fleet.workers}
    return len(seen) > lives


# ---------------------------------------------------------------- beat


@pytest.mark.long
@pytest.mark.timeout(300)
def test_beat_alone_mends_a_flight_that_nobody_waits_for(tmp_path: Path, table: Table) -> None:
    """A tile's result is stored and never counted: its chord is dead. Beat's sweep, a minute later, ends the flight."""
    with fleet_of(tmp_path / "fleet", [fault("F-2", "stored_uncounted", "kill")]) as fleet:
        flight = flight_of(fleet, "F", 5)
        assert fleet.run("run", "--timeout", "0", flight.manifest).status == 75
        fleet.await_idle()
        line = [sys.executable, "-m", "celery", "-A", "tasks", "beat", "-s", str(tmp_path / "schedule")]
        beat = subprocess.Popen(line, cwd=PROJECT, env=fleet.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            began = time.monotonic()
            report = await_("beat has it swept", lambda: published_report(flight), 180)
        finally:
            beat.kill()
            beat.wait()
        table.row("a dead chord, beat running: answered after", f"{time.monotonic() - began:.0f} s", "about 60 s")
        assert_tiles(flight, report)
