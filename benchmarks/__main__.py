"""`python -m benchmarks [--quick] [NAME...]`: measure, and print the table."""

import argparse
import importlib
import os
import platform
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.table import Line, as_markdown

# Each a module of this package with `run(folder: Path, quick: bool) -> list[Line]`, in the order of the table.
NAMES = ("tile_local", "tile_s3", "flight", "giant", "rerun", "memory", "mosaic", "startup")


def main() -> None:
    """Run the benchmarks that are named, or all; one that breaks costs its own figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds, to see that it runs")
    asked = parser.parse_args()
    strange = [name for name in asked.names if name not in NAMES]
    if strange:
        parser.error(f"no benchmark {', '.join(strange)}; there are {', '.join(NAMES)}")
    lines: list[Line] = []
    broken: list[str] = []
    for name in asked.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f"flights-bench-{name}-") as folder:
            try:
                lines += importlib.import_module(f"benchmarks.{name}").run(Path(folder), asked.quick)
            except Exception:
                traceback.print_exc()
                broken.append(name)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )
    print(as_markdown(lines))
    if broken:
        sys.exit(f"broken: {', '.join(broken)}")


if __name__ == "__main__":
    main()
