"""A COG in one pass: GDAL encodes each row of blocks when its pixels are there, and the blocks are put in order last.

GDAL's COG driver can begin only when every pixel lies in a file. Encoding rows as they come runs beside the decoding of
the next ones, and writes and reads nothing twice. Every codec and every tag is GDAL's: rows are encoded in files of its
own in memory, and the tags of the product are those of an empty file that it has labelled. What is done here is to put
blocks and offsets in the order of a COG, as GDAL's driver does (https://gdal.org/en/stable/drivers/raster/cog.html):
pages first, then the blocks of the coarsest overview, and those of the full resolution last.
"""

import contextlib
import itertools
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.io import MemoryFile

from flights.raster.environment import BLOCK_PX, Grid, plain_env
from flights.raster.layout import TILE_COUNTS, TILE_OFFSETS, Head
from flights.raster.overviews import Checks, checksum, halved
from flights.raster.pixels import PixelFormat
from flights.windows import Window

Shape = tuple[int, int]
# (rows, cols)

# Above these the rows that have to be in memory at once are too many, or a TIFF would have to be a BigTIFF.
ROW_BYTES_MAX = 12 * 2**20
PIXEL_BYTES_MAX = 11 * 2**28
_COPY_BYTES = 4 * 2**20
# Encoded blocks of a resolution that take less stay in memory (2 % of a tiny tile).
_SPOOL_BYTES = 2**20

_SUBFILE, _WIDTH, _LENGTH = 254, 256, 257
_LONG, _REDUCED = 4, 1
# What an overview's page has of its product's: how pixels are kept, and nodata; not where they lie.
_OF_PIXELS = {258, 259, 262, 277, 284, 317, 322, 323, 339, 42113}
# What tells GDAL that this is a COG, and that sizes stand beside the blocks.
_STRUCTURE = (
    b"LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    b"BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_GHOST = f"GDAL_STRUCTURAL_METADATA_SIZE={len(_STRUCTURE):06} bytes\n".encode() + _STRUCTURE
_GHOST += b" " * (len(_GHOST) % 2)
# A little-endian TIFF whose first page follows.
_FIRST = struct.pack("<2sHI", b"II", 42, 8 + len(_GHOST)) + _GHOST


def fits(grid: Grid, rows_at_once: int) -> bool:
    """Whether a product can be made so; `rows_at_once` is how many rows its windows may leave unfinished."""
    rows = max(BLOCK_PX, rows_at_once)
    return rows * grid.width * 4 <= ROW_BYTES_MAX and grid.height * grid.width * 4 <= PIXEL_BYTES_MAX


class OnePass:
    """Takes windows in the order of `windows.strips`, and ends with a COG."""

    def __init__(self, folder: Path, grid: Grid, options: Mapping[str, Any], form: PixelFormat) -> None:
        self._grid, self._options = grid, options
        self._levels = _levels(folder, grid, options, form)
        self._rows = np.empty((BLOCK_PX, grid.width), np.float32)
        self._top = self._written = 0  # the first of these rows; pixels so far
        self._head = b""
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._under_way: Future[None] | None = None

    def close(self) -> None:
        """Wait for what is under way, and forget it."""
        self._encoder.shutdown()
        for level in self._levels:
            level.close()

    def write(self, values: NDArray[np.float32], window: Window) -> None:
        """One window, (rows, cols)."""
        (top, bottom), (left, right) = window.slices
        if bottom - self._top > len(self._rows):
            more = np.empty((bottom - self._top - len(self._rows), self._grid.width), np.float32)
            self._rows = np.concatenate([self._rows, more])
        self._rows[top - self._top : bottom - self._top, left:right] = values
        self._written += values.size
        # The last window of a row of them: every pixel above its lower edge is there, and none below.
        if right == self._grid.width and self._written == bottom * self._grid.width:
            self._hand_over(bottom)

    def _hand_over(self, bottom: int) -> None:
        whole = bottom if bottom == self._grid.height else bottom // BLOCK_PX * BLOCK_PX
        if whole == self._top:
            return
        done, rest = self._rows[: whole - self._top], self._rows[whole - self._top : bottom - self._top]
        self._wait()
        if len(self._levels) == 1:  # one block: nothing comes that a thread could run beside (4 % of a tiny tile)
            self._levels[0].add(done)
        else:
            self._under_way = self._encoder.submit(self._levels[0].add, done)
        self._rows = np.empty((max(BLOCK_PX, len(rest)), self._grid.width), np.float32)
        self._rows[: len(rest)] = rest
        self._top = whole

    def _wait(self) -> None:
        if self._under_way:
            self._under_way.result()

    def finish(self, final: Path, label: Callable[[Any], None]) -> None:
        """Put the file together; `label` is given a dataset, for its tags."""
        self._wait()
        if self._written != self._grid.height * self._grid.width:
            raise ValueError(f"{self._written} pixels were written")
        self._head = self._head_of(_labelled(self._grid, self._options, label))
        with final.open("wb") as out:
            out.write(self._head)
            for level in reversed(self._levels):
                level.copy_to(out)

    def differs(self, final: Path) -> str:
        """What of a file is not as it was when it was encoded, in memory; nothing where all of it is."""
        with final.open("rb") as file:
            if file.read(len(self._head)) != self._head:
                return "its header is not the one that was written"
            wrong = [level.size_text for level in reversed(self._levels) if not level.is_next_in(file)]
        return f"the blocks of {', '.join(wrong)} are not those that were encoded" if wrong else ""

    @property
    def checks(self) -> list[Checks]:
        """Of every resolution what is to be decoded and compared: its last row of blocks."""
        return [level.checks for level in self._levels]

    def _head_of(self, labelled: bytes) -> bytes:
        """All that lies before the blocks."""
        template = Head(labelled)
        (page,) = template.pages()
        tags = {tag: (e.kind, e.count, labelled[e.start : e.stop]) for tag, e in page.items()}
        pages = [tags | level.place(0) for level in self._levels[:1]]
        of_pixels = {tag: value for tag, value in tags.items() if tag in _OF_PIXELS}
        pages += [of_pixels | _SMALLER | level.place(0) for level in self._levels[1:]]
        start = len(_FIRST) + sum(len(_page(one, 0, last=True)) for one in pages)
        starts = []
        for level in reversed(self._levels):
            starts.append(start)
            start += level.size
        starts.reverse()
        parts = [_FIRST]
        for i, (one, level, begin) in enumerate(zip(pages, self._levels, starts, strict=True)):
            at = sum(map(len, parts))
            parts.append(_page(one | level.place(begin), at, last=i == len(pages) - 1))
        return b"".join(parts)


class _Level:
    """One resolution: rows come in, encoded blocks are kept until all are there, and half of the rows go on."""

    def __init__(
        self, folder: Path, shape: Shape, options: Mapping[str, Any], form: PixelFormat, coarser: "_Level | None"
    ) -> None:
        (self._height, self._width), self._coarser = shape, coarser
        self._options, self._form = options, form
        self._pending = np.empty((0, self._width), np.float32)
        self._top = 0
        self._sizes: list[int] = []
        self._checksum = 0
        self.checks: Checks = []
        self._blocks = SpooledTemporaryFile(_SPOOL_BYTES, dir=str(folder))  # noqa: SIM115  # see close

    @property
    def size_text(self) -> str:
        return f"{self._width} x {self._height}"

    @property
    def size(self) -> int:
        """Bytes of all the blocks, each with its size before it and its last four bytes after it."""
        return sum(self._sizes) + 8 * len(self._sizes)

    def add(self, rows: NDArray[np.float32]) -> None:
        """The next rows, (rows, width)."""
        self._pending = np.concatenate([self._pending, rows]) if len(self._pending) else rows
        while len(self._pending) >= BLOCK_PX or (len(self._pending) and self._ends):
            block_row, self._pending = self._pending[:BLOCK_PX], self._pending[BLOCK_PX:]
            pixels = self._form.pack(block_row)
            self._encode(pixels)
            if self._coarser:
                self._coarser.add(halved(self._form.unpack(pixels)))
            self._top += len(block_row)

    @property
    def _ends(self) -> bool:
        return self._top + len(self._pending) == self._height

    def _encode(self, rows: NDArray[Any]) -> None:
        with encoded(rows, self._options) as blocks:
            for block in blocks:
                for part in (struct.pack("<I", len(block)), block, block[-4:]):
                    self._blocks.write(part)
                    self._checksum = zlib.crc32(part, self._checksum)
                self._sizes.append(len(block))
        if self._top + len(rows) == self._height:
            self.checks = [(Window(self._top, 0, *rows.shape), checksum(rows))]

    def place(self, start: int) -> dict[int, tuple[int, int, bytes]]:
        """The tags that tell its size and where its blocks lie."""
        ends = itertools.accumulate(size + 8 for size in self._sizes)
        offsets = [start + end - size - 4 for end, size in zip(ends, self._sizes, strict=True)]
        return {
            _WIDTH: _longs([self._width]),
            _LENGTH: _longs([self._height]),
            TILE_OFFSETS: _longs(offsets),
            TILE_COUNTS: _longs(self._sizes),
        }

    def copy_to(self, out: Any) -> None:
        """Append the blocks to a file, and forget them."""
        with self._blocks as blocks:
            blocks.seek(0)
            shutil.copyfileobj(blocks, out, _COPY_BYTES)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a disk that was full before is full for what was still to be written
            self._blocks.close()

    def is_next_in(self, file: Any) -> bool:
        """Whether a file goes on with the blocks as they were encoded."""
        found, left = 0, self.size
        while left and (some := file.read(min(left, _COPY_BYTES))):
            found, left = zlib.crc32(some, found), left - len(some)
        return not left and found == self._checksum


def _levels(folder: Path, grid: Grid, options: Mapping[str, Any], form: PixelFormat) -> list[_Level]:
    """The full resolution, and overviews of half the size each until one fits into a block."""
    shapes = [(grid.height, grid.width)]
    while max(shapes[-1]) > BLOCK_PX:
        shapes.append((-(-shapes[-1][0] // 2), -(-shapes[-1][1] // 2)))
    levels: list[_Level] = []
    for shape in reversed(shapes):
        coarser = levels[0] if levels else None
        levels.insert(0, _Level(folder, shape, options, form, coarser))
    return levels


@contextlib.contextmanager
def encoded(rows: NDArray[Any], options: Mapping[str, Any]) -> Iterator[list[memoryview]]:
    """The blocks of one row of them, as GDAL encodes them; they are there while the `with` block runs."""
    height, width = rows.shape
    with plain_env(), MemoryFile() as memory:
        with memory.open(height=height, width=width, **options) as out:
            out.write(rows, 1)
        raw = memoryview(memory.getbuffer())
        tiff = Head(raw)
        (page,) = tiff.pages()
        places = zip(tiff.values(page, TILE_OFFSETS), tiff.values(page, TILE_COUNTS), strict=True)
        blocks = [raw[start : start + size] for start, size in places]
        if len(blocks) != -(-width // BLOCK_PX) or not all(len(block) >= 4 for block in blocks):
            raise OSError(f"{len(blocks)} blocks were encoded of {width} pixels")
        yield blocks


def _labelled(grid: Grid, options: Mapping[str, Any], label: Callable[[Any], None]) -> bytes:
    """A file of no blocks that has every tag of the product."""
    with MemoryFile() as memory:
        place = {"height": grid.height, "width": grid.width, "crs": grid.crs, "transform": grid.transform}
        with memory.open(**place, **options, SPARSE_OK=True, BIGTIFF="NO") as empty:
            label(empty)
        return bytes(memory.read())


def _page(tags: Mapping[int, tuple[int, int, bytes]], at: int, *, last: bool) -> bytes:
    """A page that lies at `at` and is followed by the next one; values of more than four bytes stand after it."""
    entries, values = b"", b""
    after = at + 2 + 12 * len(tags) + 4
    for tag in sorted(tags):
        kind, count, raw = tags[tag]
        if len(raw) > 4:
            place = struct.pack("<I", after + len(values))
            values += raw + b"\0" * (len(raw) % 2)
        else:
            place = raw.ljust(4, b"\0")
        entries += struct.pack("<HHI", tag, kind, count) + place
    following = 0 if last else after + len(values)
    return struct.pack("<H", len(tags)) + entries + struct.pack("<I", following) + values


def _longs(numbers: Sequence[int]) -> tuple[int, int, bytes]:
    return _LONG, len(numbers), struct.pack(f"<{len(numbers)}I", *numbers)


_SMALLER = {_SUBFILE: _longs([_REDUCED])}
