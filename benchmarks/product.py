"""The product as a worker runs it: a warm process, `write_tile`, a ledger that answers."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.scenes import EPSG, SENSOR
from flights.ledger import Ledger
from flights.manifest import parse_manifest
from flights.pipeline import Tools, write_tile
from flights.raster.environment import keep_memory
from flights.report import TileOutcome, TileState
from flights.runs import Job, Run, record_uri, save_run
from flights.settings import Settings
from flights.store import open_stores


class Product:
    """Makes tiles in this process; S3 clients are made by the first tile, from the environment of that moment."""

    def __init__(self, folder: Path, redis_url: str, runs_uri: str = "") -> None:
        settings = Settings(state_dir=folder / "state", runs_uri=runs_uri, scratch_dir=None)
        self._tools = Tools(settings, open_stores(), Ledger(redis_url))
        self._jobs: dict[tuple[str, str], Job] = {}
        keep_memory()  # as a worker's process does

    def make(self, source: str, product: str) -> TileOutcome:
        """A tile of `scenes`, from URI to URI; RuntimeError where it was not made, or found made."""
        if (source, product) not in self._jobs:  # what a command does is in the first round, which does not count
            self._jobs[source, product] = self._begun(source, product)
        job = self._jobs[source, product]
        outcome = write_tile(job, job.flight.tiles[0], self._tools)
        if outcome.state not in (TileState.DONE, TileState.REVIEW) or outcome.cached or outcome.attempts != 1:
            raise RuntimeError(f"the tile was to be made, at once: {outcome}")
        return outcome

    def _begun(self, source: str, product: str) -> Job:
        """A run of a flight of one tile, recorded as a command records it."""
        flight_id = f"F{os.getpid()}-{len(self._jobs)}"
        tile = {"tile_id": "t", "src_uri": source, "dst_uri": product, "epsg": EPSG}
        text = json.dumps({"flight_id": flight_id, "sensor": SENSOR, "tiles": [tile]})
        flight = parse_manifest(text.encode(), "/")
        record = record_uri(self._tools.settings.runs, flight_id)
        run = Run(run_id=f"run-{flight_id}", flight_id=flight_id, record_uri=record, started=datetime.now(UTC))
        save_run(self._tools.stores, run, flight)
        return Job(run=run, flight=flight)
