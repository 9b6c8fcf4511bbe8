"""A process is killed at one point of one flight, and the flight ends complete all the same.

One fleet serves all; every flight has tiles of its own names, which is how the plan knows what it is to hit. A driver
that waits mends its flight by itself. Where nobody waits, the sweep does.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import rasterio

from tests.faults.fleet_process import (
    Ended,
    Fleet,
    assert_tiles,
    ended,
    fault,
    fleet_of,
    published_report,
)
from tests.processes import COMMAND_S, Made, await_, make_flight

TILES = 5
# Sweeps that may be needed: what is missing is sent again, and when it is made the report is asked for.
SWEEPS_MAX = 1
# Where a process is killed, and how often pixels may be worked on in vain because of it.
TILE_POINTS = {
    "delivered": 0,
    "compute": 1,
    "before_read": 1,
    "after_read": 1,
    "mid_write": 1,
    "before_cog": 1,
    "after_cog": 1,
    "before_put": 1,
    "before_rename": 1,
    "after_rename": 0,
    "put": 0,
    "before_settle": 0,
    "after_settle": 0,
    "stored_uncounted": 0,
    "counted": 0,
}
FLIGHT_POINTS = ["report", "reported", "mid_composite", "before_put", "put", "composited"]
# The last count of a chord is one of its tiles', whichever is last.
CHORD_POINTS = ["counted_unsent", "body_sent"]
# Here a chord alone never ends.
NEED_A_SWEEP = {"stored_uncounted", "counted_unsent"}
QUICK = {"mid_write", "stored_uncounted", "counted_unsent"}
S3_POINTS = ["before_put", "put", "F-before_put", "F-put"]
# `wrote` counts a manifest or run record as written, `sent:N` the N-th message.
DRIVER_POINTS = ["before_record", "wrote:manifest.json", "wrote:run.json", "before_submit"]
DRIVER_POINTS += [f"sent:{n}" for n in range(1, TILES + 1)] + ["after_submit"]
# With these the command had not got as far as to record what it was asked to do.
UNRECORDED = ("before_record", "wrote:manifest.json")


def _names(point: str, where: str) -> str:
    """The id of the flight in which a process is killed at a point."""
    return f"{where}-{point.replace(':', '-')}"


def _faults(where: str) -> list[dict[str, Any]]:
    faults = []
    for point in TILE_POINTS:
        faults.append(fault(f"{_names(point, where)}-2", point, "kill"))
    for point in CHORD_POINTS:
        faults.append(fault(f"{_names(point, where)}-?", point, "kill"))
    for point in FLIGHT_POINTS:
        faults.append(fault(_names(f"F-{point}", where), point, "kill"))
    return faults


@pytest.fixture(scope="module")
def fleet(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers, with every kill of this module planned."""
    faults = [f for where in ("driven", "swept", "s3") for f in _faults(where)]
    aws = {"AWS_ENDPOINT_URL": s3_server, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with fleet_of(tmp_path_factory.mktemp("kills"), faults, settings=aws | {"AWS_REGION": "us-east-1"}) as fleet:
        yield fleet


def _points() -> list[Any]:
    points = [*TILE_POINTS, *CHORD_POINTS, *(f"F-{point}" for point in FLIGHT_POINTS)]
    return [pytest.param(p, marks=[] if p in QUICK else [pytest.mark.long]) for p in points]


def _flight(fleet: Fleet, flight_id: str) -> Made:
    return make_flight(fleet.folder / flight_id, flight_id, [f"{flight_id}-{i}" for i in range(TILES)])


def assert_struck(fleet: Fleet, flight_id: str) -> None:
    """The kill of a flight has happened: a test that strikes nothing means nothing."""
    plan = json.loads((fleet.folder / "plan.json").read_text())["faults"]
    (number,) = [i for i, f in enumerate(plan) if f["tile"] == flight_id or f["tile"].rsplit("-", 1)[0] == flight_id]
    assert (fleet.folder / f"fault-{number}.0").exists()


def assert_whole(fleet: Fleet, flight: Made, report: Any, wasted: int = 0) -> None:
    """A flight is complete, its mosaic is there, nothing is left behind, and no pixel was worked on for nothing."""
    assert report == published_report(flight)
    assert_tiles(flight, report)
    assert report["mosaic"], report["mosaic_error"]
    fleet.assert_nothing_left(flight)
    starts = {tile: n for tile, n in fleet.counts("compute").items() if tile in flight.expected}
    assert sum(starts.values()) == TILES + wasted, starts


def swept(fleet: Fleet, flight: Made) -> list[str]:
    """Sweep until a flight has its last word; what the sweeps that did something about it did."""
    deeds: list[str] = []
    deadline = time.monotonic() + 90
    while not _has_last_word(flight):
        assert time.monotonic() < deadline, deeds
        fleet.await_idle()
        time.sleep(0.5)
        deeds += [line for line in fleet.sweep().splitlines() if line.startswith(flight.manifest.stem + " ")]
    return deeds


def _has_last_word(flight: Made) -> bool:
    report = published_report(flight)
    return bool(report and (report["mosaic"] or report["mosaic_error"]))


# ---------------------------------------------------------------- a worker's process


@pytest.mark.long
@pytest.mark.parametrize("point", [point.values[0] for point in _points()])
def test_a_driver_that_waits_mends_its_flight(point: str, fleet: Fleet) -> None:
    flight = _flight(fleet, _names(point, "driven"))
    done = fleet.run("run", "--json", flight.manifest)
    assert done.status == 0, done.said
    assert_struck(fleet, flight.manifest.stem)
    assert_whole(fleet, flight, done.report, TILE_POINTS.get(point, 0))


@pytest.mark.parametrize("point", _points())
def test_the_sweep_mends_a_flight_that_nobody_waits_for(point: str, fleet: Fleet) -> None:
    flight = _flight(fleet, _names(point, "swept"))
    assert fleet.run("run", "--timeout", "0", flight.manifest).status == 75
    fleet.await_idle()
    assert_struck(fleet, flight.manifest.stem)
    deeds = swept(fleet, flight)
    assert len(deeds) <= SWEEPS_MAX, deeds
    if point in NEED_A_SWEEP:  # so it is the sweep that holds the gate
        assert deeds
    assert_whole(fleet, flight, published_report(flight), TILE_POINTS.get(point, 0))


def test_a_message_that_a_killed_worker_took_along_waits_for_no_beat(tmp_path: Path) -> None:
    """Killed between the broker's answer and its own entry of what it holds: nobody knows of the message any more.

    The run is shown to be alive for longer than the command is given: so it is the empty broker that tells.
    """
    settings = {"FLIGHTS_CLAIM_LEASE_S": str(2 * COMMAND_S)}
    with fleet_of(tmp_path / "fleet", [fault("F-2", "taken", "kill")], concurrency=1, settings=settings) as fleet:
        flight = _flight(fleet, "F")
        with fleet.kept_up():
            done = fleet.run("run", "--json", flight.manifest)
        assert done.status == 0, done.said
        assert_struck(fleet, "F")
        assert "tiles sent again: 1" in done.said
        assert_whole(fleet, flight, done.report)


@pytest.mark.long
@pytest.mark.parametrize("point", S3_POINTS)
def test_an_object_is_whole_whenever_its_writer_is_killed(point: str, fleet: Fleet, s3: Any) -> None:
    flight_id = _names(point, "s3")
    flight = _flight(fleet, flight_id)
    manifest = json.loads(flight.manifest.read_text()) | {"out_uri": f"s3://ndvi/{flight_id}"}
    flight.manifest.write_text(json.dumps(manifest))
    done = fleet.run("run", "--json", flight.manifest)
    assert (done.status, done.report["tiles"]["done"]) == (0, TILES), done.said
    assert_struck(fleet, flight_id)
    for tile_id, expected in flight.expected.items():
        body = boto3.client("s3").get_object(Bucket="ndvi", Key=f"{flight_id}/tiles/{tile_id}.ndvi.tif")["Body"].read()
        with rasterio.MemoryFile(body) as memory, memory.open() as product:
            np.testing.assert_allclose(product.read(1), expected, rtol=0, atol=1e-6, equal_nan=True)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="ndvi")
    fleet.assert_nothing_left(flight)


# ---------------------------------------------------------------- the command that sends


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet in which nothing goes wrong but the command."""
    faults = [fault(flight_id, point, "kill") for point in DRIVER_POINTS for flight_id in [_names(point, "sent")]]
    with fleet_of(tmp_path_factory.mktemp("sent"), faults) as fleet:
        yield fleet


def _kill_half_way(fleet: Fleet, point: str) -> tuple[Made, Ended]:
    flight = _flight(fleet, _names(point, "sent"))
    # The plan of this command: what it meets has no tile.
    plan = fleet.folder / flight.manifest.stem / "plan.json"
    plan.write_text(json.dumps({"faults": [fault("*", point, "kill")]}))
    process = fleet.start("run", "--json", flight.manifest, faulty=True, FAULTS_PLAN=str(plan))
    return flight, ended(process)


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p == "sent:3" else [pytest.mark.long]) for p in DRIVER_POINTS]
)
def test_a_command_killed_half_way_through_sending(point: str, calm: Fleet) -> None:
    flight, done = _kill_half_way(calm, point)
    assert (done.status, done.out) == (-9, "")
    if point in UNRECORDED:
        assert calm.sweep() == ""
        assert calm.run("run", flight.manifest).status == 0
    else:
        calm.await_idle()
        deeds = swept(calm, flight)
        assert len(deeds) <= SWEEPS_MAX, deeds
    assert_whole(calm, flight, published_report(flight))


@pytest.mark.long
def test_the_same_command_again_finishes_what_one_killed_half_way_began(calm: Fleet) -> None:
    flight = _flight(calm, "again")
    plan = calm.folder / "again" / "plan.json"
    plan.write_text(json.dumps({"faults": [fault("*", "sent:2", "kill")]}))
    assert ended(calm.start("run", flight.manifest, faulty=True, FAULTS_PLAN=str(plan))).status == -9
    done = calm.run("run", "--json", flight.manifest)
    assert done.status == 0, done.said
    assert_whole(calm, flight, done.report)
    await_("the first run's tiles are done with", lambda: calm.idle)
