"""The import direction: errors <- pure <- edges <- use <- shells."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent

# From the inside out; an edge imports no other edge. What is pure touches nothing outside of its process (`alarms` has
# threads and the clock, no more).
LAYERS = {
    "pure": [
        "errors", "sensors", "indices", "bands", "radiometry", "windows", "crs", "manifest", "fingerprint", "report",
        "quality", "hints", "alarms",
    ],
    "edge": ["settings", "store", "raster", "ledger", "embedded"],
    "use": ["runs", "survey", "intake", "pipeline", "mend", "follow", "begin", "console"],
}  # fmt: skip
HEAVY = {"rasterio", "boto3", "botocore", "redis", "celery", "tenacity", "rich", "click", "pydantic_settings"}
RANK = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names}


def imports_of(path: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "flights":
                names |= {f"flights.{alias.name}" for alias in node.names}
    return names


def modules() -> list[Path]:
    return sorted(
        p for p in (PROJECT / "flights").rglob("*.py") if p.name != "__init__.py" or p.parent.name != "flights"
    )


def part_of(path: Path) -> str:
    """`flights/store/s3.py` is of the part `store`."""
    return path.relative_to(PROJECT / "flights").parts[0].removesuffix(".py")


def test_every_module_has_its_layer() -> None:
    assert {part_of(p) for p in modules()} == set(RANK)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PROJECT)))
def test_imports_run_inwards(path: Path) -> None:
    mine = part_of(path)
    for name in imports_of(path):
        if name.startswith("flights."):
            theirs = name.split(".")[1]
            if theirs in RANK and theirs != mine:
                assert RANK[theirs] <= RANK[mine], f"{path.name} imports {name}, which lies further out"
                if RANK[mine] == 1:
                    assert RANK[theirs] == 0, f"edge {mine} imports edge {theirs}"
        assert name.split(".")[0] not in {"celery", "kombu", "fleet", "tasks", "run_batch"}, (
            f"{path.name} imports a shell"
        )


@pytest.mark.parametrize("name", LAYERS["pure"])
def test_pure_modules_touch_nothing(name: str) -> None:
    roots = {n.split(".")[0] for n in imports_of(PROJECT / "flights" / f"{name}.py")}
    assert not roots & HEAVY


def test_the_command_line_starts_light() -> None:
    tree = ast.parse((PROJECT / "run_batch.py").read_text())
    top = {a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names}
    top |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {n.split(".")[0] for n in top} & {"flights", "tasks", "celery", "rasterio", "pydantic", "rich"}
