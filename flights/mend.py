"""Ending what is stuck: what is missing is sent again, what is made is reported, what was left behind is removed.

The waiting command does it for its own flights, the sweep for everybody's. Both may do it at once: sending a tile
twice costs a look at its product.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from flights.errors import FlightsError, Refused
from flights.manifest import Flight, Tile, folder_of
from flights.pipeline import Tools
from flights.runs import Run, failed_tiles, load_report, load_run
from flights.survey import survey

log = logging.getLogger(__name__)


class Courier(Protocol):
    """Who carries messages."""

    def waiting(self, run: Run) -> int:
        """Messages that wait in the queues of a run."""

    def resend(self, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        """Send tiles again, outside any chord."""

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
    seen = survey(tools.stores, flight, run.tiles_of(flight))
    return [s.tile for s in seen if not s.current(run) and s.tile.tile_id not in failures]


def sweep(tools: Tools, courier: Courier) -> list[Mended]:
    """Mend every recorded run that has no last word and makes no progress."""
    mended = []
    for record in tools.stores.folders(tools.settings.runs):
        try:
            done = _mend(record, tools, courier)
        except FlightsError as error:
            log.warning("%s could not be mended: %s", record, error)
            continue
        mended += [done] if done else []
    return mended


def _mend(record: str, tools: Tools, courier: Courier) -> Mended | None:
    run, flight = load_run(tools.stores, record)
    if run.is_settled_by(load_report(tools.stores, flight)) or not _is_stuck(run, tools) or courier.waiting(run):
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
    progress, after_s = tools.ledger.progress(run.run_id), tools.settings.sweep_after_s
    if progress is None:  # Redis has lost it, or never heard of it
        return (datetime.now(UTC) - run.started).total_seconds() > after_s
    return not progress.alive and not progress.concluded and progress.quiet_s > after_s


def clean(tools: Tools) -> int:
    """Remove temporary files and unfinished uploads that killed writers left where recorded flights write; how many."""
    removed, older_than_s = 0, tools.settings.stale_after_s
    for record in tools.stores.folders(tools.settings.runs):
        try:
            _, flight = load_run(tools.stores, record)
            folders = {folder_of(t.dst_uri) for t in flight.tiles} | {flight.out_uri, record, f"{record}/failures"}
            removed += sum(tools.stores.clean(folder, older_than_s) for folder in folders)
        except Refused as error:
            log.warning("%s could not be cleaned: %s", record, error)
    return removed
