"""The other end of `worker`, in the product's environment; and `gdal_calc.py`, which is a command."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contender import Make
from benchmarks.peers.cog import OPTIONS

PROJECT = Path(__file__).resolve().parent.parent.parent
PYTHON = PROJECT / ".venv-peers" / "bin" / "python"
# Of the peers that `worker` runs: what the table calls them.
TITLES = {
    "naive": "naive loop + COG",
    "rio_calc": "rio calc + COG",
    "rioxarray_whole": "rioxarray",
    "rioxarray_dask": "rioxarray + dask + COG",
    "odc_dask": "odc save_cog_with_dask, 2 threads",
}
GDAL_CALC = "gdal_calc.py + COG"


def are_installed() -> bool:
    """Whether `make bench` has set up the peers' environment."""
    return PYTHON.exists()


@contextmanager
def warm(name: str, environment: Mapping[str, str] | None = None) -> Iterator[Make]:
    """A peer in a process of its own, whose imports and start belong to its first product."""
    worker = subprocess.Popen(
        [str(PYTHON), "-m", "benchmarks.peers.worker", name],
        cwd=PROJECT,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    requests, answers = worker.stdin, worker.stdout
    assert requests
    assert answers

    def make(source: str, product: str) -> None:
        print(json.dumps({"source": source, "product": product}), file=requests, flush=True)
        line = answers.readline()
        error = json.loads(line)["error"] if line else "it ended without an answer"
        if error:
            raise RuntimeError(f"{name} did not make {product}: {error}")

    with worker:
        try:
            yield make
        finally:
            requests.close()  # which ends it


def has_gdal_calc() -> bool:
    """Whether this machine has the commands (Debian: gdal-bin, python3-gdal)."""
    return bool(shutil.which("gdal_calc.py") and shutil.which("gdal_translate"))


def gdal_calc(source: str, product: str) -> None:
    """NDVI of a local file by GDAL's commands; NaN as its nodata makes some versions write nothing else."""
    ndvi = "(B.astype(float32) - A) / (B.astype(float32) + A)"
    of = ["-A", source, "--A_band=3", "-B", source, "--B_band=5", "--type=Float32", "--NoDataValue=-9999", "--quiet"]
    options = [part for name, value in OPTIONS.items() for part in ("-co", f"{name}={value}")]
    with tempfile.TemporaryDirectory(dir=Path(product).parent) as folder:
        pixels = str(Path(folder) / "pixels.tif")
        _run("gdal_calc.py", f"--calc={ndvi}", *of, f"--outfile={pixels}")
        _run("gdal_translate", "-q", "-of", "COG", *options, pixels, product)


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
