"""A flight's composite."""

from functools import partial
from pathlib import Path

from flights.errors import Code, FlightsError, Refused, Transient
from flights.fingerprint import mosaic_fingerprint
from flights.manifest import Flight, Tile
from flights.pipeline.answer import composited, mosaic_of
from flights.pipeline.tile import product_tags
from flights.pipeline.tools import Tools, retried, scratch_folder
from flights.raster.cog import CogWriter
from flights.raster.mosaic import Piece, lay_out, write_mosaic
from flights.report import FlightReport, Mosaic, Problem, Product, TileState
from flights.runs import Run, load_report, load_run, save_report
from flights.store import Stores
from flights.survey import PRODUCT_METADATA, look_at_product


def composite_flight(run: Run, tools: Tools) -> FlightReport | None:
    """Lay a flight's tiles into one COG and add it to the report; None where another run has taken the flight over.

    A composite that cannot be made right (two CRS, rotated tiles) is a `mosaic_error` in the report.
    """
    current, flight = load_run(tools.stores, run.record_uri)
    report = load_report(tools.stores, flight)
    if current.run_id != run.run_id or report is None or report.run_id != run.run_id:
        return None
    try:
        mosaic = retried(partial(_make_mosaic, run, flight, report, tools), tools.settings.transient_attempts)
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
    present = composited(report)
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
        return mosaic_of(uri, made, report, cached=True)
    with scratch_folder(tools.settings) as scratch:
        pieces = [_piece(stores, tile, scratch / f"tile{i}.tif") for i, tile in enumerate(tiles)]
        layout = lay_out(pieces)
        with CogWriter(scratch, layout.grid, flight.index.upper(), tools.settings.cog_compress) as writer:
            write_mosaic(layout, writer, tools.settings.window_bytes)
            product = Product(
                fingerprint=fingerprint, run_id=run.run_id, stats=writer.stats, max_shift_px=layout.max_shift_px
            )
            tags = product_tags(flight, "mosaic", product) | _completeness(report)
            path = writer.finish(tags, product.stats)
        metadata = {PRODUCT_METADATA: product.model_dump_json()}
        stores.publish(path, uri, before.stat if before else None, metadata)
    return mosaic_of(uri, product, report, cached=False)


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
