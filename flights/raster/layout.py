"""Where a TIFF's blocks lie, from its first bytes: so that of a large file only the bands in use are fetched.

GDAL would read what has not been fetched as zeros. So nothing is concluded from a header that is not there as a whole,
and from a file that is in any way unusual: then the whole file is fetched.

TIFF 6.0 (Adobe 1992), section 2 and 15; BigTIFF as libtiff has it.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# Bytes beside a block that a COG's reader may look at: its size before it, its last four bytes again after it.
LEADER_BYTES = 4
# Two ranges nearer than this are fetched as one: a request costs more than the bytes between.
GAP_BYTES = 128 * 1024
# Pages of a file that are looked at; one with more is unusual.
_PAGES_MAX = 64

_COMPRESSION, _NONE = 259, 1
_SUBFILE, _STRIP_OFFSETS, _STRIP_COUNTS, _PLANAR = 254, 273, 279, 284
_SAMPLES, TILE_OFFSETS, TILE_COUNTS = 277, 324, 325
_REDUCED_PAGE, _SEPARATE = 1, 2
# Tags that point to pages of their own: SubIFDs, EXIF, GPS, interoperability.
_POINTERS = {330, 34665, 34853, 40965}
# Of a tag's type, what one value of it takes; only those that a tag read here can have.
_TYPES = {3: "H", 4: "I", 16: "Q"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}

Range = tuple[int, int]
# The first byte, and the one after the last.


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of a file whose bands lie apart (PlanarConfiguration 2), band after band."""

    bands: int
    blocks: Sequence[Range]

    def ranges_of(self, bands: Collection[int]) -> list[Range]:
        """What has to be there for these bands (from 1) to be read; near ranges as one."""
        each = len(self.blocks) // self.bands
        wanted = sorted(
            (max(0, start - LEADER_BYTES), stop + LEADER_BYTES)
            for band in bands
            for start, stop in self.blocks[(band - 1) * each : band * each]
            if stop > start  # a sparse block lies nowhere
        )
        merged: list[Range] = []
        for start, stop in wanted:
            if merged and start - merged[-1][1] < GAP_BYTES:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return merged


class NotThere(Exception):
    """The header goes on where nothing has been fetched."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tag of a page: its type, how many values it has, and where they lie."""

    kind: int
    count: int
    start: int
    stop: int


Page = Mapping[int, Entry]
# By tag.


class Head:
    """The first bytes of a TIFF."""

    def __init__(self, raw: bytes | memoryview) -> None:
        self.raw = raw
        if raw[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            raise NotThere
        self.order, self.big = "<" if raw[:2] == b"II" else ">", raw[2:4] in (b"+\0", b"\0+")

    def numbers(self, form: str, at: int) -> tuple[int, ...]:
        """Whole numbers of a struct form at a place."""
        form = self.order + form
        if at < 0 or at + struct.calcsize(form) > len(self.raw):
            raise NotThere
        return struct.unpack_from(form, self.raw, at)

    def pages(self) -> list[Page]:
        """Each page's tags; every value of every tag must be there."""
        (at,) = self.numbers("Q", 8) if self.big else self.numbers("I", 4)
        pages: list[Page] = []
        while at and len(pages) <= _PAGES_MAX:
            (count,) = self.numbers("Q" if self.big else "H", at)
            at += 8 if self.big else 2
            size = 20 if self.big else 12
            page: dict[int, Entry] = {}
            for i in range(count):
                tag, entry = self._entry(at + i * size)
                page.setdefault(tag, entry)  # of two the first counts, as for libtiff
            pages.append(page)
            (at,) = self.numbers("Q" if self.big else "I", at + count * size)
        return pages

    def values(self, page: Page, tag: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The whole numbers of a tag, `default` where the page does not have it, or has no whole numbers there."""
        entry = page.get(tag)
        if entry is None or entry.kind not in _TYPES:
            return default
        return self.numbers(f"{entry.count}{_TYPES[entry.kind]}", entry.start)

    def _entry(self, at: int) -> tuple[int, Entry]:
        tag, kind = self.numbers("HH", at)
        (count,) = self.numbers("Q" if self.big else "I", at + 4)
        inline, place = (8, at + 12) if self.big else (4, at + 8)
        length = _SIZES.get(kind, 1) * count
        if length > inline:
            (place,) = self.numbers("Q" if self.big else "I", place)
        if place + length > len(self.raw):
            raise NotThere
        return tag, Entry(kind, count, place, place + length)


def read_layout(head: bytes) -> Layout | None:
    """The layout that a file's first bytes tell; None where they don't, or where all of the file is needed anyway.

    That is a file whose bands are interleaved by pixel, one with a mask or further images beside its overviews, and one
    that is not compressed: of such a block libtiff reads what its size should be, whatever its byte count says.
    """
    try:
        tiff = Head(head)
        first, *others = tiff.pages()
    except (NotThere, ValueError):
        return None
    if tiff.values(first, _COMPRESSION, (_NONE,)) == (_NONE,):
        return None
    if tiff.values(first, _PLANAR, (1,)) != (_SEPARATE,) or tiff.values(first, _SUBFILE, (0,)) != (0,):
        return None
    if any(tiff.values(p, _SUBFILE, (0,)) != (_REDUCED_PAGE,) for p in others) or _POINTERS & first.keys():
        return None
    offsets = tiff.values(first, TILE_OFFSETS) or tiff.values(first, _STRIP_OFFSETS)
    counts = tiff.values(first, TILE_COUNTS) or tiff.values(first, _STRIP_COUNTS)
    bands = next(iter(tiff.values(first, _SAMPLES, (1,))), 0)
    if not bands or not offsets or len(offsets) != len(counts) or len(offsets) % bands:
        return None
    return Layout(bands, [(start, start + size) for start, size in zip(offsets, counts, strict=True)])
