"""Checking an object against a checksum of its parts' checksums, which boto3 passes over.

S3 keeps it of multipart uploads with CRC32, CRC32C, SHA1 or SHA256: base64 of the algorithm over the parts' digests in
a row, then "-" and the number of parts.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from awscrt import checksums

_ALGORITHMS: Mapping[str, Callable[[bytes], bytes]] = {
    "ChecksumCRC32": lambda data: zlib.crc32(data).to_bytes(4),
    "ChecksumCRC32C": lambda data: checksums.crc32c(data).to_bytes(4),
    "ChecksumSHA1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "ChecksumSHA256": lambda data: hashlib.sha256(data).digest(),
}


def composite_of(answer: Mapping[str, object]) -> tuple[str, str] | None:
    """The kind and the value of a checksum of checksums in S3's answer to a GET, None where there is none."""
    found = ((kind, str(answer[kind])) for kind in _ALGORITHMS if kind in answer)
    return next(((kind, value) for kind, value in found if "-" in value), None)


def is_as_stored(path: Path, kind: str, value: str, part_bytes: Callable[[int], int]) -> bool:
    """Whether a file gives that checksum; `part_bytes` tells the size of a part by its number, from 1."""
    digest, (stored, _, count) = _ALGORITHMS[kind], value.rpartition("-")
    parts, first, total = int(count), part_bytes(1), path.stat().st_size
    # Nearly always all but the last are of one size: then one question is enough.
    alike = -(-total // first) == parts
    sizes = [first] * parts if alike else [part_bytes(number) for number in range(1, parts + 1)]
    with path.open("rb") as content:
        digests = b"".join(digest(content.read(size)) for size in sizes)
        whole = content.read(1) == b""
    return whole and base64.b64encode(digest(digests)).decode() == stored
