"""Writes the table of docs/sensors.md from flights/sensors.toml: `python docs/make_sensors.py`.

Only what lies between the two marks is made here; the rest of the page is written by hand.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "sensors.md"
PROFILES = PROJECT / "flights" / "sensors.toml"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
HEAD = ("`sensor`", "What it is", "Bands, in order", "Red, NIR", "Reflectance", "No data", "Mask removes", "Source")


def updated(page: str, toml: str) -> str:
    """The page with the table that the profiles give now."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(tomllib.loads(toml)) + END + after


def table(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a profile, in the order of the file."""
    rows = [HEAD, ["---"] * len(HEAD), *(row(slug, profile) for slug, profile in profiles.items())]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n" for cells in rows)


def row(slug: str, profile: Mapping[str, Any]) -> list[str]:
    """The cells of one profile."""
    bands, is_stack = profile["bands"], profile["layout"] == "bands"
    order = ", ".join(f"{i} {band}" if is_stack else band for i, band in enumerate(bands, start=1))
    places = f"{bands.index('red') + 1}, {bands.index('nir') + 1}" if is_stack else "a file each"
    scales = [
        f"{dtype}: {_formula(scale, profile['offset'][dtype])}" for dtype, scale in profile.get("scale", {}).items()
    ]
    removed = ", ".join(profile["mask"]["remove"]) if "mask" in profile else "-"
    nodata = f"{profile['nodata']:g}" if "nodata" in profile else "-"
    reflectance = "; ".join(scales) or "not known"
    return [f"`{slug}`", profile["title"], order, places, reflectance, nodata, removed, profile["source"]]


def _formula(scale: float, offset: float) -> str:
    """What turns a pixel p into reflectance; the scale as the divisor where that is the whole number people know."""
    divisor = round(1 / scale)
    scaled = "p" if scale == 1 else f"p / {divisor}" if 1 / divisor == scale else f"p * {scale:.10g}"
    return f"{scaled} {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else scaled


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), PROFILES.read_text(encoding="utf-8")), encoding="utf-8")
