"""What storage says of a flight's tiles: each source as it is now, each product as it is now.

Where many tiles share a folder it is listed, and a product that a report or a task has told of is known again by its
identity: an unchanged flight of 40,000 tiles is planned with 80 LISTs, and no product is opened.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from types import MappingProxyType

from pydantic import ValidationError

from flights.errors import Code, Refused
from flights.fingerprint import tile_fingerprint
from flights.manifest import Flight, Tile, folder_of
from flights.raster.cog import read_product_tag
from flights.report import FlightReport, Product, Quality, TileOutcome
from flights.runs import Run
from flights.store import SIDECARS, Stat, Stores

# Requests under way at once while a flight is surveyed.
PARALLEL = 16
PRODUCT_METADATA = "flights-product"
# How many tiles a thread looks at before it is given more: less, and handing them out costs as much as looking.
PART = 32
# Fewer files of a folder than these are asked for one by one.
LIST_FROM = 8
# By destination: the identity of a product, and what it says of itself.
Known = Mapping[str, tuple[str, Product]]


class Plan(StrEnum):
    """What is to be done about a tile."""

    NEW = "new"
    STALE = "stale"  # a product is there, but of another source, other parameters or an older algorithm
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Source:
    """A tile's source as it is now: every file that is read, with its sidecars."""

    parts: Mapping[str, Stat]
    # by role and suffix: "" or "red", then ".msk" and so on

    @property
    def identity(self) -> dict[str, str]:
        """What identifies the content of every part."""
        return {name: stat.identity for name, stat in self.parts.items()}


@dataclass(frozen=True, slots=True)
class Published:
    """What lies at a tile's destination."""

    stat: Stat
    product: Product | None
    # None where it is not one of our products


@dataclass(frozen=True, slots=True)
class Seen:
    """A tile as storage shows it."""

    tile: Tile
    source: Source | None
    source_error: Refused | None
    # exactly one of the two
    fingerprint: str | None
    # of the product that the source would give now
    published: Published | None
    product_error: Refused | None = None
    # what keeps a product from lying there

    @property
    def error(self) -> Refused | None:
        """What keeps the tile from being made, as far as storage shows."""
        return self.source_error or self.product_error

    @property
    def product_of_source(self) -> Product | None:
        """The product, where it is the one that the source gives now."""
        product = self.published.product if self.published else None
        return product if product and self.fingerprint and product.fingerprint == self.fingerprint else None

    def current(self, run: Run | None = None) -> Product | None:
        """The product that the source gives now; in a run that overwrites, of that run."""
        product = self.product_of_source
        return None if product and run and run.remakes(self.tile.tile_id) and product.run_id != run.run_id else product

    def plan(self, run: Run | None = None) -> Plan:
        """What is to be done about the tile."""
        if self.current(run):
            return Plan.CURRENT
        return Plan.STALE if self.published else Plan.NEW


class Listed:
    """Storage, with some of its folders listed beforehand."""

    def __init__(self, stores: Stores, uris: Iterable[str] = ()) -> None:
        self._stores = stores
        asked = Counter(map(folder_of, uris))
        folders = {folder: stores.listing(folder, names) for folder, names in asked.items() if names >= LIST_FROM}
        self._folders = {folder: there for folder, there in folders.items() if there is not None}

    def stat(self, uri: str) -> Stat | None:
        """An object as it is, or was listed; without its metadata where it was listed."""
        there = self._folders.get(folder_of(uri))
        if there is None or (uri not in there and not uri.startswith("s3://")):  # a link, or no regular file
            return self._stores.stat(uri)
        return there.get(uri)

    def raster(self, uri: str) -> dict[str, Stat]:
        """An object ("") and those of SIDECARS that lie beside it, by suffix."""
        if folder_of(uri) not in self._folders:
            return self._stores.raster(uri)
        found = ((suffix, self.stat(uri + suffix)) for suffix in ("", *SIDECARS))
        return {suffix: there for suffix, there in found if there}

    def published(self, uri: str, known: tuple[str, Product] | None) -> "Published | None":
        """What lies at a destination, None where nothing does; Refused where no product can lie there.

        `known` is what somebody has told of a product there: it holds where that very object still lies there.
        """
        if known is not None and folder_of(uri) in self._folders:
            there = self._folders[folder_of(uri)].get(uri)
            if there and there.identity == known[0]:
                return Published(there, known[1])
        if uri.startswith("s3://") and folder_of(uri) in self._folders and self.stat(uri) is None:
            return None
        return look_at_product(self._stores, uri)


def known_products(outcomes: Iterable[TileOutcome], run_id: str) -> Known:
    """The products that outcomes of a run tell of; which earlier run has made a cached one, they don't."""
    return {
        o.dst_uri: (
            o.product,
            Product(
                fingerprint=o.fingerprint,
                run_id="" if o.cached else run_id,
                stats=o.stats,
                bands=o.bands or {},
                quality=o.quality or Quality(),
            ),
        )
        for o in outcomes
        if o.product and o.fingerprint and o.stats
    }


def known_of_report(report: FlightReport | None) -> Known:
    """The products that a published report tells of."""
    return known_products(report.outcomes, report.run_id) if report else {}


def look_at_source(stores: Stores | Listed, tile: Tile) -> Source:
    """A tile's source as it is now; Refused where a part is missing."""
    parts: dict[str, Stat] = {}
    for role, uri in tile.sources.items():
        found = stores.raster(uri)
        if "" not in found:
            raise Refused(Code.SOURCE_MISSING, f"{uri} does not exist; put it there, or correct src_uri")
        parts.update({f"{role}{suffix}": stat for suffix, stat in found.items()})
    return Source(parts)


def look_at_product(stores: Stores, uri: str) -> Published | None:
    """What lies at a destination, None where nothing does; Refused where no product can lie there."""
    try:
        stat = stores.stat(uri)
    except Refused as refused:
        raise Refused(Code.DESTINATION_REFUSED, f"the destination cannot be used: {refused}") from refused
    if stat is None:
        return None
    text = stat.metadata.get(PRODUCT_METADATA) or (None if uri.startswith("s3://") else read_product_tag(uri))
    try:
        return Published(stat, Product.of_text(text) if text else None)
    except ValidationError:  # another version's words, or somebody's: not current, so made anew
        return Published(stat, None)


def look(listed: Listed, flight: Flight, tile: Tile, known: Known) -> Seen:
    """One tile as storage shows it now."""
    published = product_error = None
    try:
        published = listed.published(tile.dst_uri, known.get(tile.dst_uri))
    except Refused as refused:
        product_error = refused
    try:
        source = look_at_source(listed, tile)
    except Refused as refused:
        return Seen(tile, None, refused, None, published, product_error)
    return Seen(tile, source, None, tile_fingerprint(flight, tile, source.identity), published, product_error)


def survey(
    stores: Stores, flight: Flight, tiles: Sequence[Tile] | None = None, known: Known = MappingProxyType({})
) -> Iterator[Seen]:
    """Every tile of a flight as storage shows it now, in manifest order; Transient where storage does not answer.

    They come as they are looked at, so that nobody needs to hold all of them.

    `known` saves a look into each product that is still the one it tells of.
    """
    tiles = flight.tiles if tiles is None else tiles
    listed = Listed(stores, (uri for tile in tiles for uri in (tile.dst_uri, *tile.sources.values())))
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="survey") as pool:
        for start in range(0, len(tiles), PARALLEL * PART):
            some = tiles[start : start + PARALLEL * PART]
            parts = [some[i::PARALLEL] for i in range(min(PARALLEL, len(some)))]
            looked = pool.map(lambda part: [look(listed, flight, tile, known) for tile in part], parts)
            for seen in zip_longest(*looked):
                yield from (one for one in seen if one)
