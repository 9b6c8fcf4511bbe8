"""Tiles that nobody can make, messages that nobody can read, a broker that forgets, a disk that is full.

The rest of the flight is made, in bounded time, and what was not made has its reason in the report.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rasterio
import redis
from rasterio.transform import Affine

from fleet import KEY_PREFIX
from tests.faults.fleet_process import (
    Fleet,
    Server,
    Worker,
    assert_tiles,
    ended,
    fault,
    fleet_of,
    published_report,
)
from tests.faults.table import Table
from tests.processes import Made, await_, closed_port, make_flight

MAX_DELIVERIES = 3


def flight_of(fleet: Fleet, flight_id: str, tiles: int) -> Made:
    """A flight of so many tiles, named `{flight_id}-{i}`."""
    return make_flight(fleet.folder / flight_id, flight_id, [f"{flight_id}-{i}" for i in range(tiles)])


def _has_made(flight: Made, tiles: int) -> bool:
    return len(flight.products) >= tiles


def write_bomb(path: Path) -> None:
    """A raster of a few hundred kilobytes that claims 2,000,000 x 2,000,000 pixels of four bands."""
    path.unlink()
    profile = {"driver": "GTiff", "width": 2_000_000, "height": 2_000_000, "count": 4, "dtype": "uint16"}
    profile |= {"tiled": True, "blockxsize": 16_384, "blockysize": 16_384, "BIGTIFF": "YES", "SPARSE_OK": "TRUE"}
    rasterio.open(path, "w", crs="EPSG:32615", transform=Affine(0.5, 0, 500_000, 0, -0.5, 4_650_000), **profile).close()
    assert path.stat().st_size < 2**20


# ---------------------------------------------------------------- tiles


@pytest.mark.long
def test_three_poisonous_tiles_of_a_hundred(tmp_path: Path, table: Table) -> None:
    faults = [fault("F-10", "after_read", "kill", 0), fault("F-20", "after_read", "hang", 0)]
    limits = {"FLIGHTS_TILE_SOFT_LIMIT_S": "2", "FLIGHTS_TILE_HARD_LIMIT_S": "4"}
    with fleet_of(tmp_path / "fleet", faults, settings=limits) as fleet:
        flight = flight_of(fleet, "F", 100)
        write_bomb(fleet.folder / "F" / "src" / "F-30.tif")
        began = time.monotonic()
        done = fleet.run("run", "--json", flight.manifest)
        seconds = time.monotonic() - began
        assert done.status == 3, done.said
        report = done.report
        table.row("poison: 100 tiles, one kills, one hangs, one is a bomb", _counted(report), "97 done, 3 failed")
        table.row("poison: time to the flight's answer", f"{seconds:.0f} s", "bounded")
        reasons = {"F-10": "worker_lost", "F-20": "time_limit", "F-30": "source_too_large"}
        assert_tiles(flight, report, failed=reasons)
        assert all(o["error"]["message"] for o in report["outcomes"] if o["state"] == "failed")
        starts = fleet.counts()
        assert (starts["F-10"], starts["F-20"], starts["F-30"]) == (MAX_DELIVERIES, 1, 1)
        assert {n for tile, n in starts.items() if tile not in reasons} == {1}
        fleet.assert_nothing_left(flight)


def _counted(report: Any) -> str:
    return ", ".join(f"{n} {state}" for state, n in report["tiles"].items() if n and state not in ("total", "cached"))


@pytest.mark.long
def test_poison_is_ended_by_the_sweep_where_nobody_waits(tmp_path: Path) -> None:
    faults = [fault("F-1", "after_read", "kill", 0), fault("F-2", "after_read", "hang", 0)]
    limits = {"FLIGHTS_TILE_SOFT_LIMIT_S": "2", "FLIGHTS_TILE_HARD_LIMIT_S": "4"}
    with fleet_of(tmp_path / "fleet", faults, settings=limits) as fleet:
        flight = flight_of(fleet, "F", 6)
        assert fleet.run("run", "--timeout", "0", flight.manifest).status == 75
        report = await_("the sweeps end it", lambda: (bool(fleet.sweep()) and False) or published_report(flight), 120)
        assert_tiles(flight, report, failed={"F-1": "worker_lost", "F-2": "time_limit"})
        fleet.assert_nothing_left(flight)


def test_what_nobody_foresaw_is_an_outcome(tmp_path: Path, table: Table) -> None:
    deeds = ["memory", "allocate", "exit", "raise"]
    with fleet_of(tmp_path / "fleet", [fault(f"F-{i}", "after_read", d, 0) for i, d in enumerate(deeds)]) as fleet:
        flight = flight_of(fleet, "F", 8)
        before = {pid for worker in fleet.workers for pid in worker.children}
        done = fleet.run("run", "--json", flight.manifest)
        assert done.status == 3, done.said
        codes = ["out_of_memory", "out_of_memory", "internal", "internal"]
        assert_tiles(flight, done.report, failed={f"F-{i}": code for i, code in enumerate(codes)})
        assert set(fleet.counts().values()) == {1}
        after = {pid for worker in fleet.workers for pid in worker.children}
        table.row("MemoryError, sys.exit, an unforeseen exception", f"{len(before - after)} processes ended", "0")
        assert before == after
        fleet.assert_nothing_left(flight)


# ---------------------------------------------------------------- a broker that forgets


def _flush(server: Server) -> None:
    server.client.flushall()


def _restart_empty(server: Server) -> None:
    server.restart(empty=True, after_s=1)


def _restart(server: Server) -> None:
    server.restart(after_s=2)


def _leave_for_long(server: Server) -> None:
    """Longer than a driver waits before it believes that nothing moves."""
    server.restart(after_s=15)


DISASTERS = {
    "away-for-15-s": _leave_for_long,
    "flushall": _flush,
    "restarted-empty": _restart_empty,
    "killed-and-restarted": _restart,
}


@pytest.mark.parametrize(
    ("disaster", "waits"),
    [
        pytest.param("flushall", True, marks=pytest.mark.long),
        pytest.param("flushall", False),
        pytest.param("restarted-empty", True, marks=pytest.mark.long),
        pytest.param("restarted-empty", False, marks=pytest.mark.long),
        pytest.param("away-for-15-s", True, marks=pytest.mark.long),
        pytest.param("killed-and-restarted", True, marks=pytest.mark.long),
        pytest.param("killed-and-restarted", False, marks=pytest.mark.long),
    ],
)
def test_a_broker_that_forgets(disaster: str, waits: bool, tmp_path: Path, table: Table) -> None:
    slow = fault("*", "after_read", "sleep", 0, seconds=0.1)
    # Celery's worker may end where Redis is lost under it, by a race within kombu: whoever runs it starts it again.
    with fleet_of(tmp_path / "fleet", [slow]) as fleet, fleet.kept_up():
        before = {worker.process.pid for worker in fleet.workers}
        flight = flight_of(fleet, "F", 60)
        run = fleet.start("run", "--json", *([] if waits else ["--timeout", "0"]), flight.manifest)
        await_("the first products", lambda: len(flight.products) >= 8)
        DISASTERS[disaster](fleet.server)
        assert len(flight.products) < 50, "the disaster came too late to mean anything"
        done = ended(run)
        if waits:
            assert done.status == 0, done.said
            report = done.report
        else:
            assert done.status == 75
            report = await_("sweeps", lambda: (bool(fleet.sweep()) and False) or published_report(flight), 120)
        again = sum(n - 1 for n in fleet.counts().values())
        lost = len(before - {worker.process.pid for worker in fleet.workers})
        table.count("Redis lost mid-flight: workers that ended by it", lost, 2, "0")
        table.row(f"Redis {disaster} mid-flight, driver {'waits' if waits else 'gone'}", _counted(report), "60 done")
        table.row(f"Redis {disaster} mid-flight: tiles made twice", again, "few")
        assert_tiles(flight, report)
        fleet.assert_nothing_left(flight)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], 2, "maxmemory-policy is 'allkeys-lru'"),
        (["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"], 2, "set noeviction"),
        (["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"], 69, "maxmemory"),
    ],
    ids=["evicts", "evicts-what-expires", "full"],
)
def test_a_broker_that_would_lose_tiles_is_refused(
    options: list[str], status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path / "redis", *options)
    server.start()
    try:
        monkeypatch.setenv("CELERY_BROKER_URL", server.url)
        flight = make_flight(tmp_path / "F", "F", ["a"])
        fleet = Fleet(tmp_path, dict(os.environ), server, 1)
        if status == 69:
            _fill_up(server)
        done = fleet.run("run", flight.manifest)
        assert (done.status, said in done.said) == (status, True), done.said
        assert flight.products == []
    finally:
        server.client.close()
        server.kill()


def test_a_result_backend_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path / "redis")
    server.start()
    try:
        monkeypatch.setenv("CELERY_BROKER_URL", server.url)
        monkeypatch.setenv("CELERY_RESULT_BACKEND", f"redis://127.0.0.1:{closed_port()}/0")
        flight = make_flight(tmp_path / "F", "F", ["a"])
        done = Fleet(tmp_path, dict(os.environ), server, 1).run("run", flight.manifest)
        assert done.status == 69
        assert "the result backend (CELERY_RESULT_BACKEND) does not answer" in done.said
    finally:
        server.client.close()
        server.kill()


@pytest.mark.long
def test_a_worker_outlives_its_broker_again_and_again(tmp_path: Path, table: Table) -> None:
    """What it holds cannot be put back over a connection that is lost; it comes back by itself."""
    slow = fault("*", "after_read", "sleep", 0, seconds=0.3)
    with fleet_of(tmp_path / "fleet", [slow], workers=1) as fleet:
        (worker,) = fleet.workers
        flight = flight_of(fleet, "F", 60)
        run = fleet.start("run", "--json", flight.manifest)
        for made in (4, 12, 20):
            await_("products", partial(_has_made, flight, made), 120)
            fleet.server.restart(after_s=4)
        done = ended(run)
        table.row("Redis away three times, one worker: ended by it", int(not worker.alive), "0")
        assert worker.alive, worker.said[-3000:]
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)


@pytest.mark.long
def test_a_broker_that_is_gone_for_good_is_told(tmp_path: Path, table: Table) -> None:
    slow = fault("*", "after_read", "sleep", 0, seconds=0.3)
    with fleet_of(tmp_path / "fleet", [slow]) as fleet:
        flight = flight_of(fleet, "F", 60)
        run = fleet.start("run", "--json", flight.manifest)
        await_("the first products", lambda: len(flight.products) >= 4)
        fleet.server.kill()
        done = ended(run)
        table.row("Redis gone for good mid-flight: exit status", done.status, "69")
        assert (done.status, "Traceback" in done.said) == (69, False), done.said
        assert "does not answer" in done.said


@pytest.mark.long
def test_a_worker_waits_for_a_broker_that_is_not_up_yet(tmp_path: Path) -> None:
    with fleet_of(tmp_path / "fleet") as fleet:
        fleet.server.kill()
        late = Worker("late", fleet.env, tmp_path / "late.log", 1)
        try:
            await_("it asks", lambda: "does not answer, trying again" in late.said)
            gone = Worker("gone", fleet.env, tmp_path / "gone.log", 1)
            await_("it asks", lambda: "does not answer, trying again" in gone.said)
            gone.ask(signal.SIGTERM)
            await_("it goes where it is told to", lambda: not gone.alive, 20)
            fleet.server.start()
            late.await_ready()
        finally:
            late.kill()


def test_a_broker_that_restarts_while_a_command_sends(tmp_path: Path, table: Table) -> None:
    with fleet_of(tmp_path / "fleet") as fleet, fleet.kept_up():
        flight = flight_of(fleet, "F", 5)
        plan = fleet.folder / "F" / "plan.json"
        plan.write_text(json.dumps({"faults": [fault("*", "sent:2", "sleep", seconds=3)]}))
        run = fleet.start("run", "--json", flight.manifest, faulty=True, FAULTS_PLAN=str(plan))
        await_("it is sending", lambda: (plan.parent / "fault-0.0").exists())
        fleet.server.restart(after_s=8)
        done = ended(run)
        table.row("Redis away for 8 s while a command sends", _counted(done.report), "5 done")
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)


def _fill_up(server: Server) -> None:
    with contextlib.suppress(redis.exceptions.OutOfMemoryError):
        for i in range(1000):
            server.client.set(f"ballast {i}", b"x" * 10_000)
        raise AssertionError("the server takes whatever it is given")


# ---------------------------------------------------------------- messages that nobody can read


def garbage(kind: str) -> bytes:
    """What somebody else might push into our queue."""
    if kind == "not JSON":
        return b"not json at all {"
    if kind == "null":
        return b"null"
    if kind == "not UTF-8":
        return b"\xff\xfe\x00"
    body = base64.b64encode(b'[[{"run": 1}], {}, {}]').decode()
    properties: dict[str, Any] = {"correlation_id": "x", "delivery_mode": 2, "priority": 0, "body_encoding": "base64"}
    properties |= {"delivery_tag": f"garbage {kind}", "delivery_info": {"exchange": "", "routing_key": "tiles"}}
    headers = {"lang": "py", "task": "flights.ndvi_tile", "id": "x", "root_id": "x", "parent_id": None, "group": None}
    if kind == "bad base64":
        body = "!!! no base64 !!!a"
    if kind == "put back":  # not base64, but decoded to nothing; a worker that ends by it puts it back for the next one
        body = "!!!"
    if kind == "bad JSON body":
        body = base64.b64encode(b"[[").decode()
    if kind == "unknown task":
        headers["task"] = "flights.no_such_task"
    if kind == "pickle":
        properties["body_encoding"] = "base64"
    kinds = {"pickle": "application/x-python-serialize"}
    message = {"body": body, "content-encoding": "utf-8", "content-type": kinds.get(kind, "application/json")}
    return json.dumps(message | {"headers": headers, "properties": properties}).encode()


GARBAGE = [
    "not JSON",
    "null",
    "not UTF-8",
    "bad base64",
    "put back",
    "bad JSON body",
    "unknown task",
    "pickle",
    "wrong arguments",
]


@pytest.mark.long
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_in_the_queue_loses_no_tile(kind: str, tmp_path: Path, table: Table) -> None:
    with fleet_of(tmp_path / "fleet", [fault("*", "after_read", "sleep", 0, seconds=0.1)]) as fleet, fleet.kept_up():
        flight = flight_of(fleet, "F", 30)
        run = fleet.start("run", "--json", flight.manifest)
        await_("the first products", lambda: len(flight.products) >= 4)
        first = {worker.process.pid for worker in fleet.workers}
        fleet.server.client.rpush(KEY_PREFIX + "tiles", garbage(kind))  # next in turn
        done = ended(run)
        table.row(f"garbage in the queue: {kind}", _counted(done.report), "30 done")
        table.count(
            "garbage in the queue: workers that ended", len(first - {w.process.pid for w in fleet.workers}), 2, "few"
        )
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        second = flight_of(fleet, "G", 4)
        assert fleet.run("run", second.manifest).status == 0


# ---------------------------------------------------------------- workers that are told to go


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=lambda n: n.name)
def test_a_worker_that_is_told_to_go_loses_nothing(number: signal.Signals, tmp_path: Path, table: Table) -> None:
    """A second signal is what a host's grace period ends with: tiles come back at once, not with their lease's end."""
    slow = fault("F-0", "after_read", "sleep", 1, seconds=100)
    plan = {"visibility_s": 600, "soft_shutdown_s": 2}
    with fleet_of(tmp_path / "fleet", [slow], workers=1, plan=plan) as fleet:
        flight = flight_of(fleet, "F", 6)
        run = fleet.start("run", "--json", flight.manifest)
        await_("all but the slow tile", lambda: len(flight.products) == 5)
        (worker,) = fleet.workers
        worker.ask(number)
        if number == signal.SIGTERM:
            time.sleep(2)
            assert worker.alive, "a warm shutdown waits for its tiles"
            worker.ask(signal.SIGQUIT)
        gone = time.monotonic()
        await_("the worker has gone", lambda: not worker.alive, 60)
        fleet.start_worker(0).await_ready()
        done = ended(run)
        table.row(
            f"{number.name} to a worker: its tile is made by another after", f"{time.monotonic() - gone:.0f} s", "<60"
        )
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        assert fleet.counts()["F-0"] == 2
        fleet.assert_nothing_left(flight)


@pytest.mark.long
def test_deploys_are_not_held_against_a_tile(tmp_path: Path) -> None:
    """A worker that is told to go, however often, has not been killed by the tile that it had in hand."""
    slow = fault("F-0", "after_read", "sleep", MAX_DELIVERIES, seconds=100)
    with fleet_of(tmp_path / "fleet", [slow], workers=1, plan={"soft_shutdown_s": 1}) as fleet:
        flight = flight_of(fleet, "F", 3)
        run = fleet.start("run", "--json", flight.manifest)
        for times in range(1, MAX_DELIVERIES + 1):
            await_("the slow tile", partial(_has_begun, fleet, times))
            fleet.workers[0].ask(signal.SIGQUIT)
            await_("the worker has gone", partial(_is_gone, fleet.workers[0]))
            fleet.start_worker(0).await_ready()
        done = ended(run)
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)


def _has_begun(fleet: Fleet, times: int) -> bool:
    return fleet.counts()["F-0"] >= times


def _has_grown(flight: Made, made: int) -> bool:
    return len(flight.products) >= made + 8


def _is_gone(worker: Worker) -> bool:
    return not worker.alive


@pytest.mark.long
def test_a_rolling_restart_makes_every_tile_once(tmp_path: Path, table: Table) -> None:
    slow = fault("*", "after_read", "sleep", 0, seconds=0.3)
    with fleet_of(tmp_path / "fleet", [slow]) as fleet:
        flight = flight_of(fleet, "F", 300)
        run = fleet.start("run", "--json", flight.manifest)
        for number in (0, 1, 0, 1):
            made = len(flight.products)
            await_("some more products", partial(_has_grown, flight, made))
            worker = fleet.workers[number]
            worker.ask(signal.SIGTERM)
            await_("the worker has gone", partial(_is_gone, worker))
            assert worker.process.returncode == 0
            fleet.start_worker(number).await_ready()
        done = ended(run)
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        table.row("rolling restart, each worker twice: tiles made twice", sum(fleet.counts().values()) - 300, "0")
        assert set(fleet.counts().values()) == {1}
        fleet.assert_nothing_left(flight)


@pytest.mark.long
def test_the_pool_of_a_worker_whose_main_process_is_killed_ends(tmp_path: Path) -> None:
    """Its tiles are another's before long: who is alone with one must not work on for ever."""
    with fleet_of(tmp_path / "fleet", [fault("F-?", "after_read", "sleep", 2, seconds=3)], workers=2) as fleet:
        flight = flight_of(fleet, "F", 4)
        run = fleet.start("run", "--json", flight.manifest)
        await_("work is under way", lambda: len(fleet.events("compute")) >= 2)
        worker, children = fleet.workers[0], fleet.workers[0].children
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        done = ended(run)
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        await_("the pool has ended", lambda: not [c for c in children if Path(f"/proc/{c}/cmdline").exists()], 30)


# ---------------------------------------------------------------- a disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(disk: Path, leave: int) -> Path:
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(bytes(free - leave))
    return ballast


@pytest.mark.long
@pytest.mark.parametrize("blip", [False, True], ids=["", "and-redis-restarts"])
def test_a_worker_without_room_waits_for_some(blip: bool, small_disk: Path, tmp_path: Path) -> None:
    settings = {"FLIGHTS_SCRATCH_DIR": str(small_disk), "FLIGHTS_MIN_FREE_BYTES": str(32 * 2**20)}
    with fleet_of(tmp_path / "fleet", workers=1, plan={"disk_every_s": 0.5}, settings=settings) as fleet:
        ballast = _fill(small_disk, 8 * 2**20)
        (worker,) = fleet.workers
        await_("the worker pauses", lambda: "taking no more tiles" in worker.said)
        flight = flight_of(fleet, "F", 6)
        run = fleet.start("run", "--json", flight.manifest)
        await_("all messages wait", lambda: fleet.server.client.llen(KEY_PREFIX + "tiles") == 6)
        time.sleep(1)
        if blip:
            fleet.server.restart(after_s=1)
        time.sleep(5)
        assert fleet.events("delivered") == []
        ballast.unlink()
        done = ended(run)
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        assert "taking tiles again" in worker.said
        fleet.assert_nothing_left(flight)


@pytest.mark.long
def test_a_disk_that_fills_up_under_way(small_disk: Path, tmp_path: Path, table: Table) -> None:
    """A worker with room is beside one without."""
    settings = {"FLIGHTS_MIN_FREE_BYTES": str(32 * 2**20)}
    slow = fault("*", "before_read", "sleep", 0, seconds=0.1)
    with fleet_of(tmp_path / "fleet", [slow], workers=1, settings=settings) as fleet:
        fleet.env["FLIGHTS_SCRATCH_DIR"] = str(small_disk)
        fleet.start_worker().await_ready()
        flight = flight_of(fleet, "F", 100)
        run = fleet.start("run", "--json", flight.manifest)
        await_("the first products", lambda: len(flight.products) >= 10)
        _fill(small_disk, 0)
        done = ended(run)
        table.row("one of two scratch disks fills up mid-flight", _counted(done.report), "100 done")
        assert_tiles(flight, done.report)


# ---------------------------------------------------------------- twice


def test_a_flight_that_is_submitted_twice_at_once_runs_once(tmp_path: Path, table: Table) -> None:
    with fleet_of(tmp_path / "fleet", [fault("*", "after_read", "sleep", 0, seconds=0.2)]) as fleet:
        flight = flight_of(fleet, "F", 30)
        runs = [fleet.start("run", "--json", flight.manifest) for _ in range(2)]
        done = sorted([ended(run) for run in runs], key=lambda e: e.status)
        assert [e.status for e in done] == [0, 75]
        assert done[1].report["error"]["code"] == "already_running"
        assert_tiles(flight, done[0].report)
        assert published_report(flight) == done[0].report
        table.row("one flight submitted twice at once: tiles made twice", sum(fleet.counts().values()) - 30, "0")
        assert set(fleet.counts().values()) == {1}
        fleet.assert_nothing_left(flight)


@pytest.mark.parametrize("kept", [True, False], ids=["lease-kept", "lease-not-kept"])
def test_a_tile_slower_than_the_visibility_timeout(kept: bool, tmp_path: Path, table: Table) -> None:
    """Without the worker's step that renews the lease the gate does not hold: so it is the step that holds it."""
    slow = fault("F-0", "after_read", "sleep", 0, seconds=6)
    with fleet_of(tmp_path / "fleet", [slow], plan={"visibility_s": 2, "off": [] if kept else ["lease"]}) as fleet:
        flight = flight_of(fleet, "F", 3)
        done = fleet.run("run", "--json", flight.manifest)
        assert done.status == 0, done.said
        assert_tiles(flight, done.report)
        starts = fleet.counts("delivered")["F-0"]
        gate = f"tile of 3 visibility timeouts, lease {'renewed' if kept else 'not renewed'}: deliveries"
        table.row(gate, starts, "1" if kept else "more than 1")
        assert starts == 1 if kept else starts > 1
        assert fleet.counts()["F-0"] == 1  # the claim alone keeps the pixels from being worked on twice
