"""A message that comes twice, at once and later: one product, whole at every moment, counted once."""

import json
import multiprocessing
import os
import signal
import threading
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import redis

import tasks
from flights.intake import load_flight
from flights.ledger import Ledger
from flights.manifest import Flight, Tile
from flights.pipeline import finalise, write_tile
from flights.report import TileOutcome, TileState
from flights.runs import Job, Run, record_uri, save_run
from flights.settings import load_settings
from flights.store import open_stores
from tests.cases.scene import Float64, Result, write_source
from tests.inprocess import tools_for
from tests.processes import pixels
from tests.synthetic import field, manifest, oracle_ndvi

DELIVERIES = 3


@pytest.fixture
def wanted(tmp_path: Path) -> Float64:
    """A source that takes a moment, and its NDVI."""
    bands = field(700, 700, seed=12)
    write_source(tmp_path / "src" / "t.tif", bands, tiled=True, compress="deflate")
    return oracle_ndvi(bands["red"], bands["nir"])


@pytest.fixture
def fleet(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of a worker: a broker, and where runs are kept."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_url)
    monkeypatch.setenv("FLIGHTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FLIGHTS_RUNS_URI", str(tmp_path / "runs"))
    tasks._tools_of.cache_clear()
    return redis_url


def job_of(folder: Path, runs: Path, **more: Any) -> tuple[Job, Flight]:
    """The message of a flight's only tile, with its run on record."""
    body = manifest("F", [{"tile_id": "t", "src_uri": "src/t.tif"}], out_uri="out", **more)
    path = folder / "manifest.json"
    path.write_text(json.dumps(body))
    stores = open_stores()
    flight = load_flight(stores, str(path))
    run = Run(
        run_id="run-1",
        flight_id="F",
        record_uri=record_uri(str(runs), "F"),
        started=datetime.now(UTC),
        composite="never",
    )
    save_run(stores, run, flight)
    return Job(run=run, flight=flight), flight


def _deliver(message: str, start: Barrier, results: Any) -> None:
    """In a process of its own: what a worker does with a message, until it has an answer."""
    job = Job.model_validate_json(message)
    (tile,) = job.flight.tiles
    start.wait()
    refused = 0
    while (outcome := tasks._deliver(job, tile)) is None:
        refused += 1
        threading.Event().wait(0.02)  # another delivery is at it
    results.put((refused, outcome.as_text()))


def _watch(path: Path, done: threading.Event, torn: list[str], wanted: Float64) -> None:
    """A reader that never rests: whatever it finds at the destination is whole."""
    while not done.wait(0.002):
        if not path.exists():
            continue
        with rasterio.open(path) as product:
            if not np.allclose(product.read(1), wanted, rtol=0, atol=1e-6, equal_nan=True):
                torn.append("other pixels")
        extra = [p.name for p in path.parent.iterdir() if p != path and not p.name.startswith(".")]
        torn.extend(extra)


def test_a_message_that_is_delivered_again_while_it_is_worked_on(fleet: str, wanted: Float64, tmp_path: Path) -> None:
    """celery/celery#3270, celery/celery#2599, learningequality/studio#3395: three workers, one tile, one product."""
    job, flight = job_of(tmp_path, tmp_path / "runs")
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(DELIVERIES), context.Queue()
    workers = [
        context.Process(target=_deliver, args=(job.model_dump_json(), start, results)) for _ in range(DELIVERIES)
    ]
    done, torn = threading.Event(), list[str]()
    product = tmp_path / "out" / "tiles" / "t.ndvi.tif"
    reader = threading.Thread(target=_watch, args=(product, done, torn, wanted))
    reader.start()
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(30)
    done.set()
    reader.join()

    outcomes = [TileOutcome.of_text(text) for _, text in answers]
    assert [w.exitcode for w in workers] == [0] * DELIVERIES
    assert torn == []
    assert sorted(o.attempts for o in outcomes) == [1] * DELIVERIES
    assert {(o.state, o.fingerprint, o.product) for o in outcomes} == {
        (TileState.DONE, outcomes[0].fingerprint, outcomes[0].product)
    }
    np.testing.assert_allclose(pixels(product), wanted, rtol=0, atol=1e-6)

    inode = product.stat().st_ino
    late = tasks._deliver(job, flight.tiles[0])
    assert late
    assert (late.state, late.product, product.stat().st_ino) == (TileState.DONE, outcomes[0].product, inode)
    assert os.listdir(product.parent) == ["t.ndvi.tif"]

    progress = Ledger(fleet).progress(job.run.run_id)
    assert progress
    assert (progress.settled, progress.failed) == (1, 0)
    report = finalise(job.run, flight, [*outcomes, late], tasks.tools())
    assert (report.tiles.total, report.tiles.done, report.tiles.failed) == (1, 1, 0)
    Result(report).assert_tile("t", wanted)


def test_a_delivery_that_meets_a_live_claim_waits(fleet: str, wanted: Float64, tmp_path: Path) -> None:
    """LCOGT/banzai PR#239: it makes nothing, fails nothing and counts nothing; once the claim is gone it is done."""
    job, flight = job_of(tmp_path, tmp_path / "runs")
    (tile,) = flight.tiles
    with Ledger(fleet).claim(tile.dst_uri, 20, job.run.run_id) as mine:
        assert mine
        assert tasks._deliver(job, tile) is None
        assert not Path(tile.dst_uri).exists()
    outcome = tasks._deliver(job, tile)
    assert outcome
    assert outcome.state is TileState.DONE
    np.testing.assert_allclose(pixels(tile.dst_uri), wanted, rtol=0, atol=1e-6)


def test_deliveries_at_once_without_any_claim(wanted: Float64, tmp_path: Path) -> None:
    """Redis is away, so nobody knows of anybody: all of them succeed, and what lies there is one of theirs, whole."""
    tools = tools_for(tmp_path / "state")
    job, flight = job_of(tmp_path, tmp_path / "runs")
    (tile,) = flight.tiles
    product, torn, outcomes = Path(tile.dst_uri), list[str](), list[TileOutcome]()
    start, done = threading.Barrier(DELIVERIES), threading.Event()

    def deliver() -> None:
        start.wait()
        outcomes.append(write_tile(job, tile, tools))

    threads = [threading.Thread(target=deliver) for _ in range(DELIVERIES)]
    reader = threading.Thread(target=_watch, args=(product, done, torn, wanted))
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert torn == []
    assert [o.state for o in outcomes] == [TileState.DONE] * DELIVERIES, [o.error for o in outcomes]
    np.testing.assert_allclose(pixels(product), wanted, rtol=0, atol=1e-6)
    assert os.listdir(product.parent) == ["t.ndvi.tif"]
    assert list((tmp_path / "state" / "scratch").iterdir()) == []
    report = finalise(job.run, flight, outcomes, tools)
    assert (report.tiles.total, report.tiles.done, report.complete) == (1, 1, True)


@pytest.mark.parametrize("order", ["old last", "new last"])
def test_a_message_of_an_older_run_does_no_harm(order: str, fleet: str, wanted: Float64, tmp_path: Path) -> None:
    """Reordered: a message from before the source was replaced still makes the product of the source as it is."""
    job, flight = job_of(tmp_path, tmp_path / "runs")
    (tile,) = flight.tiles
    newer = Job(run=job.run.model_copy(update={"run_id": "run-2"}), flight=flight)
    assert tasks._deliver(job, tile)
    bands = field(700, 700, seed=13)
    write_source(tmp_path / "src" / "t.tif", bands, tiled=True, compress="deflate")
    for message in (newer, job) if order == "old last" else (job, newer):
        outcome = tasks._deliver(message, tile)
        assert outcome
        assert outcome.state is TileState.DONE or (outcome.error and outcome.error.code == "superseded")
    np.testing.assert_allclose(pixels(tile.dst_uri), oracle_ndvi(bands["red"], bands["nir"]), rtol=0, atol=1e-6)


def test_a_tile_that_was_delivered_too_often_is_given_up(fleet: str, wanted: Float64, tmp_path: Path) -> None:
    """Deliveries that began and never ended are counted before the work; the next one answers instead of dying."""
    job, flight = job_of(tmp_path, tmp_path / "runs")
    (tile,) = flight.tiles
    for _ in range(load_settings().max_deliveries):
        killed = multiprocessing.get_context("spawn").Process(target=_die_at_work, args=(fleet, job, tile))
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        while Ledger(fleet).lease_left_s(tile.dst_uri):
            time.sleep(0.05)
    outcome = tasks._deliver(job, tile)
    assert outcome
    assert outcome.error
    assert (outcome.state, outcome.error.code) == (TileState.FAILED, "worker_lost")
    redis.Redis.from_url(fleet).flushall()
    again = tasks._deliver(job, tile)
    assert again
    assert again.state is TileState.DONE


def _die_at_work(url: str, job: Job, tile: Tile) -> None:
    with Ledger(url).claim(tile.dst_uri, 1, job.run.run_id, work=tile.tile_id):
        os.kill(os.getpid(), signal.SIGKILL)
