"""Measuring on a machine that others use too: rounds in turn, medians, ratios pair by pair."""

import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each contender, round by round."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """The median of a contender, in seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """The median of a contender's time over another's, round by round: what drifts, drifts under both."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True))

    def spread(self, name: str, to: str) -> tuple[float, float]:
        """The least and the largest of those ratios."""
        ratios = [a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True)]
        return min(ratios), max(ratios)


def in_turn(contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> Times:
    """Time each contender once a round, for so many rounds, after rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-warm_up, rounds):
        for name, contender in contenders.items():
            gc.collect()
            began = time.perf_counter()
            contender()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
    return Times(seconds)


def peak_mb() -> float:
    """The peak of this program's resident memory so far, in MB (10^6 bytes).

    The kernel's mark of this very program is read where there is one: ru_maxrss starts with what the process that
    forked it held.
    """
    if STATUS.exists():
        return _status_mb("VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def resident_mb() -> float:
    """This program's resident memory now, in MB; where the kernel does not say, the peak so far."""
    return _status_mb("VmRSS") if STATUS.exists() else peak_mb()


def _status_mb(name: str) -> float:
    return int(STATUS.read_text().split(f"{name}:")[1].split()[0]) * 1024 / 1e6
