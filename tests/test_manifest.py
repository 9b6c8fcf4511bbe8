"""Manifests: what is accepted, what it comes to mean, and what is refused with its place and value."""

import json
from contextlib import suppress
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flights.errors import Code, ManifestRefused
from flights.manifest import Flight, Tile, folder_of, join_uri, parse_manifest

LOCAL, PREFIX = "/data/flights", "s3://raw/in/F001"


def document(**changes: Any) -> dict[str, Any]:
    """A sound manifest of one tile; `tile` changes the tile, the value None takes a key away."""
    tile = {"tile_id": "t1", "src_uri": "t1.tif", "epsg": 32615} | changes.pop("tile", {})
    body = {"flight_id": "F001", "bands": {"red": 3, "nir": 4}, "out_uri": "out", "tiles": [tile]} | changes
    if isinstance(body["tiles"], list):
        body["tiles"] = [without_none(t) if isinstance(t, dict) else t for t in body["tiles"]]
    return without_none(body)


def without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


def parse(content: Any, base: str = LOCAL) -> Flight:
    return parse_manifest(content if isinstance(content, bytes) else json.dumps(content).encode(), base)


def refusal(content: Any, base: str = LOCAL) -> ManifestRefused:
    with pytest.raises(ManifestRefused) as refused:
        parse(content, base)
    return refused.value


def only(flight: Flight) -> Tile:
    (tile,) = flight.tiles
    return tile


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text.encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        lambda text: f"\n\n {text} \n".encode(),
    ],
    ids=["plain", "bom", "crlf", "bom-crlf", "blank"],
)
def test_every_editors_json_is_read(wrap: Any) -> None:
    flight = parse(wrap(json.dumps(document(tenant="Höfe"), indent=2, ensure_ascii=False)))
    assert (flight.flight_id, flight.tenant, only(flight).epsg) == ("F001", "Höfe", 32615)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", ["is empty"]),
        (b"   ", ["is empty"]),
        (b"{", ["not JSON"]),
        (b"<html><body>404</body></html>", ["not JSON", "<html>"]),
        (b"flight_id: F001", ["not JSON", "flight_id: F001"]),
        (json.dumps(document()).encode()[:-1], ["not JSON", "column"]),
        (json.dumps(document()).encode() + b"{}", ["not JSON", "more after its end"]),
        (json.dumps(document(scale=float("nan"))).encode(), ["NaN"]),
        (json.dumps(document(scale=float("inf"))).encode(), ["Infinity"]),
        (json.dumps(document(scale=-float("inf"))).encode(), ["-Infinity"]),
        (b'{"flight_id": "a", "flight_id": "b", "tiles": []}', ["'flight_id'", "twice"]),
        (b'{"flight_id": "a", "tiles": [{"epsg": 1, "epsg": 2}]}', ["'epsg'", "twice"]),
        (b'{"flight_id": "a",\n"tiles": [],\n}', ["a comma too many before '}'", "line 2"]),
        (b'{"flight_id": "a"\n"tiles": []}', ["line 2, column 1", "near"]),
        (b'{"flight_id": "a", // the field\n"tiles": []}', ["no comments", "'// the field'", "line 1"]),
        (b"{'flight_id': 'a', 'tiles': []}", ["double quotes", "line 1"]),
        (b"II*\0\x08\0\0\0\xfe", ["a raster, not a manifest"]),
        (b"[" * 100_000, ["not JSON"]),
        (b'{"scale": ' + b"9" * 5000 + b"}", ["not JSON"]),
        (json.dumps(document()).encode("utf-16"), ["not UTF-8", "byte 0"]),
        (json.dumps(document(tenant="Höfe"), ensure_ascii=False).encode("latin-1"), ["not UTF-8"]),
    ],
)
def test_bytes_that_are_no_manifest(raw: bytes, named: list[str]) -> None:
    refused = refusal(raw)
    assert refused.code is Code.MANIFEST_NOT_JSON
    for part in named:
        assert part in str(refused)


# ---------------------------------------------------------------- keys and values


@pytest.mark.parametrize(
    ("content", "named"),
    [
        # Another kind of document.
        ([], ["an object", "[]"]),
        (None, []),
        ("F001", []),
        (3, []),
        # Keys.
        (document(colour=1), ["colour", "unknown key", "known are"]),
        (document(dtype="uint8"), ["dtype", "'uint8'", "float32, int16"]),
        (document(index="NDVI"), ["index", "did you mean ndvi?"]),
        (document(tile={"source": "a.tif"}), ["tiles[0].source: unknown key", "src_uri"]),
        (document(bands={"Red": 3, "nir": 5}), ["bands", "'Red' is no name of a band", "did you mean red?"]),
        (document(bands={"red": 3, "nir": 5, "gren": 2}), ["bands names gren", "did you mean green"]),
        (document(tenant="farm north"), ["tenant", "'farm north'", "space", "queue"]),
        (document(senser="naip"), ["senser", "unknown key", "did you mean sensor?"]),
        (document(epsg=32615), ["epsg", "unknown key", "each of the tiles"]),
        (document(tile={"tile-id": "x"}), ["tiles[0].tile-id", "did you mean tile_id?"]),
        (document(tile={"index": "ndvi"}), ["tiles[0].index", "the flight, not to a tile"]),
        (document(tiles_=[]), ["tiles_", "unknown key"]),
        (document(tile={"dst": "x"}), ["tiles[0].dst", "unknown key"]),
        ({**document(), "out-uri": "x"}, ["out-uri", "unknown key"]),
        ({**document(), "note (old)": "x"}, ["note (old)", "unknown key"]),
        (document(tile={"src-uri": "x"}), ["tiles[0]", "src-uri", "unknown key"]),
        (document(flight_id=None), ["flight_id", "required"]),
        (document(tiles=None), ["tiles", "required"]),
        (document(tile={"tile_id": None}), ["tiles[0].tile_id", "required"]),
        (document(tile={"src_uri": None}), ["tiles[0].src_uri", "required"]),
        (document(tile={"epsg": None}), ["tiles[0].epsg", "required"]),
        # Tiles.
        (document(tiles=[]), ["tiles", "0 tiles"]),
        (document(tiles={}), ["tiles"]),
        (document(tiles="t1"), ["tiles"]),
        (document(tiles=["t1.tif"]), ["tiles[0]"]),
        # Where things are.
        (document(tile={"src_uri": "http://h/t.tif"}), ["tiles[0].src_uri", "'http://h/t.tif'", "s3://"]),
        (document(tile={"src_uri": "https://h/t.tif"}), ["tiles[0].src_uri", "'https://h/t.tif'"]),
        (document(tile={"src_uri": "gs://b/t.tif"}), ["tiles[0].src_uri", "'gs://b/t.tif'"]),
        (document(tile={"src_uri": "S3://b/t.tif"}), ["tiles[0].src_uri", "'S3://b/t.tif'"]),
        (document(tile={"src_uri": "s3://raw"}), ["tiles[0].src_uri", "'s3://raw'", "folder"]),
        (document(tile={"src_uri": "s3://raw/"}), ["tiles[0].src_uri", "'s3://raw/'"]),
        (document(tile={"src_uri": "s3:///t.tif"}), ["tiles[0].src_uri", "'s3:///t.tif'"]),
        (document(tile={"src_uri": "tiles/"}), ["tiles[0].src_uri", "'tiles/'", "folder"]),
        (document(tile={"src_uri": ""}), ["tiles[0].src_uri", "''"]),
        (document(tile={"src_uri": "a\0b"}), ["tiles[0].src_uri", r"a\x00b"]),
        (document(tile={"src_uri": "\ud800.tif"}), ["tiles[0].src_uri"]),
        (document(tile={"src_uri": 7}), ["tiles[0].src_uri", "7"]),
        (document(tile={"src_uri": ["a.tif"]}), ["tiles[0].src_uri", "a.tif"]),
        (document(tile={"dst_uri": "http://h/t.tif"}), ["tiles[0].dst_uri", "'http://h/t.tif'"]),
        (document(tile={"dst_uri": "s3://ndvi/tiles/"}), ["tiles[0].dst_uri", "'s3://ndvi/tiles/'", "folder"]),
        (document(tile={"dst_uri": "\udc80.tif"}), ["tiles[0].dst_uri"]),
        (document(out_uri="http://h/out"), ["out_uri", "'http://h/out'"]),
        (document(out_uri=" "), ["out_uri", "' '"]),
        (document(out_uri=7), ["out_uri", "7"]),
        (document(out_uri=None), ["'t1'", "dst_uri", "out_uri"]),
        # A file a band.
        (document(tile={"src_uri": {}}), ["'t1'", "src_uri", "red", "nir"]),
        (document(tile={"src_uri": {"red": "r.tif"}}), ["'t1'", "src_uri", "lacks nir"]),
        (document(tile={"src_uri": {"red": "r", "nir": "n", "blue": "b"}}), ["'t1'", "src_uri", "blue"]),
        (document(tile={"src_uri": {"red": "http://h/r", "nir": "n"}}), ["tiles[0].src_uri", "'http://h/r'"]),
        (document(tile={"src_uri": {"Red": "r", "nir": "n"}}), ["tiles[0].src_uri.Red: 'Red' is no name of a band"]),
        ({"run_id": "r", "outcomes": []}, ["a flight's report, not its manifest"]),
        (document(sensor="MicaSense RedEdge_MX"), ["did you mean micasense-rededge-mx? "]),
        # Which band is which.
        (document(bands=None), ["'t1'", "`sensor`", "`bands`"]),
        (document(bands={}), ["bands"]),
        (document(bands=None, tile={"bands": {}}), ["bands"]),
        (document(bands={"red": 0, "nir": 4}), ["bands.red: 0 is neither", "1 for the first"]),
        (document(bands={"red": -1, "nir": 4}), ["bands.red"]),
        (document(bands={"red": 3.5, "nir": 4}), ["bands.red"]),
        (document(bands={"red": True, "nir": 4}), ["bands.red"]),
        (document(bands={"red": "", "nir": 4}), ["bands.red"]),
        (document(bands={"red": 3, "nir": [4]}), ["bands.nir"]),
        (document(bands={"red-650": 0, "nir": 4}), ["bands", "red-650"]),
        (document(bands={"RED": 3, "nir": 4}), ["bands", "RED"]),
        (document(bands=[3, 4]), ["bands", "must be an object"]),
        (document(bands={"red": 3}), ["'t1'", "`bands`", "nir"]),
        (document(tile={"bands": {"nir": 3}}), ["'t1'", "`bands`", "red"]),
        (document(bands={"red": 3, "nir": 3}), ["'t1'", "red and nir", "band 3"]),
        (document(bands={"red": "x", "nir": "x"}), ["'t1'", "red and nir", "'x'"]),
        (document(bands=None, sensor="sentinel-2-l2a"), ["'t1'", "a file a band", "src_uri", "`bands`"]),
        (document(tile={"bands": {"red": 0}}), ["tiles[0].bands.red"]),
        (document(sensor="micasense-rededge-mxx"), ["'micasense-rededge-mxx'", "micasense-rededge-mx "]),
        (document(tile={"sensor": "nap"}), ["tiles[0]", "'nap'", "naip"]),
        (document(sensor=""), ["sensor ''"]),
        (document(sensor=3), ["sensor"]),
        # What pixels mean.
        (document(scale="0.1"), ["scale", "'0.1'"]),
        (document(scale=True), ["scale", "true"]),
        (document(scale=[1]), ["scale"]),
        (document(scale=0), ["scale: 0 is no scale", "above 0"]),
        (document(scale={"red": -0.0001, "nir": 0.0001}), ["scale.red: -0.0001 is no scale"]),
        (document(scale={"red": "x"}), ["scale.red", "'x'"]),
        (document(offset={"nir": False}), ["offset.nir", "false"]),
        (document(nodata="none"), ["nodata", "'none'"]),
        (document(nodata=True), ["nodata", "true"]),
        (document(nodata={"red": []}), ["nodata"]),
        (document(tile={"scale": "x"}), ["tiles[0].scale", "'x'"]),
        # What kind of flight.
        (document(index="evi9"), ["index", "evi9"]),
        (document(index=["ndvi"]), ["index"]),
        (document(acquired="yesterday"), ["acquired: 'yesterday'", "2026-06-14T17:03:00Z"]),
        (document(acquired=20260614), ["acquired: 20260614", "2026-06-14"]),
        (document(acquired="20260614"), ["acquired: '20260614'", "2026-06-14"]),
        (document(acquired="2026-06-14T17:03:00"), ["acquired", "with its zone"]),
        (document(flight_id=20260614), ["is a number, not a name", 'in quotes: "20260614"']),
        (document(mask_classes="cloud"), ["mask_classes: 'cloud' must be a list"]),
        (document(tenant="a/b"), ["tenant", "'a/b'"]),
    ],
)  # fmt: skip
def test_manifests_that_are_refused(content: Any, named: list[str]) -> None:
    refused = refusal(content)
    assert refused.code is Code.MANIFEST_INVALID
    for part in named:
        assert part in str(refused)


@pytest.mark.parametrize(
    ("key", "literal"),
    [
        ("scale", "1" + "0" * 400),
        ("offset", "-1" + "0" * 400),
        ("nodata", "1" + "0" * 400),
        ("scale", "1e999"),
        ("offset", "-1e999"),
    ],
)
def test_a_number_that_no_float64_holds_is_refused(key: str, literal: str) -> None:
    refused = refusal(json.dumps(document(**{key: 12345})).replace("12345", literal).encode())
    assert refused.code in (Code.MANIFEST_INVALID, Code.MANIFEST_NOT_JSON)
    assert key in str(refused)


BAD_NAMES = [
    "../x", "/abs", "a/b", "a\\b", "", " t ", "t ", " t", "x\0y", ".", "..", "...", "a..b", ".hidden", "t.", "a" * 300,
    "a\nb", "a\n", "\n", "a\tb", "a:b", "a*b", "a?b", "a#b", "a%2Fb", "a|b", '"', "a\u2028b", "a\u00a0b", "a\u202eb",
    "é" * 61, "\ud800", 7, 1.5, True, [], {},
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=[ascii(n)[:20] for n in BAD_NAMES])
@pytest.mark.parametrize("key", ["flight_id", "tile_id"])
def test_ids_that_are_no_names(key: str, name: Any) -> None:
    refused = refusal(document(flight_id=name) if key == "flight_id" else document(tile={"tile_id": name}))
    assert refused.code is Code.MANIFEST_INVALID
    assert ("flight_id:" if key == "flight_id" else "tiles[0].tile_id:") in str(refused)
    assert len(str(refused)) < 300


@pytest.mark.parametrize("name", ["t0001", "a", "7", "r0 c1", "F001.2026-06-14", "_x", "Höfe_Süd", "北", "a" * 120])
def test_ids_that_are_names(name: str) -> None:
    flight = parse(document(flight_id=name, tile={"tile_id": name}))
    assert (flight.flight_id, only(flight).tile_id) == (name, name)
    assert only(flight).dst_uri == f"{LOCAL}/out/tiles/{name}.ndvi.tif"


@pytest.mark.parametrize("epsg", [32615, "32615", "EPSG:32615", "epsg:32615", " EPSG:32615 "])
def test_spellings_of_an_epsg_code(epsg: Any) -> None:
    assert only(parse(document(tile={"epsg": epsg}))).epsg == 32615


@pytest.mark.parametrize(
    "epsg",
    [
        32615.0,
        True,
        "",
        "UTM 15N",
        "EPSG:",
        "EPSG:32615+5773",
        "ESRI:102100",
        0,
        -32615,
        12,
        10**9,
        [32615],
        {},
        "\uff13\uff12\uff16\uff11\uff15",
        "32_615",
        "3.2615e4",
        "urn:ogc:def:crs:EPSG::32615",
    ],
)
def test_what_is_no_epsg_code(epsg: Any) -> None:
    refused = refusal(document(tile={"epsg": epsg}))
    assert refused.code is Code.MANIFEST_INVALID
    assert "tiles[0].epsg" in str(refused)
    assert (repr(epsg) if isinstance(epsg, str) else json.dumps(epsg)) in str(refused)


def test_two_tiles_of_one_id() -> None:
    tiles = [{"tile_id": name, "src_uri": f"{i}.tif", "epsg": 32615} for i, name in enumerate(["a", "b", "a"])]
    refused = refusal(document(tiles=tiles))
    assert refused.code is Code.TILE_CLASH
    assert "tile_id 'a'" in str(refused)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = str(refusal(document(colour=1, scale="x", tile={"epsg": "x", "tile_id": "../x"})))
    for part in ("colour", "scale", "tiles[0].epsg", "tiles[0].tile_id"):
        assert part in said


def test_a_manifest_that_is_wrong_a_thousand_times_is_answered_briefly() -> None:
    said = str(refusal(document(tiles=[{"tile_id": f"t{i}", "src_uri": "x", "epsg": "x"} for i in range(1000)])))
    assert len(said) < 2000
    assert "990 more" in said


@pytest.mark.parametrize(
    ("content", "flight_id"),
    [
        (document(colour=1), "F001"),
        (document(tile={"epsg": "x"}), "F001"),
        (document(bands=None), "F001"),
        (document(flight_id="../x"), ""),
        (document(flight_id=7), ""),
        ([], ""),
    ],
)
def test_a_refusal_carries_the_flight_where_it_has_a_name(content: Any, flight_id: str) -> None:
    assert refusal(content).flight_id == flight_id


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner)))
def test_any_json_is_read_or_refused(value: Any) -> None:
    for content in (value, document(scale=value), document(tile={"src_uri": value}), document(index=value)):
        with suppress(ManifestRefused):
            parse(content)


# ---------------------------------------------------------------- places

KEYS = ["t?.tif", "t#1.tif", "t%20.tif", "t+1.tif", "t 1.tif", "tiles/ä.tif", "a&b=c.tif", "t~.tif", "%2e%2e.tif"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("base", [LOCAL, PREFIX, "s3://raw/odd #?%20+ prefix", "/data/odd #?%20+ folder"])
def test_a_relative_uri_is_kept_as_it_is_spelt(base: str, key: str) -> None:
    tile = only(parse(document(tile={"src_uri": key, "dst_uri": f"made/{key}"}), base))
    assert (tile.src_uri, tile.dst_uri) == (f"{base}/{key}", f"{base}/made/{key}")


@pytest.mark.parametrize("uri", [*(f"s3://raw/x/{key}" for key in KEYS), "s3://raw/a/../b//c/./d.tif", "s3://raw//x"])
@pytest.mark.parametrize("base", [LOCAL, PREFIX])
def test_an_absolute_key_is_opaque(base: str, uri: str) -> None:
    tile = only(parse(document(tile={"src_uri": uri, "dst_uri": uri + ".out"}), base))
    assert (tile.src_uri, tile.dst_uri) == (uri, uri + ".out")


@pytest.mark.parametrize(
    ("base", "uri", "resolved"),
    [
        (LOCAL, "t.tif", "/data/flights/t.tif"),
        (LOCAL, "a/b/t.tif", "/data/flights/a/b/t.tif"),
        (LOCAL, "/abs/t.tif", "/abs/t.tif"),
        (LOCAL, "file:///abs/t.tif", "/abs/t.tif"),
        (LOCAL, "s3://raw/t.tif", "s3://raw/t.tif"),
        (folder_of("/m.json"), "t.tif", "/t.tif"),  # a manifest in the root folder
        (folder_of("/m.json"), "a/t.tif", "/a/t.tif"),
        (PREFIX, "t.tif", "s3://raw/in/F001/t.tif"),
        (PREFIX, "./t.tif", "s3://raw/in/F001/t.tif"),
        (PREFIX, "../t.tif", "s3://raw/in/t.tif"),
        (PREFIX, "../../t.tif", "s3://raw/t.tif"),
        (PREFIX, "a/../t.tif", "s3://raw/in/F001/t.tif"),
        (PREFIX, "/abs/t.tif", "/abs/t.tif"),
        (PREFIX, "s3://other/t.tif", "s3://other/t.tif"),
        (folder_of("s3://raw/m.json"), "t.tif", "s3://raw/t.tif"),
        ("s3://raw/a//b", "t.tif", "s3://raw/a//b/t.tif"),
    ],
)
def test_where_a_source_is(base: str, uri: str, resolved: str) -> None:
    assert only(parse(document(out_uri="/out", tile={"src_uri": uri}), base)).src_uri == resolved


@pytest.mark.parametrize("uri", ["../../../t.tif", "a/../../../../t.tif"])
def test_a_relative_uri_stays_in_its_bucket(uri: str) -> None:
    refused = refusal(document(tile={"src_uri": uri}), PREFIX)
    assert refused.code is Code.MANIFEST_INVALID
    assert repr(uri) in str(refused)
    assert PREFIX in str(refused)


def test_a_file_a_band_is_resolved_band_by_band() -> None:
    src = {"red": "B04.tif", "nir": "s3://other/B08.tif"}
    tile = only(parse(document(bands=None, tile={"src_uri": src}), PREFIX))
    assert tile.src_uri == {"red": f"{PREFIX}/B04.tif", "nir": "s3://other/B08.tif"}
    assert tile.sources == tile.src_uri


@pytest.mark.parametrize(
    ("base", "out_uri", "index", "dst", "report", "mosaic"),
    [
        (LOCAL, "out", "ndvi", "/data/flights/out/tiles/t1.ndvi.tif", "/data/flights/out/F001", "ndvi.tif"),
        (LOCAL, "out/", "ndvi", "/data/flights/out/tiles/t1.ndvi.tif", "/data/flights/out/F001", "ndvi.tif"),
        (LOCAL, "/out", "ndvi", "/out/tiles/t1.ndvi.tif", "/out/F001", "ndvi.tif"),
        (LOCAL, "file:///out", "ndvi", "/out/tiles/t1.ndvi.tif", "/out/F001", "ndvi.tif"),
        (LOCAL, "s3://ndvi/F001/", "ndvi", "s3://ndvi/F001/tiles/t1.ndvi.tif", "s3://ndvi/F001/F001", "ndvi.tif"),
        (LOCAL, "s3://ndvi/F001", "ndvi", "s3://ndvi/F001/tiles/t1.ndvi.tif", "s3://ndvi/F001/F001", "ndvi.tif"),
        (LOCAL, "s3://ndvi/", "ndvi", "s3://ndvi/tiles/t1.ndvi.tif", "s3://ndvi/F001", "ndvi.tif"),
        (LOCAL, "s3://ndvi/a%20#?", "ndvi", "s3://ndvi/a%20#?/tiles/t1.ndvi.tif", "s3://ndvi/a%20#?/F001", "ndvi.tif"),
        (PREFIX, "../out", "ndvi", "s3://raw/in/out/tiles/t1.ndvi.tif", "s3://raw/in/out/F001", "ndvi.tif"),
        (LOCAL, "/", "ndvi", "/tiles/t1.ndvi.tif", "/F001", "ndvi.tif"),
        (LOCAL, "out", "savi", "/data/flights/out/tiles/t1.savi.tif", "/data/flights/out/F001", "savi.tif"),
    ],
)
def test_where_products_go(base: str, out_uri: str, index: str, dst: str, report: str, mosaic: str) -> None:
    flight = parse(document(out_uri=out_uri, index=index), base)
    assert only(flight).dst_uri == dst
    assert flight.report_uri == f"{report}.report.json"
    assert flight.mosaic_uri == f"{report}.{mosaic}"


@pytest.mark.parametrize(
    ("dst_uris", "out_uri"),
    [
        (["/a/b/t1.tif"], "/a/b"),
        (["/a/b/t1.tif", "/a/b/t2.tif"], "/a/b"),
        (["/a/b/t1.tif", "/a/c/t2.tif"], "/a"),
        (["/a/b/t1.tif", "/a/bc/t2.tif"], "/a"),
        (["/a/t1.tif", "/a/b/t2.tif"], "/a"),
        (["x/t1.tif", "/data/flights/y/t2.tif"], "/data/flights"),
        (["s3://ndvi/F001/tiles/t1.tif", "s3://ndvi/F001/tiles/t2.tif"], "s3://ndvi/F001/tiles"),
        (["s3://ndvi/F001/a/t1.tif", "s3://ndvi/F001/b/t2.tif"], "s3://ndvi/F001"),
        (["s3://ndvi/F001/t1.tif", "s3://ndvi/F002/t2.tif"], "s3://ndvi"),
        (["s3://ndvi/t1.tif"], "s3://ndvi"),
        (["s3://ndvi/F 1#/t1.tif", "s3://ndvi/F 1#/x/t2.tif"], "s3://ndvi/F 1#"),
    ],
)
def test_the_folder_that_destinations_share(dst_uris: list[str], out_uri: str) -> None:
    tiles = [{"tile_id": f"t{i}", "src_uri": f"{i}.tif", "epsg": 32615, "dst_uri": u} for i, u in enumerate(dst_uris)]
    flight = parse(document(out_uri=None, tiles=tiles))
    assert flight.out_uri == out_uri
    assert flight.report_uri == f"{out_uri}/F001.report.json"


@pytest.mark.parametrize(
    "dst_uris",
    [["/a/t1.tif", "/b/t2.tif"], ["s3://a/t1.tif", "s3://b/t2.tif"], ["s3://a/t1.tif", "/a/t2.tif"], ["/t1.tif"]],
)
def test_destinations_that_share_no_folder(dst_uris: list[str]) -> None:
    tiles = [{"tile_id": f"t{i}", "src_uri": f"{i}.tif", "epsg": 32615, "dst_uri": u} for i, u in enumerate(dst_uris)]
    refused = refusal(document(out_uri=None, tiles=tiles))
    assert refused.code is Code.MANIFEST_INVALID
    assert "out_uri" in str(refused)


@pytest.mark.parametrize(
    ("folder", "relative", "joined"),
    [
        ("s3://b", "x", "s3://b/x"),
        ("s3://b/", "x", "s3://b/x"),
        ("s3://b/p", "x/y", "s3://b/p/x/y"),
        ("s3://b/p", "s3://c/x", "s3://c/x"),
        ("/a", "x", "/a/x"),
        ("/a", "/x", "/x"),
        ("/", "x", "/x"),
    ],
)
def test_join_uri(folder: str, relative: str, joined: str) -> None:
    assert join_uri(folder, relative) == joined


# ---------------------------------------------------------------- quality bands

BANDS = {"red": "B04.tif", "nir": "B08.tif"}


def test_a_mask_is_a_file_like_a_band() -> None:
    content = document(bands=None, sensor="sentinel-2-l2a", tile={"src_uri": BANDS | {"mask": "SCL.tif"}})
    assert only(parse(content)).sources["mask"] == f"{LOCAL}/SCL.tif"


@pytest.mark.parametrize(
    ("changes", "src_uri", "named"),
    [
        ({"mask_classes": ["cloud"]}, "t1.tif", ["'t1'", "mask"]),
        ({"mask_classes": ["cloud"], "sensor": "sentinel-2-l2a"}, BANDS, ["'t1'", "mask"]),
        ({}, BANDS | {"mask": "m.tif"}, ["'t1'", "sensor"]),
        ({"sensor": "naip"}, BANDS | {"mask": "m.tif"}, ["'t1'", "naip"]),
        ({"sensor": "sentinel-2-l2a", "mask_classes": ["fog"]}, BANDS | {"mask": "m.tif"}, ["'t1'", "fog"]),
        ({"sensor": "sentinel-2-l2a", "mask_classes": "cloud"}, BANDS | {"mask": "m.tif"}, ["mask_classes"]),
    ],
)
def test_masks_that_nobody_can_read(changes: dict[str, Any], src_uri: Any, named: list[str]) -> None:
    refused = refusal(document(**changes, tile={"src_uri": src_uri}))
    assert refused.code is Code.MANIFEST_INVALID
    for part in named:
        assert part in str(refused)


# ---------------------------------------------------------------- a tile's word and its flight's


def each(value: float) -> dict[str, float]:
    """One value for every band in use."""
    return {"red": value, "nir": value}


EACH = {"scale": each(1e-4), "offset": each(-0.1), "nodata": each(0)}


@pytest.mark.parametrize(
    ("flight", "tile", "expected"),
    [
        ({"bands": {"red": 3, "nir": 4}}, {}, {"bands": {"red": 3, "nir": 4}, "sensor": None}),
        ({"bands": {"red": 3, "nir": 4}}, {"bands": {"red": 1, "nir": 2}}, {"bands": {"red": 1, "nir": 2}}),
        ({"bands": {"red": 3, "nir": 4}}, {"sensor": "naip"}, {"bands": None, "sensor": "naip"}),
        ({"bands": None, "sensor": "naip"}, {}, {"bands": None, "sensor": "naip"}),
        ({"bands": None, "sensor": "naip"}, {"sensor": "odm"}, {"sensor": "odm"}),
        (
            {"bands": None, "sensor": "naip"},
            {"bands": {"red": 1, "nir": 2}},
            {"bands": {"red": 1, "nir": 2}, "sensor": "naip"},
        ),
        (
            {"scale": 1e-4, "offset": -0.1, "nodata": 0},
            {},
            {"scale": each(1e-4), "offset": each(-0.1), "nodata": each(0)},
        ),
        (
            {"scale": 1e-4, "offset": -0.1},
            {"scale": 2e-4},
            {"scale": each(2e-4), "offset": None},
        ),
        ({"scale": 1e-4}, {"scale": {"red": 1, "nir": 2}}, {"scale": {"red": 1, "nir": 2}}),
        (
            {"offset": -0.1, "nodata": 7},
            {"offset": 0, "nodata": 0},
            {"offset": each(0), "nodata": each(0)},
        ),  # zero is a word
    ],
)
def test_what_holds_for_a_tile(flight: dict[str, Any], tile: dict[str, Any], expected: dict[str, Any]) -> None:
    parsed = parse(document(**flight, tile=tile))
    rule = parsed.radiometry(only(parsed))
    assert {key: getattr(rule, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("declared", "red", "nir"),
    [(None, None, None), (2, 2, 2), (0, 0, 0), ({"red": 2}, 2, None), ({"red": 2, "nir": 0}, 2, 0)],
)
@pytest.mark.parametrize("key", ["offset", "nodata"])
def test_a_number_or_a_number_a_band(key: Any, declared: Any, red: float | None, nir: float | None) -> None:
    parsed = parse(document(**{key: declared}))
    rule = parsed.radiometry(only(parsed))
    assert (rule.declared(key, "red"), rule.declared(key, "nir")) == (red, nir)


@pytest.mark.parametrize(("declared", "red", "nir"), [(2, 2, 2), ({"red": 2}, 2, None), ({"red": 2, "nir": 1}, 2, 1)])
def test_a_scale_or_a_scale_a_band(declared: Any, red: float | None, nir: float | None) -> None:
    parsed = parse(document(scale=declared))
    rule = parsed.radiometry(only(parsed))
    assert (rule.declared("scale", "red"), rule.declared("scale", "nir")) == (red, nir)


@pytest.mark.parametrize("word", ["nan", "NaN", "NAN"])
def test_nodata_may_be_nan(word: str) -> None:
    found = parse(document(nodata=word)).nodata
    assert isinstance(found, float)
    assert found != found


def test_a_flight_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(document()).flight_id = "x"


# ---------------------------------------------------------------- there and back

names = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_ -]{0,8}[A-Za-z0-9_])?", fullmatch=True)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6)
scales = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
nodatas = numbers | st.just("nan")
roles = st.sampled_from(["red", "nir"])
words = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/"), min_size=1, max_size=8
).filter(
    lambda word: word != "~"  # a home folder, which is refused
)
keys = st.lists(words.filter(lambda w: w.strip() and w not in (".", "..")), min_size=1, max_size=3).map("/".join)
uris = st.one_of(keys, keys.map(lambda k: f"s3://raw/{k}"), keys.map(lambda k: f"/data/{k}"))
radiometry = {
    "bands": st.fixed_dictionaries({"red": st.integers(1, 50) | words, "nir": st.integers(51, 99)}),
    "scale": scales | st.dictionaries(roles, scales, min_size=1),
    "offset": numbers | st.dictionaries(roles, numbers, min_size=1),
    "nodata": nodatas | st.dictionaries(roles, nodatas, min_size=1),
    "sensor": st.sampled_from(["naip", "odm", "micasense-rededge-mx"]),
}
tiles = st.fixed_dictionaries(
    {
        "tile_id": names,
        "src_uri": uris | st.fixed_dictionaries({"red": uris, "nir": uris}),
        "epsg": st.sampled_from([32615, "32615", "EPSG:4326"]),
    },
    optional={"dst_uri": uris, **radiometry},
)
manifests = st.fixed_dictionaries(
    {
        "flight_id": names,
        "sensor": radiometry["sensor"],
        "out_uri": st.sampled_from(["out", "/out", "s3://ndvi/F001/", "s3://ndvi/"]),
        "tiles": st.lists(tiles, min_size=1, max_size=4, unique_by=lambda tile: tile["tile_id"]),
    },
    optional={
        "tenant": names.map(lambda name: name.replace(" ", "-")),
        "acquired": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.isoformat()),
        **{key: value for key, value in radiometry.items() if key != "sensor"},
    },
)


def same(one: Flight, other: Flight) -> bool:
    """Equal in every value, NaN equal to itself."""
    return repr(one) == repr(other)


@settings(deadline=None)
@given(manifests, st.sampled_from([LOCAL, PREFIX]))
def test_a_flight_survives_its_own_json(content: dict[str, Any], base: str) -> None:
    flight = parse(content, base)
    assert same(parse_manifest(flight.model_dump_json().encode(), "/elsewhere"), flight)
    assert same(Flight.model_validate_json(flight.model_dump_json()), flight)


@pytest.mark.parametrize(
    "changes",
    [
        {"out_uri": "s3://ndvi/"},
        {"out_uri": None, "tile": {"dst_uri": "s3://ndvi/t1.tif"}},
        {"out_uri": "/"},
        {"nodata": "nan"},
        {"nodata": {"red": "nan", "nir": 0}},
        {"acquired": "2026-06-14T17:03:00Z"},
        {"acquired": "2026-06-14"},
        {"acquired": "2026-06-14T00:00:00"},
        {"acquired": "2026-06-14T17:03:00+05:30"},
        {"tenant": "north"},
        {"sensor": "sentinel-2-l2a", "bands": None, "tile": {"src_uri": {"red": "r.tif", "nir": "n.tif"}}},
    ],
)
def test_these_flights_survive_their_own_json(changes: dict[str, Any]) -> None:
    flight = parse(document(**changes))
    assert same(parse_manifest(flight.model_dump_json().encode(), "/elsewhere"), flight)
    assert same(Flight.model_validate_json(flight.model_dump_json()), flight)
