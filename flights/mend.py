"""Ending what is stuck: what is missing is sent again, what is made is reported, what was left behind is removed.

The waiting command does it for its own flights, the sweep for everybody's. Both may do it at once: sending a tile
twice costs a look at its product.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from flights.errors import FlightsError, Unreachable
from flights.manifest import Flight, Tile
from flights.pipeline import Tools
from flights.runs import Run, failed_tiles, has_ended, load_report, load_run, records
from flights.survey import known_of_report, survey

log = logging.getLogger(__name__)

# A run that has not ended by then is history: somebody may have done its work elsewhere.
GIVEN_UP_S = 3 * 24 * 3600


class Courier(Protocol):
    """Who carries messages."""

    def waiting(self, run: Run, *, for_report: bool) -> int:
        """Messages that wait in the queue of a run's tiles, or in that of reports and composites."""

    def is_idle(self, run: Run) -> bool:
        """Whether no message could be one of a run's: its queues are empty, and no worker holds any."""

    def unserved(self, run: Run) -> list[str]:
        """Those queues of a run that no worker takes messages from."""

    def submit(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        """Send a run's tiles, and the report after them; with none, the report alone."""

    def resend(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        """Send tiles again, and the report after them."""

    def conclude(self, run: Run) -> None:
        """Ask for a flight's answer from what storage shows."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done about a run."""

    flight_id: str
    run_id: str
    deed: str


def lost_tiles(run: Run, flight: Flight, tools: Tools) -> list[Tile]:
    """The tiles that a run was to make and that have neither a current product nor a recorded failure."""
    failures = failed_tiles(tools.stores, run)
    seen = survey(tools.stores, flight, run.tiles_of(flight), known_of_report(load_report(tools.stores, flight)))
    return [s.tile for s in seen if not s.current(run) and s.tile.tile_id not in failures]


def sweep(tools: Tools, courier: Courier) -> list[Mended]:
    """Mend every recorded run that has no last word and makes no progress; Unreachable where storage is."""
    mended = []
    for record in _reached(tools, "mended"):
        with record as uri:
            done = _mend(uri, tools, courier)
            mended += [done] if done else []
    return mended


def _mend(record: str, tools: Tools, courier: Courier) -> Mended | None:
    run, flight = load_run(tools.stores, record)
    if has_ended(tools.stores, run) or not _is_stuck(run, tools) or courier.waiting(run, for_report=False):
        return None
    lost = lost_tiles(run, flight, tools)
    tools.ledger.start(run.run_id)  # known again, where Redis has forgotten it; and given time
    if lost:
        courier.resend(run, flight, lost)
    else:
        courier.conclude(run)
    deed = f"sent {len(lost)} tiles again" if lost else "asked for its report"
    return Mended(run.flight_id, run.run_id, deed)


def _is_stuck(run: Run, tools: Tools) -> bool:
    age_s = (datetime.now(UTC) - run.started).total_seconds()
    if age_s > GIVEN_UP_S:
        return False
    progress, after_s = tools.ledger.progress(run.run_id), tools.settings.sweep_after_s
    if progress is None:  # Redis has lost it, or never heard of it
        return age_s > after_s
    return not progress.alive and progress.quiet_s > after_s


def clean(tools: Tools) -> int:
    """Remove temporary files and unfinished uploads that killed writers left where recorded flights write; how many."""
    removed = 0
    for record in _reached(tools, "cleaned"):
        with record as uri:
            _, flight = load_run(tools.stores, uri)
            for folder, names in _written(flight, uri).items():
                removed += tools.stores.clean(folder, names, tools.settings.stale_after_s)
    return removed


def _reached(tools: Tools, deed: str) -> Iterator[contextlib.AbstractContextManager[str]]:
    """Every run record, to be worked on in a block of its own: one flight's storage is no other flight's matter.

    Unreachable where none of them could be reached.
    """
    reached, lost = 0, None

    @contextlib.contextmanager
    def tried(record: str) -> Iterator[str]:
        nonlocal reached, lost
        try:
            yield record
            reached += 1
        except FlightsError as error:
            log.warning("%s could not be %s: %s", record, deed, error)
            lost = error if isinstance(error, Unreachable) else lost

    for record in records(tools.stores, tools.settings.runs).values():
        yield tried(record)
    if lost and not reached:
        raise lost


def _written(flight: Flight, record: str) -> dict[str, set[str]]:
    """What a flight writes: names by folder."""
    uris = [t.dst_uri for t in flight.tiles] + [flight.report_uri, flight.mosaic_uri]
    uris += [f"{record}/{name}.json" for name in ("run", "manifest", "ended")]
    folders: dict[str, set[str]] = {}
    for uri in uris:
        folder, name = uri.rsplit("/", 1)
        folders.setdefault(folder, set()).add(name)
    return folders
