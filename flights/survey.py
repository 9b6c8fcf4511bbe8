"""What storage says of a flight's tiles: each source as it is now, each product as it is now."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from flights.errors import Code, Refused
from flights.fingerprint import tile_fingerprint
from flights.manifest import Flight, Tile
from flights.raster.cog import read_product_tag
from flights.report import Product
from flights.runs import Run
from flights.store import Stat, Stores

# Requests under way at once while a flight is surveyed.
PARALLEL = 16
PRODUCT_METADATA = "flights-product"


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


def look_at_source(stores: Stores, tile: Tile) -> Source:
    """A tile's source as it is now; Refused where a part is missing."""
    parts: dict[str, Stat] = {}
    for role, uri in tile.sources.items():
        stat = stores.stat(uri)
        if stat is None:
            raise Refused(Code.SOURCE_MISSING, f"{uri} does not exist")
        parts[role] = stat
        parts.update({f"{role}{suffix}": sidecar for suffix, sidecar in stores.sidecars(uri).items()})
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
        return Published(stat, Product.model_validate_json(text) if text else None)
    except ValidationError:  # another version's words, or somebody's: not current, so made anew
        return Published(stat, None)


def look(stores: Stores, flight: Flight, tile: Tile) -> Seen:
    """One tile as storage shows it now."""
    published = product_error = None
    try:
        published = look_at_product(stores, tile.dst_uri)
    except Refused as refused:
        product_error = refused
    try:
        source = look_at_source(stores, tile)
    except Refused as refused:
        return Seen(tile, None, refused, None, published, product_error)
    return Seen(tile, source, None, tile_fingerprint(flight, tile, source.identity), published, product_error)


def survey(stores: Stores, flight: Flight, tiles: Iterable[Tile] | None = None) -> list[Seen]:
    """Every tile of a flight as storage shows it now, in manifest order; Transient where storage does not answer."""
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="survey") as pool:
        return list(pool.map(lambda tile: look(stores, flight, tile), flight.tiles if tiles is None else tiles))
