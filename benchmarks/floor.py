"""The floor: what is left of a tile when nothing but its bytes is dealt with.

Local: GDAL decodes the two bands once, and encodes an array that is there already; nothing is computed. On S3: as many
bytes as have to move, in parallel, and one PUT.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rasterio
import rasterio.shutil

from benchmarks.contender import NIR, RED, Make
from benchmarks.recipe import COG, ENVIRONMENT, block_rows, strips_profile

PART_BYTES = 8 * 2**20
CONNECTIONS = 8

Span = tuple[int, int]


@contextmanager
def decode_and_encode(product: Path) -> Iterator[Make]:
    """What decodes a source and encodes the pixels of a product of it, which are held in memory meanwhile."""
    with rasterio.open(product) as done:
        profile = strips_profile(done) | {"driver": "MEM"}
        pixels = done.read(1)
    for option in ("tiled", "blockxsize", "blockysize", "BIGTIFF"):
        del profile[option]
    with rasterio.open("pixels", "w+", **profile) as memory:
        memory.write(pixels, 1)
        del pixels

        def make(source: str, product: str) -> None:
            with rasterio.Env(**ENVIRONMENT):
                with rasterio.open(source) as src:
                    for window in block_rows(src):
                        src.read([RED, NIR], window=window)
                rasterio.shutil.copy(memory, product, **COG)

        yield make


def needed_spans(path: Path) -> list[Span]:
    """The bytes of a GeoTIFF that its red and NIR need, as (start, stop): the header, and their blocks, merged."""
    with rasterio.open(path) as src:
        blocks = sorted(span for band in (RED, NIR) for span in _blocks(src, band))
        first = min(start for band in range(1, src.count + 1) for start, _ in _blocks(src, band))
    spans = [(0, first)]
    for start, stop in blocks:
        # GDAL writes the length of a block before it, and again after it: four bytes each.
        if start - spans[-1][1] <= 8:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return spans


def needed_bytes(path: Path) -> int:
    """How many those are."""
    return sum(stop - start for start, stop in needed_spans(path))


def _blocks(src: Any, band: int) -> Iterator[Span]:
    height, width = src.block_shapes[0]
    for row in range(-(-src.height // height)):
        for col in range(-(-src.width // width)):
            at = [src.get_tag_item(f"BLOCK_{what}_{col}_{row}", "TIFF", bidx=band) for what in ("OFFSET", "SIZE")]
            if all(at):
                yield int(at[0]), int(at[0]) + int(at[1])


def move(client: Any, source: tuple[str, str], spans: list[Span], product: tuple[str, str], body: bytes) -> None:
    """GET so many bytes of one object, over parallel connections, and PUT another; both (bucket, key)."""
    parts = [(at, min(at + PART_BYTES, stop)) for start, stop in spans for at in range(start, stop, PART_BYTES)]

    def get(part: Span) -> int:
        said = client.get_object(Bucket=source[0], Key=source[1], Range=f"bytes={part[0]}-{part[1] - 1}")
        return len(said["Body"].read())

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        moved = sum(pool.map(get, parts))
    if moved != sum(stop - start for start, stop in spans):
        raise RuntimeError(f"{moved} bytes of {source} came")
    client.put_object(Bucket=product[0], Key=product[1], Body=body)
