"""Measuring on a machine that others use too: rounds in turn, medians, ratios pair by pair."""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


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
    """The peak of this process's resident memory so far, in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
