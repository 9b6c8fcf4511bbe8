"""Waiting for a flight's answer without trusting the queue: where progress stalls, what is missing is sent again."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flights.errors import Code, FlightsError
from flights.ledger import Progress
from flights.manifest import Flight, Tile
from flights.mend import Courier, lost_tiles
from flights.pipeline import Tools, derive_report, finalise, settle_composite
from flights.report import FlightReport, Problem, unanswered
from flights.runs import Run, load_report
from flights.store import Stat

log = logging.getLogger(__name__)

# Nobody at work (a worker's beat outlives it by a lease), nothing queued, nothing new: for so long it may be chance.
STALL_S = 10.0
# With every tile settled there is only the report to wait for, and it takes no time.
STALL_SETTLED_S = 3.0
# A worker that is killed as it takes a message takes it along. Once the broker holds none for so long, no beat counts;
# it is doubled with each time that sending again has led to nothing.
STALL_IDLE_S = 2.0
RESENDS_MAX = 3
CONCLUSIONS_MAX = 3
# Broker or storage away for so many looks in a row: whoever waits is told.
FAILURES_MAX = 8
# How often storage is asked while Redis says that the run goes on.
STORAGE_EVERY_S = 5.0


@dataclass
class Follower:
    """One flight under way."""

    run: Run
    flight: Flight
    sent: Sequence[Tile]
    tools: Tools
    courier: Courier
    report_seen: Stat | None = None
    # the published report that is known not to be this run's
    progress: Progress = field(default_factory=Progress)
    report: FlightReport | None = None
    _moved: float = field(default_factory=time.monotonic)
    _idle_since: float | None = None
    # the broker has held no message since then
    _looked: float = field(default_factory=time.monotonic)
    _resends: int = 0
    _conclusions: int = 0
    _failures: int = 0
    # in a row
    _said: str = ""
    # the last complaint
    _unserved: list[str] = field(default_factory=list)
    # what has been complained of

    def step(self) -> bool:
        """Look once; True when the flight has its answer, in `report`."""
        now = time.monotonic()
        progress = self.tools.ledger.progress(self.run.run_id)
        settled = progress is not None and progress.settled >= len(self.sent)
        counted = progress is not None and progress.settled > self.progress.settled
        if counted:
            self._resends, self._idle_since = 0, None
        # A tile's beat outlives the tile: with all of them settled it says nothing of the report.
        if progress and (counted or progress.reporting or (progress.alive and not settled)):
            self._moved = now
        idle = not (counted or settled) and self._is_idle(now, progress)
        self.progress = progress or self.progress
        if (progress and progress.concluded) or now - self._looked > STORAGE_EVERY_S:
            self._looked = now
            self._look(concluded=bool(progress and progress.concluded))
        if self.report is None and (idle or now - self._moved > (STALL_SETTLED_S if settled else STALL_S)):
            self._moved, self._idle_since = now, None
            self._mend(settled)
        return self.report is not None

    def _is_idle(self, now: float, progress: Progress | None) -> bool:
        """Whether look after look has found no message, for as long as it takes to believe it.

        A Redis that has forgotten that all was submitted has also forgotten what its workers have in hand.
        """
        if not progress or not progress.submitted or progress.reporting or not self.courier.is_idle(self.run):
            self._idle_since = None
            return False
        self._idle_since = self._idle_since or now
        return now - self._idle_since > STALL_IDLE_S * (1 << self._resends + self._conclusions + self._failures)

    def _look(self, *, concluded: bool) -> None:
        """Take the published report where it is this run's last word; make it where nobody else will."""
        try:
            stat = self.tools.stores.stat(self.flight.report_uri)
            if stat == self.report_seen and not concluded:  # still the one of the last look
                return
            report = load_report(self.tools.stores, self.flight)
            self.report_seen = stat
        except FlightsError as error:
            self._say(f"its report cannot be looked for: {error}")
            report = None
        if self.run.is_settled_by(report):
            self.report = report
        elif concluded:
            self._answer()

    def _mend(self, settled: bool) -> None:
        """Nothing has moved: send what is missing; with nothing missing, ask for the answer; at last, give it."""
        try:
            if self.courier.waiting(self.run, for_report=settled):
                self._complain()
                return
            lost = lost_tiles(self.run, self.flight, self.tools)
            if lost and self._resends < RESENDS_MAX:
                log.warning("%s: no progress; tiles sent again: %d", self.flight.flight_id, len(lost))
                self.courier.resend(self.run, self.flight, lost)
                self._resends += 1
            elif self._conclusions < CONCLUSIONS_MAX:
                log.warning("%s: the report is overdue; asking for it again", self.flight.flight_id)
                self.courier.conclude(self.run)
                self._conclusions += 1
            else:
                self._answer()
            self._failures = 0
        except FlightsError as error:
            self._failures += 1
            self._say(str(error))
            if self._failures >= FAILURES_MAX:
                raise

    def _say(self, what: str) -> None:
        """Complain once of what stays wrong."""
        if what != self._said:
            log.warning("%s: %s", self.flight.flight_id, what)
        self._said = what

    def _complain(self) -> None:
        """Messages wait and nothing moves: say so where no worker takes them."""
        queues = self.courier.unserved(self.run)
        if queues and queues != self._unserved:
            names = ",".join(queues)
            log.warning(
                "%s: no worker answers that takes messages from %s; where none runs, start one with -Q %s",
                self.flight.flight_id,
                names,
                names,
            )
        self._unserved = queues

    def _answer(self) -> None:
        """Give the answer here; where it cannot be published, it is given all the same, and says so."""
        run, flight, tools = self.run, self.flight, self.tools
        try:
            report = finalise(run, flight, [], tools)
            if not run.is_settled_by(report):
                why = Problem(code=Code.MISSING, message="the composite was not made; run the flight again")
                report = settle_composite(run, flight, why, tools) or report
        except FlightsError as error:
            report = self._unpublished(error)
        self.report = report

    def _unpublished(self, error: FlightsError) -> FlightReport:
        run, flight, tools = self.run, self.flight, self.tools
        try:
            report = derive_report(run, flight, tools.stores, tools.limits)
        except FlightsError:
            return unanswered(flight, run.run_id, error)
        return report.model_copy(update={"error": Problem.of(error)})
