"""Celery: messages in, outcomes out. The work is in `flights`; here are queues, limits and what a message may cost.

A worker is plain Celery: `celery -A tasks worker -Q priority,tiles,exports`, with CELERY_BROKER_URL set.
"""

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import redis
from celery import Celery, Task, chord
from celery.signals import beat_init, worker_process_init
from kombu.exceptions import OperationalError
from pydantic import ValidationError

from fleet import (
    EXPORTS,
    KEY_PREFIX,
    PRIORITY,
    TILES,
    UNACKED,
    DiskGuard,
    LeaseKeeper,
    Quarantine,
    configuration,
)
from flights import embedded, mend
from flights.alarms import Alarms
from flights.errors import Code, FlightsError, Refused, Superseded, Transient, Unreachable
from flights.ledger import Ledger
from flights.manifest import Flight, Tile, join_uri
from flights.pipeline import (
    Tools,
    clear_scratch,
    composite_flight,
    end_run,
    finalise,
    has_room,
    settle_composite,
    settle_tile,
    write_tile,
)
from flights.raster.environment import keep_memory
from flights.report import Problem, TileOutcome, failed
from flights.runs import Job, Run, has_ended, load_run
from flights.settings import Settings, load_settings
from flights.store import open_stores

log = logging.getLogger(__name__)

# One message a tile up to here; above, chunks: 40,000 messages of one tile take minutes and 60 MB to submit.
SINGLES_MAX = 2_000
CHUNK_TILES = 40
# Celery ends a message so long after its tiles should have ended themselves.
MESSAGE_SLACK_S = 30
# A worker that hangs in a flight's report or composite is ended after so long, and the work begun anew.
REPORT_LIMIT_S, COMPOSITE_LIMIT_S = 3600, 6 * 3600
# Tasks of a whole flight: nobody reads their results, and they come back as long as another delivery is at it.
OF_FLIGHTS: dict[str, Any] = {"max_retries": None, "ignore_result": True}


class TileTooSlow(BaseException):
    """The soft limit ran out; not an Exception, so that nothing on the way takes it for an error of its own."""


# Not the thread that renews claims: that one may wait for Redis.
_hard_limits = Alarms()

app = Celery("flights")
# Evaluated when the configuration is first needed: importing this module needs no broker.
app.add_defaults(lambda: configuration(_settings()))
app.steps["worker"].add(Quarantine)
app.steps["consumer"].update({LeaseKeeper, DiskGuard})


def _settings() -> Settings:
    """A worker's or beat's settings; what is wrong with them ends it in one line."""
    try:
        return load_settings()
    except Refused as error:
        sys.exit(str(error))


@beat_init.connect
def _in_beat(**_: object) -> None:
    if _settings().broker_url is None:
        sys.exit("beat needs CELERY_BROKER_URL, such as redis://redis.farm:6379/0")


@worker_process_init.connect
def _in_child(**_: object) -> None:
    keep_memory()
    embedded.die_with_parent()
    clear_scratch(load_settings())


@cache
def _tools_of(pid: int) -> Tools:
    del pid  # clients must not cross a fork: a child finds no tools under its own number
    settings = load_settings()
    if settings.broker_url is None:
        raise Refused(Code.SETTINGS_INVALID, "a worker needs CELERY_BROKER_URL")
    return Tools(settings, open_stores(), Ledger(settings.broker_url))


def tools() -> Tools:
    """What this process works with, made at first use."""
    return _tools_of(os.getpid())


# ---------------------------------------------------------------- tasks


@app.task(name="flights.ndvi_tile", bind=True, max_retries=None)
def ndvi_tile(self: Task, job: dict[str, Any]) -> dict[str, Any]:
    """One tile; the outcome, also of a failure, is the result."""
    parsed = Job.model_validate(job)
    (tile,) = parsed.flight.tiles
    outcome = _deliver(parsed, tile)
    if outcome is None:  # another delivery is at it: come back, and find its product
        raise self.retry(countdown=random.uniform(2, 5))
    return outcome.as_value()


@app.task(name="flights.ndvi_tiles", bind=True, max_retries=None)
def ndvi_tiles(self: Task, job: dict[str, Any]) -> dict[str, Any]:
    """A chunk of tiles; outcomes go to the run record, the result says where. Limits are each tile's own."""
    parsed = Job.model_validate(job)
    outcomes = [_deliver(parsed, tile) for tile in parsed.flight.tiles]
    if None in outcomes:
        raise self.retry(countdown=random.uniform(2, 5))  # what was made is found made
    uri = join_uri(parsed.run.record_uri, f"chunks/{parsed.run.run_id}-{parsed.flight.tiles[0].tile_id}.json")
    content = json.dumps([o.as_value() for o in outcomes if o])
    tools().stores.write(uri, content.encode())
    return {"outcomes_uri": uri, "tiles": len(outcomes)}


@app.task(name="flights.report_flight", bind=True, time_limit=REPORT_LIMIT_S, **OF_FLIGHTS)
def report_flight(self: Task, told: Sequence[Any], run: dict[str, Any]) -> None:
    """The chord's body: one answer for the flight, then, where it is due, the composite."""
    parsed = Run.model_validate(run)
    with _claimed(self, parsed) as (at_hand, _):
        try:
            current, flight = load_run(at_hand.stores, parsed.record_uri)
            if current.run_id != parsed.run_id:
                raise Superseded(parsed.flight_id, parsed.run_id)
            if has_ended(at_hand.stores, parsed):  # a message delivered again: the last word has been said
                at_hand.ledger.conclude(parsed.run_id)
                return
            report = finalise(current, flight, _outcomes_in(told), at_hand)
        except Transient as error:
            raise self.retry(exc=error, countdown=2 ** min(6, self.request.retries)) from error
        except Superseded as error:
            log.warning("%s", error)
            return
        except Refused as error:  # no report can be published where it belongs: whoever waits is to say so
            log.error("flight %s has no report: %s", parsed.flight_id, error)
            if error.code is Code.DESTINATION_REFUSED:  # nor will it have one later
                end_run(parsed, at_hand)
            at_hand.ledger.conclude(parsed.run_id)
            return
    if not current.is_settled_by(report):  # no longer under the claim that it needs itself
        composite.apply_async([run])


@app.task(
    name="flights.composite_flight", bind=True, max_retries=None, ignore_result=True, time_limit=COMPOSITE_LIMIT_S
)
def composite(self: Task, run: dict[str, Any]) -> None:
    """A flight's mosaic, added to its report."""
    parsed = Run.model_validate(run)
    with _claimed(self, parsed, work=f"mosaic of {parsed.flight_id}") as (at_hand, deliveries):
        if deliveries > at_hand.settings.max_deliveries:
            _settle_composite(parsed, Code.WORKER_LOST, f"compositing killed its worker {deliveries - 1} times")
        else:
            _guarded_composite(parsed, at_hand)


def _guarded_composite(run: Run, at_hand: Tools) -> None:
    try:
        composite_flight(run, at_hand)
    except MemoryError as lack:
        _settle_composite(run, Code.OUT_OF_MEMORY, f"the mosaic did not fit into memory: {lack}")
    except FlightsError as error:
        log.error("the composite of %s could not be reported: %s", run.flight_id, error)
    except Exception as bug:
        log.exception("composite of %s", run.flight_id)
        _settle_composite(run, Code.INTERNAL, f"a bug of flights, please report it: {type(bug).__name__}: {bug}")


def _settle_composite(run: Run, code: Code, message: str) -> None:
    _, flight = load_run(tools().stores, run.record_uri)
    settle_composite(run, flight, Problem(code=code, message=message), tools())


@contextmanager
def _claimed(task: Task, run: Run, work: str = "") -> Iterator[tuple[Tools, int]]:
    """Hold a flight's answer, shown to be alive; come back later where another delivery is at its report or composite.

    With it comes how often `work` was begun and never ended, this time in.
    One claim for both: a report that is made a second time would else be published beside the composite's last word.
    """
    at_hand, name = tools(), f"answer of {run.flight_id}"
    lease_s = at_hand.settings.claim_lease_s
    with at_hand.ledger.claim(name, lease_s, run.run_id, for_report=True, work=work) as deliveries:
        if not deliveries:
            raise task.retry(countdown=random.uniform(2, 5))
        yield at_hand, deliveries


@app.task(name="flights.sweep", ignore_result=True)
def sweep() -> None:
    """Mend what is stuck; beat sends this every minute."""
    for done in mend.sweep(tools(), Post(tools())):
        log.warning("flight %s: %s", done.flight_id, done.deed)


@app.task(name="flights.clean", ignore_result=True)
def clean() -> None:
    """Remove what killed writers left behind; beat sends this every hour."""
    removed = mend.clean(tools())
    if removed:
        log.warning("removed %d temporary files and unfinished uploads", removed)


def _outcomes_in(told: Sequence[Any]) -> list[TileOutcome]:
    """The outcomes among a chord's results; what is not one is left to storage to answer."""
    outcomes = []
    for item in told:
        try:
            if isinstance(item, dict) and "outcomes_uri" in item:
                outcomes += _outcomes_in(json.loads(tools().stores.read(item["outcomes_uri"]) or b"[]"))
            else:
                outcomes.append(TileOutcome.of_value(item))
        except (ValidationError, ValueError) as error:
            log.error("a tile's result is not an outcome: %s", error)
    return outcomes


def _deliver(job: Job, tile: Tile) -> TileOutcome | None:
    """One delivery of a tile's message: its outcome, or None where it is to come back later.

    It is where another delivery holds the claim, and where scratch has no room: a host with room may be free by then.
    """
    at_hand, run = tools(), job.run
    if not has_room(at_hand.settings):
        return None
    lease_s = at_hand.settings.claim_lease_s
    with at_hand.ledger.claim(tile.dst_uri, lease_s, run.run_id, work=tile.tile_id) as deliveries:
        if not deliveries:
            return None
        if deliveries > 1 and at_hand.ledger.overran(run.run_id, tile.tile_id):
            return _given_up(run, tile, deliveries - 1, Code.TIME_LIMIT, at_hand)
        if deliveries > at_hand.settings.max_deliveries:
            return _given_up(run, tile, deliveries - 1, Code.WORKER_LOST, at_hand)
        return _guarded(job, tile, at_hand)


def _given_up(run: Run, tile: Tile, times: int, code: Code, at_hand: Tools) -> TileOutcome:
    limit = at_hand.settings.tile_hard_limit_s
    slow = f"took longer than FLIGHTS_TILE_HARD_LIMIT_S ({limit} s), and its worker was killed"
    why = slow if code is Code.TIME_LIMIT else f"killed its worker {times} times"
    error = Refused(code, f"{' and '.join(tile.sources.values())}: {why}")
    outcome = failed(tile.tile_id, tile.dst_uri, error, times)
    settle_tile(run, outcome, at_hand)
    return outcome


def _guarded(job: Job, tile: Tile, at_hand: Tools) -> TileOutcome | None:
    """The one place where what nobody foresaw becomes an outcome: a raising header would break its chord."""
    began = time.monotonic()
    try:
        with _hard_limit(job.run, tile, at_hand), _soft_limit(at_hand.settings.tile_soft_limit_s):
            return write_tile(job, tile, at_hand)
    except Transient:  # this host's disk is full: one with room may be free by then
        return None
    except TileTooSlow:
        limit = at_hand.settings.tile_soft_limit_s
        error: FlightsError = Refused(Code.TIME_LIMIT, f"took longer than FLIGHTS_TILE_SOFT_LIMIT_S ({limit} s)")
    except MemoryError as lack:
        error = Refused(Code.OUT_OF_MEMORY, f"did not fit into memory: {lack}")
    except SystemExit as leaving:
        if isinstance(leaving.code, int) and leaving.code < 0:  # how the pool ends a process that is told to stop
            raise
        error = Refused(Code.INTERNAL, f"a bug of flights, please report it: something exited ({leaving.code})")
    except Exception as bug:
        log.exception("tile %s of %s", tile.tile_id, job.run.flight_id)
        error = Refused(Code.INTERNAL, f"a bug of flights, please report it: {type(bug).__name__}: {bug}")
    outcome = failed(tile.tile_id, tile.dst_uri, error, 1, time.monotonic() - began)
    settle_tile(job.run, outcome, at_hand)
    return outcome


@contextmanager
def _hard_limit(run: Run, tile: Tile, at_hand: Tools) -> Iterator[None]:
    """Kill this process where the block, in C code that hears no signal, takes longer than a tile may.

    The next delivery is told why, and calls the tile failed: else it would be tried as often as one that kills its
    worker. Celery's own limit, a message's, stands behind it for code that lets no other thread run.
    """

    ended, deciding = threading.Event(), threading.Lock()

    def end() -> None:
        with deciding:  # a tile that ends in this very moment waits until it is known that it did not end in time
            if not ended.is_set():
                at_hand.ledger.mark_overrun(run.run_id, tile.tile_id)
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        with _hard_limits.every(at_hand.settings.tile_hard_limit_s, end):
            yield
    finally:
        with deciding:
            ended.set()


@contextmanager
def _soft_limit(seconds: int) -> Iterator[None]:
    """Raise TileTooSlow in the block after so many seconds. Celery's own soft limit is a message's, this a tile's."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TileTooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- sending


def connect(settings: Settings) -> None:
    """Point this process at the broker of `settings`."""
    app.conf.update(configuration(settings))


def queue_of(flight: Flight, lane: str, settings: Settings) -> str:
    """The queue of a flight's tiles. The embedded worker is nobody's to share: it has no queue a tenant."""
    if lane == PRIORITY:
        return PRIORITY
    return TILES if settings.embedded or flight.tenant is None else f"{TILES}.{flight.tenant}"


class Post:
    """Carries a run's messages, to a fleet or to the embedded worker: a `mend.Courier`."""

    def __init__(self, at_hand: Tools, *, embedded: bool = False) -> None:
        self._tools, self._embedded = at_hand, embedded

    def submit(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        """Send a flight's tiles as one chord, whose body reports; with no tile to make, the body alone."""
        if not tiles:
            self.conclude(run)
            self._tools.ledger.submitted(run.run_id)
            return
        self._send(run, flight, tiles)
        self._tools.ledger.submitted(run.run_id)

    def waiting(self, run: Run, *, for_report: bool) -> int:
        return self._tools.ledger.queued(KEY_PREFIX + (EXPORTS if for_report else run.queue))

    def is_idle(self, run: Run) -> bool:
        return self._tools.ledger.is_empty(KEY_PREFIX + run.queue, KEY_PREFIX + EXPORTS, UNACKED)

    def unserved(self, run: Run) -> list[str]:
        if self._embedded:  # its worker is ours to start, and slow to answer on a busy machine
            return []
        with _broker():
            served = app.control.inspect(timeout=1).active_queues() or {}
        names = {queue["name"] for queues in served.values() for queue in queues}
        return [queue for queue in (run.queue, EXPORTS) if queue not in names]

    def resend(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        self._tools.ledger.check()  # Celery would ask a lost one for half a minute, and say so in its own words
        self._send(run, flight, tiles)

    def conclude(self, run: Run) -> None:
        self._tools.ledger.check()
        with _broker():
            report_flight.apply_async([[], run.model_dump(mode="json")])

    def _send(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        body = report_flight.s(run.model_dump(mode="json"))
        with _broker():
            chord(self._messages(run, flight, tiles), body).apply_async()

    def _messages(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> list[Any]:
        size, task = (1, ndvi_tile) if len(tiles) <= SINGLES_MAX else (CHUNK_TILES, ndvi_tiles)
        messages = []
        for start in range(0, len(tiles), size):
            part = tiles[start : start + size]
            job = Job.of(run, flight, part)
            limit = self._tools.settings.tile_hard_limit_s * len(part) + MESSAGE_SLACK_S
            content = job.model_dump(mode="json", exclude_defaults=True)
            messages.append(task.s(content).set(queue=run.queue, time_limit=limit))
        return messages


@contextmanager
def _broker() -> Iterator[None]:
    """Turn what a lost broker raises into ours, and what one that is full or forbids."""
    try:
        yield
    except redis.ResponseError as error:
        raise Transient(Code.BROKER_UNAVAILABLE, f"the broker refuses: {error}") from error
    except (OperationalError, redis.RedisError, OSError) as error:
        raise Unreachable(Code.BROKER_UNAVAILABLE, f"the broker does not answer: {error}") from error
    except RuntimeError as error:  # what Celery makes of a result backend that stays away
        if "result store" not in str(error):
            raise
        said = "the result backend (CELERY_RESULT_BACKEND, or the broker) does not answer"
        raise Unreachable(Code.BROKER_UNAVAILABLE, said) from error
