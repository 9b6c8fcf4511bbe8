"""The product, broken on purpose: `celery -A tests.faults.faulty worker`, or `python -m tests.faults.faulty run ...`.

The JSON file that FAULTS_PLAN names says which tile meets what at which point. Everything is patched from here; the
product knows nothing of it. Each time a point of `LOGGED` is reached, a line goes to the plan's log: so tests count how
often a tile's pixels were really worked on, and by whom.
"""

import ctypes
import functools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from celery.app.amqp import AMQP
from celery.backends.redis import RedisBackend
from celery.signals import task_prerun
from kombu.messaging import Producer

import fleet
import run_batch
import tasks
from flights import runs
from flights.follow import Follower
from flights.pipeline import composite as composite_module
from flights.pipeline import tile as tile_module
from flights.raster.cog import CogWriter
from flights.store import Stores
from flights.store.local import LocalStore

PLAN_VARIABLE = "FAULTS_PLAN"
# Of a tile: its message is taken up, work on its pixels begins, its product is published. Of a flight: it is reported.
LOGGED = ("delivered", "compute", "put", "report")
Call = Callable[..., Any]


class _Plan:
    """What is to go wrong, and the folder in which is kept what already has."""

    def __init__(self, path: Path) -> None:
        body = json.loads(path.read_text())
        self.folder = path.parent
        self.faults: list[Mapping[str, Any]] = body.get("faults", [])
        self.visibility_s: float | None = body.get("visibility_s")
        self.off: list[str] = body.get("off", [])
        # protections that are switched off
        self.disk_every_s: float | None = body.get("disk_every_s")
        self.soft_shutdown_s: float | None = body.get("soft_shutdown_s")
        self.tile = ""
        # the one that this process is at, or the id of the flight whose report or composite it is at
        self.sent = 0
        # messages that this process has published

    def reach(self, point: str, tile: str | None = None) -> None:
        """A point is reached: noted, and what is planned for it happens."""
        tile = self.tile if tile is None else tile
        if point in LOGGED:
            self._note(point, tile)
        for number, fault in enumerate(self.faults):
            if fault["point"] == point and fnmatchcase(tile, fault["tile"]) and self._is_due(number, fault):
                _DEEDS[fault["do"]](fault)

    def _is_due(self, number: int, fault: Mapping[str, Any]) -> bool:
        """Whether a fault has happened less often than it is to; it counts before it happens, since few survive it."""
        times = fault.get("times", 0)
        if not times:  # always
            return True
        for turn in range(times):
            try:
                os.close(os.open(self.folder / f"fault-{number}.{turn}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False

    def _note(self, point: str, tile: str) -> None:
        line = json.dumps({"point": point, "tile": tile, "pid": os.getpid(), "time": time.time()}) + "\n"
        fd = os.open(self.folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, line.encode())  # one write: lines of several processes do not mix
        finally:
            os.close(fd)


# ---------------------------------------------------------------- what happens


def _sleep(fault: Mapping[str, Any]) -> None:
    time.sleep(fault["seconds"])


def _kill(_: Mapping[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_: Mapping[str, Any]) -> None:
    """As in C code that never comes back: no signal is heard but SIGKILL, whichever thread is told of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    ctypes.CDLL(None).sleep(1_000_000)


def _allocate(_: Mapping[str, Any]) -> None:
    """Allocate until nothing is left, of the little that this process is allowed from here on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 256 * 2**20, hard))
    hoard: list[bytearray] = []
    try:
        while True:
            hoard.append(bytearray(16 * 2**20))
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _memory(_: Mapping[str, Any]) -> None:
    raise MemoryError("Unable to allocate 32.0 TiB")


def _exit(fault: Mapping[str, Any]) -> None:
    sys.exit(fault.get("status", 1))


def _raise(_: Mapping[str, Any]) -> None:
    raise RuntimeError("nobody foresaw this")


_DEEDS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "sleep": _sleep,
    "kill": _kill,
    "hang": _hang,
    "allocate": _allocate,
    "memory": _memory,
    "exit": _exit,
    "raise": _raise,
}


# ---------------------------------------------------------------- where it happens


def _around(owner: Any, name: str, before: str = "", after: str = "") -> None:
    """Make a function reach a point before it begins, and one when it has returned."""
    original: Call = getattr(owner, name)

    @functools.wraps(original)
    def reached(*args: Any, **kwargs: Any) -> Any:
        if before:
            plan.reach(before)
        answer = original(*args, **kwargs)
        if after:
            plan.reach(after)
        return answer

    _replace(owner, name, reached)


def _replace(owner: Any, name: str, function: Call) -> None:
    setattr(owner, name, function)


def _break_tiles() -> None:
    deliver: Call = tasks._deliver

    def delivered(job: Any, tile: Any) -> Any:
        plan.tile = tile.tile_id
        plan.reach("delivered")
        return deliver(job, tile)

    _replace(tasks, "_deliver", delivered)
    _around(tile_module, "_compute", before="compute")
    _around(tile_module, "_mirror", before="before_read")
    _around(tile_module, "compute", before="after_read")
    _around(CogWriter, "write", after="mid_write")
    _around(CogWriter, "finish", before="before_cog", after="after_cog")
    _around(tile_module, "settle_tile", before="before_settle", after="after_settle")
    _around(LocalStore, "_replace", before="before_rename", after="after_rename")
    publish: Call = Stores.publish

    @functools.wraps(publish)
    def published(stores: Stores, path: Path, uri: str, *rest: Any) -> Any:
        plan.reach("before_put")
        stat = publish(stores, path, uri, *rest)
        plan.reach("put")
        return stat

    _replace(Stores, "publish", published)


def _break_chords() -> None:
    """The moments of a chord in which Celery itself loses it."""
    _around(RedisBackend, "on_chord_part_return", before="stored_uncounted", after="counted")
    _around(AMQP, "_retry_publish", before="counted_unsent", after="body_sent")


def _break_workers() -> None:
    """The moment in which a worker has a message that the broker has no more, and has not yet written down."""
    if all(fault["point"] != "taken" for fault in plan.faults):  # not every message can be read
        return
    append: Call = fleet.Unacked.append

    def taken(qos: Any, message: Any, tag: str) -> None:
        if message.headers["task"] == tasks.ndvi_tile.name:
            plan.reach("taken", message.payload[0][0]["flight"]["tiles"][0]["tile_id"])
        append(qos, message, tag)

    _replace(fleet.Unacked, "append", taken)


def _break_flights() -> None:
    _around(tasks, "finalise", before="report", after="reported")
    _around(composite_module, "write_mosaic", before="mid_composite")
    _around(composite_module, "save_report", before="composited")

    def in_flight(task: Any, args: Any, **_: Any) -> None:
        if task.name in ("flights.report_flight", "flights.composite_flight"):
            plan.tile = args[-1]["flight_id"]

    task_prerun.connect(in_flight, weak=False)


def _break_drivers() -> None:
    """What a command does, up to its last message: `sent:N` is reached when N have been published."""
    write: Call = Stores.write
    publish: Call = Producer.publish

    @functools.wraps(write)
    def written(stores: Stores, uri: str, content: bytes) -> None:
        write(stores, uri, content)
        name = uri.rsplit("/", 1)[1]
        if name in ("manifest.json", "run.json"):
            plan.reach(f"wrote:{name}")

    @functools.wraps(publish)
    def sent(producer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = publish(producer, *args, **kwargs)
        plan.sent += 1
        plan.reach(f"sent:{plan.sent}")
        return answer

    _replace(Stores, "write", written)
    _replace(Producer, "publish", sent)
    _around(runs, "save_run", before="before_record")
    _around(tasks.Post, "submit", before="before_submit", after="after_submit")


def _acknowledge_early() -> None:
    of_product = fleet.configuration
    _replace(tasks, "configuration", lambda settings: of_product(settings) | {"task_acks_late": False})


# What the product would be without one of its protections.
_OFF: dict[str, Callable[[], None]] = {
    "lease": lambda: tasks.app.steps["consumer"].discard(fleet.LeaseKeeper),
    "quarantine": lambda: tasks.app.steps["worker"].discard(fleet.Quarantine),
    "late acknowledgement": _acknowledge_early,
    "mending": lambda: _replace(Follower, "_mend", lambda *_: None),
}


def _bend() -> None:
    if plan.visibility_s is not None:
        fleet.VISIBILITY_S = plan.visibility_s  # type: ignore[assignment]  # whole seconds in the product
    if plan.disk_every_s is not None:
        fleet.DISK_EVERY_S = plan.disk_every_s  # type: ignore[assignment]  # likewise
    if plan.soft_shutdown_s is not None:
        tasks.app.conf.worker_soft_shutdown_timeout = plan.soft_shutdown_s
    for protection in plan.off:
        _OFF[protection]()


plan = _Plan(Path(os.environ[PLAN_VARIABLE]))
_bend()
_break_tiles()
_break_chords()
_break_workers()
_break_flights()
app = tasks.app

if __name__ == "__main__":
    _break_drivers()
    run_batch.cli(prog_name="run_batch.py")
