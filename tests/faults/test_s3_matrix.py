"""What goes wrong at a storage, request by request: the tile ends with the right pixels or with the right error."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

import flights.pipeline.tile
import flights.store.s3
import tasks
from flights.errors import Code, FlightsError
from flights.pipeline.tools import retried
from flights.report import TileOutcome
from flights.store import open_stores
from tests.faults.proxy import Rule
from tests.faults.storage import PRODUCT, Bench, is_made, is_same
from tests.faults.table import Table

pytestmark = pytest.mark.timeout(120)  # a cell that hangs has failed; the slowest takes 9 s

# Which requests, by method and target, and what S3 calls it where what they name is not there.
OPERATIONS = {
    "head": ("HEAD", r"^/ndvi/F/t\.tif$", "NoSuchKey"),
    "list": ("GET", r"^/raw\?", "NoSuchBucket"),
    "get": ("GET", r"^/raw/t\.tif$", "NoSuchKey"),
    "checksum": ("HEAD", r"^/raw/t\.tif$", "NoSuchKey"),  # asked before a large source is fetched
    "ranges": ("GET", r"^/raw/t\.tif$", "NoSuchKey"),  # of a large source
    "bands": ("GET", r"^/raw/t\.tif$", "NoSuchKey"),  # those in use, of a large source whose bands lie apart
    "put": ("PUT", r"^/ndvi/F/t\.tif$", "NoSuchBucket"),
    "part": ("PUT", r"^/ndvi/F/t\.tif\?.*partNumber", "NoSuchUpload"),
    "complete": ("POST", r"^/ndvi/F/t\.tif\?uploadId", "NoSuchUpload"),
}
FAULTS: dict[str, dict[str, Any]] = {
    "429": {"fault": "status", "status": 429, "code": "TooManyRequests"},
    "500": {"fault": "status", "status": 500, "code": "InternalError"},
    "502": {"fault": "status", "status": 502},
    "503": {"fault": "status", "status": 503, "code": "SlowDown"},
    "504": {"fault": "status", "status": 504},
    "400 RequestTimeout": {"fault": "status", "status": 400, "code": "RequestTimeout"},
    "403": {"fault": "status", "status": 403, "code": "AccessDenied"},
    "404": {"fault": "status", "status": 404},
    "reset": {"fault": "reset"},
    "truncated": {"fault": "truncated"},
    "short": {"fault": "short"},
    "zeros": {"fault": "zeros"},
    "hang": {"fault": "hang", "seconds": 20.0},
    "drip": {"fault": "drip", "seconds": 0.0001},
}
UPLOADS = ("put", "part", "complete")
READS = ("get", "ranges", "bands")
MIB = 2**20
PERMANENT = {Code.SOURCE_FORBIDDEN, Code.SOURCE_MISSING, Code.DESTINATION_REFUSED}


def expected(operation: str, fault: str, times: int | None) -> Code | None:
    """The error that a tile ends with, None where it ends with its pixels."""
    if fault == "403":  # who may not list is asked by HEAD
        refused = Code.SOURCE_FORBIDDEN if operation in (*READS, "checksum") else Code.DESTINATION_REFUSED
        return None if operation == "list" else refused
    if fault in ("short", "zeros") and operation == "head":
        return None  # of what lies there only the size is wrong, and it is replaced
    if fault == "404" and operation == "head":
        return None if times else Code.PUBLISH_CONFLICT  # the PUT finds the older product
    if fault == "404" and operation == "list":
        return Code.SOURCE_MISSING
    if fault == "404" and operation == "put":
        return Code.DESTINATION_REFUSED
    if fault == "drip" or times == 1:
        return None
    if fault == "404" and operation in (*READS, "checksum"):
        return Code.SOURCE_CHANGED
    if fault in ("truncated", "short", "zeros") and operation in UPLOADS:
        return None  # it was done, only the answer was damaged
    if fault == "400 RequestTimeout" and operation in ("head", "checksum"):  # no body: a bare 400
        return Code.DESTINATION_REFUSED if operation == "head" else Code.SOURCE_FORBIDDEN
    if fault in ("short", "zeros") and operation == "checksum":
        return Code.SOURCE_CHANGED  # of another size than it was listed with
    return Code.STORAGE_UNAVAILABLE


def cells() -> list[Any]:
    """Operation, fault and how often; the slow ones, and those much like others, are long."""
    found = []
    for operation in OPERATIONS:
        for fault in FAULTS:
            for often in (1, None):
                alike = operation in ("list", "part", "checksum") or fault in ("429", "502", "504")
                quick = not alike and (often == 1 or fault in ("503", "reset", "zeros"))
                marks: list[Any] = [] if quick else [pytest.mark.long]
                name = f"{operation}-{fault}-{'once' if often else 'for ever'}"
                found.append(pytest.param(operation, fault, often, marks=marks, id=name))
    return found


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("fault", ["503", "reset", "truncated"])
def test_without_attempts_a_fault_of_the_moment_costs_the_tile(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Neither botocore's nor the tile's: so it is the attempts that hold the gate."""
    monkeypatch.setattr(flights.store.s3, "Config", lambda **o: Config(**o | {"retries": {"total_max_attempts": 1}}))
    bench.put_source()
    method, target, _ = OPERATIONS["get"]
    bench.proxy.script(Rule(method=method, target=target, times=1, **FAULTS[fault]))
    said = said_of(bench.make(bench.tools(transient_attempts=1)))
    table.row(f"get: {fault} once, without attempts", said, "storage_unavailable")
    assert said == "storage_unavailable True"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("operation", "fault", "times"), cells())
def test_the_right_pixels_or_the_right_error(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch, operation: str, fault: str, times: int | None
) -> None:
    if operation in ("part", "complete"):
        monkeypatch.setattr(flights.store.s3, "PART_BYTES", 2048)
    older = None
    if operation == "head":  # of the product: an older one lies there
        older = bench.put_source(seed=2)
        assert is_made(bench.make())
    if operation in ("checksum", "ranges"):
        monkeypatch.setattr(flights.store.s3, "PARALLEL_FROM", 1)
    if operation == "bands":
        monkeypatch.setattr(flights.pipeline.tile, "PARTIAL_FROM", 1)
        monkeypatch.setattr(flights.pipeline.tile, "HEADER_BYTES", 1024)
        monkeypatch.setattr(flights.pipeline.tile, "_whole_files", set())
    wanted = bench.put_source(compress="deflate", interleave="band" if operation == "bands" else "pixel")
    method, target, missing = OPERATIONS[operation]
    how = {"code": missing} | FAULTS[fault] if fault == "404" else FAULTS[fault]
    bench.proxy.script(Rule(method=method, target=target, times=times, **how))
    said, right = "nothing", False
    try:
        outcome = bench.make()
        said = said_of(outcome)
    finally:
        pixels, hit = bench.pixels(), sum(bool(p.fault) for p in bench.proxy.passed())
        error = expected(operation, fault, times)
        right = said == (f"{error} {error not in PERMANENT}" if error else "made")
        unmade = pixels is None if older is None else is_same(pixels, older)
        whole = is_same(pixels, wanted) if said == "made" else unmade
        table.count(f"S3 matrix: {operation}", right and whole and not bench.unfinished())
    assert hit >= 1
    assert said == (f"{error} {error not in PERMANENT}" if error else "made")
    assert whole
    assert bench.unfinished() == 0
    assert bench.puts() <= 1


def said_of(outcome: TileOutcome) -> str:
    """`made`, or the error and whether it is transient."""
    return f"{outcome.error.code} {outcome.error.transient}" if outcome.error else "made"


# ---------------------------------------------------------------- done, but nobody heard


LOST: dict[str, Mapping[str, Any]] = {
    "reset": {"fault": "lost"},
    "500": {"fault": "lost", "status": 500, "code": "InternalError"},
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("answer", LOST)
@pytest.mark.parametrize("times", [1, None], ids=["once", "for ever"])
@pytest.mark.parametrize("operation", ["put", "complete"])
@pytest.mark.parametrize("before", [False, True], ids=["nothing there", "a stale product there"])
def test_an_upload_whose_answer_is_lost_is_done(
    bench: Bench,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    times: int | None,
    operation: str,
    before: bool,
) -> None:
    if operation == "complete":
        monkeypatch.setattr(flights.store.s3, "PART_BYTES", 2048)
    if before:
        bench.put_source(seed=2)
        assert is_made(bench.make())
    wanted = bench.put_source()
    method, target, _ = OPERATIONS[operation]
    bench.proxy.script(Rule(method=method, target=target, times=times, **LOST[answer]))
    outcome = bench.make()
    one = is_made(outcome) and bench.puts() == 1 and is_same(bench.pixels(), wanted) and not bench.unfinished()
    table.count("PUT or complete done, answer lost: done, one object", one)
    assert said_of(outcome) == "made"
    assert (bench.puts(), bench.unfinished()) == (1, 0)
    assert is_same(bench.pixels(), wanted)


@pytest.mark.usefixtures("hurried")
def test_a_completion_that_was_done_and_is_forgotten(
    bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers a completion that is repeated late like one of an upload that never was."""
    monkeypatch.setattr(flights.store.s3, "PART_BYTES", 2048)
    wanted = bench.put_source()
    method, target, gone = OPERATIONS["complete"]
    bench.proxy.script(Rule("lost", method, target), Rule("status", method, target, nth=2, status=404, code=gone))
    outcome = bench.make()
    assert is_same(bench.pixels(), wanted)
    table.count("complete done, then NoSuchUpload: done, one object", is_made(outcome))
    assert said_of(outcome) == "made"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("times", [1, None], ids=["once", "for ever"])
def test_a_completion_that_fails_under_200(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int | None) -> None:
    """S3 begins its answer before it knows how the completion ends."""
    monkeypatch.setattr(flights.store.s3, "PART_BYTES", 2048)
    wanted = bench.put_source()
    method, target, _ = OPERATIONS["complete"]
    bench.proxy.script(Rule("status", method, target, times=times, status=200, code="InternalError"))
    outcome = bench.make()
    assert said_of(outcome) == ("made" if times else "storage_unavailable True")
    assert is_same(bench.pixels(), wanted) if times else bench.pixels() is None
    assert bench.unfinished() == 0


@pytest.mark.usefixtures("hurried")
def test_an_upload_whose_beginning_is_lost_is_left_to_the_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows its id: the tile is made by another, and `sweep` removes it."""
    monkeypatch.setattr(flights.store.s3, "PART_BYTES", 2048)
    wanted = bench.put_source()
    bench.proxy.script(Rule("lost", "POST", r"\?uploads"))
    assert said_of(bench.make()) == "made"
    assert is_same(bench.pixels(), wanted)
    assert bench.unfinished() == 1
    assert open_stores().clean("s3://ndvi/F", {"t.tif"}, older_than_s=0) == 1
    assert bench.unfinished() == 0


# ---------------------------------------------------------------- damage on the way up, at a server that checks


DAMAGE = pytest.mark.parametrize("fault", ["truncated", "short", "zeros", "bitflip"])
OFTEN = pytest.mark.parametrize("times", [1, None], ids=["once", "for ever"])


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
@DAMAGE
@OFTEN
def test_an_upload_that_is_damaged_on_its_way(weed_bench: Bench, table: Table, fault: Any, times: int | None) -> None:
    wanted = weed_bench.put_source()
    method, target, _ = OPERATIONS["put"]
    weed_bench.proxy.script(Rule(fault, method, target, times=times, way="up", bit=4321))
    said, pixels = said_of(weed_bench.make()), weed_bench.pixels()
    right = said == ("made" if times else "storage_unavailable True")
    whole = is_same(pixels, wanted) if times else pixels is None
    table.count("damaged upload (SeaweedFS)", right and whole)
    assert right, said
    assert whole


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
@DAMAGE
@OFTEN
def test_a_part_that_is_damaged_on_its_way(
    weed_bench: Bench, table: Table, monkeypatch: pytest.MonkeyPatch, fault: Any, times: int | None
) -> None:
    monkeypatch.setattr(flights.store.s3, "PART_BYTES", 5 * MIB)
    path, content = weed_bench.folder / "product", random.Random(1).randbytes(6 * MIB)
    path.write_bytes(content)
    method, target, _ = OPERATIONS["part"]
    weed_bench.proxy.script(Rule(fault, method, target, times=times, way="up", bit=4321))
    stores, error = open_stores(), None
    try:
        retried(lambda: stores.publish(path, f"s3://ndvi/{PRODUCT}", None, {}), attempts=4)
    except FlightsError as caught:
        error = caught
    weed_bench.proxy.script()
    right = stores.read(f"s3://ndvi/{PRODUCT}") == (content if times else None) and not weed_bench.unfinished()
    told = (error is None) if times else (error is not None and error.transient)
    table.count("damaged part of an upload (SeaweedFS)", right and told)
    assert told, error
    assert right


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
def test_the_proxy_leaves_signatures_as_they_are(weed_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = weed_bench.put_source()
    assert said_of(weed_bench.make()) == "made"
    assert is_same(weed_bench.pixels(), wanted)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    assert said_of(weed_bench.make()) == "source_forbidden False"


# ---------------------------------------------------------------- in earnest: no shortened waits


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("operation", ["get", "put"])
def test_a_storm_without_end_ends(bench: Bench, table: Table, operation: str) -> None:
    bench.put_source()
    method, target, _ = OPERATIONS[operation]
    bench.proxy.script(Rule("status", method, target, times=None, status=503, code="SlowDown"))
    began = time.monotonic()
    outcome = bench.make()
    took, met = time.monotonic() - began, sum(bool(p.fault) for p in bench.proxy.passed())
    table.row(f"{operation}: 503 for ever, real waits", f"{took:.0f} s, {met} requests", "transient error, below 100 s")
    assert said_of(outcome) == "storage_unavailable True"


def test_a_body_that_never_ends_meets_the_limit_of_a_tile(bench: Bench, table: Table) -> None:
    """Each byte comes before the read time-out: only the tile's own limit ends it."""
    bench.put_source()
    bench.proxy.script(Rule("drip", "GET", OPERATIONS["get"][1], times=None, seconds=0.2))
    began = time.monotonic()
    outcome = tasks._guarded(*bench.job(), bench.tools(tile_soft_limit_s=2))
    took = time.monotonic() - began
    assert outcome is not None
    table.row("get: a byte every 0.2 s, limit of 2 s", f"{said_of(outcome)} after {took:.1f} s", "time_limit")
    assert said_of(outcome) == "time_limit False"
    assert bench.pixels() is None
    assert scratch_is_empty(bench.folder)


def scratch_is_empty(folder: Path) -> bool:
    """Whether the work has left nothing on scratch."""
    return not any((folder / "state" / "scratch").glob("work-*"))


def test_a_stale_product_stays_where_the_new_one_cannot_be_put(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    old = bench.put_source(seed=2)
    assert is_made(bench.make())
    bench.put_source()
    bench.proxy.script(Rule("status", "PUT", f"/{PRODUCT}$", times=None, status=403, code="AccessDenied"))
    assert said_of(bench.make()) == "destination_refused False"
    assert is_same(bench.pixels(), old)
