"""Waiting for a flight's answer without trusting the queue: where progress stalls, what is missing is sent again."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flights.errors import FlightsError
from flights.ledger import Progress
from flights.manifest import Flight, Tile
from flights.mend import Courier, lost_tiles
from flights.pipeline import Tools, derive_report, finalise
from flights.report import FlightReport, Problem
from flights.runs import Run, load_report

log = logging.getLogger(__name__)

# Nobody at work (a worker's beat outlives it by a lease), nothing queued, nothing new: for so long it may be chance.
STALL_S = 10.0
# With every tile settled there is only the report to wait for, and it takes no time.
STALL_SETTLED_S = 3.0
RESENDS_MAX = 3
CONCLUSIONS_MAX = 3
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
    progress: Progress = field(default_factory=Progress)
    report: FlightReport | None = None
    _moved: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)
    _reported: bool = False
    # the report is published, and a composite may be under way
    _resends: int = 0
    _conclusions: int = 0

    def step(self) -> bool:
        """Look once; True when the flight has its answer, in `report`."""
        now = time.monotonic()
        progress = self.tools.ledger.progress(self.run.run_id)
        settled = progress is not None and progress.settled >= len(self.sent)
        awaits_report = settled and not self._reported
        if progress and (progress.settled > self.progress.settled or (progress.alive and not awaits_report)):
            self._moved = now
        self.progress = progress or self.progress
        if (progress and progress.concluded) or now - self._looked > STORAGE_EVERY_S:
            self._looked = now
            self._look(concluded=bool(progress and progress.concluded))
        if self.report is None and now - self._moved > (STALL_SETTLED_S if awaits_report else STALL_S):
            self._moved = now
            self._mend()
        return self.report is not None

    def _look(self, *, concluded: bool) -> None:
        """Take the published report where it is this run's last word; make it where nobody else will."""
        try:
            report = load_report(self.tools.stores, self.flight)
        except FlightsError as error:
            log.warning("%s: storage does not answer: %s", self.flight.flight_id, error)
            return
        self._reported = report is not None and report.run_id == self.run.run_id
        if self.run.is_settled_by(report):
            self.report = report
        elif concluded:
            self._answer()

    def _mend(self) -> None:
        """Nothing has moved: send what is missing; with nothing missing, ask for the answer; at last, give it."""
        try:
            if self.courier.waiting(self.run):
                return
            lost = lost_tiles(self.run, self.flight, self.tools)
        except FlightsError as error:
            log.warning("%s: storage does not answer: %s", self.flight.flight_id, error)
            return
        if lost and self._resends < RESENDS_MAX:
            self._resends += 1
            log.warning("%s: %d tiles made no progress; sending them again", self.flight.flight_id, len(lost))
            self.courier.resend(self.run, self.flight, lost)
        elif self._conclusions < CONCLUSIONS_MAX:
            self._conclusions += 1
            log.warning("%s: the report is overdue; asking for it again", self.flight.flight_id)
            self.courier.conclude(self.run)
        else:
            self._answer()

    def _answer(self) -> None:
        """Give the answer here; where it cannot be published, it is given all the same, and says so."""
        try:
            self.report = finalise(self.run, self.flight, [], self.tools)
        except FlightsError as error:
            report = derive_report(self.run, self.flight, self.tools.stores, self.tools.limits)
            self.report = report.model_copy(update={"error": Problem.of(error)})
