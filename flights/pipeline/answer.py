"""A flight's one answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy
import rasterio

from flights import __version__
from flights.errors import Refused
from flights.fingerprint import ALGORITHM, mosaic_fingerprint
from flights.manifest import Flight
from flights.pipeline.tile import describe
from flights.pipeline.tools import Tools
from flights.quality import Limits
from flights.report import (
    FlightReport,
    Mosaic,
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
from flights.runs import Run, check_authority, failure_records, load_failure, load_report, mark_ended, save_report
from flights.store import Stores
from flights.survey import Known, Seen, known_products, look_at_product, survey


def finalise(run: Run, flight: Flight, told: Iterable[TileOutcome], tools: Tools) -> FlightReport:
    """A flight's one answer, from what storage shows; what tasks told adds why and how long; never that it is done.

    Idempotent, and nothing but this decides. The report is published before it is returned. Where it is not, the
    error is Transient: storage gave no answer, so there is no answer.
    """
    report = derive_report(run, flight, tools.stores, tools.limits, told)
    check_authority(tools.stores, run)
    save_report(tools.stores, flight, report)
    if run.is_settled_by(report):
        end_run(run, tools)
    return report


def end_run(run: Run, tools: Tools) -> None:
    """A run has had its last word: whoever waits is told, and no sweep takes it up again."""
    mark_ended(tools.stores, run)
    tools.ledger.conclude(run.run_id)


def derive_report(
    run: Run,
    flight: Flight,
    stores: Stores,
    limits: Limits,
    told: Iterable[TileOutcome] = (),
    *,
    under_way: bool = False,
) -> FlightReport:
    """A flight's report as storage shows it; nothing is written. `under_way`: its run has not had its last word."""
    before, by_id = load_report(stores, flight), by_tile(told)
    untold = (o for o in before.outcomes if o.tile_id not in by_id) if before else ()
    known = {**known_products(untold, before.run_id if before else ""), **known_products(by_id.values(), run.run_id)}
    earlier = before if before and before.run_id == run.run_id else None
    del before  # of a giant it is large, and what counts of it is known by now
    outcomes = assess(run, flight, by_id, stores, limits, known, under_way=under_way)
    counts = count_states(outcomes)
    report = FlightReport(
        flight_id=flight.flight_id,
        run_id=run.run_id,
        status=decide(counts),
        complete=not (counts.failed or counts.missing),
        tiles=counts,
        outcomes=tuple(outcomes),
        stats=pool_stats([o.stats for o in outcomes if o.stats]),
        notes=tuple(_notes(flight, outcomes)),
        started=run.started,
        finished=datetime.now(UTC),
        versions=_versions(),
    )
    report = report.model_copy(update=_standing_composite(run, flight, report, earlier, stores))
    products = {"report": flight.report_uri} | ({"mosaic": report.mosaic.uri} if report.mosaic else {})
    return report.model_copy(update={"products": products})


def _standing_composite(
    run: Run, flight: Flight, report: FlightReport, earlier: FlightReport | None, stores: Stores
) -> dict[str, object]:
    """The mosaic that lies in storage, where it is of just these tiles; else what the run's `earlier` report said."""
    try:
        there = look_at_product(stores, flight.mosaic_uri)
    except Refused:  # the composite will meet it too, and say it
        there = None
    product = there.product if there else None
    wanted = mosaic_fingerprint(flight, composited(report), report.complete)
    if product and product.fingerprint == wanted:
        cached = product.run_id != run.run_id
        if not (cached and run.overwrite):
            return {"mosaic": mosaic_of(flight.mosaic_uri, product, report, cached=cached)}
    found: dict[str, object] = {}
    if product and not run.wants_composite(report):
        of = "of other tiles than these or of an earlier state of them"
        note = f"an older mosaic, {of}, lies at {flight.mosaic_uri} (of run {product.run_id})"
        found["notes"] = (*report.notes, note)
    if earlier and composited(earlier) == composited(report):
        found["mosaic_error"] = earlier.mosaic_error
    return found


def composited(report: FlightReport) -> dict[str, str]:
    """The tiles that a composite is made of, in its order, with their fingerprints."""
    return {o.tile_id: o.fingerprint or "" for o in report.outcomes if o.state in (TileState.DONE, TileState.REVIEW)}


def mosaic_of(uri: str, product: Product, report: FlightReport, *, cached: bool) -> Mosaic:
    """What a report says of a mosaic."""
    return Mosaic(
        uri=uri,
        stats=product.stats,
        fingerprint=product.fingerprint,
        cached=cached,
        complete=report.complete,
        max_shift_px=product.max_shift_px,
    )


def _notes(flight: Flight, outcomes: Sequence[TileOutcome]) -> Iterator[str]:
    """What is no state of a tile, but worth a look."""
    empty = [o.tile_id for o in outcomes if o.stats and o.stats.count == 0]
    if empty:
        yield f"no valid pixel in {_some(empty)}"
    uses = (use for o in outcomes for use in (o.bands or {}).values() if use.overruled)
    overruled = {tag for use in uses for tag in use.overruled.split("; ")}
    if overruled:
        yield f"of the files' own tags were overruled: {'; '.join(sorted(overruled))}"
    older = [o.tile_id for o in outcomes if o.product and o.state in (TileState.FAILED, TileState.MISSING)]
    if older:
        yield f"older products still lie where those of {_some(older)} belong: they are not what this run is about"
    measured = [o for o in outcomes if o.stats and o.stats.mean is not None]
    low = [o.tile_id for o in measured if o.stats and (o.stats.mean or 0) < 0]
    if flight.index == "ndvi" and measured and len(low) > len(measured) / 2:
        yield (
            f"NIR lies below red over most of the flight (mean NDVI below 0 in {len(low)} of {len(measured)} tiles): "
            "water or bare soil, or red and NIR exchanged"
        )


def _some(tile_ids: Sequence[str]) -> str:
    """Tiles by name, the first ten of them."""
    rest = f" and {len(tile_ids) - 10} more" if len(tile_ids) > 10 else ""
    return f"{'tile' if len(tile_ids) == 1 else 'tiles'} {', '.join(tile_ids[:10])}{rest}"


def assess(
    run: Run,
    flight: Flight,
    told: Mapping[str, TileOutcome],
    stores: Stores,
    limits: Limits,
    known: Known,
    *,
    under_way: bool = False,
) -> list[TileOutcome]:
    """The outcome of every tile of a flight, in manifest order; nothing is written."""
    failures, outcomes = failure_records(stores, run), []
    for seen in survey(stores, flight, known=known):
        tile_id = seen.tile.tile_id
        outcome = _assess_tile(run, seen, told.get(tile_id), failures.get(tile_id), stores, limits)
        if outcome is None:
            outcome = missing(tile_id, seen.tile.dst_uri, f"{_what_lies(seen)}; {_why_not(run, tile_id, under_way)}")
        if outcome.state in (TileState.FAILED, TileState.MISSING) and seen.published:  # what a viewer would still find
            outcome = replace(outcome, product=seen.published.stat.identity)
        outcomes.append(outcome)
    return outcomes


def _assess_tile(
    run: Run, seen: Seen, told: TileOutcome | None, failure_uri: str | None, stores: Stores, limits: Limits
) -> TileOutcome | None:
    """The outcome of a tile; None where it has neither a product nor anybody who says why."""
    tile = seen.tile
    product = seen.current(run)
    if product and seen.source and seen.published:
        found = describe(tile, seen.source, seen.published, product, limits, cached=product.run_id != run.run_id)
        return replace(found, attempts=told.attempts, seconds=told.seconds) if told else found
    if told and told.state is TileState.FAILED:
        return told
    recorded = load_failure(stores, failure_uri) if failure_uri else None
    if recorded:
        return recorded
    if seen.error:
        return failed(tile.tile_id, tile.dst_uri, seen.error)
    return None


def _what_lies(seen: Seen) -> str:
    """What is at a tile's destination in the place of the product of this run."""
    if seen.published is None:
        return f"there is no product at {seen.tile.dst_uri}"
    if seen.published.product is None:
        return f"what lies at {seen.tile.dst_uri} is damaged, or no product of flights"
    if seen.product_of_source:
        return f"the product at {seen.tile.dst_uri} is of an earlier run, and this one makes every tile anew"
    return f"the product at {seen.tile.dst_uri} is of an earlier state of its source, or of other parameters"


def _why_not(run: Run, tile_id: str, under_way: bool) -> str:
    if not run.run_id:
        return "no run of it is recorded here"
    if run.tile_ids is not None and tile_id not in run.tile_ids:
        return "this run was not asked for it"
    if under_way:
        return "its run has not ended (it is under way, or was broken off: run the flight again)"
    return "no worker reported a failure; run the flight again"


def _versions() -> dict[str, str]:
    return {
        "flights": __version__,
        "algorithm": str(ALGORITHM),
        "gdal": rasterio.__gdal_version__,
        "rasterio": rasterio.__version__,
        "numpy": numpy.__version__,
    }
