"""One contract for both stores, run against a local folder, an S3 server and an S3 inside this process."""

import base64
import errno
import os
import re
import shutil
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)
from moto import mock_aws

import flights.store.s3
from flights.errors import Code, FlightsError, PublishConflict, Refused, SourceChanged, Transient, Unreachable
from flights.store import SIDECARS, Stat, Store, Stores, open_stores
from flights.store.checksums import Stored, is_as_stored
from flights.store.local import LocalStore
from flights.store.s3 import S3Store, classify

MIB = 2**20


@dataclass(frozen=True)
class Place:
    """A store with room in it."""

    store: Store
    root: str
    scratch: Path

    def uri(self, name: str = "tile.tif") -> str:
        return f"{self.root}/{name}"

    def file(self, content: bytes) -> Path:
        """A finished file on scratch."""
        path = self.scratch / uuid.uuid4().hex
        path.write_bytes(content)
        return path


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place of the kind that the test names."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if request.param == "local":
        yield Place(LocalStore(), str(tmp_path / "objects"), scratch)
    elif request.param == "s3":
        request.getfixturevalue("s3")
        yield Place(S3Store(), "s3://ndvi/some/prefix", scratch)
    else:
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with mock_aws():
            boto3.client("s3").create_bucket(Bucket="ndvi")
            yield Place(S3Store(), "s3://ndvi/some/prefix", scratch)


BOTH = pytest.mark.parametrize("place", ["local", "s3"], indirect=True)
EVERY = pytest.mark.parametrize("place", ["local", "s3", "mock"], indirect=True)


def held(store: Store, uri: str) -> Stat:
    """What is there; a test that finds nothing has failed."""
    stat = store.stat(uri)
    assert stat is not None
    return stat


# ---------------------------------------------------------------- stat


@EVERY
def test_nothing_is_there(place: Place) -> None:
    uri = place.uri()
    assert place.store.stat(uri) is None
    assert place.store.read(uri) is None
    assert place.store.raster(uri) == {}
    assert list(place.store.list(place.root)) == []
    place.store.delete(uri)


@BOTH
@pytest.mark.parametrize("content", [b"", b"x", b"pixels" * 1000])
def test_stat_tells_the_size_and_an_identity(place: Place, content: bytes) -> None:
    place.store.write(place.uri(), content)
    first = held(place.store, place.uri())
    assert first.size == len(content)
    assert first == held(place.store, place.uri())
    place.store.write(place.uri(), b"y" * len(content) or b"y")  # of the same size, where there was one
    assert held(place.store, place.uri()).identity != first.identity


@BOTH
def test_nothing_lies_below_an_object(place: Place) -> None:
    place.store.write(place.uri("a"), b"1")
    below = place.uri("a/b")
    assert place.store.stat(below) is None
    assert place.store.read(below) is None
    place.store.delete(below)
    assert place.store.read(place.uri("a")) == b"1"


# ---------------------------------------------------------------- read, write, delete, list


@EVERY
def test_write_replaces_and_delete_removes(place: Place) -> None:
    for content in (b"1", b"", b"three"):
        place.store.write(place.uri("deep/er/a.json"), content)
        assert place.store.read(place.uri("deep/er/a.json")) == content
    place.store.delete(place.uri("deep/er/a.json"))
    assert place.store.read(place.uri("deep/er/a.json")) is None


@BOTH
@pytest.mark.parametrize("closing", ["", "/"])
def test_list_is_of_one_folder(place: Place, closing: str) -> None:
    for name in ("f/b.json", "f/a.json", "f/sub/c.json", "f2/d.json", "e.json"):
        place.store.write(place.uri(name), b"{}")
    assert list(place.store.list(place.uri("f") + closing)) == [place.uri("f/a.json"), place.uri("f/b.json")]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_list_goes_beyond_one_page(place: Place) -> None:
    names = [place.uri(f"many/{i}") for i in range(5)]
    for name in names:
        place.store.write(name, b"")
    small_pages(place.store)
    assert list(place.store.list(place.uri("many"))) == names


def test_a_folder_marker_is_no_object_of_the_folder(s3: Any) -> None:
    """Consoles make a folder as an empty object whose key ends in a slash."""
    s3.put_object(Bucket="raw", Key="inbox/", Body=b"")
    s3.put_object(Bucket="raw", Key="inbox/f1.json", Body=b"{}")
    assert list(S3Store().list("s3://raw/inbox")) == ["s3://raw/inbox/f1.json"]


def test_what_a_killed_writer_left_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore()
    store.write(str(tmp_path / "f/a.json"), b"{}")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    # What a SIGKILL leaves: the hidden file was written, neither renamed nor cleared away.
    monkeypatch.setattr(os, "replace", die)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        store.write(str(tmp_path / "f/b.json"), b"{}")
    assert len(os.listdir(tmp_path / "f")) == 2
    assert list(store.list(str(tmp_path / "f"))) == [str(tmp_path / "f/a.json")]


# ---------------------------------------------------------------- fetch


@BOTH
@pytest.mark.parametrize("size", [0, 1, 3 * MIB + 1])
def test_fetch_gives_the_bytes(place: Place, size: int) -> None:
    content = os.urandom(size)
    place.store.write(place.uri(), content)
    place.store.fetch(place.uri(), place.scratch / "here", held(place.store, place.uri()))
    assert (place.scratch / "here").read_bytes() == content


@EVERY
@pytest.mark.parametrize("meanwhile", ["replaced", "same size", "removed"])
def test_fetch_of_what_is_no_longer_there(place: Place, meanwhile: str) -> None:
    place.store.write(place.uri(), b"before")
    pinned = held(place.store, place.uri())
    if meanwhile == "removed":
        place.store.delete(place.uri())
    else:
        place.store.write(place.uri(), b"behind" if meanwhile == "same size" else b"after it")
    with pytest.raises(SourceChanged, match=r"tile\.tif"):
        place.store.fetch(place.uri(), place.scratch / "here", pinned)


@BOTH
def test_fetch_replaces_what_lay_at_the_path(place: Place) -> None:
    place.store.write(place.uri(), b"new")
    place.store.write(place.uri("other"), b"other")
    place.store.fetch(place.uri("other"), place.scratch / "here", held(place.store, place.uri("other")))
    place.store.fetch(place.uri(), place.scratch / "here", held(place.store, place.uri()))
    assert (place.scratch / "here").read_bytes() == b"new"
    assert place.store.read(place.uri("other")) == b"other"


def test_a_full_scratch_disk_is_an_error_of_ours(s3: Any) -> None:
    s3.put_object(Bucket="raw", Key="t.tif", Body=b"x" * MIB)
    store = S3Store()
    with pytest.raises(Transient) as caught:
        store.fetch("s3://raw/t.tif", Path("/dev/full"), held(store, "s3://raw/t.tif"))
    assert caught.value.code is Code.DISK_FULL


# ---------------------------------------------------------------- publish


@EVERY
def test_publish_where_nothing_is(place: Place) -> None:
    published = place.store.publish(place.file(b"product"), place.uri("a/b/t.tif"), None, {})
    there = held(place.store, place.uri("a/b/t.tif"))
    assert (published.identity, published.size, published.etag) == (there.identity, there.size, there.etag)
    assert place.store.read(place.uri("a/b/t.tif")) == b"product"


@EVERY
def test_publish_over_what_was_there(place: Place) -> None:
    place.store.write(place.uri(), b"old")
    first = place.store.publish(place.file(b"new"), place.uri(), held(place.store, place.uri()), {})
    # What publish answers is good enough to publish over once more.
    place.store.publish(place.file(b"newer"), place.uri(), first, {})
    assert place.store.read(place.uri()) == b"newer"


@EVERY
@pytest.mark.parametrize(
    ("before", "now"),
    [(None, b"theirs"), (b"old", b"theirs"), (b"old", b"new"), (b"old", None)],
    ids=["appeared", "replaced", "replaced by as many bytes", "removed"],
)
def test_publish_over_somebody_elses(place: Place, before: bytes | None, now: bytes | None) -> None:
    if before is not None:
        place.store.write(place.uri(), before)
    replaces = place.store.stat(place.uri())
    if now is None:
        place.store.delete(place.uri())
    else:
        place.store.write(place.uri(), now)
    with pytest.raises(PublishConflict, match=r"tile\.tif"):
        place.store.publish(place.file(b"ours"), place.uri(), replaces, {})
    assert place.store.read(place.uri()) == now


@pytest.mark.parametrize("place", ["s3", "mock"], indirect=True)
def test_metadata_comes_back(place: Place) -> None:
    said = {"flights-product": '{"fingerprint": "ab", "stats": {"mean": 0.5}}'}
    published = place.store.publish(place.file(b"product"), place.uri(), None, said)
    assert dict(published.metadata) == dict(held(place.store, place.uri()).metadata) == said


# ---------------------------------------------------------------- sidecars and names


@BOTH
@pytest.mark.parametrize("suffixes", [(), (".msk",), (".aux.xml",), SIDECARS])
def test_sidecars(place: Place, suffixes: tuple[str, ...]) -> None:
    for name in ("tile.tif", "tile.tif.bak", "tile.tif.ovr", "tile.tiff.msk", *(f"tile.tif{s}" for s in suffixes)):
        place.store.write(place.uri(name), name.encode())
    found = place.store.raster(place.uri())
    assert set(found) == {"", *suffixes}
    for suffix, stat in found.items():
        assert stat.identity == held(place.store, place.uri() + suffix).identity
        place.store.fetch(place.uri() + suffix, place.scratch / f"t{suffix}", stat)
        assert (place.scratch / f"t{suffix}").read_bytes() == f"tile.tif{suffix}".encode()


def test_sidecars_among_very_many_neighbours(s3: Any) -> None:
    for suffix in ("", ".1", ".2", ".msk"):
        s3.put_object(Bucket="raw", Key=f"t.tif{suffix}", Body=b"")
    store = S3Store()
    small_pages(store)
    assert set(store.raster("s3://raw/t.tif")) == {"", ".msk"}


def test_sidecars_without_the_right_to_list(s3: Any) -> None:
    s3.put_object(Bucket="raw", Key="t.tif", Body=b"tile")
    s3.put_object(Bucket="raw", Key="t.tif.msk", Body=b"mask")
    store = S3Store()
    answers(store, "ListObjectsV2", 403, "AccessDenied")
    assert set(store.raster("s3://raw/t.tif")) == {"", ".msk"}
    answers(store, "HeadObject", 403, "Forbidden", only=r"\.(msk|xml)$")  # of a missing key, to who may not list
    assert set(store.raster("s3://raw/t.tif")) == {""}


ODD_NAMES = [
    "a b.tif",
    "a+b.tif",
    "a&b=c.tif",
    "Äcker/prés/f\u00e9.tif",
    "Äcker/prés/fe\u0301.tif",
    "[1](2){3}.tif",
    "a#b.tif",
    "a?b.tif",
    "a%20b.tif",
    "a%2Fb.tif",
    "a;b,c:d@e!$'*.tif",
    "麦田/t.tif",
    "~.tif",
    "a'\"b.tif",
    "é" * 120 + ".tif",
    "麦" * 80 + ".tif",
]


@BOTH
@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: name[:20])
def test_a_name_is_taken_as_it_is(place: Place, name: str) -> None:
    uri = place.uri(name)
    place.store.write(uri, b"written")
    place.store.write(uri + ".msk", b"mask")
    assert list(place.store.list(uri.rsplit("/", 1)[0])) == [uri, uri + ".msk"]
    stat = held(place.store, uri)
    place.store.fetch(uri, place.scratch / "here", stat)
    assert (place.scratch / "here").read_bytes() == b"written"
    assert set(place.store.raster(uri)) == {"", ".msk"}
    place.store.publish(place.file(b"published"), uri, stat, {})
    assert place.store.read(uri) == b"published"
    place.store.delete(uri)
    assert place.store.stat(uri) is None


@BOTH
def test_names_that_decode_alike_are_two_objects(place: Place) -> None:
    names = ["a b", "a+b", "a%20b", "a%2520b"]
    for name in names:
        place.store.write(place.uri(name), name.encode())
    assert [place.store.read(place.uri(name)) for name in names] == [name.encode() for name in names]
    assert len({place.store.canonical(place.uri(name)) for name in names}) == len(names)


def test_a_local_object_has_one_canonical_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/t.tif").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "t.tif").symlink_to("link/t.tif")
    spellings = ["real/t.tif", "link/t.tif", "t.tif", "./real/../t.tif", "real//t.tif"]
    assert {LocalStore().canonical(f"{tmp_path}/{s}") for s in spellings} == {str(tmp_path / "real/t.tif")}


@pytest.mark.parametrize("key", ["a/../b.tif", "a//b.tif", "./b.tif", "a%20b.tif", "a b.tif"])
def test_a_key_is_its_own_canonical_name(key: str) -> None:
    assert S3Store().canonical(f"s3://raw/{key}") == f"s3://raw/{key}"


def test_one_store_for_both_kinds(s3: Any, tmp_path: Path) -> None:
    stores = open_stores()
    for folder in (str(tmp_path / "objects"), "s3://ndvi/objects"):
        uri = f"{folder}/t.tif"
        stores.write(uri, b"old")
        before = held(stores, uri)
        stores.fetch(uri, tmp_path / "here", before)
        (tmp_path / "new").write_bytes(b"new")
        stores.publish(tmp_path / "new", uri, before, {})
        assert stores.read(uri) == b"new"
        assert set(stores.raster(uri)) == {""}
        assert list(stores.list(folder)) == [uri]
        assert stores.canonical(uri) == uri
        stores.delete(uri)
        assert stores.stat(uri) is None


# ---------------------------------------------------------------- local: one rename, nothing left behind


def left_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system."""
    folder = Path("/dev/shm") / f"test-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("far", [False, True], ids=["same file system", "another file system"])
def test_publish_leaves_the_product_alone(tmp_path: Path, elsewhere: Path, far: bool) -> None:
    store, scratch = LocalStore(), elsewhere if far else tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    if far:
        assert os.stat(scratch).st_dev != os.stat(tmp_path).st_dev, "/dev/shm is not a file system of its own"
    final = tmp_path / "out/t.tif"
    for content in (b"first", b"second"):
        (scratch / "product.tif").write_bytes(content)
        store.publish(scratch / "product.tif", str(final), store.stat(str(final)), {})
        assert final.read_bytes() == content
    assert left_in(tmp_path / "out") == {"t.tif"}


# What the operating system says as the last step is taken, and what it means.
REFUSALS_OF_A_RENAME = [
    (errno.ENOSPC, Code.DISK_FULL, True),
    (errno.EDQUOT, Code.DISK_FULL, True),
    (errno.EIO, Code.STORAGE_UNAVAILABLE, True),
    (errno.ESTALE, Code.STORAGE_UNAVAILABLE, True),
    (errno.EACCES, Code.DESTINATION_REFUSED, False),
    (errno.EROFS, Code.DESTINATION_REFUSED, False),
]


@pytest.mark.parametrize("deed", ["publish", "publish from afar", "write"])
@pytest.mark.parametrize(("number", "code", "transient"), REFUSALS_OF_A_RENAME)
def test_a_rename_that_fails_leaves_the_old_object(
    tmp_path: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    number: int,
    code: Code,
    transient: bool,
) -> None:
    store, final = LocalStore(), tmp_path / "out/t.tif"
    store.write(str(final), b"old")
    before = held(store, str(final))
    product = (elsewhere if deed == "publish from afar" else tmp_path) / "product.tif"
    product.write_bytes(b"new")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FlightsError, match=r"out/t\.tif") as caught:
        store.write(str(final), b"new") if deed == "write" else store.publish(product, str(final), before, {})
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert final.read_bytes() == b"old"
    assert left_in(tmp_path / "out") == {"t.tif"}


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "link in a circle"])
def test_what_is_no_regular_file_is_refused_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t.tif"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path)
    store = LocalStore()
    with pytest.raises(Refused, match=r"t\.tif"):
        store.stat(str(path))
    with pytest.raises(Refused, match=r"t\.tif"):
        store.fetch(str(path), tmp_path / "here", Stat("file:whatever", 1))
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Refused, match=r"t\.tif"):
        store.publish(tmp_path / "product", str(path), None, {})
    assert left_in(tmp_path) <= {"t.tif", "product"}


@pytest.mark.parametrize("deed", ["publish", "write"])
def test_a_destination_below_a_file_is_refused(tmp_path: Path, deed: str) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    (tmp_path / "product").write_bytes(b"product")
    store, uri = LocalStore(), str(tmp_path / "file/t.tif")
    with pytest.raises(Refused) as caught:
        store.write(uri, b"") if deed == "write" else store.publish(tmp_path / "product", uri, None, {})
    assert caught.value.code is Code.DESTINATION_REFUSED


def test_a_link_to_another_file_is_another_object(tmp_path: Path) -> None:
    """`current.tif -> a.tif`, then `-> b.tif` of the same size and time."""
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
        os.utime(tmp_path / name, ns=(1, 1))
    (tmp_path / "current").symlink_to("a")
    first = held(LocalStore(), str(tmp_path / "current"))
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("b")
    assert held(LocalStore(), str(tmp_path / "current")).identity != first.identity


# ---------------------------------------------------------------- S3: parts, refusals, faults


def answers(store: S3Store, operation: str, status: int, code: str, only: str = "") -> None:
    """From now on the server answers an operation like this (`only`: on keys that end so)."""

    def answer(request: Any, **_: object) -> AWSResponse | None:
        if re.search(only, request.url) is None:
            return None
        body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
        return AWSResponse(request.url, status, {}, _Raw(b"" if request.method == "HEAD" else body))

    store.client.meta.events.register(f"before-send.s3.{operation}", answer)


def small_pages(store: Store) -> None:
    """From now on the server lists two objects at a time."""
    assert isinstance(store, S3Store)

    def shrink(params: dict[str, Any], **_: object) -> dict[str, Any]:
        return params | {"MaxKeys": 2}

    store.client.meta.events.register("provide-client-params.s3.ListObjectsV2", shrink)


class _Raw:
    """As much of a response's body as botocore reads."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self._content


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore does not wait between its attempts."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None, time=time.time))


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights.store.s3, "PART_BYTES", 5 * MIB)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("size", [5 * MIB, 5 * MIB + 1, 10 * MIB])
def test_a_large_product_goes_up_in_parts(s3: Any, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "product").write_bytes(content)
    store = S3Store()
    said = {"flights-product": "{}"}
    published = store.publish(tmp_path / "product", "s3://ndvi/t.tif", None, said)
    there = held(store, "s3://ndvi/t.tif")
    assert (published.identity, published.size) == (there.identity, size)
    assert dict(there.metadata) == said
    assert store.read("s3://ndvi/t.tif") == content
    assert not s3.list_multipart_uploads(Bucket="ndvi").get("Uploads")


@pytest.mark.usefixtures("in_parts")
def test_parts_over_somebody_elses(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "product").write_bytes(bytes(6 * MIB))
    s3.put_object(Bucket="ndvi", Key="t.tif", Body=b"theirs")
    with pytest.raises(PublishConflict):
        S3Store().publish(tmp_path / "product", "s3://ndvi/t.tif", None, {})
    assert s3.get_object(Bucket="ndvi", Key="t.tif")["Body"].read() == b"theirs"
    assert not s3.list_multipart_uploads(Bucket="ndvi").get("Uploads")


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("size", "operation"), [(6 * MIB, "CompleteMultipartUpload"), (MIB, "PutObject")], ids=["parts", "one"]
)
def test_the_condition_is_sent(s3: Any, tmp_path: Path, size: int, operation: str) -> None:
    sent: list[tuple[str | None, str | None]] = []
    store = S3Store()

    def see(request: Any, **_: object) -> None:
        headers = {k.lower(): v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()}
        sent.append((headers.get("if-none-match"), headers.get("if-match")))

    store.client.meta.events.register(f"before-send.s3.{operation}", see)
    (tmp_path / "product").write_bytes(bytes(size))
    first = store.publish(tmp_path / "product", "s3://ndvi/t.tif", None, {})
    store.publish(tmp_path / "product", "s3://ndvi/t.tif", first, {})
    assert sent == [("*", None), (None, first.etag)]


# What fails, what the server says, and what it means for the tile.
FAULTS_OF_AN_UPLOAD = [
    ("CreateMultipartUpload", 403, "AccessDenied", Code.DESTINATION_REFUSED, False),
    ("UploadPart", 403, "AccessDenied", Code.DESTINATION_REFUSED, False),
    ("UploadPart", 503, "SlowDown", Code.STORAGE_UNAVAILABLE, True),
    ("UploadPart", 500, "InternalError", Code.STORAGE_UNAVAILABLE, True),
    ("CompleteMultipartUpload", 500, "InternalError", Code.STORAGE_UNAVAILABLE, True),
    ("CompleteMultipartUpload", 409, "ConditionalRequestConflict", Code.PUBLISH_CONFLICT, True),
    ("CompleteMultipartUpload", 412, "PreconditionFailed", Code.PUBLISH_CONFLICT, True),
]


@pytest.mark.usefixtures("impatient", "in_parts")
@pytest.mark.parametrize(("operation", "status", "said", "code", "transient"), FAULTS_OF_AN_UPLOAD)
@pytest.mark.parametrize("abort", [True, False], ids=["", "nor may it be aborted"])
def test_an_upload_that_fails(
    s3: Any, tmp_path: Path, operation: str, status: int, said: str, code: Code, transient: bool, abort: bool
) -> None:
    (tmp_path / "product").write_bytes(bytes(6 * MIB))
    store = S3Store()
    answers(store, operation, status, said)
    if not abort:
        answers(store, "AbortMultipartUpload", 403, "AccessDenied")
    with pytest.raises(FlightsError, match=r"s3://ndvi/t\.tif") as caught:
        store.publish(tmp_path / "product", "s3://ndvi/t.tif", None, {})
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert store.stat("s3://ndvi/t.tif") is None
    if abort:
        assert not s3.list_multipart_uploads(Bucket="ndvi").get("Uploads")


Deed = Callable[[S3Store, str, Path], object]
DEEDS: dict[str, Deed] = {
    "stat": lambda store, uri, _: store.stat(uri),
    "raster": lambda store, uri, _: store.raster(uri),
    "fetch": lambda store, uri, path: store.fetch(uri, path, Stat("s3:x:1", 1, etag='"x"')),
    "publish": lambda store, uri, path: store.publish(path, uri, None, {}),
    "read": lambda store, uri, _: store.read(uri),
    "write": lambda store, uri, _: store.write(uri, b""),
    "delete": lambda store, uri, _: store.delete(uri),
    "list": lambda store, uri, _: list(store.list(uri)),
}
OPERATIONS = {
    "stat": ["HeadObject"],
    "raster": ["ListObjectsV2", "HeadObject"],
    "fetch": ["GetObject"],
    "publish": ["PutObject"],
    "read": ["GetObject"],
    "write": ["PutObject"],
    "delete": ["DeleteObject"],
    "list": ["ListObjectsV2"],
}


@pytest.mark.parametrize("deed", DEEDS)
def test_what_is_forbidden_is_refused(s3: Any, tmp_path: Path, deed: str) -> None:
    store = S3Store()
    for operation in OPERATIONS[deed]:
        answers(store, operation, 403, "AccessDenied")
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Refused, match=r"s3://ndvi/t\.tif.*403.*credentials") as caught:
        DEEDS[deed](store, "s3://ndvi/t.tif", tmp_path / "product")
    assert caught.value.code is (Code.DESTINATION_REFUSED if deed in ("publish", "write") else Code.SOURCE_FORBIDDEN)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("deed", DEEDS)
def test_a_storm_at_the_server_is_transient(s3: Any, tmp_path: Path, deed: str) -> None:
    store = S3Store()
    for operation in OPERATIONS[deed]:
        answers(store, operation, 503, "SlowDown")
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Transient, match=r"s3://ndvi/t\.tif") as caught:
        DEEDS[deed](store, "s3://ndvi/t.tif", tmp_path / "product")
    assert caught.value.code is Code.STORAGE_UNAVAILABLE


def test_a_missing_bucket(s3: Any, tmp_path: Path) -> None:
    store, uri = S3Store(), "s3://nowhere/t.tif"
    assert store.read(uri) is None
    for deed in ("stat", "raster", "fetch", "write", "list", "delete"):
        with pytest.raises(Refused, match="s3://nowhere/t"):
            DEEDS[deed](store, uri, tmp_path / "here")
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Refused, match="s3://nowhere/t") as caught:
        store.publish(tmp_path / "product", uri, None, {})
    assert caught.value.code is Code.DESTINATION_REFUSED


# A machine that is set up wrong: never a traceback of boto3's.
WRONG_SETUPS: dict[str, dict[str, str | None]] = {
    "half the credentials": {"AWS_SECRET_ACCESS_KEY": None},
    "a profile that is not there": {"AWS_PROFILE": "nobody"},
    "an endpoint without a scheme": {"AWS_ENDPOINT_URL": "localhost:9000"},
}


@pytest.mark.parametrize("setup", WRONG_SETUPS)
@pytest.mark.parametrize("deed", DEEDS)
def test_a_wrong_setup_is_refused(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup: str, deed: str
) -> None:
    for name, value in WRONG_SETUPS[setup].items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Refused):
        DEEDS[deed](S3Store(), "s3://ndvi/t.tif", tmp_path / "product")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("deed", DEEDS)
def test_no_server_at_all(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (tmp_path / "product").write_bytes(b"product")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        DEEDS[deed](S3Store(), "s3://ndvi/t.tif", tmp_path / "product")


def test_a_client_does_not_cross_a_fork(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store()
    parents = store.client
    assert store.client is parents
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert store.client is not parents


def test_the_stores_are_opened_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom() -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr(flights.store.s3, "_make_client", boom)
    assert isinstance(open_stores(), Stores)


# ---------------------------------------------------------------- from botocore's errors to ours


def answer(status: int, code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "GetObject",
    )


URL = "http://s3"
CLASSES: list[tuple[ClientError | BotoCoreError, type[FlightsError], Code]] = [
    (answer(404, "NoSuchKey"), Refused, Code.SOURCE_MISSING),
    (answer(404, "NoSuchBucket"), Refused, Code.SOURCE_MISSING),
    (answer(404, "404"), Refused, Code.SOURCE_MISSING),
    (answer(403, "AccessDenied"), Refused, Code.SOURCE_FORBIDDEN),
    (answer(403, "InvalidAccessKeyId"), Refused, Code.SOURCE_FORBIDDEN),
    (answer(403, "SignatureDoesNotMatch"), Refused, Code.SOURCE_FORBIDDEN),
    (answer(401, "Unauthorized"), Refused, Code.SOURCE_FORBIDDEN),
    (answer(400, "InvalidBucketName"), Refused, Code.SOURCE_FORBIDDEN),
    (answer(403, "RequestTimeTooSkewed"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(400, "RequestTimeout"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(400, "ThrottlingException"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(429, "TooManyRequests"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(500, "InternalError"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(502, "502"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(503, "SlowDown"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(503, "ServiceUnavailable"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(504, "GatewayTimeout"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(400, "BadDigest"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(400, "XAmzContentChecksumMismatch"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(400, "IncompleteBody"), Transient, Code.STORAGE_UNAVAILABLE),
    (answer(412, "PreconditionFailed"), SourceChanged, Code.SOURCE_CHANGED),
    (answer(409, "ConditionalRequestConflict"), PublishConflict, Code.PUBLISH_CONFLICT),
    (EndpointConnectionError(endpoint_url=URL), Unreachable, Code.STORAGE_UNAVAILABLE),
    (ConnectTimeoutError(endpoint_url=URL), Unreachable, Code.STORAGE_UNAVAILABLE),
    (ReadTimeoutError(endpoint_url=URL), Unreachable, Code.STORAGE_UNAVAILABLE),
    (ConnectionClosedError(endpoint_url=URL), Unreachable, Code.STORAGE_UNAVAILABLE),
    (ProxyConnectionError(proxy_url=URL), Unreachable, Code.STORAGE_UNAVAILABLE),
    (SSLError(endpoint_url=URL, error="bad record"), Unreachable, Code.STORAGE_UNAVAILABLE),
    (ResponseStreamingError(error="reset"), Transient, Code.STORAGE_UNAVAILABLE),
    (IncompleteReadError(actual_bytes=1, expected_bytes=2), Transient, Code.STORAGE_UNAVAILABLE),
    (FlexibleChecksumError(error_msg="crc32"), Transient, Code.STORAGE_UNAVAILABLE),
    (NoCredentialsError(), Unreachable, Code.STORAGE_UNAVAILABLE),  # a role's may be there a little later
    (PartialCredentialsError(provider="env", cred_var="x"), Refused, Code.SOURCE_FORBIDDEN),
    (ParamValidationError(report="bucket"), Refused, Code.SOURCE_FORBIDDEN),
]


@pytest.mark.parametrize(
    ("error", "kind", "code"), CLASSES, ids=[str(e).removeprefix("An error occurred ")[:40] for e, _, _ in CLASSES]
)
def test_classify(error: ClientError | BotoCoreError, kind: type[FlightsError], code: Code) -> None:
    ours = classify(error, "s3://raw/t.tif")
    assert isinstance(ours, kind)
    assert ours.code is code
    assert ours.transient is not isinstance(ours, Refused)
    assert "s3://raw/t.tif" in str(ours)


# ---------------------------------------------------------------- listings


def test_a_listing_beside_a_busy_writer(tmp_path: Path) -> None:
    """Names that come and go while a folder is looked at are nobody's fault."""
    store, over = LocalStore(), threading.Event()
    (tmp_path / "t.tif").write_bytes(b"tile")

    def churn() -> None:
        while not over.is_set():
            (tmp_path / "t.part").write_bytes(b"")
            (tmp_path / "t.part").unlink()

    writer = threading.Thread(target=churn)
    writer.start()
    try:
        for _ in range(2000):
            listed = store.listing(str(tmp_path), 8)
            assert listed is not None
            assert listed[str(tmp_path / "t.tif")] == store.stat(str(tmp_path / "t.tif"))
    finally:
        over.set()
        writer.join()


def test_what_cannot_be_listed_is_asked_for(tmp_path: Path, s3: Any) -> None:
    (tmp_path / "t.tif").write_bytes(b"tile")
    assert LocalStore().listing(str(tmp_path / "t.tif"), 8) is None
    assert LocalStore().listing(str(tmp_path / "nowhere"), 8) is None
    assert S3Store().listing("s3://nowhere/raw", 8) is None
    store = S3Store()
    answers(store, "ListObjectsV2", 403, "AccessDenied")
    assert store.listing("s3://raw/tiles", 8) is None


def test_a_folder_of_somebody_elses_is_not_listed_to_its_end(s3: Any) -> None:
    for i in range(12):
        s3.put_object(Bucket="raw", Key=f"in/{i}", Body=b"")
    store = S3Store()
    small_pages(store)
    assert store.listing("s3://raw/in", 8) is None  # five pages of two keys, and there are more


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, store = tmp_path / "t.tif", LocalStore()
    source.write_bytes(b"II")
    opened = os.open

    def forbidden(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path) == str(source):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(Refused, match=rf"{source}: Permission denied") as caught:
        store.fetch(str(source), tmp_path / "here", held(store, str(source)))
    assert caught.value.code is Code.SOURCE_FORBIDDEN


@pytest.mark.usefixtures("impatient")
def test_a_server_that_tells_nothing_of_buckets(s3: Any) -> None:
    store = S3Store()
    answers(store, "HeadBucket", 501, "NotImplemented")
    assert store.stat("s3://ndvi/none.tif") is None


# ---------------------------------------------------------------- checksums of parts


@pytest.mark.parametrize(("size", "asked"), [(2**20, []), (300_000, [1])])
def test_the_usual_size_of_parts_is_tried_before_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, asked: list[int]
) -> None:
    monkeypatch.setattr("flights.store.checksums.USUAL_PART_BYTES", 2**20)
    content = os.urandom(2 * 2**20 + 5)
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    digest = zlib.crc32(b"".join(zlib.crc32(part).to_bytes(4) for part in parts)).to_bytes(4)
    stored = Stored("ChecksumCRC32", f"{base64.b64encode(digest).decode()}-{len(parts)}", believed=True)
    (tmp_path / "t").write_bytes(content)
    questions: list[int] = []

    def part_bytes(number: int) -> int:
        questions.append(number)
        return len(parts[number - 1])

    assert is_as_stored(tmp_path / "t", stored, part_bytes)
    assert questions == asked
    (tmp_path / "t").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not is_as_stored(tmp_path / "t", stored, part_bytes)
