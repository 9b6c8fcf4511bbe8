"""What is killed half-way: a tile's process, the worker, the server, all of Redis, the run itself.

The embedded default on real processes. A kill comes when the first product is there and the last one is not; what a
reader finds is whole, what is left over is nothing, and the same command finishes the rest.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from numpy.typing import NDArray

from tests.processes import (
    COMMAND_S,
    Made,
    Process,
    assert_pixels,
    await_,
    await_nobody,
    broker_url,
    hidden,
    json_lines,
    make_flight,
    pool,
    processes_of,
    run_batch,
    server,
    start_batch,
    supervisors,
    worker,
    write_manifest,
)
from tests.synthetic import field, oracle_ndvi, write_tif

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="kills what it finds in /proc: not on macOS, always in CI"
    ),
]

TILES = [f"t{i:02}" for i in range(12)]
SIZE_PX = 3072


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float64]]:
    """One tile that takes a while, and its NDVI."""
    bands = field(SIZE_PX, SIZE_PX)
    path = tmp_path_factory.mktemp("large") / "tile.tif"
    write_tif(path, bands, tiled=True, blockxsize=512, blockysize=512, compress="deflate", zlevel=1)
    return path, oracle_ndvi(bands["red"], bands["nir"])


@pytest.fixture
def flight(large: tuple[Path, NDArray[np.float64]], tmp_path: Path) -> Made:
    """A flight that takes a while: every tile a file of its own that holds the same pixels."""
    return large_flight(large, tmp_path / "f", "F")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state folder that every process of a run has in its environment; what a failed test leaves is ended."""
    yield tmp_path / "state"
    for process in processes_of(tmp_path / "state"):
        with contextlib.suppress(ProcessLookupError):
            process.kill()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the products', where this machine has one with room."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2**29
    folder = Path(tempfile.mkdtemp(prefix="flights-test-", dir=memory if roomy else tmp_path))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of the dead end sooner than by default, so that a test waits less."""
    monkeypatch.setenv("FLIGHTS_CLAIM_LEASE_S", "5")


def large_flight(large: tuple[Path, NDArray[np.float64]], folder: Path, flight_id: str) -> Made:
    path, expected = large
    (folder / "src").mkdir(parents=True)
    for tile_id in TILES:
        os.link(path, folder / "src" / f"{tile_id}.tif")
    return Made(write_manifest(folder, flight_id, TILES), dict.fromkeys(TILES, expected))


def start(flight: Made, *options: str) -> subprocess.Popen[str]:
    """A run that has published its first product, and not its last."""
    run = start_batch("run", "--json", *options, flight.manifest)
    await_("the first product", lambda: flight.products or run.poll() is not None)
    assert run.poll() is None, run.communicate()
    return run


def ended(run: subprocess.Popen[str]) -> tuple[int, list[Any], str]:
    """A run's exit status, its reports and what it said on stderr."""
    stdout, stderr = run.communicate(timeout=COMMAND_S)
    assert "Traceback" not in stderr
    return run.returncode, json_lines(stdout), stderr


def assert_whole(flight: Made) -> None:
    """What lies in the folder of products is whole, and nothing else lies there."""
    assert hidden(flight.manifest.parent) == []
    for path in flight.products:
        assert_pixels(path, flight.expected[path.name.split(".")[0]])


def assert_complete(run: subprocess.Popen[str], flight: Made) -> Any:
    """A run ended with every tile and the mosaic; its report."""
    status, reports, stderr = ended(run)
    (report,) = reports
    assert (status, report["status"]) == (0, "complete"), (report["tiles"], stderr)
    assert (report["tiles"]["total"], report["tiles"]["done"]) == (len(TILES), len(TILES))
    assert len(flight.products) == len(TILES)
    assert report["mosaic"]
    assert_whole(flight)
    return report


def assert_finished_by_another_run(flight: Made, state: Path) -> None:
    """Nothing is left running or lying about; the same command finishes, and finds what was made."""
    await_nobody(state)
    assert_whole(flight)
    assert list(state.glob("embedded/*/scratch/*")) == []
    made = {path: path.stat().st_mtime_ns for path in flight.products}
    assert made
    report = assert_complete(start_batch("run", "--json", flight.manifest), flight)
    assert report["tiles"]["cached"] == len(made)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    await_nobody(state)


# ---------------------------------------------------------------- something of the fleet dies: the run goes on


def kill_a_pool_process(state: Path) -> None:
    await_("a process of the pool", lambda: pool(state))[0].kill()


def kill_the_worker(state: Path) -> None:
    worker(state).kill()


def kill_the_server(state: Path) -> None:
    server(state).kill()


def wipe_redis(state: Path) -> None:
    with redis.Redis.from_url(broker_url(state)) as client:
        client.flushall()


@pytest.mark.parametrize(
    "strike",
    [
        kill_a_pool_process,
        kill_the_worker,
        kill_the_server,
        wipe_redis,
    ],
)
def test_a_run_survives(strike: Callable[[Path], None], flight: Made, state: Path) -> None:
    run = start(flight)
    before = {path: path.stat().st_mtime_ns for path in flight.products}
    strike(state)
    assert len(flight.products) < len(TILES), "the strike came too late to mean anything"
    report = assert_complete(run, flight)
    assert report["tiles"]["cached"] == 0  # whatever was made, this run made it
    assert {path: path.stat().st_mtime_ns for path in before} == before
    await_nobody(state)
    assert list(state.glob("embedded/*/scratch/*")) == []


# ---------------------------------------------------------------- the run itself dies


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, None)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_a_run_that_is_ended_leaves_nothing(
    number: signal.Signals, status: int | None, flight: Made, state: Path
) -> None:
    run = start(flight)
    run.send_signal(number)
    code, reports, _ = ended(run)
    assert code == status if status is not None else code != 0
    assert reports == []
    assert_finished_by_another_run(flight, state)


def test_a_run_that_is_killed_leaves_nothing_on_two_disks(
    flight: Made, state: Path, monkeypatch: pytest.MonkeyPatch, other_disk: Path
) -> None:
    monkeypatch.setenv("FLIGHTS_SCRATCH_DIR", str(other_disk))
    run = start(flight)
    run.kill()
    ended(run)
    await_nobody(state)
    assert list(other_disk.iterdir()) == []
    assert_finished_by_another_run(flight, state)


def test_ctrl_c_in_a_terminal_leaves_nothing(flight: Made, state: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "run_batch.py", "run", str(flight.manifest)],
        cwd=Path(__file__).resolve().parent.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    await_("the first product", lambda: flight.products or run.poll() is not None)
    os.killpg(run.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches every process of the foreground
    stdout, stderr = run.communicate(timeout=COMMAND_S)
    assert (run.returncode, stdout) == (130, "")
    assert stderr.splitlines() == ["interrupted; run the same command again to finish the rest"]
    assert_finished_by_another_run(flight, state)


def test_a_run_killed_before_its_first_tile_leaves_nothing(flight: Made, state: Path) -> None:
    run = start_batch("run", "--json", flight.manifest)
    await_("a supervisor", lambda: supervisors(state))
    run.kill()
    ended(run)
    await_nobody(state)
    assert hidden(flight.manifest.parent) == []
    assert_complete(start_batch("run", "--json", flight.manifest), flight)
    await_nobody(state)


def test_a_run_whose_supervisor_is_killed_says_so(flight: Made, state: Path) -> None:
    run = start(flight)
    (supervisor,) = supervisors(state)
    supervisor.kill()
    code, reports, stderr = ended(run)
    assert (code, reports) == (69, [])
    assert "worker.log" in stderr
    await_nobody(state)
    assert_whole(flight)
    assert_complete(start_batch("run", "--json", flight.manifest), flight)
    await_nobody(state)


# ---------------------------------------------------------------- two runs at once


def test_two_runs_share_one_supervisor(large: tuple[Path, NDArray[np.float64]], tmp_path: Path, state: Path) -> None:
    long, short = large_flight(large, tmp_path / "long", "L"), make_flight(tmp_path / "short", "S", ["a", "b"])
    first = start_batch("run", "--json", long.manifest)
    second = start_batch("run", "--json", "--lane", "priority", short.manifest)
    seen: dict[int, Process] = {}
    while first.poll() is None:
        seen |= {process.pid: process for process in supervisors(state)}
        if second.poll() is not None and first.poll() is None and len(long.products) < len(TILES):
            assert len(supervisors(state)) == 1  # the one that ended has not taken it along
    assert len(seen) == 1, seen
    assert_complete(first, long)
    status, (report,), _ = ended(second)
    assert (status, report["tiles"]["done"]) == (0, 2)
    for tile_id, expected in short.expected.items():
        assert_pixels(short.product(tile_id), expected)
    await_nobody(state)


def test_a_run_outlives_the_one_that_started_the_supervisor(
    large: tuple[Path, NDArray[np.float64]], tmp_path: Path, state: Path
) -> None:
    one, two = (large_flight(large, tmp_path / name, name) for name in ("one", "two"))
    first = start(one)
    second = start(two)
    first.kill()
    ended(first)
    assert_complete(second, two)
    await_nobody(state)
    assert_whole(one)


def test_a_flight_that_is_already_running_is_left_to_its_run(flight: Made, state: Path) -> None:
    first = start(flight)
    second = start_batch("run", "--json", flight.manifest)
    code, reports, stderr = ended(second)
    assert (code, [report["error"]["code"] for report in reports]) == (75, ["already_running"]), stderr
    assert_complete(first, flight)
    await_nobody(state)


def test_runs_of_different_settings_do_not_share(
    large: tuple[Path, NDArray[np.float64]], tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = large_flight(large, tmp_path / "one", "one")
    first = start(one)
    monkeypatch.setenv("FLIGHTS_COG_COMPRESS", "deflate")
    other = make_flight(tmp_path / "other", "other", ["a"])
    assert run_batch("run", other.manifest).returncode == 0
    assert_complete(first, one)
    await_nobody(state)


def test_nothing_is_left_of_a_run_that_ended_well(tmp_path: Path, state: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    assert run_batch("run", flight.manifest).returncode == 0
    await_nobody(state)
    assert processes_of(state) == []
    assert list(state.glob("embedded/*/scratch/*")) == []
    assert [path.name for path in state.glob("embedded/*/*") if path.suffix not in (".log", "")] == []
    shutil.rmtree(state)
    assert run_batch("run", flight.manifest).stdout.startswith("F  complete  1 of 1 tiles done, 1 cached")
