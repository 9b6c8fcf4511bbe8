"""What is said of a tile and of a flight: outcomes, and how they fold into one answer."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from flights.errors import Code, FlightsError
from flights.manifest import Flight

MAX_MESSAGE = 600
# bytes of an error's message: an outcome crosses the queue and stays under 2 KB


class TileState(StrEnum):
    """What became of a tile."""

    DONE = "done"
    REVIEW = "review"  # a product exists but looks wrong
    FAILED = "failed"
    MISSING = "missing"  # no product, and nobody reported a failure


class FlightStatus(StrEnum):
    """A flight's one answer."""

    COMPLETE = "complete"
    REVIEW = "review"
    INCOMPLETE = "incomplete"
    REFUSED = "refused"


# A flight holds three of these a tile at once, and with slots they take a quarter of a model's memory.
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Stats:
    """Statistics over valid pixels, in float64 from the float32 pixels written; null where there are none."""

    pixels: int
    # all pixels, valid or not
    count: int
    # valid pixels
    valid_fraction: float
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    # population standard deviation


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Problem:
    """An error as a value."""

    code: str
    message: str
    transient: bool = False

    @classmethod
    def of(cls, error: FlightsError) -> Self:
        """The value of an error, its message cut to what an outcome may carry."""
        raw = str(error).encode("utf-8", "backslashreplace")
        if len(raw) > MAX_MESSAGE:  # a message begins with the thing and ends with what to do: both ends stay
            raw = raw[:240] + b" ... " + raw[-(MAX_MESSAGE - 260) :]
        return cls(code=error.code, message=raw.decode("utf-8", "ignore"), transient=error.transient)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Review:
    """Why a product wants a look before it is used."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class BandUse:
    """How one band was read: where it was found and what turned its pixels into reflectance."""

    band: int
    # 1-based
    description: str = ""
    # the file's own word for it
    scale: float
    offset: float
    calibrated_by: str
    # "manifest", "sensor", "file", or "none": pixels as they are
    overruled: str = ""
    # what the file's own tags say, and who has another word


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Quality:
    """Counts of pixels, of what they were before they became an index."""

    measured: int = 0
    # hold a measurement in every band in use
    some_data: int = 0
    # hold one in at least one band in use, and are not masked
    negative: int = 0
    clipped: int = 0
    undefined: int = 0
    bright: int = 0
    # of a reflectance above 3 in a band in use, where the scale is known
    saturated: int = 0
    # at the top of the source's range in a band in use


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Product:
    """What a product says of itself; it travels with the pixels, in the file's tags and the object's metadata."""

    fingerprint: str
    run_id: str
    stats: Stats
    bands: dict[str, BandUse] = Field(default_factory=dict)
    quality: Quality = Quality()
    max_shift_px: float = 0.0
    # of a mosaic

    def as_text(self) -> str:
        """JSON in ASCII: an object's metadata holds nothing else."""
        return json.dumps(_PRODUCT.dump_python(self, mode="json"), separators=(",", ":"))

    @staticmethod
    def of_text(text: str | bytes) -> "Product":
        """What `as_text` said; ValidationError where it is in other words."""
        return _PRODUCT.validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TileOutcome:
    """What a tile task answers: short JSON, and failure is a value."""

    tile_id: str
    state: TileState
    cached: bool = False
    fingerprint: str | None = None
    dst_uri: str
    stats: Stats | None = None
    bands: dict[str, BandUse] | None = None
    quality: Quality | None = None
    review: tuple[Review, ...] = ()
    error: Problem | None = None
    attempts: int = 0
    seconds: float = 0.0
    source: dict[str, str] | None = None
    # identity of every file read
    product: str | None = None
    # identity of what lies at dst_uri

    def as_value(self) -> dict[str, Any]:
        """What JSON can hold of it: what a task answers."""
        value: dict[str, Any] = _OUTCOME.dump_python(self, mode="json")
        return value

    def as_text(self) -> str:
        """JSON."""
        return _OUTCOME.dump_json(self).decode()

    @staticmethod
    def of_value(value: object) -> "TileOutcome":
        """What `as_value` said; ValidationError where it is in other words."""
        return _OUTCOME.validate_python(value)

    @staticmethod
    def of_text(text: str | bytes) -> "TileOutcome":
        """What `as_text` said; ValidationError where it is in other words."""
        return _OUTCOME.validate_json(text)


_PRODUCT, _OUTCOME = TypeAdapter(Product), TypeAdapter(TileOutcome)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TileCounts:
    """How many tiles of a flight are in each state; `done` counts cached ones too."""

    total: int
    done: int = 0
    cached: int = 0
    review: int = 0
    failed: int = 0
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Mosaic:
    """The composite of a flight."""

    uri: str
    stats: Stats
    fingerprint: str
    cached: bool = False
    complete: bool = True
    # False where tiles were missing and the composite was asked for all the same
    max_shift_px: float = 0.0
    # how far a tile was moved to fall on the mosaic's grid


class FlightReport(BaseModel):
    """The one answer of a flight, as published."""

    model_config = _STRICT | ConfigDict(frozen=True)

    flight_id: str
    run_id: str
    status: FlightStatus
    complete: bool
    tiles: TileCounts
    outcomes: tuple[TileOutcome, ...]
    stats: Stats | None = None
    error: Problem | None = None
    mosaic: Mosaic | None = None
    mosaic_error: Problem | None = None
    notes: tuple[str, ...] = ()
    # what is no state, but worth a look
    products: dict[str, str] = Field(default_factory=dict)
    started: datetime | None = None
    finished: datetime | None = None
    versions: dict[str, str] = Field(default_factory=dict)


def failed(tile_id: str, dst_uri: str, error: FlightsError, attempts: int = 0, seconds: float = 0.0) -> TileOutcome:
    """The outcome of a tile that has no product."""
    return TileOutcome(
        tile_id=tile_id,
        state=TileState.FAILED,
        dst_uri=dst_uri,
        error=Problem.of(error),
        attempts=attempts,
        seconds=round(seconds, 3),
    )


def missing(tile_id: str, dst_uri: str, why: str) -> TileOutcome:
    """The outcome of a tile of which nothing is known but that its product is not there."""
    return TileOutcome(
        tile_id=tile_id, state=TileState.MISSING, dst_uri=dst_uri, error=Problem(code=Code.MISSING, message=why)
    )


def refused(flight_id: str, error: FlightsError) -> FlightReport:
    """The report of a manifest for which no work was done."""
    return FlightReport(
        flight_id=flight_id,
        run_id="",
        status=FlightStatus.REFUSED,
        complete=False,
        tiles=TileCounts(total=0),
        outcomes=(),
        error=Problem.of(error),
    )


def unanswered(flight: Flight, run_id: str, error: FlightsError) -> FlightReport:
    """The report of a flight of which storage or broker would not tell enough for an answer."""
    outcomes = tuple(missing(tile.tile_id, tile.dst_uri, f"not made: {error}") for tile in flight.tiles)
    return FlightReport(
        flight_id=flight.flight_id,
        run_id=run_id,
        status=FlightStatus.INCOMPLETE,
        complete=False,
        tiles=TileCounts(total=len(outcomes), missing=len(outcomes)),
        outcomes=outcomes,
        error=Problem.of(error),
    )


def count_states(outcomes: Sequence[TileOutcome]) -> TileCounts:
    """Fold outcomes into counts."""
    by_state = {state: sum(o.state is state for o in outcomes) for state in TileState}
    return TileCounts(
        total=len(outcomes),
        cached=sum(o.cached for o in outcomes),
        **{state.value: n for state, n in by_state.items()},
    )


def decide(counts: TileCounts) -> FlightStatus:
    """Complete, review or incomplete: decided here and nowhere else."""
    if counts.failed or counts.missing or counts.total == 0:
        return FlightStatus.INCOMPLETE
    return FlightStatus.REVIEW if counts.review else FlightStatus.COMPLETE


def pool_stats(parts: Sequence[Stats]) -> Stats | None:
    """Statistics of several rasters as one, overlaps counted as often as they occur; None for no rasters.

    Pairwise update of count, mean and sum of squares: Chan, Golub, LeVeque 1979, Stanford STAN-CS-79-773.
    """
    if not parts:
        return None
    count, mean, squares = 0, 0.0, 0.0
    pixels = sum(part.pixels for part in parts)
    for part in parts:
        if part.count and part.mean is not None and part.std is not None:
            total = count + part.count
            delta = part.mean - mean
            squares += part.std**2 * part.count + delta**2 * count * part.count / total
            mean += delta * part.count / total
            count = total
    if not count:
        return Stats(pixels=pixels, count=0, valid_fraction=0.0)
    return Stats(
        pixels=pixels,
        count=count,
        valid_fraction=count / pixels,
        min=min(p.min for p in parts if p.min is not None),
        max=max(p.max for p in parts if p.max is not None),
        mean=mean,
        std=math.sqrt(squares / count),
    )


def by_tile(outcomes: Iterable[TileOutcome]) -> Mapping[str, TileOutcome]:
    """Outcomes by tile id; the last one said of a tile stands."""
    return {o.tile_id: o for o in outcomes}
