"""The work itself: a tile, a flight's answer, a flight's composite; each one story, top to bottom."""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import tenacity

from flights import __version__
from flights.errors import Code, FlightsError, Refused, SourceChanged, Transient
from flights.fingerprint import ALGORITHM, mosaic_fingerprint, tile_fingerprint
from flights.indices import INDICES, compute
from flights.ledger import Ledger
from flights.manifest import Flight, Tile
from flights.raster.cog import PRODUCT_TAG, CogWriter
from flights.raster.mosaic import Piece, lay_out, write_mosaic
from flights.raster.source import TileSource, open_tile, reading
from flights.report import (
    BandUse,
    FlightReport,
    Mosaic,
    Problem,
    Product,
    TileOutcome,
    TileState,
    by_tile,
    count_states,
    decide,
    failed,
    missing,
    pool_stats,
)
from flights.runs import Job, Run, load_failure, load_report, load_run, save_failure, save_report
from flights.settings import Settings
from flights.store import SIDECARS, Stores
from flights.survey import PRODUCT_METADATA, Published, Seen, Source, look_at_product, look_at_source, survey

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """What the work is done with; made per process, after any fork."""

    settings: Settings
    stores: Stores
    ledger: Ledger


# ---------------------------------------------------------------- a tile


def write_tile(job: Job, tile: Tile, tools: Tools) -> TileOutcome:
    """Make a tile's product, or find it made; the outcome is a value, also of a failure.

    Running it twice equals running it once: the product is published in one step, under the fingerprint of what was
    read. Whatever kills it half-way leaves the destination as it was.
    """
    began = time.monotonic()
    attempts = 0

    def once() -> TileOutcome:
        nonlocal attempts
        attempts += 1
        return _make_tile(job, tile, tools)

    try:
        outcome = _retried(once, tools.settings.transient_attempts)
        outcome = outcome.model_copy(update={"attempts": attempts, "seconds": round(time.monotonic() - began, 3)})
    except FlightsError as error:
        outcome = failed(tile.tile_id, tile.dst_uri, error, attempts, time.monotonic() - began)
    settle_tile(job.run, outcome, tools)
    return outcome


def settle_tile(run: Run, outcome: TileOutcome, tools: Tools) -> None:
    """Put an outcome where others look for it: failures in the run record, all of them in the progress."""
    if outcome.state is TileState.FAILED:
        try:
            save_failure(tools.stores, run, outcome)
        except FlightsError as error:  # the outcome travels in the message's result as well
            log.warning("could not record the failure of tile %s: %s", outcome.tile_id, error)
    tools.ledger.note(run.run_id, outcome)


def _make_tile(job: Job, tile: Tile, tools: Tools) -> TileOutcome:
    flight, run, stores = job.flight, job.run, tools.stores
    source = look_at_source(stores, tile)
    fingerprint = tile_fingerprint(flight, tile, source.identity)
    before = look_at_product(stores, tile.dst_uri)
    if before and (product := Seen(tile, source, None, fingerprint, before).current(run)):
        return _outcome(tile, source, before, product, cached=product.run_id != run.run_id or not run.overwrite)
    with _scratch(tools.settings) as scratch:
        path, product = _compute(flight, tile, source, fingerprint, run.run_id, scratch, tools)
        if look_at_source(stores, tile).identity != source.identity:
            raise SourceChanged(f"{_named(tile)} was replaced while the tile was being made")
        stat = stores.publish(
            path, tile.dst_uri, before.stat if before else None, {PRODUCT_METADATA: product.model_dump_json()}
        )
    return _outcome(tile, source, Published(stat, product), product, cached=False)


def _compute(
    flight: Flight, tile: Tile, source: Source, fingerprint: str, run_id: str, scratch: Path, tools: Tools
) -> tuple[Path, Product]:
    """The finished, verified file of a tile on scratch, and what it says of itself."""
    index, settings = INDICES[flight.index], tools.settings
    paths = _mirror(tile, source, scratch, tools.stores)
    with (
        reading(_named(tile)),
        open_tile(
            paths,
            tile.sources,
            index.roles,
            flight.radiometry(tile),
            flight.profile(tile),
            tile.epsg,
            settings.max_pixels,
            settings.max_block_bytes,
        ) as raster,
        CogWriter(scratch, raster.grid, index.name.upper(), settings.cog_compress) as writer,
    ):
        for window in raster.windows(settings.window_bytes):
            strip = raster.read(window)
            writer.write(compute(index, strip.bands, strip.valid).values, window)
        product = Product(fingerprint=fingerprint, run_id=run_id, stats=writer.stats, bands=_band_uses(raster))
        path = writer.finish(_tags(flight, tile.tile_id, product), product.stats)
    return path, product


def _mirror(tile: Tile, source: Source, scratch: Path, stores: Stores) -> dict[str, Path]:
    """Every part of a source as a local file, sidecars beside their raster; the path of each raster by role."""
    paths = {}
    for role, uri in tile.sources.items():
        paths[role] = scratch / (f"{role or 'source'}.tif")
        for name, stat in source.parts.items():
            suffix = name.removeprefix(role)
            if name.startswith(role) and suffix in ("", *SIDECARS):
                stores.fetch(uri + suffix, paths[role].with_name(paths[role].name + suffix), stat)
    return paths


def _band_uses(raster: TileSource) -> dict[str, BandUse]:
    return {
        role: BandUse(
            band=band.index,
            scale=band.calibration.scale,
            offset=band.calibration.offset,
            calibrated_by=band.calibration.origin,
        )
        for role, band in raster.bands.items()
    }


def _tags(flight: Flight, tile_id: str, product: Product) -> dict[str, str]:
    tags = {
        PRODUCT_TAG: product.model_dump_json(),
        "FLIGHT_ID": flight.flight_id,
        "TILE_ID": tile_id,
        "FORMULA": INDICES[flight.index].formula,
        "TIFFTAG_SOFTWARE": f"flights {__version__}",
    }
    return tags | ({"ACQUIRED": flight.acquired.isoformat()} if flight.acquired else {})


def _outcome(tile: Tile, source: Source, published: Published, product: Product, *, cached: bool) -> TileOutcome:
    return TileOutcome(
        tile_id=tile.tile_id,
        state=TileState.REVIEW if product.review else TileState.DONE,
        cached=cached,
        fingerprint=product.fingerprint,
        dst_uri=tile.dst_uri,
        stats=product.stats,
        bands=product.bands,
        review=product.review,
        source=source.identity,
        product=published.stat.identity,
    )


def _named(tile: Tile) -> str:
    return " and ".join(tile.sources.values())


# ---------------------------------------------------------------- a flight's answer


def finalise(run: Run, flight: Flight, told: Iterable[TileOutcome], tools: Tools) -> FlightReport:
    """A flight's one answer, from what storage shows; what tasks told adds why and how long; never that it is done.

    Idempotent, and nothing but this decides. The report is published before it is returned. Where it is not, the
    error is Transient: storage gave no answer, so there is no answer.
    """
    report = derive_report(run, flight, tools.stores, told)
    save_report(tools.stores, flight, report)
    if run.is_settled_by(report):
        tools.ledger.conclude(run.run_id)
    return report


def derive_report(run: Run, flight: Flight, stores: Stores, told: Iterable[TileOutcome] = ()) -> FlightReport:
    """A flight's report as storage shows it; nothing is written. A composite that its tiles still match is kept."""
    outcomes = assess(run, flight, told, stores)
    counts = count_states(outcomes)
    before = load_report(stores, flight)
    report = FlightReport(
        flight_id=flight.flight_id,
        run_id=run.run_id,
        status=decide(counts),
        complete=not (counts.failed or counts.missing),
        tiles=counts,
        outcomes=tuple(outcomes),
        stats=pool_stats([o.stats for o in outcomes if o.stats]),
        started=run.started,
        finished=datetime.now(UTC),
        versions=_versions(),
    )
    if before and before.run_id == run.run_id and _same_tiles(before, report):
        report = report.model_copy(update={"mosaic": before.mosaic, "mosaic_error": before.mosaic_error})
    return report


def assess(run: Run, flight: Flight, told: Iterable[TileOutcome], stores: Stores) -> list[TileOutcome]:
    """The outcome of every tile of a flight, in manifest order; nothing is written."""
    known = by_tile(list(told))
    return [_assess_tile(run, seen, known.get(seen.tile.tile_id), stores) for seen in survey(stores, flight)]


def _assess_tile(run: Run, seen: Seen, told: TileOutcome | None, stores: Stores) -> TileOutcome:
    tile = seen.tile
    product = seen.current(run)
    if product and seen.source and seen.published:
        cached = told.cached if told else product.run_id != run.run_id
        found = _outcome(tile, seen.source, seen.published, product, cached=cached)
        return found.model_copy(update={"attempts": told.attempts, "seconds": told.seconds}) if told else found
    if told and told.state is TileState.FAILED:
        return told
    recorded = load_failure(stores, run, tile.tile_id)
    if recorded:
        return recorded
    if seen.source_error:
        return failed(tile.tile_id, tile.dst_uri, seen.source_error)
    there = "a product of another source or other parameters lies" if seen.published else "there is no product"
    return missing(tile.tile_id, tile.dst_uri, f"{there} at {tile.dst_uri}, and no worker reported a failure")


def _same_tiles(before: FlightReport, now: FlightReport) -> bool:
    return [(o.tile_id, o.fingerprint) for o in before.outcomes] == [(o.tile_id, o.fingerprint) for o in now.outcomes]


def _versions() -> dict[str, str]:
    import numpy
    import rasterio

    return {
        "flights": __version__,
        "algorithm": str(ALGORITHM),
        "gdal": rasterio.__gdal_version__,
        "rasterio": rasterio.__version__,
        "numpy": numpy.__version__,
    }


# ---------------------------------------------------------------- a flight's composite


def composite_flight(run: Run, tools: Tools) -> FlightReport | None:
    """Lay a flight's tiles into one COG and add it to the report; None where another run has taken the flight over.

    A composite that cannot be made right (two CRS, rotated tiles) is a `mosaic_error` in the report.
    """
    current, flight = load_run(tools.stores, run.record_uri)
    report = load_report(tools.stores, flight)
    if current.run_id != run.run_id or report is None or report.run_id != run.run_id:
        return None
    try:
        mosaic = _retried(partial(_make_mosaic, run, flight, report, tools), tools.settings.transient_attempts)
        report = report.model_copy(update={"mosaic": mosaic, "mosaic_error": None})
    except FlightsError as error:
        report = report.model_copy(update={"mosaic": None, "mosaic_error": Problem.of(error)})
    return amend_report(run, flight, report, tools)


def amend_report(run: Run, flight: Flight, report: FlightReport, tools: Tools) -> FlightReport:
    """Publish a report that the composite has been settled in."""
    save_report(tools.stores, flight, report)
    tools.ledger.conclude(run.run_id)
    return report


def _make_mosaic(run: Run, flight: Flight, report: FlightReport, tools: Tools) -> Mosaic:
    stores, uri = tools.stores, flight.mosaic_uri
    present = {o.tile_id: o.fingerprint or "" for o in report.outcomes if o.state in (TileState.DONE, TileState.REVIEW)}
    tiles = [tile for tile in flight.tiles if tile.tile_id in present]
    codes = sorted({tile.epsg for tile in tiles})
    if len(codes) > 1:
        listed = ", ".join(f"EPSG:{code}" for code in codes)
        raise Refused(
            Code.MOSAIC_REFUSED, f"the tiles are in {listed}: one mosaic has one CRS. Make a flight of each zone."
        )
    fingerprint = mosaic_fingerprint(flight, present, report.complete)
    before = look_at_product(stores, uri)
    made = before.product if before else None
    if made and made.fingerprint == fingerprint and (made.run_id == run.run_id or not run.overwrite):
        return _mosaic(uri, made, report, cached=True)
    with _scratch(tools.settings) as scratch:
        pieces = [_piece(stores, tile, scratch / f"tile{i}.tif") for i, tile in enumerate(tiles)]
        layout = lay_out(pieces)
        with CogWriter(scratch, layout.grid, flight.index.upper(), tools.settings.cog_compress) as writer:
            write_mosaic(layout, writer, tools.settings.window_bytes)
            product = Product(
                fingerprint=fingerprint, run_id=run.run_id, stats=writer.stats, max_shift_px=layout.max_shift_px
            )
            tags = _tags(flight, "mosaic", product) | _completeness(report)
            path = writer.finish(tags, product.stats)
        metadata = {PRODUCT_METADATA: product.model_dump_json()}
        stores.publish(path, uri, before.stat if before else None, metadata)
    return _mosaic(uri, product, report, cached=False)


def _mosaic(uri: str, product: Product, report: FlightReport, *, cached: bool) -> Mosaic:
    return Mosaic(
        uri=uri,
        stats=product.stats,
        fingerprint=product.fingerprint,
        cached=cached,
        complete=report.complete,
        max_shift_px=product.max_shift_px,
    )


def _piece(stores: Stores, tile: Tile, path: Path) -> Piece:
    stat = stores.stat(tile.dst_uri)
    if stat is None:
        raise Transient(Code.MISSING, f"the product of tile {tile.tile_id} vanished from {tile.dst_uri}")
    stores.fetch(tile.dst_uri, path, stat)
    return Piece(tile.tile_id, path)


def _completeness(report: FlightReport) -> dict[str, str]:
    if report.complete:
        return {"COMPLETE": "YES"}
    lost = [o.tile_id for o in report.outcomes if o.state in (TileState.FAILED, TileState.MISSING)]
    return {"COMPLETE": "NO", "MISSING_TILES": ", ".join(lost)[:1000]}


# ---------------------------------------------------------------- ways of working


def _retried(work: Callable[[], T], attempts: int) -> T:
    """Run `work` again while its errors are transient, with capped exponential back-off and full jitter."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=8),
        stop=tenacity.stop_after_attempt(attempts),
        reraise=True,
    )
    return retrying(work)


@contextmanager
def _scratch(settings: Settings) -> Iterator[Path]:
    """A folder of one's own for one piece of work, gone afterwards."""
    settings.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=settings.scratch))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
