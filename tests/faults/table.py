"""The table that `make faults` ends with: what each gate promises, and the figure that this run saw.

Rows travel in the test reports' properties, which is how they cross from the processes that run the tests.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PROPERTY = "fault-table"


class Table:
    """Where a test puts its rows; before it asserts, so that a failure shows as well."""

    def __init__(self, properties: list[tuple[str, Any]]) -> None:
        self._properties = properties

    def row(self, gate: str, figure: object, target: str) -> None:
        """One line, as it stands."""
        self._add({"gate": gate, "figure": str(figure), "target": target})

    def count(self, gate: str, good: int, of: int = 1, target: str = "all") -> None:
        """A share; those of one gate, from whatever tests, become one line."""
        self._add({"gate": gate, "good": good, "of": of, "target": target})

    def _add(self, entry: Mapping[str, object]) -> None:
        self._properties.append((PROPERTY, json.dumps(entry)))


@dataclass(slots=True)
class _Line:
    gate: str
    figure: str
    target: str
    good: int = 0
    of: int = 0

    @property
    def cells(self) -> tuple[str, str, str]:
        return self.gate, f"{self.good} of {self.of}" if self.of else self.figure, self.target


def lines(properties: Iterable[tuple[str, object]]) -> list[str]:
    """The rows as lines of text, shares added up."""
    counted: dict[tuple[str, str], _Line] = {}
    found: list[_Line] = []
    for name, value in properties:
        if name != PROPERTY:
            continue
        entry = json.loads(str(value))
        line = _Line(entry["gate"], entry.get("figure", ""), entry["target"])
        if "of" in entry:
            line = counted.setdefault((line.gate, line.target), line)
            line.good, line.of = line.good + entry["good"], line.of + entry["of"]
        if not any(line is other for other in found):
            found.append(line)
    rows = [("gate", "figure", "target"), *sorted(line.cells for line in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
