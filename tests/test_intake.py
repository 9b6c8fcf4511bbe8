"""Taking flights in: no work for a flight that would write two things to one place, or one over a source."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from flights.errors import Code, ManifestRefused
from flights.intake import load_flight
from flights.store import Stores, open_stores
from flights.survey import survey
from tests.synthetic import manifest

KEYS = ["t?.tif", "t#1.tif", "t%20.tif", "t+1.tif", "t 1.tif", "ä/t.tif", "a//b/../t.tif"]


@pytest.fixture
def stores() -> Stores:
    return open_stores()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 in this process, with the bucket `raw`: a boto3 client."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="raw")
        yield client


def save(folder: Path, content: Any, name: str = "m.json") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


def put(client: Any, content: Any, key: str = "in/m.json") -> str:
    client.put_object(Bucket="raw", Key=key, Body=json.dumps(content).encode())
    return f"s3://raw/{key}"


def refusal(stores: Stores, uri: str) -> ManifestRefused:
    with pytest.raises(ManifestRefused) as refused:
        load_flight(stores, uri)
    assert str(refused.value).count(uri) >= 1
    return refused.value


def tile(tile_id: str = "a", src: Any = "a.tif", dst: str | None = None) -> dict[str, Any]:
    return {"tile_id": tile_id, "src_uri": src} | ({"dst_uri": dst} if dst else {})


# ---------------------------------------------------------------- found


@pytest.mark.parametrize("spelling", ["absolute", "relative", "file", "dotted"])
def test_a_manifests_own_folder_is_where_its_uris_start(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    uri = save(tmp_path / "in", manifest("F001", [tile()], out_uri="out"))
    monkeypatch.chdir(tmp_path)
    said = {"absolute": uri, "relative": "in/m.json", "file": f"file://{uri}", "dotted": "./x/../in/m.json"}[spelling]
    flight = load_flight(stores, said)
    assert flight.tiles[0].src_uri == f"{tmp_path}/in/a.tif"
    assert flight.tiles[0].dst_uri == f"{tmp_path}/in/out/tiles/a.ndvi.tif"
    assert flight.report_uri == f"{tmp_path}/in/out/F001.report.json"


def test_a_folder_above_a_link_is_above_what_it_links_to(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "in", manifest("F001", [tile()], out_uri="./out//x"))
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "link").symlink_to("in/deep")
    monkeypatch.chdir(tmp_path)
    flight = load_flight(stores, "link/../m.json")
    assert os.path.realpath(str(flight.tiles[0].src_uri)) == f"{tmp_path}/in/a.tif"
    assert flight.out_uri == f"{tmp_path}/link/../out/x"


def test_a_manifest_beside_the_program(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, manifest("F001", [tile()], out_uri="out"))
    monkeypatch.chdir(tmp_path)
    assert load_flight(stores, "m.json").tiles[0].src_uri == f"{tmp_path}/a.tif"


@pytest.mark.parametrize("key", ["m.json", "in/m.json", "in/odd #?%20+ä/m.json"])
def test_a_manifest_in_a_bucket(stores: Stores, bucket: Any, key: str) -> None:
    uri = put(bucket, manifest("F001", [tile()], out_uri="out"), key)
    flight = load_flight(stores, uri)
    prefix = uri.rsplit("/", 1)[0]
    assert flight.tiles[0].src_uri == f"{prefix}/a.tif"
    assert flight.out_uri == f"{prefix}/out"


def test_a_byte_order_mark_is_no_matter(stores: Stores, tmp_path: Path) -> None:
    uri = save(tmp_path, "\ufeff" + json.dumps(manifest("F001", [tile()], out_uri="out"), indent=1))
    assert load_flight(stores, uri).flight_id == "F001"


# ---------------------------------------------------------------- not found, not read


def test_a_missing_file(stores: Stores, tmp_path: Path) -> None:
    assert refusal(stores, f"{tmp_path}/none.json").code is Code.MANIFEST_MISSING
    assert refusal(stores, f"{tmp_path}/no/folder/none.json").code is Code.MANIFEST_MISSING


def test_a_file_taken_for_a_folder(stores: Stores, tmp_path: Path) -> None:
    uri = save(tmp_path, "{}")
    assert refusal(stores, f"{uri}/m.json").code is Code.MANIFEST_MISSING


def test_a_folder_is_no_manifest(stores: Stores, tmp_path: Path) -> None:
    assert "is a folder" in str(refusal(stores, str(tmp_path)))


@pytest.mark.parametrize("uri", ["s3://raw/none.json", "s3://no-such-bucket/m.json"])
def test_a_missing_object(stores: Stores, bucket: Any, uri: str) -> None:
    assert refusal(stores, uri).code is Code.MANIFEST_MISSING


def test_a_missing_bucket_is_told_before_any_work(stores: Stores, bucket: Any, tmp_path: Path) -> None:
    assert "bucket no-such-bucket does not exist" in str(refusal(stores, "s3://no-such-bucket/m.json"))
    bucket.put_object(Bucket="raw", Key="in/a.tif", Body=b"")
    flight = load_flight(stores, put(bucket, manifest("F001", [tile()], out_uri="s3://no-such-bucket/ndvi")))
    (seen,) = survey(stores, flight)
    assert seen.error is not None
    assert seen.error.code is Code.DESTINATION_REFUSED
    assert "bucket no-such-bucket does not exist" in str(seen.error)


@pytest.mark.parametrize(
    ("content", "code", "flight_id", "named"),
    [
        ("{", Code.MANIFEST_NOT_JSON, "", "not JSON"),
        (manifest("F001", [tile()]), Code.MANIFEST_INVALID, "F001", "'a'"),
        (manifest("../x", [tile()], out_uri="out"), Code.MANIFEST_INVALID, "", "'../x'"),
        (manifest("F001", [tile(), tile()], out_uri="out"), Code.TILE_CLASH, "F001", "'a'"),
        (manifest("F001", [tile()], out_uri="out", colour=1), Code.MANIFEST_INVALID, "F001", "colour"),
    ],
)
def test_a_refused_manifest_is_named(
    stores: Stores, tmp_path: Path, content: Any, code: Code, flight_id: str, named: str
) -> None:
    refused = refusal(stores, save(tmp_path, content))
    assert (refused.code, refused.flight_id) == (code, flight_id)
    assert named in str(refused)


@pytest.mark.parametrize("uri", ["\ud800.tif"], ids=ascii)
@pytest.mark.parametrize("key", ["src_uri", "dst_uri", "out_uri"])
def test_a_name_that_no_file_can_have_is_refused(stores: Stores, tmp_path: Path, key: str, uri: str) -> None:
    content = manifest("F001", [tile()], out_uri="out")
    (content if key == "out_uri" else content["tiles"][0])[key] = uri
    assert refusal(stores, save(tmp_path, content)).code is Code.MANIFEST_INVALID


# ---------------------------------------------------------------- one place, two things


@pytest.mark.parametrize(
    "dst",
    [
        "in/a.tif",
        "./in/a.tif",
        "in/../in/a.tif",
        "in//a.tif",
        "{root}/in/a.tif",
        "file://{root}/in/a.tif",
        "link.tif",
        "hop.tif",
        "door/a.tif",
        "door/../in/a.tif",
    ],
)
@pytest.mark.parametrize("whose", ["its own", "another tile's"])
def test_a_destination_that_is_a_source(stores: Stores, tmp_path: Path, dst: str, whose: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tif").write_bytes(b"source")
    (tmp_path / "link.tif").symlink_to("in/a.tif")
    (tmp_path / "hop.tif").symlink_to(tmp_path / "link.tif")
    (tmp_path / "door").symlink_to("in")
    dst = dst.format(root=tmp_path)
    tiles = [tile("a", "in/a.tif", dst)] if whose == "its own" else [tile("b", "in/b.tif", dst), tile("a", "in/a.tif")]
    refused = refusal(stores, save(tmp_path, manifest("F001", tiles, out_uri="out")))
    assert (refused.code, refused.flight_id) == (Code.TILE_CLASH, "F001")
    for part in (repr(tiles[0]["tile_id"]), "'a'", "source", f"{tmp_path}/in/a.tif"):
        assert part in str(refused)
    assert (tmp_path / "in/a.tif").read_bytes() == b"source"


def test_a_source_that_is_a_link_to_the_destination(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "real.tif").write_bytes(b"x")
    (tmp_path / "a.tif").symlink_to("real.tif")
    refused = refusal(stores, save(tmp_path, manifest("F001", [tile("a", "a.tif", "real.tif")], out_uri="out")))
    assert refused.code is Code.TILE_CLASH


@pytest.mark.parametrize("band", ["red", "nir"])
def test_a_destination_that_is_one_band_of_a_source(stores: Stores, tmp_path: Path, band: str) -> None:
    src = {"red": "r.tif", "nir": "n.tif"}
    refused = refusal(stores, save(tmp_path, manifest("F001", [tile("a", src, f"./{src[band]}")], out_uri="out")))
    assert refused.code is Code.TILE_CLASH
    assert src[band] in str(refused)


@pytest.mark.parametrize(
    "dst", ["out/x.tif", "./out/x.tif", "out/./y/../x.tif", "out//x.tif", "{root}/out/x.tif", "exit/x.tif"]
)
def test_two_tiles_of_one_destination(stores: Stores, tmp_path: Path, dst: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "exit").symlink_to("out")
    tiles = [tile("a", "a.tif", "out/x.tif"), tile("b", "b.tif", dst.format(root=tmp_path))]
    refused = refusal(stores, save(tmp_path, manifest("F001", tiles, out_uri="out")))
    assert refused.code is Code.TILE_CLASH
    for part in ("'a'", "'b'", f"{tmp_path}/out/x.tif"):
        assert part in str(refused)


def test_a_destination_that_another_tile_has_by_default(stores: Stores, tmp_path: Path) -> None:
    tiles = [tile("a", "a.tif"), tile("b", "b.tif", "out/tiles/a.ndvi.tif")]
    refused = refusal(stores, save(tmp_path, manifest("F001", tiles, out_uri="out")))
    assert refused.code is Code.TILE_CLASH


@pytest.mark.parametrize(
    ("dst", "what"), [("out/F001.report.json", "report"), ("out/F001.ndvi.tif", "mosaic"), ("./F001.ndvi.tif", "")]
)
def test_a_destination_that_the_flight_needs(stores: Stores, tmp_path: Path, dst: str, what: str) -> None:
    uri = save(tmp_path, manifest("F001", [tile("a", "a.tif", dst)], out_uri="out"))
    if not what:  # beside the folder of the flight's products it is nobody's
        assert load_flight(stores, uri).tiles[0].dst_uri.endswith("F001.ndvi.tif")
        return
    refused = refusal(stores, uri)
    assert refused.code is Code.TILE_CLASH
    for part in ("'a'", what, f"{tmp_path}/{dst}"):
        assert part in str(refused)


@pytest.mark.parametrize(("src", "what"), [("F001.report.json", "report"), ("x/../F001.ndvi.tif", "mosaic")])
def test_a_source_where_the_flight_would_write(stores: Stores, tmp_path: Path, src: str, what: str) -> None:
    refused = refusal(stores, save(tmp_path, manifest("F001", [tile("a", src)], out_uri=".")))
    assert refused.code is Code.TILE_CLASH
    for part in ("'a'", what, "out_uri"):
        assert part in str(refused)


def test_two_tiles_may_share_a_source(stores: Stores, tmp_path: Path) -> None:
    tiles = [tile("a", "both.tif"), tile("b", "./both.tif")]
    assert len(load_flight(stores, save(tmp_path, manifest("F001", tiles, out_uri="out"))).tiles) == 2


# ---------------------------------------------------------------- in buckets, keys are opaque


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("clash", ["source", "destination", "report", "mosaic"])
def test_one_object_twice(stores: Stores, bucket: Any, key: str, clash: str) -> None:
    uri = f"s3://raw/{key}"
    content = {
        "source": manifest("F001", [tile("a", uri, uri)], out_uri="s3://raw/out"),
        "destination": manifest("F001", [tile("a", "a.tif", uri), tile("b", "b.tif", uri)], out_uri="s3://raw/out"),
        "report": manifest("F001", [tile("a", "a.tif", f"{uri}/F001.report.json")], out_uri=f"{uri}/"),
        "mosaic": manifest("F001", [tile("a", "a.tif", f"{uri}/F001.ndvi.tif")], out_uri=uri),
    }[clash]
    refused = refusal(stores, put(bucket, content))
    assert refused.code is Code.TILE_CLASH
    assert uri in str(refused)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("s3://raw/x/t.tif", "s3://raw/x//t.tif"),
        ("s3://raw/x/t.tif", "s3://raw/x/./t.tif"),
        ("s3://raw/x/t.tif", "s3://raw/y/../x/t.tif"),
        ("s3://raw/x/t 1.tif", "s3://raw/x/t%201.tif"),
        ("s3://raw/x/t+1.tif", "s3://raw/x/t 1.tif"),
        ("s3://raw/x/t.tif", "s3://raw/x/T.tif"),
        ("s3://raw/x/t.tif", "s3://other/x/t.tif"),
        ("s3://raw/x/t.tif", "/raw/x/t.tif"),
    ],
)
def test_two_keys_that_look_alike_are_two_objects(stores: Stores, bucket: Any, src: str, dst: str) -> None:
    flight = load_flight(stores, put(bucket, manifest("F001", [tile("a", src, dst)], out_uri="s3://raw/out")))
    assert (flight.tiles[0].src_uri, flight.tiles[0].dst_uri) == (src, dst)


def test_a_relative_and_an_absolute_spelling_of_one_key(stores: Stores, bucket: Any) -> None:
    content = manifest("F001", [tile("a", "../raw/t.tif", "s3://raw/raw/t.tif")], out_uri="s3://raw/out")
    assert refusal(stores, put(bucket, content)).code is Code.TILE_CLASH
