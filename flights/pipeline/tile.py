"""Making one tile's product."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flights import __version__
from flights.errors import Code, FlightsError, Refused, SourceChanged, Transient
from flights.fingerprint import tile_fingerprint
from flights.indices import INDICES, Index, IndexStrip, compute
from flights.manifest import Flight, Tile, folder_of
from flights.pipeline.tools import Tools, has_room, retried, scratch_folder, together
from flights.quality import Limits, judge
from flights.raster.cog import PRODUCT_TAG, CogWriter
from flights.raster.layout import LEADER_BYTES, Range, read_layout
from flights.raster.source import Strip, TileSource, TileSpec, open_tile, reading
from flights.report import BandUse, Product, Quality, TileOutcome, TileState, failed
from flights.runs import Job, Run, check_authority, save_failure
from flights.store import SIDECARS, Stat
from flights.survey import PRODUCT_METADATA, Published, Seen, Source, look_at_product, look_at_source

log = logging.getLogger(__name__)

# From this size a file is looked at for bands that can be left where they are; its first bytes, for where they lie.
PARTIAL_FROM, HEADER_BYTES = 8 * 2**20, 256 * 1024
# A look at a source and at who has the flight counts for so long: what is put together in less is published upon it.
LOOK_HOLDS_S = 2.0
# Folders of which a large file was needed as a whole: the next one is not asked for its header first.
_whole_files: set[str] = set()


def write_tile(job: Job, tile: Tile, tools: Tools) -> TileOutcome:
    """Make a tile's product, or find it made; the outcome is a value, also of a failure.

    Running it twice equals running it once: the product is published in one step, under the fingerprint of what was
    read. Whatever kills it half-way leaves the destination as it was. Transient where the disk has filled up so far
    that this host may take no tile: nothing is settled, and a host with room may make it.
    """
    began = time.monotonic()
    attempts = 0

    def once() -> TileOutcome:
        nonlocal attempts
        attempts += 1
        return _make_tile(job, tile, tools)

    try:
        outcome = retried(once, tools.settings.transient_attempts)
        outcome = replace(outcome, attempts=attempts, seconds=round(time.monotonic() - began, 3))
    except FlightsError as error:
        if error.code is Code.DISK_FULL and not has_room(tools.settings):
            raise
        outcome = failed(tile.tile_id, tile.dst_uri, error, attempts, time.monotonic() - began)
    settle_tile(job.run, outcome, tools)
    return outcome


def settle_tile(run: Run, outcome: TileOutcome, tools: Tools) -> None:
    """Put an outcome where others look for it: failures in the run record, all of them in the progress."""
    superseded = outcome.error is not None and outcome.error.code == Code.SUPERSEDED
    if outcome.state is TileState.FAILED and not superseded:
        try:
            save_failure(tools.stores, run, outcome)
        except FlightsError as error:  # the outcome travels in the message's result as well
            log.warning("could not record the failure of tile %s: %s", outcome.tile_id, error)
    tools.ledger.note(run.run_id, outcome)


def _make_tile(job: Job, tile: Tile, tools: Tools) -> TileOutcome:
    flight, run, stores = job.flight, job.run, tools.stores
    near = not any(uri.startswith("s3://") for uri in (tile.dst_uri, *tile.sources.values()))
    source, before = together(
        lambda: look_at_source(stores, tile), lambda: look_at_product(stores, tile.dst_uri), in_turn=near
    )
    fingerprint = tile_fingerprint(flight, tile, source.identity)
    if before and (product := Seen(tile, source, None, fingerprint, before).current(run)):
        return describe(tile, source, before, product, tools.limits, cached=product.run_id != run.run_id)
    with scratch_folder(tools.settings) as scratch:
        looked = float("-inf")

        def look_again() -> None:
            nonlocal looked
            looked = time.monotonic()
            now, _ = together(lambda: look_at_source(stores, tile), lambda: check_authority(stores, run), in_turn=near)
            if now.identity != source.identity:
                raise SourceChanged(f"{_named(tile)} was replaced while the tile was being made")

        # Far away that is a round trip, which passes while the file is put together: 8 % of a tile.
        beside = None if near else look_again
        path, product = _compute(flight, tile, source, fingerprint, run.run_id, scratch, tools, beside)
        if time.monotonic() - looked > LOOK_HOLDS_S:
            look_again()
        stat = stores.publish(
            path, tile.dst_uri, before.stat if before else None, {PRODUCT_METADATA: product.as_text()}
        )
    return describe(tile, source, Published(stat, product), product, tools.limits, cached=False)


def _compute(
    flight: Flight,
    tile: Tile,
    source: Source,
    fingerprint: str,
    run_id: str,
    scratch: Path,
    tools: Tools,
    beside: Callable[[], None] | None,
) -> tuple[Path, Product]:
    """The finished, verified file of a tile on scratch, and what it says of itself.

    With every pixel read, `beside` runs while the file is put together.
    """
    index, settings = INDICES[flight.index], tools.settings
    spec = TileSpec(
        names=tile.sources,
        roles=index.roles,
        rule=flight.radiometry(tile),
        profile=flight.profile(tile),
        epsg=tile.epsg,
        max_pixels=settings.max_pixels,
        max_block_bytes=settings.max_block_bytes,
    )
    paths = _mirror(tile, source, scratch, spec, tools)
    with (
        reading(_named(tile)),
        open_tile(paths, spec) as raster,
        CogWriter(
            scratch,
            raster.grid,
            index.name.upper(),
            compress=settings.cog_compress,
            dtype=flight.dtype,
            rows_at_once=raster.rows_at_once,
        ) as writer,
    ):
        _check_reflectance(index, raster, tile)
        quality = Quality()
        for window, strip in raster.strips(settings.window_bytes):
            computed = compute(index, strip.bands, strip.valid)
            writer.write(computed.values, window)
            quality = _counted(quality, strip, computed)
        product = Product(
            fingerprint=fingerprint, run_id=run_id, stats=writer.stats, bands=_band_uses(raster), quality=quality
        )
        tags = product_tags(flight, tile.tile_id, product)
        path, _ = together(lambda: writer.finish(tags, product.stats), beside or (lambda: None), in_turn=beside is None)
    return path, product


def _check_reflectance(index: Index, raster: TileSource, tile: Tile) -> None:
    """Refuse pixels on an unknown scale beside known ones, or where the formula has a constant of reflectance."""
    unknown = [role for role, band in raster.bands.items() if not band.calibration.is_known]
    if unknown and (index.needs_reflectance or len(unknown) < len(raster.bands)):
        raise Refused(
            Code.SCALE_UNKNOWN,
            f"{_named(tile)}: {index.name} needs reflectance, and nothing says what scale the pixels of "
            f"{' and '.join(unknown)} have; declare `scale` (and `offset`), or a `sensor` whose profile knows it",
        )


def _counted(so_far: Quality, strip: Strip, computed: IndexStrip) -> Quality:
    return Quality(
        measured=so_far.measured + int(strip.valid.sum()),
        some_data=so_far.some_data + strip.some_data,
        negative=so_far.negative + computed.negative,
        clipped=so_far.clipped + computed.clipped,
        undefined=so_far.undefined + computed.undefined,
        bright=so_far.bright + strip.bright,
        saturated=so_far.saturated + strip.saturated,
    )


def _mirror(tile: Tile, source: Source, scratch: Path, spec: TileSpec, tools: Tools) -> dict[str, Path]:
    """Every part of a source as a local file, sidecars beside their raster; the path of each raster by role."""
    paths = {role: scratch / f"{role or 'source'}.tif" for role in tile.sources}
    if any(uri.startswith("s3://") for uri in tile.sources.values()):
        _check_room(tile, sum(part.size for part in source.parts.values()), scratch)
    for role, uri in tile.sources.items():
        # Sidecars first: what they say counts when a raster is opened for its header.
        for suffix in (*SIDECARS, ""):
            if stat := source.parts.get(role + suffix):
                path = paths[role].with_name(paths[role].name + suffix)
                if role or suffix:
                    tools.stores.fetch(uri + suffix, path, stat)
                else:
                    _fetch_stack(uri, path, stat, spec, tools)
    return paths


def _check_room(tile: Tile, needed: int, scratch: Path) -> None:
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise Transient(Code.DISK_FULL, f"{_named(tile)} has {needed} bytes, scratch has {free} left")


def _fetch_stack(uri: str, path: Path, stat: Stat, spec: TileSpec, tools: Tools) -> None:
    """Fetch a file that holds every band; of a large one on S3 what the bands in use need, where that can be told."""
    large = tools.settings.partial_reads and uri.startswith("s3://") and stat.size >= PARTIAL_FROM
    if not large or folder_of(uri) in _whole_files:
        tools.stores.fetch(uri, path, stat)
        return
    tools.stores.fetch_ranges(uri, path, stat, [(0, HEADER_BYTES)])
    if ranges := _ranges_in_use(uri, path, stat, spec):
        tools.stores.fetch_ranges(uri, path, stat, ranges)
    else:
        _whole_files.add(folder_of(uri))
        tools.stores.fetch(uri, path, stat, have=HEADER_BYTES)


def _ranges_in_use(uri: str, path: Path, stat: Stat, spec: TileSpec) -> Sequence[Range]:
    """What the bands in use need of a file whose first bytes are there; none where all of it is needed."""
    with path.open("rb") as fetched:
        layout = read_layout(fetched.read(HEADER_BYTES))
    if layout is None:
        return ()
    with reading(uri), open_tile({"": path}, spec) as raster:
        # A mask may look at bands that are not in use (of NODATA_VALUES at all of them), or at what lies elsewhere.
        masked, ranges = any(band.mask_of for band in raster.bands.values()), layout.ranges_of(raster.file_bands)
    if masked or any(stop > stat.size + LEADER_BYTES for _, stop in ranges):  # cut off: the whole of it says so best
        return ()
    return ranges


def _band_uses(raster: TileSource) -> dict[str, BandUse]:
    return {
        role: BandUse(
            band=band.facts.index,
            description=band.facts.description[:60],
            scale=band.calibration.scale,
            offset=band.calibration.offset,
            calibrated_by=band.calibration.origin,
            overruled="; ".join(band.calibration.overruled),
        )
        for role, band in raster.bands.items()
    }


def product_tags(flight: Flight, tile_id: str, product: Product) -> dict[str, str]:
    tags = {
        PRODUCT_TAG: product.as_text(),
        "FLIGHT_ID": flight.flight_id,
        "TILE_ID": tile_id,
        "FORMULA": INDICES[flight.index].formula,
        "TIFFTAG_SOFTWARE": f"flights {__version__}",
    }
    return tags | ({"ACQUIRED": flight.acquired.isoformat()} if flight.acquired else {})


def describe(
    tile: Tile, source: Source, published: Published, product: Product, limits: Limits, *, cached: bool
) -> TileOutcome:
    """The outcome of a tile whose product lies at its destination."""
    review = judge(product.quality, product.stats.count, limits)
    return TileOutcome(
        tile_id=tile.tile_id,
        state=TileState.REVIEW if review else TileState.DONE,
        cached=cached,
        fingerprint=product.fingerprint,
        dst_uri=tile.dst_uri,
        stats=product.stats,
        bands=product.bands,
        quality=product.quality,
        review=review,
        source=source.identity,
        product=published.stat.identity,
    )


def _named(tile: Tile) -> str:
    return " and ".join(tile.sources.values())
