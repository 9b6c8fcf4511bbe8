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


def stored_of(answer: Mapping[str, object]) -> tuple[str, str] | None:
    """The kind and the value of a checksum in S3's answer, None where there is none.

    One of a multipart upload that is neither of its parts ("-" and their number) nor said to be of the whole object is
    not believed: some servers give the composite one so.
    """
    found = next(((kind, str(answer[kind])) for kind in _STREAMED if kind in answer), None)
    if found and "-" in str(answer.get("ETag")) and "-" not in found[1] and answer.get("ChecksumType") != "FULL_OBJECT":
        return None
    return found


def composite_of(answer: Mapping[str, object]) -> tuple[str, str] | None:
    """The kind and the value of a checksum of checksums in S3's answer to a GET, None where there is none."""
    found = ((kind, str(answer[kind])) for kind in _ALGORITHMS if kind in answer)
    return next(((kind, value) for kind, value in found if "-" in value), None)


def is_as_stored(path: Path, kind: str, value: str, part_bytes: Callable[[int], int]) -> bool:
    """Whether a file gives that checksum; `part_bytes` tells the size of a part by its number, from 1."""
    if "-" not in value:
        with path.open("rb") as content:
            found = _STREAMED[kind](iter(lambda: content.read(2**20), b""))
        return base64.b64encode(found).decode() == value
    digest, (stored, _, count) = _ALGORITHMS[kind], value.rpartition("-")
    parts, first, total = int(count), part_bytes(1), path.stat().st_size
    # Nearly always all but the last are of one size: then one question is enough.
    alike = -(-total // first) == parts

    def gives(sizes: Iterable[int]) -> bool:
        with path.open("rb") as content:
            digests = b"".join(digest(content.read(size)) for size in sizes)
            whole = content.read(1) == b""
        return whole and base64.b64encode(digest(digests)).decode() == stored

    return (alike and gives([first] * parts)) or gives(part_bytes(number) for number in range(1, parts + 1))
