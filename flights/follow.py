"""Waiting for a flight's answer without trusting the queue: where progress stalls, what is missing is sent again."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flights.errors import FlightsError
from flights.ledger import Progress
from flights.manifest import Flight, Tile
from flights.pipeline import Tools, finalise
from flights.report import FlightReport
from flights.runs import Run, failed_tiles, load_report
from flights.survey import survey

log = logging.getLogger(__name__)

# Nobody at work (a worker's beat outlives it by a lease), nothing queued, nothing new: for so long it may be chance.
STALL_S = 10.0
# Once tiles have been sent again no chord will fire, and all that is waited for is the last of them.
STALL_AFTER_RESEND_S = 3.0
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
    queued: Callable[[], int]
    # messages that wait in the flight's queues
    resend: Callable[[Sequence[Tile]], None]
    conclude: Callable[[], None]
    # ask for the flight's answer again
    progress: Progress = field(default_factory=Progress)
    report: FlightReport | None = None
    _moved: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)
    _resends: int = 0
    _conclusions: int = 0

    def step(self) -> bool:
        """Look once; True when the flight has its answer, in `report`."""
        now = time.monotonic()
        progress = self.tools.ledger.progress(self.run.run_id)
        if progress and (progress.alive or progress.settled > self.progress.settled):
            self._moved = now
        self.progress = progress or self.progress
        if (progress and progress.concluded) or now - self._looked > STORAGE_EVERY_S:
            self._looked = now
            report = load_report(self.tools.stores, self.flight)
            if self.run.is_settled_by(report):
                self.report = report
                return True
        if now - self._moved > (STALL_AFTER_RESEND_S if self._resends else STALL_S):
            self._moved = now
            self._mend()
        return self.report is not None

    def _mend(self) -> None:
        """Nothing has moved: send what is missing; with nothing missing, ask for the answer; at last, give it."""
        if self.queued():
            return
        lost = self._lost()
        if lost and self._resends < RESENDS_MAX:
            self._resends += 1
            log.warning("%s: %d tiles made no progress; sending them again", self.flight.flight_id, len(lost))
            self.resend(lost)
        elif self._conclusions < CONCLUSIONS_MAX:
            self._conclusions += 1
            log.warning("%s: the report is overdue; asking for it again", self.flight.flight_id)
            self.conclude()
        else:
            self.report = finalise(self.run, self.flight, [], self.tools)

    def _lost(self) -> list[Tile]:
        """The tiles of this run that have neither a current product nor a recorded failure."""
        try:
            failures = failed_tiles(self.tools.stores, self.run)
            seen = survey(self.tools.stores, self.flight, self.sent)
        except FlightsError as error:
            log.warning("%s: storage does not answer: %s", self.flight.flight_id, error)
            return []
        return [s.tile for s in seen if not s.current(self.run) and s.tile.tile_id not in failures]
