"""The run record: what a run was asked to do, kept in storage before the first message is sent.

`{runs}/{flight_id}/manifest.json`, `run.json`, and under `failures/` one small outcome for each tile that failed. With
it any run is ended from storage alone, whatever became of the queue.
"""

import logging
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from flights.errors import Code, ManifestRefused, Refused
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
    def of(cls, run: Run, flight: Flight, tile_ids: set[str]) -> Self:
        """The job of some tiles of a flight."""
        tiles = tuple(t for t in flight.tiles if t.tile_id in tile_ids)
        return cls(run=run, flight=flight.model_copy(update={"tiles": tiles}))


def record_uri(runs_uri: str, flight_id: str) -> str:
    """Where a flight's run record lives."""
    return join_uri(runs_uri, flight_id)


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


def save_failure(stores: Stores, run: Run, outcome: TileOutcome) -> None:
    """Record why a tile has no product."""
    stores.write(_failure_uri(run, outcome.tile_id), outcome.model_dump_json().encode())


def load_failure(stores: Stores, run: Run, tile_id: str) -> TileOutcome | None:
    """The recorded failure of a tile, None where there is none."""
    raw = stores.read(_failure_uri(run, tile_id))
    try:
        return TileOutcome.model_validate_json(raw) if raw else None
    except ValidationError:
        log.warning("the recorded failure of tile %s is damaged", tile_id)
        return None


def failed_tiles(stores: Stores, run: Run) -> set[str]:
    """The tiles of which a failure is recorded."""
    names = [uri.rsplit("/", 1)[1] for uri in stores.list(join_uri(run.record_uri, "failures"))]
    # What a killed writer left behind is hidden; a tile's name never begins with a dot.
    return {name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")}


def forget_failures(stores: Stores, run: Run, tile_ids: set[str]) -> None:
    """Remove the recorded failures of tiles that are about to be tried again."""
    for tile_id in failed_tiles(stores, run) & tile_ids:
        stores.delete(_failure_uri(run, tile_id))


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
    stores.write(flight.report_uri, report.model_dump_json(indent=1).encode())


def _failure_uri(run: Run, tile_id: str) -> str:
    return join_uri(run.record_uri, f"failures/{tile_id}.json")
