"""The table that `make bench` ends with."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One measured thing: what it had to reach, what it reached."""

    name: str
    # begins with the number of what is to be reached, "1 a tile, local: ..."
    target: str
    figure: str
    # with its unit
    ratio: str = ""
    # against what the target names
    held: bool | None = None
    # None: nothing to hold it to, a figure beside others


def as_markdown(lines: Sequence[Line]) -> str:
    """A Markdown table that also reads as text."""
    marks = {True: "yes", False: "NO", None: ""}
    rows = [("what", "target", "figure", "ratio", "held")]
    rows += [(line.name, line.target, line.figure, line.ratio, marks[line.held]) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    texts = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([texts[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *texts[1:]])
