"""A tile from a local file to a local file, by the product, by GDAL at its best, and by its peers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import recipe
from benchmarks.contender import Make, check, product_of, time_in_turn
from benchmarks.floor import decode_and_encode
from benchmarks.measure import Times
from benchmarks.peers import client
from benchmarks.product import Product
from benchmarks.scenes import write_scene
from benchmarks.servers import redis_server
from benchmarks.table import Line

PRODUCT, RECIPE, FLOOR = "product", "GDAL recipe", "floor"
NAIVE, ODC = client.TITLES["naive"], client.TITLES["odc_dask"]


@dataclass(frozen=True, slots=True)
class Case:
    """An input, and how many rounds it gets."""

    pixels: int
    dtype: str
    interleave: str
    compress: str
    rounds: int

    def __str__(self) -> str:
        return f"{self.dtype}, {self.pixels:,} px, {self.compress}, {self.interleave}"


HEADLINE = Case(4096, "uint16", "pixel", "deflate", 7)
OTHERS = (
    Case(4096, "uint16", "band", "deflate", 5),
    Case(4096, "uint16", "pixel", "zstd", 5),
    Case(4096, "float32", "pixel", "deflate", 5),
    Case(2048, "uint16", "pixel", "deflate", 7),
    Case(2048, "float32", "band", "zstd", 7),
    Case(10_000, "uint16", "pixel", "deflate", 3),
)
QUICK = (Case(2048, "uint16", "pixel", "deflate", 3), Case(2048, "float32", "band", "zstd", 3))

# What the product's time may be of the recipe's, and what a peer's has to be of the product's.
OF_RECIPE = 0.90
OF_PRODUCT = {NAIVE: 2.6, client.GDAL_CALC: 1.9, ODC: 1.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """A case's times, and what the oracle forgave whom."""

    case: Case
    times: Times
    forgiven: Mapping[str, str]

    def line(self, name: str, to: str, target: str = "", least: float = 0.0, most: float = 0.0) -> Line:
        """The ratio of two contenders, held to `least` or `most` where there is one."""
        what = f"1 a tile, local: {name} / {to} ({self.case})"
        if name not in self.times.seconds:
            return Line(what, target, "not installed")
        ratio, (low, high) = self.times.ratio(name, to), self.times.spread(name, to)
        figure = f"{self.times.median(name):.2f} s / {self.times.median(to):.2f} s"
        figure += f", {self.forgiven[name]}" if self.forgiven[name] else ""
        held = ratio >= least if least else ratio <= most if most else None
        return Line(what, target, figure, f"{ratio:.2f} x ({low:.2f}-{high:.2f})", held)


def run(folder: Path, quick: bool) -> list[Line]:
    """A headline case with every contender, and others with those that its targets name first."""
    headline, *others = QUICK if quick else (HEADLINE, *OTHERS)
    with redis_server(folder) as redis_url:
        product = Product(folder, redis_url)
        lines = list(_headline(_measure(headline, folder, product, tuple(client.TITLES))))
        for case in others:
            lines += _other(_measure(case, folder, product, ("naive",)))
    return lines


def _measure(case: Case, folder: Path, product: Product, peers: Sequence[str]) -> Measured:
    """Hold each contender's product to the oracle, then time them all in turn."""
    inside = folder / f"{case.dtype}-{case.pixels}-{case.compress}-{case.interleave}"
    inside.mkdir()
    source = write_scene(
        inside / "tile.tif", case.pixels, dtype=case.dtype, interleave=case.interleave, compress=case.compress
    )
    forgiven = {}
    with ExitStack() as stack:
        contenders: dict[str, Make] = {PRODUCT: product.make, RECIPE: recipe.make}
        if client.are_installed():
            contenders |= {client.TITLES[name]: stack.enter_context(client.warm(name)) for name in peers}
        if len(peers) > 1 and client.has_gdal_calc():
            contenders[client.GDAL_CALC] = client.gdal_calc
        for name, make in contenders.items():
            forgiven[name] = _checked(source, name, make)
        floor = stack.enter_context(decode_and_encode(product_of(source, RECIPE)))
        contenders[FLOOR], forgiven[FLOOR] = floor, _checked(source, FLOOR, floor)
        times = time_in_turn(contenders, source, case.rounds)
    for path in inside.iterdir():
        path.unlink()
    return Measured(case, times, forgiven)


def _checked(source: Path, name: str, make: Make) -> str:
    """A contender's first product, which warms it up, before the oracle."""
    product = product_of(source, name)
    make(str(source), str(product))
    return check(source, product)


def _headline(measured: Measured) -> Iterator[Line]:
    yield from _other(measured, held=True)
    for name in (client.GDAL_CALC, ODC):
        yield _of_product(measured, name)
    for name in (*client.TITLES.values(), client.GDAL_CALC):
        yield measured.line(name, RECIPE)


def _other(measured: Measured, held: bool = False) -> Iterator[Line]:
    """What every case tells; the targets are of the headline case."""
    if held:
        yield measured.line(PRODUCT, RECIPE, f"<= {OF_RECIPE:.2f} x", most=OF_RECIPE)
        yield _of_product(measured, NAIVE)
    else:
        yield measured.line(PRODUCT, RECIPE)
        yield measured.line(NAIVE, PRODUCT)
    yield measured.line(PRODUCT, FLOOR)


def _of_product(measured: Measured, name: str) -> Line:
    return measured.line(name, PRODUCT, f">= {OF_PRODUCT[name]:.2f} x", least=OF_PRODUCT[name])
