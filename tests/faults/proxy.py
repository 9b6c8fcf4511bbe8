"""A fault-injecting HTTP proxy, a process of its own: `python -m tests.faults.proxy LISTEN_PORT TARGET_PORT`.

Requests go to the target byte for byte, with the Host that the client signed, and answers come back the same way,
except where a `Rule` says otherwise. Rules arrive by POST at CONTROL, and GET there tells what has passed: no bucket
has such a name.
"""

import contextlib
import json
import re
import socket
import socketserver
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

CONTROL = "/-/faults"
Fault = Literal[
    "status",  # answered here with `status` and `code`, never forwarded
    "reset",  # the connection is reset, nothing is forwarded
    "hang",  # no answer for `seconds`, then the connection ends
    "delay",  # forwarded after `seconds`
    "drip",  # the answer comes a byte every `seconds`
    "truncated",  # the length says everything, half the bytes come, the connection ends
    "short",  # half the bytes, and a length that says so
    "zeros",  # as many bytes, all zero
    "bitflip",  # bit number `bit` of the body (counted round) is the other one
    "lost",  # forwarded and done; then the answer is `status`, or a reset where that is 0
]


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to which requests."""

    fault: Fault
    method: str = ""
    # any, where empty
    target: str = ""
    # a regular expression, searched in the path and query as they are sent
    nth: int = 1
    # the first of the matching requests that meets the fault
    times: int | None = 1
    # how many of them do; None: all from then on
    way: Literal["down", "up"] = "down"
    # whether the answer's bytes are damaged, or the request's
    status: int = 0
    code: str = ""
    seconds: float = 0.0
    bit: int = 0


@dataclass(frozen=True, slots=True)
class Passed:
    """One request that came by."""

    method: str
    target: str
    fault: str
    # empty where none was applied
    status: int
    # what the client was told; 0 where it was told nothing, or not the whole
    upstream: int
    # what the target answered; 0 where it was not asked


class Control:
    """The other end of CONTROL, for tests."""

    def __init__(self, url: str) -> None:
        self.url = url

    def script(self, *rules: Rule) -> None:
        """From now on these rules, and a log that starts anew."""
        body = json.dumps([asdict(rule) for rule in rules]).encode()
        urllib.request.urlopen(urllib.request.Request(self.url + CONTROL, body, method="POST"), timeout=5).close()

    def passed(self) -> list[Passed]:
        """The requests since the last script, in the order in which they were settled."""
        with urllib.request.urlopen(self.url + CONTROL, timeout=5) as answer:
            return [Passed(**entry) for entry in json.load(answer)]


class _Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...
    def readline(self, size: int = -1, /) -> bytes: ...


class _Script:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._met: list[int] = []
        self._passed: list[Passed] = []

    def replace(self, rules: Iterable[Rule]) -> None:
        with self._lock:
            self._rules, self._passed = list(rules), []
            self._met = [0] * len(self._rules)

    def rule_for(self, method: str, target: str) -> Rule | None:
        """The first rule that applies; every rule counts the requests that it matches."""
        chosen = None
        with self._lock:
            for i, rule in enumerate(self._rules):
                if rule.method not in ("", method) or not re.search(rule.target, target):
                    continue
                self._met[i] += 1
                beyond = self._met[i] - rule.nth
                if chosen is None and beyond >= 0 and (rule.times is None or beyond < rule.times):
                    chosen = rule
        return chosen

    def note(self, entry: Passed) -> None:
        with self._lock:
            self._passed.append(entry)

    def passed(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(entry) for entry in self._passed]


@dataclass(slots=True)
class _Message:
    """A request or an answer, as it is on the wire."""

    head: bytes
    # up to and with the empty line
    body: bytes = b""
    bodiless: bool = False
    # the answer to a HEAD: its length is of what a GET would bring

    @property
    def start(self) -> list[str]:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    def header(self, name: str) -> str:
        found = re.search(rb"(?im)^" + name.encode() + rb":[ \t]*([^\r\n]*)", self.head)
        return found[1].decode("latin-1").strip() if found else ""

    def damaged(self, rule: Rule) -> "_Message":
        """The same with the rule's damage; a head without a body is damaged in the length it tells."""
        if rule.fault == "short":
            body = self.body[: len(self.body) // 2]
            length = int(self.header("content-length") or 0) // 2 if self.bodiless else len(body)
        elif rule.fault == "zeros":
            body = bytes(len(self.body))
            length = 0 if self.bodiless else len(body)
        elif rule.fault == "bitflip" and self.body:
            at = rule.bit % (len(self.body) * 8)
            flipped = self.body[at // 8] ^ 1 << at % 8
            body, length = self.body[: at // 8] + bytes([flipped]) + self.body[at // 8 + 1 :], len(self.body)
        else:
            return self
        head = re.sub(rb"(?im)^(content-length:)[^\r\n]*", rb"\1 %d" % length, self.head)
        return _Message(head, body, self.bodiless)

    def first_half(self) -> bytes:
        """What arrives where the connection ends in the middle of the body, or of a head without one."""
        return self.head + self.body[: len(self.body) // 2] if self.body else self.head[: len(self.head) // 2]


def _read_answer(stream: _Stream, bodiless: bool) -> _Message | None:
    """The next answer of a connection, None at its end."""
    head = _read_head(stream)
    if head is None:
        return None
    message = _Message(head, bodiless=bodiless)
    if bodiless or message.start[1] in ("204", "304") or message.start[1][0] == "1":
        return message
    if message.header("transfer-encoding").lower() == "chunked":
        message.body = _read_chunks(stream)
    elif length := message.header("content-length"):
        message.body = stream.read(int(length))
    else:
        message.body = stream.read()
    return message


def _read_head(stream: _Stream) -> bytes | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline(65_536)
        if not line:
            return None
        head += line
    return head


def _read_chunks(stream: _Stream) -> bytes:
    """A chunked body as it is on the wire, with its trailers."""
    raw = b""
    while True:
        size = stream.readline()
        data = stream.read(int(size.split(b";")[0], 16) + 2) if int(size.split(b";")[0] or b"0", 16) else b""
        raw += size + data
        if not data:
            break
    while (line := stream.readline()) not in (b"\r\n", b""):
        raw += line
    return raw + b"\r\n"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, target: int) -> None:
        super().__init__(("127.0.0.1", port), _Connection)
        self.target = target
        self.script = _Script()


class _Connection(socketserver.StreamRequestHandler):
    """One client's connection, kept alive between requests."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        try:
            while self._serve_one():
                pass
        except OSError:  # the client has gone
            self._reset()

    def _serve_one(self) -> bool:
        """One request; False where the connection has ended."""
        request = self._take()
        if request is None:
            return False
        method, target, _ = request.start
        if target == CONTROL:
            return self._control(method, request.body)
        rule = self.server.script.rule_for(method, target)
        told = upstream = 0
        goes_on = False
        try:
            if rule and rule.fault in ("status", "reset", "hang"):
                goes_on = self._refuse(rule, method)
                told = rule.status if goes_on else 0
                return goes_on
            if rule and rule.fault == "delay":
                time.sleep(rule.seconds)
            answer = self._forward(request, rule if rule and rule.way == "up" else None)
            if answer is None:
                self._reset()
                return False
            upstream = int(answer.start[1])
            goes_on = self._answer(answer, method, rule if rule and rule.way == "down" else None)
            told = (rule.status if rule and rule.fault == "lost" else upstream) if goes_on else 0
            return goes_on
        finally:
            fault = rule.fault if rule else ""
            self.server.script.note(Passed(method, target, fault, told, upstream))

    def _take(self) -> _Message | None:
        """The client's next request; one that waits to be told so is told to go on."""
        head = _read_head(self.rfile)
        if head is None:
            return None
        request = _Message(head)
        if request.header("expect").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.header("transfer-encoding").lower() == "chunked":
            request.body = _read_chunks(self.rfile)
        else:
            request.body = self.rfile.read(int(request.header("content-length") or 0))
        return request

    def _forward(self, request: _Message, rule: Rule | None) -> _Message | None:
        """The target's answer, None where it gives none."""
        if rule:
            request = request.damaged(rule)
        with socket.create_connection(("127.0.0.1", self.server.target), timeout=60) as upstream:
            if rule and rule.fault == "truncated":
                upstream.sendall(request.first_half())
                return None
            upstream.sendall(request.head + request.body)
            stream = upstream.makefile("rb")
            answer = _read_answer(stream, request.start[0] == "HEAD")
            while answer and answer.start[1] == "100":
                answer = _read_answer(stream, request.start[0] == "HEAD")
            return answer

    def _refuse(self, rule: Rule, method: str) -> bool:
        if rule.fault == "status":
            self._say(rule, method)
            return True
        if rule.fault == "hang":
            self.connection.settimeout(rule.seconds)
            with contextlib.suppress(TimeoutError):
                self.connection.recv(1)  # ends early where the client gives up
        self._reset()
        return False

    def _say(self, rule: Rule, method: str) -> None:
        """An answer of one's own: S3's XML where the rule has a code, else what load balancers say."""
        if rule.code:
            kind, body = "application/xml", f"<Error><Code>{rule.code}</Code><Message>said so</Message></Error>"
        else:
            kind, body = "text/html", f"<html><body><h1>{rule.status}</h1></body>"
        head = f"HTTP/1.1 {rule.status} Fault\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write((head + ("" if method == "HEAD" else body)).encode())

    def _answer(self, answer: _Message, method: str, rule: Rule | None) -> bool:
        if rule and rule.fault == "lost":
            if rule.status:
                self._say(rule, method)
                return True
            self._reset()
            return False
        if rule and rule.fault == "truncated":
            self.wfile.write(answer.first_half())
            return False
        if rule:
            answer = answer.damaged(rule)
        wire = answer.head + answer.body
        for at in range(len(wire) if rule and rule.fault == "drip" else 0):
            self.wfile.write(wire[at : at + 1])
            time.sleep(rule.seconds if rule else 0)
        if not (rule and rule.fault == "drip"):
            self.wfile.write(wire)
        framed = answer.bodiless or answer.header("content-length") or answer.header("transfer-encoding")
        return bool(framed or answer.start[1] == "204") and answer.header("connection").lower() != "close"

    def _control(self, method: str, body: bytes) -> bool:
        if method == "POST":
            self.server.script.replace(Rule(**rule) for rule in json.loads(body))
        said = json.dumps(self.server.script.passed()).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(said) + said)
        return False

    def _reset(self) -> None:
        """End the connection with a RST: close it with nothing left to wait for."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def finish(self) -> None:
        if self.connection.fileno() >= 0:
            super().finish()


if __name__ == "__main__":
    _Server(int(sys.argv[1]), int(sys.argv[2])).serve_forever()
