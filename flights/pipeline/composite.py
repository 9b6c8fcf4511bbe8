"""A flight's composite."""

from functools import partial
from pathlib import Path

from flights.errors import Code, FlightsError, Refused, Superseded
from flights.fingerprint import mosaic_fingerprint
from flights.manifest import Flight, Tile
from flights.pipeline.answer import composited, end_run, mosaic_of
from flights.pipeline.tile import product_tags
from flights.pipeline.tools import Tools, retried, scratch_folder
from flights.raster.cog import CogWriter
from flights.raster.mosaic import ROWS_AT_ONCE, Piece, lay_out, write_mosaic
from flights.report import FlightReport, Mosaic, Problem, Product, TileState
from flights.runs import Run, check_authority, load_report, load_run, save_report
from flights.store import Stat, Stores
from flights.survey import PRODUCT_METADATA, look_at_product


def composite_flight(run: Run, tools: Tools) -> FlightReport | None:
    """Lay a flight's tiles into one COG and add it to the report; None where another run has taken the flight over.

    A composite that cannot be made right (two CRS, rotated tiles) is a `mosaic_error` in the report.
    """
    current, flight = load_run(tools.stores, run.record_uri)
    report = load_report(tools.stores, flight)
    if current.run_id != run.run_id or report is None or report.run_id != run.run_id or not run.wants_composite(report):
        return None
    try:
        mosaic = retried(partial(_make_mosaic, run, flight, report, tools), tools.settings.transient_attempts)
    except Superseded:
        return None
    except FlightsError as error:
        return settle_composite(run, flight, Problem.of(error), tools)
    return settle_composite(run, flight, mosaic, tools)


def settle_composite(run: Run, flight: Flight, what: Mosaic | Problem, tools: Tools) -> FlightReport | None:
    """Add a composite, or why there is none, to the run's report, and end the run; None where it is another run's."""
    report = load_report(tools.stores, flight)
    if report is None or report.run_id != run.run_id:
        return None
    if isinstance(what, Mosaic):
        settled: dict[str, object] = {"mosaic": what, "mosaic_error": None}
        settled["products"] = report.products | {"mosaic": what.uri}
    else:
        settled = {"mosaic": None, "mosaic_error": what}
    report = report.model_copy(update=settled)
    check_authority(tools.stores, run)
    save_report(tools.stores, flight, report)
    end_run(run, tools)
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
        return mosaic_of(uri, made, report, cached=made.run_id != run.run_id)
    with scratch_folder(tools.settings) as scratch:
        pieces = [_piece(stores, t, present[t.tile_id], scratch / f"tile{i}.tif") for i, t in enumerate(tiles)]
        layout = lay_out([piece for piece, _ in pieces], codes[0])
        how = {"compress": tools.settings.cog_compress, "dtype": flight.dtype}
        with CogWriter(scratch, layout.grid, flight.index.upper(), **how, rows_at_once=ROWS_AT_ONCE) as writer:
            write_mosaic(layout, writer, tools.settings.window_bytes)
            product = Product(
                fingerprint=fingerprint, run_id=run.run_id, stats=writer.stats, max_shift_px=layout.max_shift_px
            )
            tags = product_tags(flight, "mosaic", product) | _completeness(report)
            path = writer.finish(tags, product.stats)
        for tile, (_, stat) in zip(tiles, pieces, strict=True):
            if not tile.dst_uri.startswith("s3://"):  # S3 reads are pinned, a local file is read where it lies
                _check_unchanged(stores, tile, stat)
        check_authority(stores, run)
        metadata = {PRODUCT_METADATA: product.as_text()}
        stores.publish(path, uri, before.stat if before else None, metadata)
    return mosaic_of(uri, product, report, cached=False)


def _piece(stores: Stores, tile: Tile, fingerprint: str, path: Path) -> tuple[Piece, Stat]:
    """A tile's product as a local file; Refused where it is not the one that the report tells of."""
    there = look_at_product(stores, tile.dst_uri)
    if there is None or there.product is None or there.product.fingerprint != fingerprint:
        raise _changed(tile)
    stores.fetch(tile.dst_uri, path, there.stat)
    return Piece(tile.tile_id, path), there.stat


def _check_unchanged(stores: Stores, tile: Tile, stat: Stat) -> None:
    now = stores.stat(tile.dst_uri)
    if now is None or now.identity != stat.identity:
        raise _changed(tile)


def _changed(tile: Tile) -> Refused:
    return Refused(
        Code.PRODUCT_INVALID,
        f"the product of tile {tile.tile_id} at {tile.dst_uri} is no longer the one that was reported; "
        "run the flight again",
    )


def _completeness(report: FlightReport) -> dict[str, str]:
    if report.complete:
        return {"COMPLETE": "YES"}
    lost = [o.tile_id for o in report.outcomes if o.state in (TileState.FAILED, TileState.MISSING)]
    return {"COMPLETE": "NO", "MISSING_TILES": ", ".join(lost)[:1000]}
