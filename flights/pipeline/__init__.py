"""The work itself: a tile, a flight's answer, a flight's composite; each one story, top to bottom."""

from flights.pipeline.answer import derive_report, end_run, finalise
from flights.pipeline.composite import composite_flight, settle_composite
from flights.pipeline.tile import settle_tile, write_tile
from flights.pipeline.tools import Tools, clear_scratch, free_scratch_bytes, has_room

__all__ = [
    "Tools",
    "clear_scratch",
    "composite_flight",
    "derive_report",
    "end_run",
    "finalise",
    "free_scratch_bytes",
    "has_room",
    "settle_composite",
    "settle_tile",
    "write_tile",
]
