"""A flight run again, unchanged: nothing is made, so nothing should take long."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import tiny
from benchmarks.commands import run_batch
from benchmarks.servers import CREDENTIALS, counted, s3_client, s3_server
from benchmarks.table import Line
from flights.intake import load_flight
from flights.runs import load_report
from flights.store import open_stores
from tests.faults.proxy import Passed
from tests.processes import await_nobody, environment

LIMIT_S = 30
BUCKETS = ("raw", "ndvi", "runs")
PARALLEL = 16
NO_MOSAIC = ("--composite", "never")


def run(folder: Path, quick: bool) -> list[Line]:
    """The second run of a made flight, on local disk and on S3."""
    tiles = 2_000 if quick else 40_000
    return [_on_disk(folder / "disk", tiles), *_on_s3(folder / "s3", tiles)]


def _on_disk(folder: Path, tiles: int) -> Line:
    manifest, env = tiny.write_flight(folder, tiles), environment(folder / "state")
    tiny.make_products(manifest, env)
    await_nobody(folder / "state")
    run_batch(env, "run", manifest, *NO_MOSAIC)  # the run before, whose report and record lie there
    await_nobody(folder / "state")
    seconds = run_batch(env, "run", manifest, *NO_MOSAIC)
    await_nobody(folder / "state")
    report = load_report(open_stores(), load_flight(open_stores(), str(manifest)))
    if report is None or report.tiles.cached != tiles:
        raise RuntimeError(f"not every tile was found made: {report and report.tiles}")
    return Line(
        f"5 {tiles:,} tiles unchanged, local files: run again, whole process",
        f"< {LIMIT_S} s",
        f"{seconds:.1f} s",
        held=seconds < LIMIT_S,
    )


# ---------------------------------------------------------------- S3


def _on_s3(folder: Path, tiles: int) -> list[Line]:
    folder.mkdir()
    state = folder / "state"
    with s3_server(folder / "server", BUCKETS) as url:
        env = environment(state, AWS_ENDPOINT_URL=url, FLIGHTS_RUNS_URI="s3://runs", **CREDENTIALS)
        manifest = _make_flight(folder, tiles, url, env)
        run_batch(env, "run", manifest, *NO_MOSAIC)
        await_nobody(state)
        with counted(url) as proxy:
            seconds = run_batch(env | {"AWS_ENDPOINT_URL": proxy.url}, "run", manifest, *NO_MOSAIC)
            await_nobody(state)
            passed = proxy.passed()
    planning = _planning(passed)
    allowed = 2 * -(-tiles // 1_000) + 20
    read = [p for p in passed if p.method == "GET" and urlsplit(p.target).path.endswith(".tif")]
    written = [p for p in passed if p.method == "PUT" and urlsplit(p.target).path.endswith(".tif")]
    name = f"5 {tiles:,} tiles unchanged, S3"
    return [
        Line(f"{name}: requests of the plan", f"<= {allowed}", f"{planning:,}", held=planning <= allowed),
        Line(f"{name}: sources and products read", "none", f"{len(read):,}", held=not read),
        Line(f"{name}: products written", "none", f"{len(written):,}", held=not written),
        Line(f"{name}: run again, whole process", "", f"{seconds:.1f} s, {len(passed):,} requests"),
    ]


def _planning(passed: Sequence[Passed]) -> int:
    """The requests up to the run record, which is written when the plan is made and before anything is sent."""
    for i, one in enumerate(passed):
        if one.method == "PUT" and urlsplit(one.target).path.endswith("/run.json"):
            return i + 1
    raise RuntimeError("the run wrote no record")


def _make_flight(folder: Path, tiles: int, url: str, env: Mapping[str, str]) -> Path:
    """A flight on S3 with every product made, all of them copies of one source and one product.

    As every source has the same ETag, every product has the same fingerprint.
    """
    client = s3_client(url)
    sources = [f"giant/{tiny.tile_id_of(i)}.tif" for i in range(tiles)]
    uris = [f"s3://raw/{key}" for key in sources]
    manifest = tiny.write_manifest(folder, uris, "giant", "s3://ndvi/giant")
    client.upload_file(str(tiny.write_tile(folder / "tile.tif")), "raw", sources[0])
    run_batch(env, "run", tiny.first_of(manifest, 1, "one"), *NO_MOSAIC)
    await_nobody(Path(env["FLIGHTS_STATE_DIR"]))
    products = [urlsplit(t.dst_uri).path.lstrip("/") for t in load_flight(open_stores(), str(manifest)).tiles]
    with ThreadPoolExecutor(PARALLEL) as pool:
        for bucket, keys in (("raw", sources), ("ndvi", products)):
            made = {"Bucket": bucket, "Key": keys[0]}
            copies = [pool.submit(client.copy_object, Bucket=bucket, Key=key, CopySource=made) for key in keys[1:]]
            for copy in copies:
                copy.result()
    return manifest
