"""A whole flight in this process, through the same code as a worker's: plan, tiles, report, composite. No queue."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flights.intake import load_flight
from flights.ledger import Ledger
from flights.pipeline import Tools, composite_flight, finalise, write_tile
from flights.report import FlightReport, TileOutcome
from flights.runs import CompositeRule, Job, Run, load_report, record_uri, save_run
from flights.settings import Settings
from flights.store import open_stores

# Nothing listens here: what Redis only makes quicker goes on without.
NO_REDIS = "redis://127.0.0.1:1/0"


def tools_for(state: Path, redis_url: str = NO_REDIS, **settings: Any) -> Tools:
    """What a worker would work with; `settings` are fields of Settings."""
    return Tools(Settings(state_dir=state, **settings), open_stores(), Ledger(redis_url))


def run_flight(
    manifest: Mapping[str, Any], folder: Path, tools: Tools | None = None, composite: CompositeRule = "complete"
) -> FlightReport:
    """Run a manifest whose relative paths start from `folder`; ManifestRefused where it may not start."""
    at_hand = tools or tools_for(folder / "state")
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest))
    flight = load_flight(at_hand.stores, str(path))
    run = Run(
        run_id=f"run-{datetime.now(UTC).isoformat()}",
        flight_id=flight.flight_id,
        record_uri=record_uri(at_hand.settings.runs, flight.flight_id),
        started=datetime.now(UTC),
        composite=composite,
    )
    save_run(at_hand.stores, run, flight)
    told: list[TileOutcome] = []
    for tile in flight.tiles:
        job = Job(run=run, flight=flight.model_copy(update={"tiles": (tile,)}))
        told.append(write_tile(Job.model_validate(job.model_dump(mode="json")), tile, at_hand))
    report = finalise(run, flight, told, at_hand)
    if not run.is_settled_by(report):
        composite_flight(run, at_hand)
        report = load_report(at_hand.stores, flight) or report
    return report
