"""Taking a flight in: its manifest read, and checked against the places it names. A refused manifest does no work."""

import os
from functools import partial

from flights.errors import Code, ManifestRefused, Refused
from flights.manifest import Flight, folder_of, join_uri, object_uri, parse_manifest
from flights.runs import record_uri
from flights.store import SIDECARS, Stat, Stores

# A tile takes about 300 bytes; a million of them still fit.
MAX_MANIFEST_BYTES = 512 * 2**20


def load_flight(stores: Stores, uri: str, runs_uri: str = "") -> Flight:
    """The flight that a manifest declares (a local path or an s3:// URI); ManifestRefused names the manifest.

    Transient where storage does not answer.
    """
    try:
        where = _absolute(uri)
        stat = _stat(stores, where)
        if stat.size > MAX_MANIFEST_BYTES:
            raise ManifestRefused(
                Code.MANIFEST_INVALID, f"{stat.size} bytes; a manifest has at most {MAX_MANIFEST_BYTES}"
            )
        raw = stores.read(where) or b""
        flight = parse_manifest(raw, folder_of(where))
        check_places(stores, flight, where)
        if runs_uri:
            _check_record(stores, flight, where, runs_uri)
    except ManifestRefused as refused:
        raise ManifestRefused(refused.code, f"{uri}: {refused}", refused.flight_id) from refused
    except Refused as refused:
        raise ManifestRefused(refused.code, str(refused)) from refused
    return flight


def _stat(stores: Stores, where: str) -> Stat:
    try:
        if stat := stores.stat(where):
            return stat
        lacking = "does not exist"
    except Refused as refused:
        if refused.code is not Code.SOURCE_MISSING:
            raise
        lacking = str(refused).removeprefix(f"{where}: ")
    raise ManifestRefused(Code.MANIFEST_MISSING, lacking)


def _absolute(uri: str) -> str:
    """The manifest's URI or absolute path, without `..` where what it climbs from is no link."""
    try:
        path = join_uri(os.getcwd(), object_uri(uri))
    except ValueError as error:
        raise ManifestRefused(Code.MANIFEST_MISSING, str(error)) from None
    if path.startswith("s3://"):
        return path
    tidy = os.path.abspath(path)
    return tidy if os.path.realpath(os.path.dirname(tidy)) == os.path.realpath(os.path.dirname(path)) else path


def check_places(stores: Stores, flight: Flight, manifest_uri: str = "") -> None:
    """Refuse a flight in which two things would be written to one object, or one over a source.

    The store says whether two URIs are one object: local paths resolved and links followed, S3 keys as they are.
    """
    canonical = partial(stores.canonical, folders={})
    sources = {
        canonical(uri + suffix): f"the source of tile {tile.tile_id!r}" + (f" ({suffix})" if suffix else "")
        for tile in flight.tiles
        for uri in tile.sources.values()
        for suffix in ("", *SIDECARS)
    }
    if manifest_uri:
        sources[canonical(manifest_uri)] = "the manifest"
    taken = {
        canonical(flight.report_uri): "the flight's report",
        canonical(flight.mosaic_uri): "the flight's mosaic",
    }
    for place, owner in taken.items():
        if place in sources:
            raise ManifestRefused(
                Code.TILE_CLASH,
                f"{owner} would overwrite {sources[place]} at {place}; declare another out_uri",
                flight.flight_id,
            )
    for tile in flight.tiles:
        place = canonical(tile.dst_uri)
        mine = f"the destination (dst_uri) of tile {tile.tile_id!r}"
        if place in sources:
            raise ManifestRefused(
                Code.TILE_CLASH,
                f"{mine} is the same object as {sources[place]}: {place} would be overwritten",
                flight.flight_id,
            )
        if place in taken:
            raise ManifestRefused(
                Code.TILE_CLASH, f"{mine} is the same object as {taken[place]}: {place}", flight.flight_id
            )
        taken[place] = mine


def _check_record(stores: Stores, flight: Flight, manifest_uri: str, runs_uri: str) -> None:
    """Refuse a flight whose run record would lie among its own files."""
    canonical = partial(stores.canonical, folders={})
    record = canonical(record_uri(runs_uri, flight.flight_id)) + "/"
    named = [manifest_uri, *(uri for t in flight.tiles for uri in (t.dst_uri, *t.sources.values()))]
    inside = next((uri for uri in named if canonical(uri).startswith(record)), None)
    if inside:
        raise ManifestRefused(
            Code.TILE_CLASH,
            f"{inside} lies where this flight's run record goes ({record}); set FLIGHTS_RUNS_URI to a place of its own",
            flight.flight_id,
        )
