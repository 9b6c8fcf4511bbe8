"""A tile from S3 to S3, near and far: the product, the naive loop through /vsis3/, and as many bytes moved."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import floor
from benchmarks.contender import Make, check
from benchmarks.delay_proxy import Control
from benchmarks.measure import Times, in_turn
from benchmarks.peers import client
from benchmarks.product import Product
from benchmarks.scenes import write_scene
from benchmarks.servers import (
    CREDENTIALS,
    FAR,
    NARROW,
    NEAR,
    PRODUCTS,
    SOURCES,
    Link,
    delayed,
    environment,
    redis_server,
    s3_client,
    s3_server,
)
from benchmarks.table import Line

PRODUCT, FLOOR, NAIVE = "product", "floor", "naive loop + COG, /vsis3/"
RUNS_URI = f"s3://{PRODUCTS}/runs"  # as a fleet on several hosts has them
ROUNDS, QUICK_ROUNDS = 5, 2
# At least of the product's time for the naive loop; at most so many requests a tile; at most of the bytes it needs.
OF_PRODUCT, REQUESTS, OF_NEEDED = 2.0, 9, 1.1
TILES_PX, TILES, PROCESSES = 2048, 8, (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """An input: uint16, deflate."""

    pixels: int
    interleave: str

    def __str__(self) -> str:
        return f"{self.pixels:,} px, {self.interleave}"

    @property
    def key(self) -> str:
        return f"{self.interleave}/{self.pixels}.tif"  # a folder's files are alike, as a flight's are


CASES = (Case(2048, "pixel"), Case(2048, "band"), Case(4096, "pixel"), Case(4096, "band"))


@dataclass(frozen=True, slots=True)
class Bench:
    """A storage, and the two ways to it."""

    folder: Path
    # holds every source, too
    storage: Any
    # a client that goes around the proxy
    control: Control
    link: Link
    rounds: int


def run(folder: Path, quick: bool) -> list[Line]:
    """Each case over each link; requests, and many tiles at once, over the far one."""
    cases = CASES[:2] if quick else CASES
    lines: list[Line] = []
    with redis_server(folder) as redis_url, s3_server(folder / "s3") as url:
        storage = s3_client(url)
        for case in cases:
            (folder / case.key).parent.mkdir(exist_ok=True)
            source = write_scene(folder / case.key, case.pixels, interleave=case.interleave)
            storage.upload_file(str(source), SOURCES, case.key)
        for link in (NEAR, FAR, NARROW):
            with delayed(url, link) as control, environment(**CREDENTIALS, AWS_ENDPOINT_URL=control.url):
                bench = Bench(folder, storage, control, link, QUICK_ROUNDS if quick else ROUNDS)
                product = Product(folder, redis_url, RUNS_URI)
                for case in cases:
                    lines += _case(case, bench, product)
                if link is FAR:
                    lines += _requests(cases, bench, product)
                    lines += [_overlap(bench, redis_url, count) for count in (PROCESSES[:2] if quick else PROCESSES)]
    return lines


# ---------------------------------------------------------------- one tile after another


def _case(case: Case, bench: Bench, product: Product) -> Iterator[Line]:
    times = _measure(case, bench, product)
    target = f">= {OF_PRODUCT:.2f} x" if bench.link is FAR else ""
    yield _line(case, bench, times, NAIVE, PRODUCT, target)
    yield _line(case, bench, times, PRODUCT, FLOOR)


def _line(case: Case, bench: Bench, times: Times, name: str, to: str, target: str = "") -> Line:
    what = f"2 a tile, S3: {name} / {to} ({case}, {bench.link})"
    if name not in times.seconds:
        return Line(what, target, "not installed")
    ratio, (low, high) = times.ratio(name, to), times.spread(name, to)
    figure = f"{times.median(name):.2f} s / {times.median(to):.2f} s"
    held = ratio >= OF_PRODUCT if target else None
    return Line(what, target, figure, f"{ratio:.2f} x ({low:.2f}-{high:.2f})", held)


def _measure(case: Case, bench: Bench, product: Product) -> Times:
    """Hold each contender's product to the oracle, then time them all in turn."""
    source = bench.folder / case.key
    with ExitStack() as stack:
        contenders: dict[str, Make] = {PRODUCT: product.make}
        if client.are_installed():
            there = {"AWS_S3_ENDPOINT": bench.control.url.removeprefix("http://"), "AWS_HTTPS": "NO"}
            there["AWS_VIRTUAL_HOSTING"] = "FALSE"
            contenders[NAIVE] = stack.enter_context(client.warm("naive_s3", there))
        work = {name: _making(case, bench, make) for name, make in contenders.items()}
        for once in work.values():  # which warms it up
            once()
            check(source, _fetched(case, bench))
        work[FLOOR] = _moving(case, bench)
        work[FLOOR]()
        return in_turn(work, bench.rounds, warm_up=0)


def _making(case: Case, bench: Bench, make: Make) -> Callable[[], object]:
    """A contender's tile, where none lies."""

    def once() -> None:
        bench.storage.delete_object(Bucket=PRODUCTS, Key=case.key)
        make(f"s3://{SOURCES}/{case.key}", f"s3://{PRODUCTS}/{case.key}")

    return once


def _moving(case: Case, bench: Bench) -> Callable[[], object]:
    """The floor: the bytes that the product needs and makes."""
    spans = floor.needed_spans(bench.folder / case.key)
    body, through = _fetched(case, bench).read_bytes(), s3_client(bench.control.url)
    return lambda: floor.move(through, (SOURCES, case.key), spans, (PRODUCTS, "floor"), body)


def _fetched(case: Case, bench: Bench) -> Path:
    """A local copy of the product that lies in storage."""
    local = (bench.folder / case.key).with_name("product.tif")
    bench.storage.download_file(PRODUCTS, case.key, str(local))
    return local


# ---------------------------------------------------------------- what passes


def _requests(cases: Sequence[Case], bench: Bench, product: Product) -> Iterator[Line]:
    """What the product asks of the storage for one tile, and reads of it."""
    for case in cases:
        once = _making(case, bench, product.make)
        bench.control.reset()
        once()
        passed = bench.control.passed()
        count, needed = sum(passed.requests.values()), floor.needed_bytes(bench.folder / case.key)
        by_method = ", ".join(f"{number} {method}" for method, number in sorted(passed.requests.items()))
        what, target = f"2 a tile, S3: requests ({case})", f"<= {REQUESTS}"
        if case.interleave == "pixel":
            yield Line(what, target, f"{count} ({by_method})", "", count <= REQUESTS)
        else:
            yield Line(what, "", f"{count} ({by_method})")
        ratio = passed.down / needed
        what = f"2 a tile, S3: bytes read / header and blocks of two bands ({case})"
        figure = f"{passed.down / 1e6:.1f} MB / {needed / 1e6:.1f} MB"
        yield Line(what, f"<= {OF_NEEDED:.2f} x", figure, f"{ratio:.2f} x", ratio <= OF_NEEDED)


# ---------------------------------------------------------------- many tiles at once

_mine: dict[str, Product] = {}
# of a process of the pool


def _overlap(bench: Bench, redis_url: str, processes: int) -> Line:
    """So many processes at once, each a tile after another; storage and proxy have the same cores."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    with ProcessPoolExecutor(processes, context, _start, (bench.folder, redis_url, ready)) as pool:
        made = pool.map(_make, [f"{processes}-{number}" for number in range(TILES)])
        ready.wait()
        began = time.perf_counter()
        cpu_s = sum(made)
        wall_s = time.perf_counter() - began
    what = f"2 tiles at once, S3: processes: {processes} ({TILES} of {TILES_PX:,} px, pixel, {bench.link})"
    figure = f"{TILES / wall_s:.2f} tiles a second"
    return Line(what, "", figure, f"{cpu_s / wall_s:.2f} of {multiprocessing.cpu_count()} cores busy")


def _start(folder: Path, redis_url: str, ready: Any) -> None:
    """In a process of the pool: warm up, and wait for the others."""
    _mine[PRODUCT] = Product(folder, redis_url, RUNS_URI)
    _make(f"warm-{multiprocessing.current_process().pid}")
    ready.wait()


def _make(name: str) -> float:
    """A tile; the processor time that it took."""
    began = time.process_time()
    _mine[PRODUCT].make(f"s3://{SOURCES}/{Case(TILES_PX, 'pixel').key}", f"s3://{PRODUCTS}/at-once/{name}.tif")
    return time.process_time() - began
