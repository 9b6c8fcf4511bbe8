"""The whole job: S3 and Redis servers, a real Celery worker, `run_batch.py` as the driver; and the same in process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import rasterio
import redis
from moto import mock_aws
from numpy.typing import NDArray

import tasks
from fleet import KEY_PREFIX
from flights.begin import Order
from flights.begin import begin as begin_run
from flights.follow import Follower
from flights.intake import load_flight
from flights.ledger import Ledger
from flights.manifest import Flight, Tile
from flights.pipeline import Tools, composite_flight, finalise, write_tile
from flights.report import FlightStatus, TileState
from flights.runs import Job, Run, save_run
from flights.settings import load_settings
from flights.store import open_stores
from tests import processes
from tests.processes import PROJECT, Made, assert_pixels, await_, json_lines, make_flight, strict_json
from tests.synthetic import manifest

TILES = ["a", "b", "c"]


@pytest.fixture
def fleet(redis_url: str, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fleet of one worker: its broker's URL, and the environment that reaches it."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_url)
    monkeypatch.setenv("FLIGHTS_RUNS_URI", "s3://ndvi/runs")
    line = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-Q", "priority,tiles,exports"]
    line += ["--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    log = tmp_path / "worker.log"
    with log.open("w") as out:
        worker = subprocess.Popen(line, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        await_("the worker is ready", lambda: worker.poll() is not None or " ready." in log.read_text())
        assert worker.poll() is None, log.read_text()
        yield redis_url
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        worker.terminate()
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def upload(s3: Any, flight: Made, prefix: str) -> str:
    """Put a flight's manifest and sources into the bucket `raw`; the URI of the manifest there."""
    for path in flight.manifest.parent.glob("src/*.tif"):
        s3.upload_file(str(path), "raw", f"{prefix}/src/{path.name}")
    body = json.loads(flight.manifest.read_text()) | {"out_uri": f"s3://ndvi/{body_id(flight)}"}
    s3.put_object(Bucket="raw", Key=f"{prefix}/manifest.json", Body=json.dumps(body).encode())
    return f"s3://raw/{prefix}/manifest.json"


def body_id(flight: Made) -> str:
    """The id of a flight on disk."""
    return flight.manifest.stem


def read_object(s3: Any, uri: str) -> bytes:
    """The content of an object."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())


def object_pixels(s3: Any, uri: str) -> NDArray[np.float32]:
    """The pixels of a product on S3."""
    with rasterio.MemoryFile(read_object(s3, uri)) as memory, memory.open() as product:
        values: NDArray[np.float32] = product.read(1)
        return values


def assert_object(s3: Any, uri: str, expected: NDArray[np.float64]) -> None:
    """The pixels of a product on S3 are the oracle's."""
    np.testing.assert_allclose(object_pixels(s3, uri), expected, rtol=0, atol=1e-6, equal_nan=True)


def keys(s3: Any, bucket: str, prefix: str = "") -> dict[str, tuple[str, datetime]]:
    """Every key below a prefix, with what changes when it is written again."""
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {item["Key"]: (item["ETag"], item["LastModified"]) for item in found}


# ---------------------------------------------------------------- with a worker


def test_a_flight_on_s3(fleet: str, s3: Any, tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "F1", "F1", TILES)
    uri = upload(s3, flight, "F1")
    done = processes.run_batch("run", "--json", uri)
    (report,) = json_lines(done.stdout)
    assert (done.returncode, report["status"]) == (0, "complete")
    assert report["tiles"] == {"total": 3, "done": 3, "cached": 0, "review": 0, "failed": 0, "missing": 0}
    for outcome in report["outcomes"]:
        assert outcome["dst_uri"] == f"s3://ndvi/F1/tiles/{outcome['tile_id']}.ndvi.tif"
        assert_object(s3, outcome["dst_uri"], flight.expected[outcome["tile_id"]])
    assert report["mosaic"]["uri"] == "s3://ndvi/F1/F1.ndvi.tif"
    assert_object(s3, report["mosaic"]["uri"], np.hstack(list(flight.expected.values())))
    assert strict_json(read_object(s3, "s3://ndvi/F1/F1.report.json").decode()) == report
    assert set(keys(s3, "ndvi", "runs/")) == {f"runs/F1/{name}.json" for name in ("manifest", "run", "ended")}
    assert not (tmp_path / "state" / "runs").exists()

    local = processes.run_batch("run", "--json", flight.manifest)
    (at_home,) = json_lines(local.stdout)
    assert local.returncode == 0
    assert at_home["stats"] == report["stats"]
    for tile_id in TILES:
        np.testing.assert_array_equal(
            processes.pixels(flight.product(tile_id)), object_pixels(s3, f"s3://ndvi/F1/tiles/{tile_id}.ndvi.tif")
        )

    products = {k: v for k, v in keys(s3, "ndvi", "F1/").items() if k.endswith(".tif")}
    again = processes.run_batch("run", "--json", "--lane", "priority", uri)
    (cached,) = json_lines(again.stdout)
    assert again.returncode == 0
    assert (cached["tiles"]["done"], cached["tiles"]["cached"], cached["mosaic"]["cached"]) == (3, 3, True)
    assert {k: v for k, v in keys(s3, "ndvi", "F1/").items() if k.endswith(".tif")} == products


def test_an_incomplete_flight_on_s3_is_reported_and_mended(fleet: str, s3: Any, tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "F2", "F2", TILES)
    uri = upload(s3, flight, "F2")
    s3.delete_object(Bucket="raw", Key="F2/src/b.tif")
    done = processes.run_batch("run", "--json", uri)
    (report,) = json_lines(done.stdout)
    assert (done.returncode, report["status"], report["mosaic"]) == (3, "incomplete", None)
    assert report["outcomes"][1]["error"]["code"] == "source_missing"
    assert "s3://raw/F2/src/b.tif" in report["outcomes"][1]["error"]["message"]
    assert set(keys(s3, "ndvi", "runs/F2/failures/")) == {f"runs/F2/failures/b@{report['run_id']}.json"}
    derived = processes.run_batch("report", "--json", "F2")
    assert json_lines(derived.stdout)[0]["tiles"] == report["tiles"]

    s3.upload_file(str(tmp_path / "F2" / "src" / "b.tif"), "raw", "F2/src/b.tif")
    mended = processes.run_batch("run", "--json", uri)
    (report,) = json_lines(mended.stdout)
    assert mended.returncode == 0
    assert [o["cached"] for o in report["outcomes"]] == [True, False, True]
    assert keys(s3, "ndvi", "runs/F2/failures/") == {}
    assert_object(s3, report["mosaic"]["uri"], np.hstack(list(flight.expected.values())))


ODD = ["with space", "hash#1", "what?a=b&c", "100%25", "50%", "plus+", "é ü 水", "a=b;c,d", "[x]{y}", "x//y", "q'\"`$~"]


def test_odd_keys(fleet: str, s3: Any, tmp_path: Path) -> None:
    tiles, expected = [], {}
    for i, name in enumerate(ODD):
        path = tmp_path / f"{i}.tif"
        expected[f"t{i}"] = processes.write_tile(path, i, i * processes.WIDTH)
        s3.upload_file(str(path), "raw", f"odd #1?/{name}.tif")
        tiles.append(
            {
                "tile_id": f"t{i}",
                "src_uri": f"s3://raw/odd #1?/{name}.tif",
                "dst_uri": f"s3://ndvi/odd #1?/{name}.tif",
            }
        )
    body = manifest("odd", tiles, out_uri="s3://ndvi/odd #1?")
    s3.put_object(Bucket="raw", Key="odd #1?/100%25 m#?.json", Body=json.dumps(body).encode())
    done = processes.run_batch("run", "--json", "s3://raw/odd #1?/100%25 m#?.json")
    (report,) = json_lines(done.stdout)
    assert [(o["tile_id"], o["error"]) for o in report["outcomes"] if o["state"] != "done"] == []
    assert done.returncode == 0
    names = {f"odd #1?/{name}.tif" for name in ODD} | {"odd #1?/odd.ndvi.tif", "odd #1?/odd.report.json"}
    assert {key for key in keys(s3, "ndvi") if not key.startswith("runs/")} == names
    for tile in tiles:
        assert_object(s3, tile["dst_uri"], expected[tile["tile_id"]])


def test_relative_uris_below_an_odd_prefix(fleet: str, s3: Any, tmp_path: Path) -> None:
    prefix = "a b/100%25/#?+é//x"
    flight = make_flight(tmp_path / "F3", "F3", ["1 a"])
    s3.upload_file(str(tmp_path / "F3" / "src" / "1 a.tif"), "raw", f"{prefix}/src/1 a.tif")
    body = json.loads(flight.manifest.read_text())
    s3.put_object(Bucket="raw", Key=f"{prefix}/m.json", Body=json.dumps(body).encode())
    done = processes.run_batch("run", "--json", f"s3://raw/{prefix}/m.json")
    assert done.returncode == 0
    assert json_lines(done.stdout)[0]["mosaic"]["uri"] == f"s3://raw/{prefix}/out/F3.ndvi.tif"
    assert_object(s3, f"s3://raw/{prefix}/out/tiles/1 a.ndvi.tif", flight.expected["1 a"])


# ---------------------------------------------------------------- with a worker, driven from here


def begin(flight: Flight, at_hand: Tools, tile_ids: tuple[str, ...] = ()) -> Follower:
    """Plan and send a flight as `run_batch.py run` does."""
    order = Order(tasks.queue_of(flight, "batch", at_hand.settings), tile_ids)
    began = begin_run(flight, order, at_hand, tasks.Post(at_hand))
    assert isinstance(began, Follower), began
    return began


def follow(follower: Follower) -> Any:
    """Wait for a flight's answer as `run_batch.py run` does; the report as JSON."""
    await_("the flight's answer", follower.step, 120)
    assert follower.report
    return strict_json(follower.report.model_dump_json())


@pytest.fixture
def driver(fleet: str) -> Tools:
    """What a driver in this process works with."""
    settings = load_settings()
    tasks.connect(settings)
    return Tools(settings, open_stores(), Ledger(fleet))


def test_chunks_of_tiles(driver: Tools, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SINGLES_MAX", 1)
    monkeypatch.setattr(tasks, "CHUNK_TILES", 2)
    names = ["a", "b", "c", "d", "e"]
    flight = make_flight(tmp_path / "F4", "F4", names)
    uri = upload(s3, flight, "F4")
    s3.delete_object(Bucket="raw", Key="F4/src/d.tif")
    report = follow(begin(load_flight(driver.stores, uri), driver))
    assert report["tiles"] == {"total": 5, "done": 4, "cached": 0, "review": 0, "failed": 1, "missing": 0}
    assert report["outcomes"][3]["error"]["code"] == "source_missing"
    # How long and how often is known to the chunk alone: it came from its record.
    assert [o["attempts"] >= 1 for o in report["outcomes"]] == [True] * 5
    assert [o["seconds"] > 0 for o in report["outcomes"] if o["state"] == "done"] == [True] * 4
    run_id = report["run_id"]
    assert set(keys(s3, "ndvi", "runs/F4/chunks/")) == {f"runs/F4/chunks/{run_id}-{t}.json" for t in ("a", "c", "e")}
    for tile_id in ("a", "b", "c", "e"):
        assert_object(s3, f"s3://ndvi/F4/tiles/{tile_id}.ndvi.tif", flight.expected[tile_id])
    assert driver.ledger.progress(run_id).settled == 5  # type: ignore[union-attr]  # known: it has just ended

    s3.upload_file(str(tmp_path / "F4" / "src" / "d.tif"), "raw", "F4/src/d.tif")
    mended = follow(begin(load_flight(driver.stores, uri), driver))
    assert (mended["status"], mended["tiles"]["cached"]) == ("complete", 4)
    assert_object(s3, mended["mosaic"]["uri"], np.hstack(list(flight.expected.values())))


@pytest.mark.parametrize("when", ["before", "after"])
def test_messages_delivered_three_times(
    when: str, driver: Tools, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted does not depend on whether the chord's own messages or their doubles are first."""
    submit = tasks.Post.submit

    def submit_thrice(post: tasks.Post, run: Run, flight: Flight, tiles: Sequence[Tile]) -> None:
        if when == "after":
            submit(post, run, flight, tiles)
        for _ in range(2):
            post.resend(run, flight, tiles)
        if when == "before":
            submit(post, run, flight, tiles)

    monkeypatch.setattr(tasks.Post, "submit", submit_thrice)
    s3.put_bucket_versioning(Bucket="ndvi", VersioningConfiguration={"Status": "Enabled"})
    flight = make_flight(tmp_path / "F5", "F5", TILES)
    planned = load_flight(driver.stores, upload(s3, flight, "F5"))
    follower = begin(planned, driver)
    report = follow(follower)
    assert report["tiles"] == {"total": 3, "done": 3, "cached": 0, "review": 0, "failed": 0, "missing": 0}
    await_("the queues are empty and nobody is at work", lambda: idle(driver.settings.broker_url))
    versions = s3.list_object_versions(Bucket="ndvi", Prefix="F5/tiles/")["Versions"]
    assert sorted(v["Key"] for v in versions) == [f"F5/tiles/{t}.ndvi.tif" for t in TILES]
    progress = driver.ledger.progress(follower.run.run_id)
    assert progress
    assert (progress.settled, progress.failed) == (3, 0)
    for tile_id in TILES:
        assert_object(s3, f"s3://ndvi/F5/tiles/{tile_id}.ndvi.tif", flight.expected[tile_id])


def test_a_message_delivered_again_after_its_flight_ended(driver: Tools, s3: Any, tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "F6", "F6", TILES)
    planned = load_flight(driver.stores, upload(s3, flight, "F6"))
    follower = begin(planned, driver)
    report = follow(follower)
    before = keys(s3, "ndvi", "F6/")
    for _ in range(2):
        tasks.Post(driver).resend(follower.run, planned, planned.tiles)
    await_("the queues are empty and nobody is at work", lambda: idle(driver.settings.broker_url))
    assert keys(s3, "ndvi", "F6/") == before
    again = processes.run_batch("report", "--json", "F6")
    assert json_lines(again.stdout)[0]["tiles"] == report["tiles"]


def test_only_a_fleet_is_told_to_start_a_worker(driver: Tools, tmp_path: Path) -> None:
    stuck = Run(run_id="r1", flight_id="F7", record_uri=str(tmp_path), started=datetime.now(UTC), queue="tiles.nobody")
    assert tasks.Post(driver).unserved(stuck) == ["tiles.nobody"]
    assert tasks.Post(driver, embedded=True).unserved(stuck) == []


def idle(url: str | None) -> bool:
    """Whether no message waits and none is unacknowledged."""
    with redis.Redis.from_url(str(url)) as client:
        names = ("priority", "tiles", "exports", "unacked")
        waiting = [client.llen(KEY_PREFIX + name) for name in names[:3]]
        return not any(waiting) and not client.hlen(KEY_PREFIX + "unacked")


# ---------------------------------------------------------------- in process


@pytest.fixture
def in_process(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tools]:
    """Task functions called directly, S3 mocked within this process."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    tasks._tools_of.cache_clear()
    with mock_aws():
        client = boto3.client("s3")
        for bucket in ("raw", "ndvi"):
            client.create_bucket(Bucket=bucket)
        tasks.connect(load_settings())
        yield tasks.tools()
    tasks._tools_of.cache_clear()


def new_run(flight: Flight, at_hand: Tools) -> Run:
    """A run of a flight, with its record."""
    record = f"{at_hand.settings.runs}/{flight.flight_id}"
    run = Run(run_id="r1", flight_id=flight.flight_id, record_uri=record, started=datetime.now(UTC))
    save_run(at_hand.stores, run, flight)
    return run


def test_a_flight_in_process(in_process: Tools, tmp_path: Path) -> None:
    client = boto3.client("s3")
    made = make_flight(tmp_path / "F7", "F7", TILES)
    flight = load_flight(in_process.stores, upload(client, made, "F7"))
    run = new_run(flight, in_process)
    jobs = {t.tile_id: Job.of(run, flight, [t]) for t in flight.tiles}
    direct = write_tile(jobs["a"], flight.tiles[0], in_process)
    applied = [tasks.ndvi_tile.apply(args=[jobs[t].model_dump(mode="json")]).get() for t in ("b", "c")]
    assert direct.state is TileState.DONE
    assert [(o["tile_id"], o["state"], o["cached"]) for o in applied] == [("b", "done", False), ("c", "done", False)]
    assert all(len(json.dumps(o)) < 2048 for o in applied)
    told = [direct, *tasks._outcomes_in(applied)]
    assert finalise(run, flight, told, in_process).status is FlightStatus.COMPLETE
    report = composite_flight(run, in_process)
    assert report
    assert report.mosaic
    assert_object(client, report.mosaic.uri, np.hstack(list(made.expected.values())))
    before = keys(client, "ndvi")
    twice = tasks.ndvi_tile.apply(args=[jobs["b"].model_dump(mode="json")]).get()
    assert (twice["state"], twice["fingerprint"]) == ("done", applied[0]["fingerprint"])
    assert keys(client, "ndvi") == before


def test_a_failure_in_process_is_a_value(in_process: Tools, tmp_path: Path) -> None:
    client = boto3.client("s3")
    made = make_flight(tmp_path / "F8", "F8", ["a"])
    flight = load_flight(in_process.stores, upload(client, made, "F8"))
    client.put_object(Bucket="raw", Key="F8/src/a.tif", Body=b"<html>not found</html>")
    run = new_run(flight, in_process)
    outcome = tasks.ndvi_tile.apply(args=[Job.of(run, flight, flight.tiles[:1]).model_dump(mode="json")]).get()
    assert (outcome["state"], outcome["error"]["code"]) == ("failed", "source_not_raster")
    assert outcome["error"]["transient"] is False
    report = finalise(run, flight, [], in_process)
    assert report.status is FlightStatus.INCOMPLETE
    assert report.outcomes[0].error
    assert report.outcomes[0].error.code == "source_not_raster"
    assert keys(client, "ndvi").keys() == {"F8/F8.report.json"}


def test_a_local_tile_in_process(in_process: Tools, tmp_path: Path) -> None:
    made = make_flight(tmp_path / "F9", "F9", ["a"])
    flight = load_flight(in_process.stores, str(made.manifest))
    run = new_run(flight, in_process)
    outcome = write_tile(Job.of(run, flight, flight.tiles[:1]), flight.tiles[0], in_process)
    assert outcome.state is TileState.DONE
    assert_pixels(made.product("a"), made.expected["a"])
