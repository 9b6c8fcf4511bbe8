"""Checking a fetched object against the checksum that S3 keeps of it, where boto3 does not.

boto3 checks what comes in one GET, but passes over a checksum of parts' checksums, which S3 keeps of multipart uploads
with CRC32, CRC32C, SHA1 or SHA256: base64 of the algorithm over the parts' digests in a row, then "-" and the number of
parts.
"""

import base64
import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from awscrt import checksums

_ALGORITHMS: Mapping[str, Callable[[bytes], bytes]] = {
    "ChecksumCRC32": lambda data: zlib.crc32(data).to_bytes(4),
    "ChecksumCRC32C": lambda data: checksums.crc32c(data).to_bytes(4),
    "ChecksumSHA1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "ChecksumSHA256": lambda data: hashlib.sha256(data).digest(),
}


def _crc(function: Callable[[bytes, int], int], size: int) -> Callable[[Iterable[bytes]], bytes]:
    def digest(chunks: Iterable[bytes]) -> bytes:
        return functools.reduce(lambda before, chunk: function(chunk, before), chunks, 0).to_bytes(size)

    return digest


def _sha(name: str) -> Callable[[Iterable[bytes]], bytes]:
    def digest(chunks: Iterable[bytes]) -> bytes:
        running = hashlib.new(name, usedforsecurity=False)
        for chunk in chunks:
            running.update(chunk)
        return running.digest()

    return digest


_STREAMED: Mapping[str, Callable[[Iterable[bytes]], bytes]] = {
    "ChecksumCRC64NVME": _crc(checksums.crc64nvme, 8),
    "ChecksumCRC32": _crc(zlib.crc32, 4),
    "ChecksumCRC32C": _crc(checksums.crc32c, 4),
    "ChecksumSHA1": _sha("sha1"),
    "ChecksumSHA256": _sha("sha256"),
}


# What boto3, the AWS CLI and rclone's kin cut a multipart upload into unless told otherwise.
USUAL_PART_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """A checksum that S3 keeps of an object."""

    kind: str
    value: str
    believed: bool
    # False of one of a multipart upload that is neither of its parts ("-" and their number) nor said to be of the whole
    # object: some servers give the composite one so


def stored_of(answer: Mapping[str, object]) -> Stored | None:
    """The checksum in S3's answer, None where there is none."""
    kind = next((kind for kind in _STREAMED if kind in answer), None)
    if kind is None:
        return None
    value, in_parts = str(answer[kind]), "-" in str(answer.get("ETag"))
    return Stored(kind, value, not in_parts or "-" in value or answer.get("ChecksumType") == "FULL_OBJECT")


def composite_of(answer: Mapping[str, object]) -> Stored | None:
    """The checksum of checksums in S3's answer to a GET, None where there is none."""
    found = (Stored(kind, str(answer[kind]), True) for kind in _ALGORITHMS if kind in answer)
    return next((stored for stored in found if "-" in stored.value), None)


def is_as_stored(path: Path, stored: Stored, part_bytes: Callable[[int], int]) -> bool:
    """Whether a file gives that checksum; `part_bytes` tells the size of a part by its number, from 1."""
    if "-" not in stored.value:
        with path.open("rb") as content:
            found = _STREAMED[stored.kind](iter(lambda: content.read(2**20), b""))
        return base64.b64encode(found).decode() == stored.value
    digest, (value, _, count) = _ALGORITHMS[stored.kind], stored.value.rpartition("-")
    parts, total = int(count), path.stat().st_size

    def gives(sizes: Iterable[int]) -> bool:
        with path.open("rb") as content:
            digests = b"".join(digest(content.read(size)) for size in sizes)
            whole = content.read(1) == b""
        return whole and base64.b64encode(digest(digests)).decode() == value

    def gives_parts_of(size: int) -> bool:
        return size > 0 and -(-total // size) == parts and gives([size] * parts)

    # Nearly always all but the last are of one size, and that is the usual one: then nothing is asked.
    return (
        gives_parts_of(USUAL_PART_BYTES)
        or gives_parts_of(part_bytes(1))
        or gives(part_bytes(number) for number in range(1, parts + 1))
    )
