"""The work of a worker's process without Celery: what it works with, and a run for it to belong to."""

from datetime import UTC, datetime

from flights.ledger import Ledger
from flights.manifest import Flight
from flights.pipeline import Tools
from flights.runs import Run, record_uri
from flights.settings import Settings, load_settings
from flights.store import open_stores


def own_tools() -> Tools:
    """What this process works with, by its environment, which names a broker."""
    settings = load_settings()
    return Tools(settings, open_stores(), Ledger(str(settings.broker_url)))


def run_of(flight: Flight, settings: Settings) -> Run:
    """A run of a flight that begins now, without a composite."""
    now = datetime.now(UTC)
    return Run(
        run_id=f"{now:%Y%m%dT%H%M%S%f}-bench",
        flight_id=flight.flight_id,
        record_uri=record_uri(settings.runs, flight.flight_id),
        started=now,
        composite="never",
    )
