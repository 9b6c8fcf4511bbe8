"""Objects on S3 and what speaks its protocol."""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError

from flights.errors import (
    Code,
    FlightsError,
    PublishConflict,
    Refused,
    SourceChanged,
    Transient,
    Unreachable,
    of_os_error,
)
from flights.store import SIDECARS, Stat
from flights.store.checksums import Stored, composite_of, is_as_stored, stored_of

CHUNK_BYTES = 2**20
# Above this a product goes up in parts; S3 takes at most 5 GiB in one PutObject.
PART_BYTES = 64 * 2**20
# From this size an object is fetched by several requests at once, and by so many.
PARALLEL_FROM, FETCHES = 8 * 2**20, 3
# Less than this is not divided among them.
PIECE_BYTES = 2**20
# What one LIST answers at most.
LIST_KEYS = 1000

T = TypeVar("T")

# What S3 calls a fault of the moment besides 429 and 5xx.
_TRANSIENT_CODES = {
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "IncompleteBody",  # what arrived is not what was sent
    "BadDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}


class S3Store:
    """A `Store` over buckets; its client is made in the process that uses it, since clients don't survive a fork."""

    def __init__(self) -> None:
        self._client: Any = None
        self._pid = 0
        self._buckets: set[str] = set()
        # those known to exist
        self._making = threading.Lock()

    @property
    def client(self) -> Any:
        """The boto3 client of this process; its threads share it."""
        with self._making:
            if self._client is None or self._pid != os.getpid():
                self._client, self._pid = _make_client(), os.getpid()
            return self._client

    def canonical(self, uri: str, folders: dict[str, str] | None = None) -> str:
        del folders
        return uri

    def stat(self, uri: str) -> Stat | None:
        def head(bucket: str, key: str) -> Stat:
            said = self.client.head_object(Bucket=bucket, Key=key)
            etag, size = said["ETag"], said["ContentLength"]
            return Stat(_identity(etag, size), size, said.get("Metadata", {}), etag)

        try:
            return self._call(uri, head)
        except Refused as refused:
            if refused.code is not Code.SOURCE_MISSING:
                raise
        self._check_bucket(uri)
        return None

    def _check_bucket(self, uri: str) -> None:
        """Refuse a bucket that does not exist: to a HEAD, S3 answers as if only the object were missing."""
        bucket = _split(uri)[0]
        if bucket in self._buckets:
            return
        try:
            self._call(uri, lambda bucket, _key: self.client.head_bucket(Bucket=bucket))
        except FlightsError as error:  # any other answer tells nothing: the object is not there, that is all
            if error.code is Code.SOURCE_MISSING:
                raise _no_bucket(uri) from error
        self._buckets.add(bucket)

    def raster(self, uri: str) -> dict[str, Stat]:
        """One LIST for it all; without the right to list, HEADs, where 403 means that no sidecar is there."""
        try:
            listed = self._call(
                uri, lambda bucket, key: self.client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=LIST_KEYS)
            )
        except Refused as refused:
            if refused.code is not Code.SOURCE_FORBIDDEN:
                raise
            return self._raster_by_head(uri)
        if listed.get("IsTruncated"):
            return self._raster_by_head(uri)
        key = _split(uri)[1]
        by_suffix = {item["Key"][len(key) :]: item for item in listed.get("Contents", ())}
        return {suffix: _listed(by_suffix[suffix]) for suffix in ("", *SIDECARS) if suffix in by_suffix}

    def _raster_by_head(self, uri: str) -> dict[str, Stat]:
        found = {"": self.stat(uri)}
        for suffix in SIDECARS:
            try:
                found[suffix] = self.stat(uri + suffix)
            except Refused as refused:
                if refused.code is not Code.SOURCE_FORBIDDEN:
                    raise
        return {suffix: there for suffix, there in found.items() if there}

    def fetch(self, uri: str, path: Path, pinned: Stat, have: int = 0) -> None:
        """The whole object, pinned to the ETag, held to its length and to the checksum that S3 keeps.

        A large one comes in ranges at once, since one connection to S3 gives 50 to 90 MB/s, and is checked when it is
        there.
        """
        if pinned.size < PARALLEL_FROM:
            self._fetch_at_once(uri, path, pinned)
            return

        def head(bucket: str, key: str) -> Stored | None:
            said = self.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
            if _identity(said["ETag"], said["ContentLength"]) != pinned.identity:
                raise SourceChanged(f"{uri} was replaced while the tile was being made")
            return stored_of(said)

        with ThreadPoolExecutor(1, thread_name_prefix="ask") as asking:
            asked = asking.submit(self._pinned, uri, head)  # while the object comes
            self.fetch_ranges(uri, path, pinned, [(have, pinned.size)])
            stored = asked.result()
        if stored and stored.believed:
            self._pinned(uri, lambda bucket, key: self._check(uri, path, stored, bucket, key))
        elif stored:  # this answer does not tell it as what it is: a single GET tells and checks it
            self._fetch_at_once(uri, path, pinned)

    def _fetch_at_once(self, uri: str, path: Path, pinned: Stat) -> None:
        def copy(bucket: str, key: str) -> int:
            got = self.client.get_object(Bucket=bucket, Key=key, IfMatch=pinned.etag)
            with path.open("wb") as out:
                written = sum(out.write(chunk) for chunk in got["Body"].iter_chunks(CHUNK_BYTES))
            if stored := composite_of(got):
                self._check(uri, path, stored, bucket, key)
            return written

        written = self._pinned(uri, copy)
        if written != pinned.size:
            raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: {written} bytes came of {pinned.size}")

    def _check(self, uri: str, path: Path, stored: Stored, bucket: str, key: str) -> None:
        def part_bytes(number: int) -> int:
            return int(self.client.head_object(Bucket=bucket, Key=key, PartNumber=number)["ContentLength"])

        if not is_as_stored(path, stored, part_bytes):
            raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: what came is not what its checksum was made of")

    def fetch_ranges(self, uri: str, path: Path, pinned: Stat, ranges: Sequence[tuple[int, int]]) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise of_os_error(error, str(path), Code.DISK_FULL) from error

        def copy(start: int, stop: int) -> None:
            def copy_from(bucket: str, key: str) -> int:
                span = f"bytes={start}-{stop - 1}"
                got = self.client.get_object(Bucket=bucket, Key=key, IfMatch=pinned.etag, Range=span)
                if not str(got.get("ContentRange", "")).startswith(f"bytes {start}-{stop - 1}/"):
                    raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: S3 answers {span} with another range")
                at = start
                for chunk in got["Body"].iter_chunks(CHUNK_BYTES):
                    at += os.pwrite(fd, chunk, at)
                return at

            at = self._pinned(uri, copy_from)
            if at != stop:
                raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: {at - start} bytes came of {stop - start}")

        try:
            with ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch") as pool:
                os.truncate(fd, pinned.size)
                there = _divided([(start, min(stop, pinned.size)) for start, stop in ranges if start < pinned.size])
                try:
                    for done in [pool.submit(copy, start, stop) for start, stop in there]:
                        done.result()
                except BaseException:  # a fault, or a limit that has run out: what has not begun need not
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        except OSError as error:
            raise of_os_error(error, str(path), Code.DISK_FULL) from error
        finally:
            os.close(fd)

    def _pinned(self, uri: str, request: Callable[[str, str], T]) -> T:
        """A request for an object that was there a moment ago."""
        try:
            return self._call(uri, request)
        except OSError as error:
            raise of_os_error(error, uri, Code.DISK_FULL) from error
        except Refused as refused:
            if refused.code is Code.SOURCE_MISSING and "NoSuchBucket" not in str(refused):
                raise SourceChanged(f"{uri} was removed while the tile was being made") from refused
            raise

    def publish(self, path: Path, uri: str, replaces: Stat | None, metadata: Mapping[str, str]) -> Stat:
        condition = {"IfMatch": replaces.etag} if replaces else {"IfNoneMatch": "*"}
        size = path.stat().st_size
        extra = {"Metadata": dict(metadata), "ContentType": "image/tiff"}

        def put(bucket: str, key: str) -> str:
            if size > PART_BYTES:
                return self._put_parts(path, {"Bucket": bucket, "Key": key}, condition, extra)
            with path.open("rb") as body:
                done = self.client.put_object(Bucket=bucket, Key=key, Body=body, **condition, **extra)
            return str(done["ETag"])

        try:
            etag = self._call(uri, put)
        except SourceChanged as changed:  # 412: what lies there is not what lay there
            raise PublishConflict(f"{uri} was published by somebody else meanwhile") from changed
        except Refused as refused:
            if refused.code is Code.SOURCE_MISSING and replaces:  # some servers say 404 where IfMatch finds nothing
                raise PublishConflict(f"{uri} was removed by somebody else meanwhile") from refused
            raise Refused(Code.DESTINATION_REFUSED, str(refused)) from refused
        return Stat(identity=_identity(etag, size), size=size, metadata=metadata, etag=etag)

    def _put_parts(self, path: Path, at: dict[str, str], condition: dict[str, str], extra: dict[str, Any]) -> str:
        upload = {**at, "UploadId": self.client.create_multipart_upload(**at, **extra)["UploadId"]}
        try:
            parts: list[dict[str, Any]] = []
            with path.open("rb") as body:
                while part := body.read(PART_BYTES):
                    done = self.client.upload_part(**upload, PartNumber=len(parts) + 1, Body=part)
                    parts.append({"ETag": done["ETag"], "PartNumber": len(parts) + 1})
            done = self.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
            return str(done["ETag"])
        except BaseException:
            with contextlib.suppress(ClientError, BotoCoreError):  # the first error is the one to tell
                self.client.abort_multipart_upload(**upload)
            raise

    def read(self, uri: str) -> bytes | None:
        try:
            return bytes(self._call(uri, lambda b, k: self.client.get_object(Bucket=b, Key=k)["Body"].read()))
        except Refused as refused:
            if refused.code is Code.SOURCE_MISSING:
                return None
            raise

    def write(self, uri: str, content: bytes) -> None:
        try:
            self._call(uri, lambda b, k: self.client.put_object(Bucket=b, Key=k, Body=content))
        except Refused as refused:
            raise Refused(Code.DESTINATION_REFUSED, str(refused)) from refused

    def delete(self, uri: str) -> None:
        self._call(uri, lambda b, k: self.client.delete_object(Bucket=b, Key=k))

    def list(self, folder: str) -> Iterator[str]:
        for page in self._pages(folder):
            keys = (item["Key"] for item in page.get("Contents", ()))
            yield from (f"s3://{_split(folder)[0]}/{key}" for key in keys if not key.endswith("/"))

    def listing(self, folder: str, names: int) -> dict[str, Stat] | None:
        bucket, _ = _split(folder)
        prefix = f"{folder}/"[len(f"s3://{bucket}/") :]  # as it is spelled: a//b and a/b are two folders
        pages_max = 4 * -(-names // LIST_KEYS) + 1  # many more keys than names: somebody else's

        def pages(_bucket: str, _key: str) -> list[Any] | None:
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
            listed = list(itertools.islice(pages, pages_max))
            return None if listed and listed[-1].get("IsTruncated") else listed

        try:
            listed = self._call(folder, pages)
        except Refused:  # no right to list, or no bucket: each object is asked for, and says what is wrong
            return None
        if listed is None:
            return None
        items = (item for page in listed for item in page.get("Contents", ()))
        return {f"s3://{bucket}/{item['Key']}": _listed(item) for item in items}

    def folders(self, folder: str) -> Iterator[str]:
        for page in self._pages(folder):
            prefixes = (item["Prefix"] for item in page.get("CommonPrefixes", ()))
            yield from (f"s3://{_split(folder)[0]}/{prefix.rstrip('/')}" for prefix in prefixes)

    def clean(self, folder: str, names: Container[str], older_than_s: float) -> int:
        bucket, prefix = _split(folder.rstrip("/") + "/")
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)

        def uploads(_bucket: str, _key: str) -> Sequence[Any]:
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
            return tuple(upload for page in pages for upload in page.get("Uploads", ()))

        try:
            under_way = self._call(folder, uploads)
        except Refused as refused:
            if refused.code is Code.SOURCE_MISSING:  # no bucket, nothing left in it
                return 0
            raise
        stale = [u for u in under_way if u["Key"][len(prefix) :] in names and u["Initiated"] <= before]
        for upload in stale:
            at = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            with contextlib.suppress(ClientError):  # completed, or removed by another sweep, meanwhile
                self.client.abort_multipart_upload(**at)
        return len(stale)

    def _pages(self, folder: str) -> Sequence[Any]:
        bucket, prefix = _split(folder.rstrip("/") + "/")

        def pages(_bucket: str, _key: str) -> Sequence[Any]:
            paginator = self.client.get_paginator("list_objects_v2")
            return tuple(paginator.paginate(Bucket=bucket, Prefix="" if prefix == "/" else prefix, Delimiter="/"))

        return self._call(folder, pages)

    def _call(self, uri: str, request: Callable[[str, str], T]) -> T:
        """Run one request; botocore's errors leave as ours, with the URI."""
        try:
            return request(*_split(uri))
        except (ClientError, BotoCoreError) as error:
            raise classify(error, uri) from error
        except KeyError as error:  # an answer that was cut off among its headers
            raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: S3's answer lacks {error}") from error
        except HTTPError as error:  # what botocore lets through of a body that breaks off
            raise Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: {error}") from error
        except ValueError as error:  # an endpoint that is no URL (AWS_ENDPOINT_URL), a name that cannot be a bucket's
            hint = " (AWS_ENDPOINT_URL)" if "endpoint" in str(error) else ""
            raise Refused(Code.SETTINGS_INVALID, f"{uri}: {error}{hint}") from error


def classify(error: ClientError | BotoCoreError, uri: str) -> FlightsError:
    """The one table from botocore's errors to ours."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        said = f"{uri}: S3 answers {status} {code if code != str(status) else ''}".rstrip()
        if code == "NoSuchUpload":  # completed before, and the answer lost; or swept away: look again
            return Transient(Code.STORAGE_UNAVAILABLE, said)
        if code == "NoSuchBucket":
            return _no_bucket(uri)
        if status == 404 or code == "NoSuchKey":
            return Refused(Code.SOURCE_MISSING, f"{uri} does not exist ({code or status})")
        if status == 412:
            return SourceChanged(f"{uri} was replaced while the tile was being made")
        if status == 409:
            return PublishConflict(said)
        if status == 429 or status >= 500 or code in _TRANSIENT_CODES:
            return Transient(Code.STORAGE_UNAVAILABLE, said)
        return Refused(Code.SOURCE_FORBIDDEN, f"{said}; check the credentials and the bucket's policy")
    if isinstance(error, NoCredentialsError):
        return Unreachable(
            Code.STORAGE_UNAVAILABLE,
            f"{uri}: no AWS credentials were found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if isinstance(error, PartialCredentialsError):
        return Refused(Code.SOURCE_FORBIDDEN, f"{uri}: half of the AWS credentials is missing ({error})")
    if isinstance(error, EndpointConnectionError):
        endpoint = urlsplit(str(error.kwargs.get("endpoint_url", "")))
        said = f"{uri}: nothing answers at {endpoint.scheme}://{endpoint.netloc} (AWS_ENDPOINT_URL, AWS_REGION)"
        return Unreachable(Code.STORAGE_UNAVAILABLE, said)
    if isinstance(error, HTTPClientError | BotoConnectionError):
        return Unreachable(Code.STORAGE_UNAVAILABLE, f"{uri}: {error}")
    if isinstance(error, IncompleteReadError | FlexibleChecksumError):
        return Transient(Code.STORAGE_UNAVAILABLE, f"{uri}: {error}")
    hint = " (AWS_PROFILE)" if isinstance(error, ProfileNotFound) else ""
    return Refused(Code.SOURCE_FORBIDDEN, f"{uri}: {error}{hint}")


def _no_bucket(uri: str) -> Refused:
    return Refused(Code.SOURCE_MISSING, f"{uri}: the bucket {_split(uri)[0]} does not exist (NoSuchBucket)")


def _make_client() -> Any:
    # Bounded waits, and botocore's own retries for what fails before a body flows; bodies are retried by the caller.
    options: dict[str, Any] = {
        "connect_timeout": 5,
        "read_timeout": 20,
        "retries": {"mode": "standard", "max_attempts": 3},
        "max_pool_connections": 32,  # a survey asks many things at once
    }
    client = boto3.client("s3", config=Config(**options))
    if (urlsplit(client.meta.endpoint_url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return client
    # A server of one's own rarely has a host name a bucket.
    return boto3.client("s3", config=Config(**options, s3={"addressing_style": "path"}))


def _divided(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges, cut into pieces of one size while there are fewer than connections."""
    total = sum(stop - start for start, stop in ranges)
    piece = max(PIECE_BYTES, -(-total // FETCHES))
    if len(ranges) >= FETCHES:
        return ranges
    return [(at, min(at + piece, stop)) for start, stop in ranges for at in range(start, stop, piece)]


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def _listed(item: Mapping[str, Any]) -> Stat:
    return Stat(_identity(item["ETag"], item["Size"]), item["Size"], etag=item["ETag"])


def _identity(etag: str, size: int) -> str:
    return f"s3:{etag.strip(chr(34))}:{size}"
