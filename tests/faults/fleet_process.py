"""A fleet as real processes: a Redis that keeps what it was told, workers that break on plan, commands that drive them.

Everything here is made to be killed. Looking for processes reads /proc, so it is Linux only.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from fleet import DISK_EVERY_S, KEY_PREFIX
from flights.embedded import server_binary
from tests.conftest import free_port
from tests.processes import (
    COMMAND_S,
    PROJECT,
    Made,
    assert_pixels,
    await_,
    command,
    environment,
    hidden,
    processes_of,
    strict_json,
)

PLAN_VARIABLE = "FAULTS_PLAN"
QUEUES = ("priority", "tiles", "exports")
# Short, so that a test sees in seconds what a fleet sees in a minute or two.
VISIBILITY_S = 5
SETTINGS = {
    "FLIGHTS_SWEEP_AFTER_S": "2",
    "FLIGHTS_CLAIM_LEASE_S": "3",
    "FLIGHTS_MIN_FREE_BYTES": "0",
    "FLIGHTS_TILE_SOFT_LIMIT_S": "60",
    "FLIGHTS_TILE_HARD_LIMIT_S": "70",
}
Fault = dict[str, Any]


def fault(tile: str, point: str, do: str, times: int = 1, **more: Any) -> Fault:
    """What a tile (or the flight of that id; `*` and `?` match) meets at a point; 0 times is always."""
    return {"tile": tile, "point": point, "do": do, "times": times, **more}


class Server:
    """A Redis-compatible server that can be killed, and started again on its port with or without its data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._port, self._options = folder, free_port(), options
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis.from_url(self.url, socket_timeout=2)

    def start(self) -> None:
        """Start it, and wait until it has read what it had written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        line = [server_binary(), "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        line += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *self._options]
        self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_("the server answers", self._answers, 30)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, *, empty: bool = False, after_s: float = 0.0) -> None:
        """SIGKILL, and up again after a while, with all that it had been told or with nothing."""
        self.kill()
        if empty:
            shutil.rmtree(self._folder)
        time.sleep(after_s)
        self.start()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class Worker:
    """A worker: a session of its own, with the processes in which tiles are made."""

    def __init__(self, name: str, env: Mapping[str, str], log: Path, concurrency: int) -> None:
        self.log = log
        line = [sys.executable, "-m", "celery", "-A", "tests.faults.faulty", "worker", "-Q", ",".join(QUEUES)]
        line += ["-n", f"{name}@localhost", "--concurrency", str(concurrency), "--loglevel", "INFO"]
        line += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with log.open("a") as out:
            self._begins_at = out.tell()
            self.process = subprocess.Popen(
                line,
                cwd=PROJECT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether its main process runs."""
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """Its log, of this life."""
        with self.log.open(errors="replace") as log:
            log.seek(self._begins_at)
            return log.read()

    def await_ready(self) -> None:
        """Wait until it takes messages."""
        await_("the worker is ready", lambda: not self.alive or " ready." in self.said)
        assert self.alive, self.said

    @property
    def children(self) -> list[int]:
        """The processes in which tiles are made."""
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in text.split()]

    def kill_child(self, rng: random.Random) -> None:
        """SIGKILL to one process of the pool."""
        if children := self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(children), signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the main process and its pool at once: as where the machine is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, number: signal.Signals) -> None:
        """A signal to the main process alone."""
        self.process.send_signal(number)


@dataclass
class Fleet:
    """A server, workers, and a folder in which they all work."""

    folder: Path
    env: dict[str, str]
    server: Server
    concurrency: int
    workers: list[Worker] = field(default_factory=list)

    @property
    def state(self) -> Path:
        """Its FLIGHTS_STATE_DIR."""
        return self.folder / "state"

    def start_worker(self, number: int | None = None) -> Worker:
        """One more worker, or another in the place of one that has ended."""
        number = len(self.workers) if number is None else number
        worker = Worker(f"w{number}", self.env, self.folder / f"w{number}.log", self.concurrency)
        self.workers[number : number + 1] = [worker]
        return worker

    @contextlib.contextmanager
    def kept_up(self, every_s: float = 1.0) -> Iterator[None]:
        """Workers that end are started again, as any supervisor does."""
        done = threading.Event()

        def keep() -> None:
            while not done.wait(every_s):
                for i, worker in enumerate(self.workers):
                    if not worker.alive:
                        self.start_worker(i)

        keeper = threading.Thread(target=keep)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()

    # -- commands

    def start(self, *arguments: str | Path, faulty: bool = False, **more: str) -> subprocess.Popen[str]:
        """`run_batch.py`, under way; `faulty`: with the plan in force for it too."""
        line = [sys.executable, "-m", "tests.faults.faulty", *map(str, arguments)] if faulty else command(*arguments)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            line, cwd=PROJECT, env=self.env | more, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *arguments: str | Path, timeout_s: float = COMMAND_S, **more: str) -> "Ended":
        """`run_batch.py` to its end."""
        return ended(self.start(*arguments, faulty=False, **more), timeout_s)

    def sweep(self) -> str:
        """`run_batch.py sweep`: what it mended, a line each."""
        done = self.run("sweep")
        assert done.status == 0, done.said
        return "".join(line + "\n" for line in done.out.splitlines()[:-1])

    # -- looking

    @property
    def idle(self) -> bool:
        """No message waits, none is unacknowledged."""
        try:
            held = self.server.client.hlen(KEY_PREFIX + "unacked")
            return not held and not any(self.server.client.llen(KEY_PREFIX + queue) for queue in QUEUES)
        except redis.RedisError:
            return False

    def await_idle(self, within_s: float = 60) -> None:
        """Wait until nothing has waited and nobody has been at work for a second."""
        await_("the queues are empty and nobody is at work", self._idle_for_a_second, within_s)

    def _idle_for_a_second(self) -> bool:
        for _ in range(10):
            if not self.idle:
                return False
            time.sleep(0.1)
        return True

    def events(self, point: str) -> list[dict[str, Any]]:
        """What the log of the plan holds of a point."""
        log = self.folder / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["point"] == point]

    def counts(self, point: str = "compute") -> Counter[str]:
        """How often each tile has reached a point."""
        return Counter(event["tile"] for event in self.events(point))

    def assert_nothing_left(self, *flights: Made) -> None:
        """No message, no temporary file, no scratch folder of a process that is no more; every worker is alive."""
        self.await_idle(120)
        for worker in self.workers:
            worker.await_ready()
        left = [path for flight in flights for path in hidden(flight.manifest.parent)] + hidden(self.state)
        for path in left:  # what is young may be somebody's
            os.utime(path, (0, 0))
        self.sweep()
        assert [path for path in left if path.exists()] == []

        def dead() -> list[Path]:
            folders = (self.state / "scratch").glob("work-*")
            return [f for f in folders if not Path(f"/proc/{f.name.split('-')[-2]}").exists()]

        await_("what killed processes left is removed", lambda: not dead(), 3 * DISK_EVERY_S)

    def close(self) -> None:
        """End all of it."""
        for worker in self.workers:
            worker.kill()
        for process in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.server.client.close()
        self.server.kill()


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    said: str
    # on stderr

    @property
    def report(self) -> Any:
        """The one report that it printed."""
        (line,) = self.out.splitlines()
        return strict_json(line)


def ended(process: subprocess.Popen[str], timeout_s: float = COMMAND_S) -> Ended:
    """The end of a command that has been started."""
    try:
        out, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, said = process.communicate()
        raise AssertionError(f"not within {timeout_s:g} s: {process.args!r}\n{said}") from None
    assert "Traceback" not in out + said, said
    return Ended(process.returncode, out, said)


@contextlib.contextmanager
def fleet_of(
    folder: Path,
    faults: Sequence[Fault] = (),
    *,
    workers: int = 2,
    concurrency: int = 2,
    plan: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """A fleet that is up, and ended with the block; `plan` holds what else FAULTS_PLAN says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(json.dumps({"visibility_s": VISIBILITY_S, "faults": list(faults)} | dict(plan or {})))
    server = Server(folder / "redis")
    env = environment(folder / "state", CELERY_BROKER_URL=server.url, **{PLAN_VARIABLE: str(path)})
    fleet = Fleet(folder, env | SETTINGS | dict(settings or {}), server, concurrency)
    try:
        server.start()
        for worker in [fleet.start_worker() for _ in range(workers)]:
            worker.await_ready()
        yield fleet
    finally:
        fleet.close()


def published_report(flight: Made) -> Any:
    """The published report of a flight on disk, None where there is none."""
    path = flight.manifest.parent / "out" / f"{flight.manifest.stem}.report.json"
    return strict_json(path.read_text()) if path.exists() else None


def assert_tiles(flight: Made, report: Any, *, failed: Mapping[str, str] | None = None) -> None:
    """Every tile is the oracle's or failed for the reason that was to be; the report says just that."""
    failed = failed or {}
    total = len(flight.expected)
    wanted = {"total": total, "done": total - len(failed), "review": 0, "failed": len(failed), "missing": 0}
    assert {k: v for k, v in report["tiles"].items() if k != "cached"} == wanted, _unlike(report)
    assert (report["status"], report["complete"]) == (("incomplete", False) if failed else ("complete", True))
    assert {o["tile_id"]: o["error"]["code"] for o in report["outcomes"] if o["state"] == "failed"} == dict(failed)
    for tile_id, expected in flight.expected.items():
        if tile_id in failed:
            assert not flight.product(tile_id).exists()
        else:
            assert_pixels(flight.product(tile_id), expected)


def _unlike(report: Any) -> list[Any]:
    return [(o["tile_id"], o["state"], o["error"]) for o in report["outcomes"] if o["state"] != "done"]
