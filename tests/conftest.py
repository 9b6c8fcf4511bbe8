"""Servers that tests talk to: real ones, each a process of its own. What is missing fails, it is not skipped."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis

from flights.embedded import server_binary

PROJECT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def heard_signals() -> None:
    """Processes that tests start hear Ctrl-C and a hang-up, also where the tests run under nohup or in a background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting and no credential of this machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("FLIGHTS_", "CELERY_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FLIGHTS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server (moto in a process of its own)."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-p", url.rsplit(":", 1)[1]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(url)
        yield url
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _await(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"no server at {url}")


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty S3 with the buckets `raw` and `ndvi`: a boto3 client, and the environment that the product reads."""
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/moto-api/reset", method="POST"), timeout=5)
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    for bucket in ("raw", "ndvi"):
        client.create_bucket(Bucket=bucket)
    return client


@pytest.fixture(scope="session")
def _redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    command = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        for _ in range(200):
            try:
                redis.Redis.from_url(url).ping()
                break
            except redis.RedisError:
                time.sleep(0.02)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def redis_url(_redis_server: str) -> str:
    """The URL of an empty Redis-compatible server."""
    redis.Redis.from_url(_redis_server).flushall()
    return _redis_server
