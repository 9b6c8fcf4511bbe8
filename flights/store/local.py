"""Objects on local disk."""

import contextlib
import errno
import os
import re
import shutil
import stat as modes
import time
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from flights.errors import Code, PublishConflict, Refused, SourceChanged, of_os_error
from flights.store import SIDECARS, Stat

# The name of a file that is being written, of that in its middle.
_PART = re.compile(r"\.(.+)\.[0-9a-f]{12}\.part", flags=re.DOTALL)


class LocalStore:
    """A `Store` over paths of this machine."""

    def canonical(self, uri: str, folders: dict[str, str] | None = None) -> str:
        folder, name = os.path.split(uri)
        if folders is None or name in ("", ".", "..") or os.path.islink(uri):
            return os.path.realpath(uri)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        return os.path.join(folders[folder], name)

    def stat(self, uri: str) -> Stat | None:
        with _named(uri, Code.SOURCE_FORBIDDEN):
            try:
                found = os.stat(uri)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not modes.S_ISREG(found.st_mode):
            kind = "is a folder; a file is needed" if modes.S_ISDIR(found.st_mode) else "is not a regular file"
            raise Refused(Code.SOURCE_NOT_RASTER, f"{uri} {kind}")
        return _stat_of(os.path.realpath(uri), found)

    def raster(self, uri: str) -> dict[str, Stat]:
        found = ((suffix, self.stat(uri + suffix)) for suffix in ("", *SIDECARS))
        return {suffix: there for suffix, there in found if there}

    def fetch(self, uri: str, path: Path, pinned: Stat, have: int = 0) -> None:
        del have
        now = self.stat(uri)
        if now is None or now.identity != pinned.identity:
            raise SourceChanged(f"{uri} was replaced while the tile was being made")
        with _named(uri, Code.SOURCE_FORBIDDEN):
            os.close(os.open(uri, os.O_RDONLY))  # it may be there and not to be read
        with _named(str(path), Code.DISK_FULL):
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.realpath(uri))

    def fetch_ranges(self, uri: str, path: Path, pinned: Stat, ranges: Sequence[tuple[int, int]]) -> None:
        del ranges  # it is read in place
        self.fetch(uri, path, pinned)

    def publish(self, path: Path, uri: str, replaces: Stat | None, metadata: Mapping[str, str]) -> Stat:
        del metadata  # a local file has none; products carry the same in their tags
        now = self.stat(uri)
        if (now and now.identity) != (replaces and replaces.identity):
            raise PublishConflict(f"{uri} was published by somebody else meanwhile")
        self._replace(path, uri)
        published = self.stat(uri)
        if published is None:
            raise PublishConflict(f"{uri} was removed as soon as it was published")
        return published

    def read(self, uri: str) -> bytes | None:
        with _named(uri, Code.SOURCE_FORBIDDEN):
            try:
                return Path(uri).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, uri: str, content: bytes) -> None:
        with _named(uri, Code.DESTINATION_REFUSED):
            Path(uri).parent.mkdir(parents=True, exist_ok=True)
        part = _part(uri)
        try:
            with _named(uri, Code.DESTINATION_REFUSED):
                part.write_bytes(content)
            self._replace(part, uri)
        finally:
            part.unlink(missing_ok=True)

    def delete(self, uri: str) -> None:
        with _named(uri, Code.DESTINATION_REFUSED), contextlib.suppress(NotADirectoryError):
            Path(uri).unlink(missing_ok=True)

    def list(self, folder: str) -> Iterator[str]:
        if os.path.isdir(folder):
            names = (e for e in os.scandir(folder) if e.is_file() and not e.name.startswith("."))
            yield from sorted(entry.path for entry in names)  # a hidden one is what a killed writer left

    def listing(self, folder: str, names: int) -> dict[str, Stat] | None:
        del names  # a look at a folder costs less than a look at two files
        real, found = os.path.realpath(folder), {}
        try:
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile: somebody's temporary file
                    if not entry.is_symlink() and entry.is_file():  # a link is looked at by `stat`, which follows it
                        found[f"{folder}/{entry.name}"] = _stat_of(f"{real}/{entry.name}", entry.stat())
        except OSError:  # no folder, or one that may not be listed: each file is asked for, and says what is wrong
            return None
        return found

    def folders(self, folder: str) -> Iterator[str]:
        if os.path.isdir(folder):
            yield from sorted(e.path for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))

    def clean(self, folder: str, names: Container[str], older_than_s: float) -> int:
        removed = 0
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            found = _PART.fullmatch(entry.name)
            if found is None or found[1] not in names:
                continue
            with contextlib.suppress(OSError):  # finished, or removed by another sweep, meanwhile
                if time.time() - entry.stat().st_mtime >= older_than_s:
                    os.unlink(entry.path)
                    removed += 1
        return removed

    def _replace(self, path: Path, uri: str) -> None:
        """One rename onto the final name, of bytes that are on disk; from another file system by way of a copy."""
        final = Path(uri)
        with _named(uri, Code.DESTINATION_REFUSED):
            final.parent.mkdir(parents=True, exist_ok=True)
            if os.stat(path).st_dev == os.stat(final.parent).st_dev:
                _fsync(path)
                os.replace(path, final)
            else:
                part = _part(uri)
                try:
                    shutil.copyfile(path, part)
                    _fsync(part)
                    if part.stat().st_size != path.stat().st_size:
                        raise OSError(errno.EIO, "the copy is not as long as the original")
                    os.replace(part, final)
                finally:
                    part.unlink(missing_ok=True)
            _fsync(final.parent)


def _stat_of(real: str, found: os.stat_result) -> Stat:
    return Stat(identity=f"file:{real}:{found.st_size}:{found.st_mtime_ns}", size=found.st_size)


def _part(uri: str) -> Path:
    """A hidden name in the destination's own folder, so that the last step is a rename."""
    final = Path(uri)
    start = final.name.encode()[:230].decode("utf-8", "ignore")  # a name has room for 255 bytes
    return final.with_name(f".{start}.{uuid.uuid4().hex[:12]}.part")


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _named(uri: str, code: Code) -> Iterator[None]:
    """Turn the operating system's errors into ours, with the path."""
    try:
        yield
    except OSError as error:
        raise of_os_error(error, uri, code) from error
