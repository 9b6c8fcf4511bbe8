"""What is measured as whole processes: the command line, and parts of this package in a process of their own."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.processes import PROJECT, command

# A command that takes longer hangs.
COMMAND_S = 3600.0


def run_batch(env: Mapping[str, str], *arguments: str | Path) -> float:
    """How long `run_batch.py` takes from its start to its end, in seconds; it has to end well."""
    began = time.perf_counter()
    _finished(command(*arguments), env)
    return time.perf_counter() - began


def started_batch(env: Mapping[str, str], *arguments: str | Path) -> subprocess.Popen[bytes]:
    """`run_batch.py`, under way."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command(*arguments), cwd=PROJECT, env=dict(env), stdin=quiet, stdout=quiet, stderr=quiet)


def alone(env: Mapping[str, str], module: str, *arguments: str | Path | int) -> dict[str, Any]:
    """What a module of this package, run with these arguments as a process of its own, says in JSON."""
    said: dict[str, Any] = json.loads(_finished(_line(module, *arguments), env))
    return said


def alone_at_once(env: Mapping[str, str], module: str, each: list[list[str | Path | int]]) -> list[dict[str, Any]]:
    """The same of several processes, all under way at the same time."""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(_line(module, *arguments), cwd=PROJECT, env=dict(env), stdout=pipe, stderr=pipe, text=True)
        for arguments in each
    ]
    try:
        return [json.loads(_checked(p.args, p.communicate(timeout=COMMAND_S), p.returncode)) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _line(module: str, *arguments: str | Path | int) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _finished(line: list[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(
        line,
        cwd=PROJECT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    return _checked(line, (done.stdout, done.stderr), done.returncode)


def _checked(line: object, said: tuple[str, str], status: int) -> str:
    if status:
        raise RuntimeError(f"{line} ended with {status}:\n{said[0][-2000:]}\n{said[1][-2000:]}")
    return said[0]
