"""Where objects live: local disk and S3 behind one small protocol.

A reader of either sees a whole object or none: publishing is one `os.replace` of a finished, fsynced file, or one
PutObject (CompleteMultipartUpload). A store holds clients, so it is made per process, after any fork.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

# Files beside a raster that change what its pixels mean: a mask, and GDAL's metadata (nodata, scale, CRS).
SIDECARS = (".aux.xml", ".msk")


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store says of an object without reading it."""

    identity: str
    # changes whenever the content does: S3 ETag and size; local path, size and mtime_ns
    size: int
    # bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
    # the object's own metadata; local files have none
    etag: str = ""
    # S3 only


class Store(Protocol):
    """One kind of storage. Errors are `Refused` (missing, forbidden) or `Transient`, never the library's own."""

    def canonical(self, uri: str, folders: dict[str, str] | None = None) -> str:
        """The one spelling of an object's name: equal for two URIs of one object.

        `folders` keeps what is found of a folder, for the next question.
        """

    def stat(self, uri: str) -> Stat | None:
        """The object as it is now, None where there is none."""

    def raster(self, uri: str) -> dict[str, Stat]:
        """An object ("") and those of SIDECARS that lie beside it, by suffix, without their metadata; else empty."""

    def fetch(self, uri: str, path: Path, pinned: Stat, have: int = 0) -> None:
        """Make the object readable at `path`; SourceChanged where it is no longer the `pinned` one.

        So many of its first bytes are there already.
        A local file is linked, not copied: whoever reads it looks at `stat` again before trusting what was read.
        """

    def fetch_ranges(self, uri: str, path: Path, pinned: Stat, ranges: Sequence[tuple[int, int]]) -> None:
        """Make these bytes (start, stop) of the object readable at `path`, a file of the object's size.

        What has not been fetched reads as zeros. No checksum of the object can be checked so.
        """

    def publish(self, path: Path, uri: str, replaces: Stat | None, metadata: Mapping[str, str]) -> Stat:
        """Make the finished file at `path` the object `uri`, in one step; `path` may be gone afterwards.

        `replaces` is what was there when the work began; PublishConflict where that is no longer so.
        """

    def read(self, uri: str) -> bytes | None:
        """A small object's content, None where there is none."""

    def write(self, uri: str, content: bytes) -> None:
        """Replace a small object, in one step."""

    def delete(self, uri: str) -> None:
        """Remove an object; one that is not there is no error."""

    def list(self, folder: str) -> Iterator[str]:
        """The URIs of the objects directly below a folder or prefix."""

    def listing(self, folder: str, names: int) -> dict[str, Stat] | None:
        """The objects directly below a folder or prefix by URI, without their metadata.

        None where that would ask storage more than a question for each of so many `names`, or may not be asked.
        """

    def folders(self, folder: str) -> Iterator[str]:
        """The URIs of the folders or prefixes directly below a folder or prefix."""

    def clean(self, folder: str, names: Container[str], older_than_s: float) -> int:
        """Remove temporary files and unfinished uploads that killed writers of these names left; how many."""


class Stores:
    """The store of every URI: a `Store` itself, for `s3://` and local paths alike."""

    def __init__(self, local: Store, s3: Store) -> None:
        self._local, self._s3 = local, s3

    def of(self, uri: str) -> Store:
        """The store that holds a URI."""
        return self._s3 if uri.startswith("s3://") else self._local

    def canonical(self, uri: str, folders: dict[str, str] | None = None) -> str:
        return self.of(uri).canonical(uri, folders)

    def stat(self, uri: str) -> Stat | None:
        return self.of(uri).stat(uri)

    def raster(self, uri: str) -> dict[str, Stat]:
        return self.of(uri).raster(uri)

    def fetch(self, uri: str, path: Path, pinned: Stat, have: int = 0) -> None:
        self.of(uri).fetch(uri, path, pinned, have)

    def fetch_ranges(self, uri: str, path: Path, pinned: Stat, ranges: Sequence[tuple[int, int]]) -> None:
        self.of(uri).fetch_ranges(uri, path, pinned, ranges)

    def publish(self, path: Path, uri: str, replaces: Stat | None, metadata: Mapping[str, str]) -> Stat:
        return self.of(uri).publish(path, uri, replaces, metadata)

    def read(self, uri: str) -> bytes | None:
        return self.of(uri).read(uri)

    def write(self, uri: str, content: bytes) -> None:
        self.of(uri).write(uri, content)

    def delete(self, uri: str) -> None:
        self.of(uri).delete(uri)

    def list(self, folder: str) -> Iterator[str]:
        return self.of(folder).list(folder)

    def listing(self, folder: str, names: int) -> dict[str, Stat] | None:
        return self.of(folder).listing(folder, names)

    def folders(self, folder: str) -> Iterator[str]:
        return self.of(folder).folders(folder)

    def clean(self, folder: str, names: Container[str], older_than_s: float) -> int:
        return self.of(folder).clean(folder, names, older_than_s)


def open_stores() -> Stores:
    """Stores for this process; the S3 client is made when the first s3:// URI is touched."""
    from flights.store.local import LocalStore
    from flights.store.s3 import S3Store

    return Stores(LocalStore(), S3Store())
