"""Bytes that change on their way, writers that race, sources that are overwritten: no pixel is wrong in silence.

Each protection is also switched off, and the same test then counts what it would have let through.
"""

import base64
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import FlexibleChecksumError

import flights.pipeline.tile
import flights.store.s3
from flights.fingerprint import tile_fingerprint
from flights.pipeline import Tools, write_tile
from tests.faults.proxy import Rule
from tests.faults.storage import PRODUCT, SHAPE, SOURCE, Bench, is_made, is_same
from tests.faults.table import Table
from tests.synthetic import write_tif

COMPRESSIONS = ["none", "lzw", "zstd", "deflate"]
GET = rf"^/raw/{SOURCE}$"


def with_config(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """From now on the product's clients are made with these options as well."""
    before = vars(flights.store.s3)["Config"]  # perhaps that of `hurried`
    monkeypatch.setattr(flights.store.s3, "Config", lambda **options: before(**options | more))


def without(monkeypatch: pytest.MonkeyPatch, operation: str, *parameters: str) -> None:
    """From now on the product's requests of an operation go out without these parameters."""
    before = flights.store.s3._make_client

    def drop(params: dict[str, Any], **_: object) -> dict[str, Any]:
        return {name: value for name, value in params.items() if name not in parameters}

    def make_client() -> Any:
        client = before()
        client.meta.events.register(f"provide-client-params.s3.{operation}", drop)
        return client

    monkeypatch.setattr(flights.store.s3, "_make_client", make_client)


# ---------------------------------------------------------------- a flipped bit on the way from storage


def silently_wrong(
    bench: Bench, wanted: Any, flips: int, seed: int, times: int | None = 1, tools: Tools | None = None
) -> int:
    """How many of so many flips end as a product with other pixels than the source's."""
    choice, tools, wrong = random.Random(seed), tools or bench.tools(), 0
    for _ in range(flips):
        bench.clear()
        bench.proxy.script(Rule("bitflip", "GET", GET, times=times, bit=choice.randrange(2**31)))
        outcome = bench.make(tools)
        assert any(p.fault for p in bench.proxy.passed())
        assert times is None or is_made(outcome), f"one flip is got over by reading again, not {outcome.error}"
        wrong += is_made(outcome) and not is_same(bench.pixels(), wanted)
    return wrong


FLIPS = [
    pytest.param(10, id="40 flips"),
    pytest.param(100, id="400 flips", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("flips", FLIPS)
def test_a_flipped_bit_is_never_silent(bench: Bench, table: Table, compression: str, flips: int) -> None:
    wanted = bench.put_source(compress=compression)
    for_ever = flips // 4
    wrong = silently_wrong(bench, wanted, flips - for_ever, seed=1)
    wrong += silently_wrong(bench, wanted, for_ever, seed=2, times=None)
    table.count("flipped bits: silently wrong", wrong, flips, target="0")
    assert wrong == 0


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    "compression", ["none", *(pytest.param(name, marks=pytest.mark.long) for name in COMPRESSIONS[1:])]
)
def test_without_the_checksum_flipped_bits_pass(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    with_config(monkeypatch, response_checksum_validation="when_required")
    wanted = bench.put_source(compress=compression)
    flips = 10 if compression == "none" else 60  # DEFLATE ends with a checksum of its own, GDAL mostly looks at it
    wrong = silently_wrong(bench, wanted, flips, seed=1, times=None)
    table.row(f"... no checksum checked, {compression}", f"{wrong} of {flips}", "above 0: the check is needed")
    assert wrong > 0


# ---------------------------------------------------------------- which stored checksums are checked


def crc(content: bytes, polynomial: int, bits: int) -> str:
    """A reflected CRC of all ones, as S3 writes it."""
    ones = (1 << bits) - 1
    state = ones
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (polynomial if state & 1 else 0)
    return base64.b64encode((state ^ ones).to_bytes(bits // 8, "big")).decode()


def put_with(bench: Bench, kind: str, content: bytes) -> None:
    """Put a source with a stored checksum of this kind."""
    if kind == "in parts":
        put_in_parts(bench, content)
        return
    given = {
        "none": {},
        "CRC32": {"ChecksumAlgorithm": "CRC32"},
        "SHA256": {"ChecksumAlgorithm": "SHA256"},
        "CRC32C": {"ChecksumCRC32C": crc(content, 0x82F63B78, 32)},
        "CRC64NVME": {"ChecksumCRC64NVME": crc(content, 0x9A6C9329AC4BC9B5, 64)},
    }[kind]
    if kind == "none":
        bench.server.meta.events.register("before-sign.s3.PutObject", _drop_checksum)
    bench.server.put_object(Bucket="raw", Key=SOURCE, Body=content, **given)


def _drop_checksum(request: Any, **_: object) -> None:
    for name in [n for n in request.headers if n.lower().startswith(("x-amz-checksum-", "x-amz-sdk-checksum"))]:
        del request.headers[name]


def put_in_parts(bench: Bench, content: bytes) -> None:
    """As the SDKs put what is above 8 MB: S3 keeps a checksum of the parts' checksums."""
    at = {"Bucket": "raw", "Key": SOURCE}
    upload = bench.server.create_multipart_upload(**at, ChecksumAlgorithm="CRC32")["UploadId"]
    parts = []
    for number, part in enumerate((content[:2048], content[2048:]), start=1):
        done = bench.server.upload_part(**at, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32")
        parts.append({"PartNumber": number, "ETag": done["ETag"], "ChecksumCRC32": done["ChecksumCRC32"]})
    bench.server.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": parts})


# SeaweedFS keeps every kind, but no small parts.
STORED = [
    ("weed_bench", "CRC32"),
    ("weed_bench", "SHA256"),
    ("weed_bench", "CRC32C"),
    ("weed_bench", "CRC64NVME"),
    ("bench", "in parts"),
]


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("how", ["whole", "in ranges"])
@pytest.mark.parametrize(("server", "kind"), STORED)
def test_a_stored_checksum_is_checked(
    request: pytest.FixtureRequest, table: Table, monkeypatch: pytest.MonkeyPatch, server: str, kind: str, how: str
) -> None:
    if how == "in ranges":  # as large objects are
        monkeypatch.setattr(flights.store.s3, "PARALLEL_FROM", 1)
    bench: Bench = request.getfixturevalue(server)
    content, wanted = bench.source(compress="none")
    put_with(bench, kind, content)
    wrong = silently_wrong(bench, wanted, 20, seed=3, times=None)
    table.row(f"flipped bits, fetched {how}, stored checksum {kind}: silently wrong", f"{wrong} of 20", "0")
    assert wrong == 0


@pytest.mark.usefixtures("hurried")
def test_without_a_stored_checksum_flipped_bits_pass(bench: Bench, table: Table) -> None:
    """The trade: what was put without a checksum is held to its length only; a decoder notices some of the rest."""
    content, wanted = bench.source(compress="none")
    put_with(bench, "none", content)
    wrong = silently_wrong(bench, wanted, 10, seed=3, times=None)
    table.row("flipped bits, no stored checksum, uncompressed: silently wrong", f"{wrong} of 10", "a documented trade")
    assert wrong > 0


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_part_of_an_object_is_held_to_no_checksum(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """The trade of partial reads, and the setting that forbids it."""
    monkeypatch.setattr(flights.pipeline.tile, "PARTIAL_FROM", 1)
    monkeypatch.setattr(flights.pipeline.tile, "HEADER_BYTES", 1024)
    monkeypatch.setattr(flights.pipeline.tile, "_whole_files", set())
    wanted = bench.put_source(compress="lzw", interleave="band")
    wrong = silently_wrong(bench, wanted, 20, 3, times=None, tools=bench.tools(partial_reads=allowed))
    table.row(
        f"flipped bits, of a source read in part (LZW), FLIGHTS_PARTIAL_READS={str(allowed).lower()}: silently wrong",
        f"{wrong} of 20",
        "a documented trade" if allowed else "0",
    )
    assert (wrong > 0) == allowed


@pytest.mark.usefixtures("hurried")
def test_a_server_that_checks_nothing_keeps_a_damaged_upload(bench: Bench, table: Table) -> None:
    """What the checksum on the way up is for: moto takes a flipped bit in, SeaweedFS and S3 answer BadDigest."""
    bench.put_source()
    bench.proxy.script(Rule("bitflip", "PUT", rf"/{PRODUCT}$", way="up", bit=4321))
    assert is_made(bench.make())
    table.row("... damaged upload, server checks nothing", "kept", "kept: the server's check is needed")
    with pytest.raises(FlexibleChecksumError):  # whoever reads it is told
        bench.pixels()


# ---------------------------------------------------------------- racing writers


def race(bench: Bench, writers: int) -> int:
    """Let so many writers make one tile at once; how many products the server took in."""
    bench.clear()
    bench.proxy.script()
    job, tile = bench.job()
    start, kits = threading.Barrier(writers), [bench.tools() for _ in range(writers)]

    def work(kit: Any) -> Any:
        start.wait(timeout=60)
        return write_tile(job, tile, kit)

    with ThreadPoolExecutor(writers) as pool:
        outcomes = list(pool.map(work, kits))
    assert all(is_made(outcome) for outcome in outcomes)
    return bench.puts()


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(600)])], ids=["once", "ten times"]
)
def test_racing_writers_publish_one_product(weed_bench: Bench, table: Table, rounds: int) -> None:
    """At SeaweedFS: moto looks whether a condition holds, and then puts, so that two of them may win."""
    wanted = weed_bench.put_source()
    for _ in range(rounds):
        products = race(weed_bench, 16)
        right = is_same(weed_bench.pixels(), wanted)
        table.count("16 racing writers: one product, right pixels", products == 1 and right)
        assert products == 1
        assert right


def test_without_conditions_racing_writers_publish_many(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "PutObject", "IfNoneMatch", "IfMatch")
    bench.put_source()
    products = race(bench, 16)
    table.row("... no conditions on PUT", f"{products} products", "above 1: the condition is needed")
    assert products > 1


# ---------------------------------------------------------------- a source that is overwritten all the time


@contextmanager
def overwriting(bench: Bench, versions: Sequence[bytes], pause_s: float) -> Iterator[None]:
    """Put one version after the other, and round again, until the block ends."""
    stop = threading.Event()

    def write() -> None:
        choice = random.Random(5)
        for content in itertools.cycle(versions):
            bench.server.put_object(Bucket="raw", Key=SOURCE, Body=content)
            if stop.wait(choice.uniform(0, pause_s)):
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def two_versions(bench: Bench) -> dict[float, bytes]:
    """Two sources of one size, each of one NDVI all over, by that NDVI."""
    made = {}
    for red, nir in ((1000, 3000), (3000, 1000)):
        bands = [np.full(SHAPE, value, "uint16") for value in (red, nir)]
        made[(nir - red) / (nir + red)] = write_tif(bench.folder / f"{red}.tif", bands).read_bytes()
    return made


def overwritten_rounds(bench: Bench, rounds: int, delay_s: float = 0.01, pause_s: float = 0.15) -> tuple[int, int]:
    """Tiles made of a source under constant overwriting, and how many of their products are of another version.

    Each version comes back again and again, so a look before and a look after are not enough to tell them apart.
    """
    versions, tools = two_versions(bench), bench.tools(transient_attempts=6)
    etags = {}
    for ndvi, content in versions.items():
        etags[bench.server.put_object(Bucket="raw", Key=SOURCE, Body=content)["ETag"].strip('"')] = ndvi
    job, tile = bench.job()
    bench.proxy.script(Rule("delay", "GET", GET, times=None, seconds=delay_s))
    made = mixed = 0
    with overwriting(bench, list(versions.values()), pause_s):
        for _ in range(rounds):
            bench.clear()
            outcome = write_tile(job, tile, tools)
            if not is_made(outcome):
                assert outcome.error is not None
                assert outcome.error.transient
                continue
            made += 1
            assert outcome.source is not None
            assert outcome.fingerprint == tile_fingerprint(job.flight, tile, outcome.source)
            said = etags[outcome.source[""].split(":")[1]]
            pixels = bench.pixels()
            mixed += pixels is None or not np.allclose(pixels, said, 0, 1e-6)
    return made, mixed


ROUNDS = [6, pytest.param(30, marks=pytest.mark.long)]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_source_under_overwriting_is_never_mixed(bench: Bench, table: Table, rounds: int) -> None:
    made, mixed = overwritten_rounds(bench, rounds)
    table.row(f"source overwritten all the time, {rounds} rounds", f"{made} made, {mixed} mixed", "0 mixed")
    assert made > 0
    assert mixed == 0


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
def test_without_the_pin_versions_are_mixed(bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "GetObject", "IfMatch")
    made, mixed = overwritten_rounds(bench, 30, delay_s=0.1, pause_s=0.04)  # a GET rarely meets what was looked at
    table.row("... no pin on the ETag, 30 rounds", f"{made} made, {mixed} mixed", "above 0: the pin is needed")
    assert mixed > 0
