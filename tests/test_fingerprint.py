"""What makes two products the same, and what does not."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flights.fingerprint import mosaic_fingerprint, tile_fingerprint
from flights.manifest import Flight, parse_manifest

SOURCE = {"": "s3:0123abcd:4567", ".msk": "s3:89:12"}


def flight(tile: Mapping[str, Any] | None = None, others: int = 0, **changes: Any) -> Flight:
    """A flight whose first tile counts; a key that is None is left out."""
    first = {"tile_id": "t1", "src_uri": "t1.tif", "epsg": 32615, **(tile or {})}
    more = [{"tile_id": f"more{i}", "src_uri": f"more{i}.tif", "epsg": 32615} for i in range(others)]
    body = {"flight_id": "F001", "bands": {"red": 3, "nir": 4}, "out_uri": "/out", "tiles": [first, *more], **changes}
    return parse_manifest(json.dumps({k: v for k, v in body.items() if v is not None}).encode(), "/in")


def of(flight: Flight, source: Mapping[str, str] = SOURCE) -> str:
    return tile_fingerprint(flight, flight.tiles[0], source)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Where it goes and what it is called.
        (flight(), flight(tile={"tile_id": "t9"})),
        (flight(), flight(tile={"dst_uri": "s3://ndvi/t1.tif"})),
        (flight(), flight(flight_id="F002")),
        (flight(), flight(out_uri="s3://ndvi/F001")),
        (flight(), flight(tenant="north")),
        (flight(), flight(acquired="2026-06-14T17:03:00Z")),
        # Who else is there.
        (flight(), flight(others=3)),
        # Another spelling of the same.
        (flight(), flight(tile={"epsg": "EPSG:32615"})),
        (flight(), flight(bands={"nir": 4, "red": 3})),
        (flight(), flight(bands=None, tile={"bands": {"red": 3, "nir": 4}})),
        (flight(), flight(bands={"red": 1, "nir": 2}, tile={"bands": {"red": 3, "nir": 4}})),
        (flight(scale=1), flight(scale=1.0)),
        (flight(scale=2e-4), flight(scale=0.0002)),
        (flight(scale=5), flight(scale=7, tile={"scale": 5})),
        (flight(nodata=0), flight(tile={"nodata": 0.0})),
        (flight(nodata="nan"), flight(nodata="NaN")),
        (flight(bands=None, sensor="naip"), flight(bands=None, tile={"sensor": "naip"})),
        (flight(index="ndvi"), flight()),
    ],
)
def test_the_same_product(one: Flight, other: Flight) -> None:
    assert of(one) == of(other)


VARIANTS: dict[str, Flight] = {
    "plain": flight(),
    "other red": flight(bands={"red": 1, "nir": 4}),
    "red and nir swapped": flight(bands={"red": 4, "nir": 3}),
    "bands by name": flight(bands={"red": "3", "nir": "4"}),
    "by sensor": flight(bands=None, sensor="naip"),
    "by another sensor": flight(bands=None, sensor="odm"),
    "sensor beside bands": flight(sensor="micasense-rededge-mx"),
    "scale": flight(scale=2e-4),
    "scale of a tile": flight(tile={"scale": 3e-4}),
    "scale a band": flight(scale={"red": 2e-4}),
    "scale of the other band": flight(scale={"nir": 2e-4}),
    "offset": flight(offset=2e-4),
    "nodata": flight(nodata=2e-4),
    "nodata 0": flight(nodata=0),
    "nodata nan": flight(nodata="nan"),
    "epsg": flight(tile={"epsg": 32616}),
    "index": flight(index="savi"),
}


def test_another_product() -> None:
    prints = {name: of(variant) for name, variant in VARIANTS.items()}
    assert len(set(prints.values())) == len(prints), prints


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"": "s3:0123abcd:4567"},
        {"": "s3:0123abcd:4568", ".msk": "s3:89:12"},
        {"": "s3:0123abce:4567", ".msk": "s3:89:12"},
        {"": "s3:89:12", ".msk": "s3:0123abcd:4567"},
        {"": "s3:0123abcd:4567", ".aux.xml": "s3:89:12"},
        {"red": "s3:0123abcd:4567", ".msk": "s3:89:12"},
    ],
)
def test_another_source(source: dict[str, str]) -> None:
    assert of(flight(), source) != of(flight())


def test_the_order_in_which_sources_are_named_means_nothing() -> None:
    assert of(flight(), dict(reversed(SOURCE.items()))) == of(flight())


def test_a_fingerprint_is_short_plain_text() -> None:
    assert set(of(flight())) <= set("0123456789abcdef")
    assert len(of(flight())) == 32


def test_a_flight_that_has_been_through_a_message_keeps_its_fingerprints() -> None:
    for name, variant in VARIANTS.items():
        assert of(Flight.model_validate_json(variant.model_dump_json())) == of(variant), name


@pytest.mark.parametrize("seed", ["0", "1"])
def test_every_process_computes_the_same(seed: str) -> None:
    program = "from tests.test_fingerprint import VARIANTS, of; print(*(of(v) for v in VARIANTS.values()))"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    printed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert printed.stdout.split() == [of(v) for v in VARIANTS.values()], printed.stderr


# ---------------------------------------------------------------- mosaics


@pytest.mark.parametrize(
    ("tiles", "complete", "index"),
    [
        ({"a": "1", "b": "3"}, True, "ndvi"),
        ({"a": "2", "b": "1"}, True, "ndvi"),
        ({"b": "2", "a": "1"}, True, "ndvi"),  # laid in another order
        ({"a": "1"}, True, "ndvi"),
        ({"a": "1", "b": "2", "c": "3"}, True, "ndvi"),
        ({"a": "1", "c": "2"}, True, "ndvi"),
        ({"a": "1", "b": "2"}, False, "ndvi"),
        ({"a": "1", "b": "2"}, True, "savi"),
    ],
)
def test_another_mosaic(tiles: dict[str, str], complete: bool, index: str) -> None:
    first = mosaic_fingerprint(flight(), {"a": "1", "b": "2"}, True)
    assert mosaic_fingerprint(flight(index=index), tiles, complete) != first


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3)), st.booleans())
def test_the_same_mosaic(tiles: dict[str, str], complete: bool) -> None:
    first = mosaic_fingerprint(flight(), tiles, complete)
    assert mosaic_fingerprint(flight(flight_id="F9", out_uri="/x"), dict(tiles.items()), complete) == first
