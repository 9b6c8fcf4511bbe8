"""A distance: an HTTP proxy that answers later, a process of its own.

`python -m benchmarks.delay_proxy LISTEN_PORT TARGET_PORT ROUND_TRIP_MS MB_PER_S`

Each request's answer begins a round trip later than the target gave it, and so does the word that a client waits for
before it sends a body (`Expect: 100-continue`). Each connection carries so many MB (10^6 bytes) a second each way at
most, 0 for no bound. Opening a connection costs nothing, and there is no TLS. GET at CONTROL tells what has passed
since the last DELETE there; no bucket has such a name.
"""

import asyncio
import json
import re
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass, field

CONTROL = "/-/passed"
CHUNK_BYTES = 2**18
# A sleep ends late, and what follows may make up for so much of it.
SLACK_S = 0.02


@dataclass(frozen=True, slots=True)
class Passed:
    """What has passed: requests by method, and bytes with their heads."""

    requests: dict[str, int]
    up: int
    # bytes, to the server
    down: int
    # bytes, from the server


class Control:
    """The other end of CONTROL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def passed(self) -> Passed:
        """What has passed since the last reset."""
        with urllib.request.urlopen(self.url + CONTROL, timeout=5) as answer:
            return Passed(**json.load(answer))

    def reset(self) -> None:
        """Count anew."""
        urllib.request.urlopen(urllib.request.Request(self.url + CONTROL, method="DELETE"), timeout=5).close()


@dataclass(slots=True)
class _Pace:
    """Sleeps for as long as bytes would take."""

    bytes_per_s: float
    _free_at: float = 0.0

    async def spend(self, count: int) -> None:
        if not self.bytes_per_s:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - SLACK_S) + count / self.bytes_per_s
        if self._free_at - now > 0.002:  # what is shorter is shorter than a sleep can be told
            await asyncio.sleep(self._free_at - now)


@dataclass(slots=True)
class _Way:
    """One direction of one request: bytes from here to there, at a pace, counted by whom it concerns."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pace: _Pace
    moved: int = 0

    async def head(self) -> bytes:
        """Up to and with the empty line; empty where the connection has ended."""
        try:
            return await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        self.moved += len(data)
        await self.writer.drain()
        await self.pace.spend(len(data))

    async def body(self, head: bytes) -> bool:
        """Carry the body that a head announces; False where only the end of the connection tells its end."""
        if _header(head, "transfer-encoding").lower() == "chunked":
            await self._chunks()
        elif length := _header(head, "content-length"):
            await self._carry(int(length))
        elif head.startswith(b"HTTP/"):
            while data := await self.reader.read(CHUNK_BYTES):
                await self.send(data)
            return False
        return True

    async def _carry(self, left: int) -> None:
        while left:
            data = await self.reader.read(min(left, CHUNK_BYTES))
            if not data:
                raise ConnectionResetError("a body that breaks off")
            await self.send(data)
            left -= len(data)

    async def _chunks(self) -> None:
        size = 1
        while size:
            line = await self.reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            await self.send(line)
            await self._carry(size + 2 if size else 0)
        while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
            await self.send(line)
        await self.send(line)


@dataclass(slots=True)
class _Proxy:
    target_port: int
    round_trip_s: float
    bytes_per_s: float
    requests: Counter[str] = field(default_factory=Counter)
    up: int = 0
    down: int = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client's connection, kept alive between requests."""
        paces = _Pace(self.bytes_per_s), _Pace(self.bytes_per_s)
        try:
            while head := await _Way(reader, writer, paces[0]).head():
                if not await self._request(head, reader, writer, paces):
                    break
        except (OSError, asyncio.IncompleteReadError):  # one end has gone: so does the other
            pass
        finally:
            writer.close()

    async def _request(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, paces: tuple[_Pace, _Pace]
    ) -> bool:
        """One request to the target and its answer back; whether the connection goes on."""
        method, path, _ = head.decode("latin-1").split(" ", 2)
        if path == CONTROL:
            return await self._control(method, writer)
        from_target, to_target = await asyncio.open_connection("127.0.0.1", self.target_port, limit=2 * CHUNK_BYTES)
        up, down = _Way(reader, to_target, paces[0]), _Way(from_target, writer, paces[1])
        try:
            if _header(head, "expect"):
                await asyncio.sleep(self.round_trip_s)
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = re.sub(rb"(?im)^expect:[^\r\n]*\r\n", b"", head)
            await up.send(head)
            await up.body(head)
            answer = await down.head()
            while answer.startswith(b"HTTP/1.1 100"):
                answer = await down.head()
            if not answer:
                return False
            await asyncio.sleep(self.round_trip_s)
            await down.send(answer)
            bodiless = method == "HEAD" or answer.split(b" ", 2)[1] in (b"204", b"304")
            return bodiless or await down.body(answer)
        finally:
            self.requests[method] += 1
            self.up, self.down = self.up + up.moved, self.down + down.moved
            to_target.close()

    async def _control(self, method: str, writer: asyncio.StreamWriter) -> bool:
        if method == "DELETE":
            self.requests.clear()
            self.up = self.down = 0
        said = json.dumps({"requests": self.requests, "up": self.up, "down": self.down}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(said) + said)
        await writer.drain()
        return False


def _header(head: bytes, name: str) -> str:
    found = re.search(rb"(?im)^" + name.encode() + rb":[ \t]*([^\r\n]*)", head)
    return found[1].decode("latin-1").strip() if found else ""


async def _serve(port: int, proxy: _Proxy) -> None:
    server = await asyncio.start_server(proxy.connection, "127.0.0.1", port, limit=2 * CHUNK_BYTES, backlog=128)
    await server.serve_forever()


if __name__ == "__main__":
    listen, target, round_trip_ms, mb_per_s = map(float, sys.argv[1:])
    asyncio.run(_serve(int(listen), _Proxy(int(target), round_trip_ms / 1000, mb_per_s * 1e6)))
