"""Objects on S3: keys are opaque, what lies beside a raster counts, and what was missing may have come."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from flights.errors import Code, ManifestRefused
from flights.intake import load_flight
from tests.cases.scene import (
    FIELD,
    NIR,
    SIDE,
    SOIL,
    SOIL_NIR,
    SOIL_RED,
    Float64,
    Result,
    Scene,
    box,
    expected,
    flat,
    put,
    write_aux,
    write_source,
)
from tests.inprocess import tools_for
from tests.synthetic import place

ODD_KEYS = [
    "flight 7/tile a.tif",
    "flight+7/tile+a.tif",
    "flight%207/tile%20a.tif",
    "flight&7/a=b.tif",
    "flüg 7/feld äöß.tif",
    "flu\u0308g 7/feld.tif",  # the same u with its dots, in two characters
    "it's/(1) [x].tif",
    "UPPER/TILE.TIF",
    "upper/tile.tif",
    "semi;colon,comma@at.tif",
    "~tilde/$x!.tif",
    "hash#1/question?mark=1.tif",
    "percent%/100%2Fraw%.tif",
    "back\\slash.tif",
    "two//slashes.tif",
    "日本/🛰.tif",
    "no-suffix",
    '"quoted"/{brace}|^`.tif',
    "star*.tif",
    " leading and trailing .tif ",
]


def product(s3: Any, uri: str) -> Float64:
    """The pixels of a product on S3."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    with rasterio.MemoryFile(s3.get_object(Bucket=bucket, Key=key)["Body"].read()) as memory, memory.open() as raster:
        values: Float64 = raster.read(1).astype(np.float64)
        return values


def keys(s3: Any, bucket: str) -> set[str]:
    """Every key of a bucket, as S3 spells it."""
    return {item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}


def upload(s3: Any, folder: Path, key: str, bands: Any, **how: Any) -> str:
    """A raster as an object, with what lies beside it; its URI."""
    path = write_source(folder / "made" / "raster.tif", bands, **how)
    for file in path.parent.iterdir():
        s3.upload_file(str(file), "raw", key + file.name.removeprefix("raster.tif"))
        file.unlink()
    return f"s3://raw/{key}"


def run(scene: Scene, **more: Any) -> Result:
    return scene.run(out_uri="s3://ndvi/F", **more)


def test_a_key_is_what_it_is(s3: Any, tmp_path: Path) -> None:
    """JuliaServices/CloudBase.jl#44, apache/arrow-rs-object-store#226, GeoNode/geonode#2111: nothing is decoded.

    Keys that any decoding would make one are different objects, read from and written to.
    """
    scene = Scene(tmp_path)
    for i, key in enumerate(ODD_KEYS):
        uri = upload(s3, tmp_path, key, flat(400 + 100 * i), transform=place(i * SIDE))
        scene.tile(f"k{i}", uri, dst_uri=f"s3://ndvi/out/{key}")
    found = run(scene)
    assert found.report.complete, [o.error for o in found.report.outcomes if o.error]
    for i, outcome in enumerate(found.report.outcomes):
        red = 400 + 100 * i
        np.testing.assert_allclose(product(s3, outcome.dst_uri), (NIR - red) / (NIR + red), atol=1e-6)
    assert keys(s3, "ndvi") == {f"out/{key}" for key in ODD_KEYS} | {"F/F.report.json", "F/F.ndvi.tif"}
    assert keys(s3, "raw") == set(ODD_KEYS)
    assert found.report.mosaic
    mosaic = product(s3, found.report.mosaic.uri)
    assert mosaic.shape == (SIDE, SIDE * len(ODD_KEYS))
    assert np.isfinite(mosaic).all()


@pytest.mark.parametrize("key", ["a/./b.tif", "a/../b.tif", "./b.tif", "../b.tif", "/b.tif"])
def test_dots_and_slashes_in_a_key_lead_nowhere_else(key: str, s3: Any, tmp_path: Path) -> None:
    """hydroshare/hydroshare#2663: that key, or an error; never the object that a path of that spelling would name."""
    scene = Scene(tmp_path)
    for other in ("b.tif", "a/b.tif"):
        upload(s3, tmp_path, other, flat())
    scene.tile("t", f"s3://raw/{key}", dst_uri="s3://ndvi/t.tif")
    try:
        found = run(scene, composite="never")
    except ManifestRefused:
        return
    outcome = found.outcome("t")
    assert outcome.error
    assert outcome.error.code == "source_missing"
    assert key in outcome.error.message


def test_relative_paths_start_from_the_prefix_of_the_manifest(s3: Any, tmp_path: Path) -> None:
    """ngageint/scale#926, bcgov/gwells PR#1801: a prefix with blanks and signs is kept as it is spelled."""
    prefix = "season+1/fl%20ight 7"
    upload(s3, tmp_path, f"{prefix}/src/a b+c.tif", flat())
    upload(s3, tmp_path, "season+1/common/d.tif", flat(SOIL_RED, SOIL_NIR))
    tiles = (
        '{"tile_id": "a", "src_uri": "src/a b+c.tif", "epsg": 32615},'
        '{"tile_id": "b", "src_uri": "../common/d.tif", "epsg": 32615}'
    )
    body = f'{{"flight_id": "F", "bands": {{"red": 3, "nir": 4}}, "out_uri": "out", "tiles": [{tiles}]}}'
    s3.put_object(Bucket="raw", Key=f"{prefix}/m.json", Body=body.encode())
    flight = load_flight(tools_for(tmp_path / "state").stores, f"s3://raw/{prefix}/m.json")
    scene = Scene(tmp_path)
    for tile in flight.tiles:
        scene.tile(tile.tile_id, tile.src_uri, dst_uri=tile.dst_uri)
    found = scene.run(out_uri=flight.out_uri, composite="never")
    assert found.outcome("a").dst_uri == f"s3://raw/{prefix}/out/tiles/a.ndvi.tif"
    assert product(s3, found.outcome("a").dst_uri)[0, 0] == pytest.approx(FIELD)
    assert product(s3, found.outcome("b").dst_uri)[0, 0] == pytest.approx(SOIL)


def test_an_object_that_comes_late(s3: Any, tmp_path: Path) -> None:
    """developmentseed/titiler#791: a 404 that is remembered makes every retry fail; here in one process."""
    tools = tools_for(tmp_path / "state")
    early = upload(s3, tmp_path, "late/early.tif", flat(SOIL_RED, SOIL_NIR))
    scene = Scene(tmp_path)
    scene.tile("early", early)
    scene.tile("late", "s3://raw/late/late.tif")
    first = run(scene, tools=tools)
    assert (first.report.status, first.report.mosaic, first.report.tiles.done) == ("incomplete", None, 1)
    assert first.outcome("late").error
    assert first.outcome("late").error.code == "source_missing"  # type: ignore[union-attr]  # asserted above

    upload(s3, tmp_path, "late/late.tif", flat(), transform=place(SIDE))
    second = run(scene, tools=tools)
    assert (second.report.status, second.report.tiles.done, second.report.tiles.failed) == ("complete", 2, 0)
    assert second.outcome("early").cached
    assert product(s3, second.outcome("late").dst_uri)[0, 0] == pytest.approx(FIELD)
    assert second.report.mosaic
    assert product(s3, second.report.mosaic.uri).shape == (SIDE, 2 * SIDE)


def test_an_object_that_is_replaced_between_runs(s3: Any, tmp_path: Path) -> None:
    """The same size, the same name, other pixels: made anew, and the composite with it."""
    tools = tools_for(tmp_path / "state")
    scene = Scene(tmp_path)
    scene.tile("t", upload(s3, tmp_path, "t.tif", flat()))
    assert product(s3, run(scene, tools=tools).outcome("t").dst_uri)[0, 0] == pytest.approx(FIELD)
    upload(s3, tmp_path, "t.tif", flat(SOIL_RED, SOIL_NIR))
    found = run(scene, tools=tools)
    assert found.outcome("t").cached is False
    assert product(s3, found.outcome("t").dst_uri)[0, 0] == pytest.approx(SOIL)
    assert found.report.mosaic
    assert product(s3, found.report.mosaic.uri)[0, 0] == pytest.approx(SOIL)


def test_what_lies_beside_an_object_counts(s3: Any, tmp_path: Path) -> None:
    """nasa-gibs/mrf#68, sethfitz/marblecutter PR#100: a mask or nodata beside the raster, also under an odd key."""
    under = box(slice(8), slice(None))
    bands = put(flat(), {(20, 20): (7, 7)})
    scene = Scene(tmp_path)
    masked = upload(s3, tmp_path, "odd &+%20 key.TIF", bands, shown=~under, mask_inside=False)
    assert "odd &+%20 key.TIF.msk" in keys(s3, "raw")
    scene.tile("masked", masked)
    noted = upload(s3, tmp_path, "noted.tif", bands)
    write_aux(tmp_path / "made" / "noted.tif", {i: {"NoDataValue": 7} for i in range(1, 5)})
    s3.upload_file(str(tmp_path / "made" / "noted.tif.aux.xml"), "raw", "noted.tif.aux.xml")
    scene.tile("noted", noted)
    # Neither of these is a part of it, though its name begins with the same letters.
    for near in ("noted.tif.msk.bak", "noted.tif.ovr", "noted.tiff.msk"):
        s3.put_object(Bucket="raw", Key=near, Body=b"rubbish")
    found = run(scene, composite="never")
    np.testing.assert_allclose(
        product(s3, found.outcome("masked").dst_uri), expected(bands, under), atol=1e-6, equal_nan=True
    )
    np.testing.assert_allclose(
        product(s3, found.outcome("noted").dst_uri), expected(bands, nodata=7), atol=1e-6, equal_nan=True
    )


def test_a_mask_that_comes_late_makes_the_product_anew(s3: Any, tmp_path: Path) -> None:
    under = box(slice(8), slice(None))
    scene = Scene(tmp_path)
    scene.tile("t", upload(s3, tmp_path, "t.tif", flat()))
    assert np.isfinite(product(s3, run(scene, composite="never").outcome("t").dst_uri)).all()
    upload(s3, tmp_path, "t.tif", flat(), shown=~under, mask_inside=False)
    found = run(scene, composite="never")
    np.testing.assert_array_equal(np.isnan(product(s3, found.outcome("t").dst_uri)), under)


def test_no_object_is_written_over_a_source_or_another_product(s3: Any, tmp_path: Path) -> None:
    """rspatial/terra#760, NOAA-OCM/QNSPECT#8, on S3, where a key is compared as it is."""
    clashes = [
        [("a", "s3://raw/a.tif", "s3://raw/a.tif")],
        [("a", "s3://raw/a.tif", "s3://raw/b.tif"), ("b", "s3://raw/b.tif", "s3://ndvi/b.tif")],
        [("a", "s3://raw/a.tif", "s3://ndvi/x.tif"), ("b", "s3://raw/b.tif", "s3://ndvi/x.tif")],
        [("a", "s3://raw/a.tif", "s3://ndvi/F/F.ndvi.tif")],
    ]
    for name in ("a.tif", "b.tif"):
        upload(s3, tmp_path, name, flat())
    for clash in clashes:
        scene = Scene(tmp_path)
        for tile_id, source, destination in clash:
            scene.tile(tile_id, source, dst_uri=destination)
        with pytest.raises(ManifestRefused) as caught:
            run(scene)
        assert caught.value.code is Code.TILE_CLASH
    assert (keys(s3, "ndvi"), keys(s3, "raw")) == (set(), {"a.tif", "b.tif"})


@pytest.mark.parametrize(
    "uri", ["s3://raw", "s3://raw/", "s3:///a.tif", "S3://raw/a.tif", "s3:/raw/a.tif", "gs://raw/a.tif"]
)
def test_what_is_no_object(uri: str, s3: Any, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.tile("t", uri)
    try:
        found = run(scene, composite="never")
    except ManifestRefused as refused:
        assert refused.code is Code.MANIFEST_INVALID  # noqa: PT017  # either is an answer
        return
    # A single slash makes it a path of this machine, and nothing lies there.
    assert found.outcome("t").error
    assert found.outcome("t").error.code == "source_missing"  # type: ignore[union-attr]  # asserted above
