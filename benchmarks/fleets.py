"""Sending work: this process connected to a broker, or holding the embedded default as a run holds it."""

from collections.abc import Iterator
from contextlib import contextmanager

import tasks
from flights.embedded import embedded_fleet
from flights.ledger import Ledger
from flights.pipeline import Tools
from flights.settings import Settings, load_settings
from flights.store import open_stores


@contextmanager
def embedded_tools() -> Iterator[Tools]:
    """This process's tools, connected to the embedded server and its worker for as long as the block runs."""
    settings = load_settings()
    with embedded_fleet(settings.state_dir, settings.workers) as held:
        yield _tools_at(held.broker_url, settings)


def sending_tools() -> Tools:
    """This process's tools, connected to the broker that its environment names."""
    settings = load_settings()
    return _tools_at(str(settings.broker_url), settings)


def _tools_at(broker_url: str, settings: Settings) -> Tools:
    connected = settings.model_copy(update={"broker_url": broker_url})
    tasks.connect(connected)
    return Tools(connected, open_stores(), Ledger(broker_url))
