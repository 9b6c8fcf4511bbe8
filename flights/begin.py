"""Beginning a run: the flight held against a second one, planned, recorded, and sent."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from flights.errors import Code, FlightsError, ManifestRefused, Refused, Unreachable
from flights.follow import Follower
from flights.manifest import Flight
from flights.mend import Courier
from flights.pipeline import Tools
from flights.report import FlightReport, refused, unanswered
from flights.runs import CompositeRule, Run, forget_failures, has_ended, load_report, load_run, record_uri, save_run
from flights.survey import Plan, known_of_report, survey

log = logging.getLogger(__name__)

# How long a flight stays held by a command that was killed.
LEASE_S = 6


@dataclass(frozen=True, slots=True)
class Order:
    """What is wanted of a flight."""

    queue: str
    tile_ids: tuple[str, ...] = ()
    # only these; none: all of the flight
    overwrite: bool = False
    composite: CompositeRule = "complete"


def begin(flight: Flight, order: Order, tools: Tools, courier: Courier) -> Follower | FlightReport:
    """Plan a flight, write its run record, send what is to be made; a report where that cannot be done."""
    now, named = datetime.now(UTC), order.tile_ids
    run = Run(
        run_id=f"{now:%Y%m%dT%H%M%S%f}-{os.urandom(3).hex()}",
        flight_id=flight.flight_id,
        record_uri=record_uri(tools.settings.runs, flight.flight_id),
        started=now,
        overwrite=order.overwrite,
        composite=order.composite,
        queue=order.queue,
        tile_ids=tuple(t.tile_id for t in flight.tiles if t.tile_id in named) if named else None,
    )
    try:
        lies_there = tools.stores.stat(flight.report_uri)
        last = load_report(tools.stores, flight) if lies_there else None
        seen = survey(tools.stores, flight, run.tiles_of(flight), known_of_report(last))
        todo = [s.tile for s in seen if s.plan(run) is not Plan.CURRENT]
        _record(run, flight, tools)
        forget_failures(tools.stores, run, {t.tile_id for t in todo})
        tools.ledger.start(run.run_id)
    except FlightsError as error:
        if error.code is Code.SETTINGS_INVALID:
            raise
        return unanswered(flight, run.run_id, error)
    try:
        courier.submit(run, flight, todo)
    except Unreachable as error:  # it is recorded: where the broker comes back, what was not sent is sent again
        log.warning("%s: %s; not all of it was sent", flight.flight_id, error)
    return Follower(run=run, flight=flight, sent=todo, tools=tools, courier=courier, report_seen=lies_there)


def _record(run: Run, flight: Flight, tools: Tools) -> None:
    try:
        save_run(tools.stores, run, flight)
    except Refused as refused:
        message = f"no run record can be kept under {tools.settings.runs} (FLIGHTS_RUNS_URI): {refused}"
        raise Refused(Code.SETTINGS_INVALID, message) from refused


@contextlib.contextmanager
def hold(flight: Flight, tools: Tools, check: Callable[[], None]) -> Iterator[bool]:
    """Hold a flight against a second run of it while the block runs; False where somebody else is at it.

    That is another command, which renews its lease (one that was killed does not: its lease is waited for), or a fleet
    at a run that nobody waits for any more. `check` is called while waiting, and may raise.
    """
    name, left_s = f"flight {flight.flight_id}", float("inf")
    while True:
        with tools.ledger.claim(name, LEASE_S) as mine:
            before_s, left_s = left_s, tools.ledger.lease_left_s(name)
            if mine or left_s > before_s:
                yield bool(mine) and not _is_under_way(flight, tools)
                return
        check()
        time.sleep(0.25)


def _is_under_way(flight: Flight, tools: Tools) -> bool:
    """Whether a fleet is at a run of the flight, all of whose messages were sent."""
    try:
        last, _ = load_run(tools.stores, record_uri(tools.settings.runs, flight.flight_id))
        progress = tools.ledger.progress(last.run_id)
        if progress is None or not progress.submitted or has_ended(tools.stores, last):
            return False
    except FlightsError:
        return False
    return progress.alive or progress.reporting or progress.quiet_s < LEASE_S


def busy(flight: Flight) -> FlightReport:
    """The report of a flight that somebody else is at."""
    message = f"flight {flight.flight_id} is already running; see {flight.report_uri} when it has ended"
    return refused(flight.flight_id, ManifestRefused(Code.ALREADY_RUNNING, message))
