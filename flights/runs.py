"""The run record: what a run was asked to do, kept in storage before the first message is sent.

`{runs}/{flight_id}/manifest.json`, `run.json`, and under `failures/` one small outcome for each tile that failed. With
it any run is ended from storage alone, whatever became of the queue.
"""

import json
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from flights.errors import Code, ManifestRefused, Refused, Superseded
from flights.manifest import Flight, Tile, join_uri, parse_manifest
from flights.report import FlightReport, FlightStatus, TileOutcome
from flights.store import Stores

log = logging.getLogger(__name__)

CompositeRule = Literal["complete", "review", "any", "never"]


class Run(BaseModel):
    """One run of a flight; small enough to travel in every message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    flight_id: str
    record_uri: str
    # the folder or prefix of this flight's record
    started: datetime
    overwrite: bool = False
    # products of earlier runs do not count, even when they are current
    composite: CompositeRule = "complete"
    queue: str = "tiles"
    # where its tiles were sent
    tile_ids: tuple[str, ...] | None = None
    # the tiles that were asked for; None: all of the flight

    def remakes(self, tile_id: str) -> bool:
        """Whether a product of an earlier run does not count, even where it is current."""
        return self.overwrite and (self.tile_ids is None or tile_id in self.tile_ids)

    def tiles_of(self, flight: Flight) -> list[Tile]:
        """The tiles that this run is to make, where they are not current."""
        return [t for t in flight.tiles if self.tile_ids is None or t.tile_id in self.tile_ids]

    def wants_composite(self, report: FlightReport) -> bool:
        """Whether a composite is due for a flight that ended like this."""
        if report.tiles.done + report.tiles.review == 0:
            return False
        enough = {
            FlightStatus.COMPLETE: ("complete", "review", "any"),
            FlightStatus.REVIEW: ("review", "any"),
            FlightStatus.INCOMPLETE: ("any",),
            FlightStatus.REFUSED: (),
        }
        return self.composite in enough[report.status]

    def is_settled_by(self, report: FlightReport | None) -> bool:
        """Whether a published report is this run's last word: nothing is to be added to it."""
        if report is None or report.run_id != self.run_id:
            return False
        return bool(report.mosaic or report.mosaic_error) or not self.wants_composite(report)


class Job(BaseModel):
    """What a tile message carries: the run, and the flight cut down to the tiles that the message is about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Run
    flight: Flight

    @classmethod
    def of(cls, run: Run, flight: Flight, tiles: Iterable[Tile]) -> Self:
        """The job of some tiles of a flight."""
        return cls(run=run, flight=flight.model_copy(update={"tiles": tuple(tiles)}))


def record_uri(runs_uri: str, flight_id: str) -> str:
    """Where a flight's run record lives."""
    return join_uri(runs_uri, flight_id)


def records(stores: Stores, runs_uri: str) -> dict[str, str]:
    """Every run record by its flight's id; Refused where the place of records is none."""
    try:
        return {uri.rsplit("/", 1)[-1]: uri for uri in stores.folders(runs_uri)}
    except Refused as refused:
        message = f"run records cannot be listed under {runs_uri} (FLIGHTS_RUNS_URI): {refused}"
        raise Refused(Code.SETTINGS_INVALID, message) from refused


def save_run(stores: Stores, run: Run, flight: Flight) -> None:
    """Write the record; `run.json` last, since it is what a reader starts from."""
    stores.write(join_uri(run.record_uri, "manifest.json"), flight.model_dump_json(indent=1).encode())
    stores.write(join_uri(run.record_uri, "run.json"), run.model_dump_json(indent=1).encode())


def load_run(stores: Stores, record: str) -> tuple[Run, Flight]:
    """The last run of a flight and its manifest; Refused where there is no record."""
    raw_run = stores.read(join_uri(record, "run.json"))
    raw_manifest = stores.read(join_uri(record, "manifest.json"))
    if raw_run is None or raw_manifest is None:
        raise Refused(Code.MANIFEST_MISSING, f"no run of this flight is recorded under {record}")
    try:
        return Run.model_validate_json(raw_run), parse_manifest(raw_manifest, record)
    except (ValidationError, ManifestRefused) as error:
        message = f"the run record under {record} is damaged, run the flight again ({str(error).splitlines()[0]})"
        raise Refused(Code.MANIFEST_INVALID, message) from error


def check_authority(stores: Stores, run: Run) -> None:
    """Superseded where a newer run of the flight is recorded; asked just before anything is published."""
    raw = stores.read(join_uri(run.record_uri, "run.json"))
    if raw is not None and f'"{run.run_id}"'.encode() not in raw:
        raise Superseded(run.flight_id, run.run_id)


def mark_ended(stores: Stores, run: Run) -> None:
    """Record that a run has had its last word: no sweep is to take it up again, whatever becomes of its report."""
    stores.write(join_uri(run.record_uri, "ended.json"), json.dumps({"run_id": run.run_id}).encode())


def has_ended(stores: Stores, run: Run) -> bool:
    """Whether a run has had its last word."""
    raw = stores.read(join_uri(run.record_uri, "ended.json"))
    return raw is not None and f'"{run.run_id}"'.encode() in raw


def save_failure(stores: Stores, run: Run, outcome: TileOutcome) -> None:
    """Record why a tile has no product; another run's record of the same tile is another one."""
    uri = join_uri(run.record_uri, f"failures/{outcome.tile_id}@{run.run_id}.json")
    stores.write(uri, outcome.as_text().encode())


def failure_records(stores: Stores, run: Run) -> dict[str, str]:
    """The newest recorded failure of each tile: its URI, which names the run (runs sort by time)."""
    found: dict[str, str] = {}
    for uri in sorted(stores.list(join_uri(run.record_uri, "failures")), key=lambda uri: uri.rsplit("@", 1)[-1]):
        name = uri.rsplit("/", 1)[1]
        if "@" in name:  # no name of a tile holds one
            found[name.rsplit("@", 1)[0]] = uri
    return found


def load_failure(stores: Stores, uri: str) -> TileOutcome | None:
    """A recorded failure, None where it is gone or damaged."""
    raw = stores.read(uri)
    try:
        return TileOutcome.of_text(raw) if raw else None
    except ValidationError:
        log.warning("%s is damaged", uri)
        return None


def failed_tiles(stores: Stores, run: Run) -> set[str]:
    """The tiles of which this very run has recorded a failure."""
    ending = f"@{run.run_id}.json"
    return {tile_id for tile_id, uri in failure_records(stores, run).items() if uri.endswith(ending)}


def forget_failures(stores: Stores, run: Run, tile_ids: set[str]) -> None:
    """Remove the recorded failures of tiles that are about to be tried again."""
    for tile_id, uri in failure_records(stores, run).items():
        if tile_id in tile_ids:
            stores.delete(uri)


def load_report(stores: Stores, flight: Flight) -> FlightReport | None:
    """The published report of a flight, None where there is none, or one in words that are not ours."""
    raw = stores.read(flight.report_uri)
    try:
        return FlightReport.model_validate_json(raw) if raw else None
    except ValidationError:
        log.warning("%s is no report of this version; it will be replaced", flight.report_uri)
        return None


def save_report(stores: Stores, flight: Flight, report: FlightReport) -> None:
    """Publish a flight's report, in one step."""
    stores.write(flight.report_uri, to_json(report, indent=1) + b"\n")
