"""Sensor profiles: which band is which, and how pixels become reflectance.

The profiles are data (`sensors.toml`, with the source of each); this module only reads and checks them.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from flights.errors import Code, Refused
from flights.hints import nearest


@dataclass(frozen=True, slots=True)
class QualityMask:
    """What the values of a sensor's quality band mean."""

    kind: Literal["bits", "values", "bands"]
    # a class is a set of bits of band 1, or of values of band 1, or of bands (1-based) in which it is not zero
    classes: Mapping[str, tuple[int, ...]]
    remove: tuple[str, ...]
    # the classes that hold no measurement of the ground

    def __post_init__(self) -> None:
        if not set(self.remove) <= set(self.classes):
            raise ValueError(f"mask classes {set(self.remove) - set(self.classes)} are not defined")


@dataclass(frozen=True, slots=True)
class SensorProfile:
    """One kind of file that a sensor or its software delivers."""

    slug: str
    title: str
    layout: Literal["bands", "files"]
    # "bands": one file, the names in band order. "files": a file a band, the order means nothing.
    bands: tuple[str, ...]
    wavelengths_nm: tuple[float, ...]
    # centre wavelengths, 0 where there is none
    source: str
    scale: Mapping[str, float] = field(default_factory=dict)
    # by dtype of the file: reflectance = pixel * scale + offset; an absent dtype has no known scale
    offset: Mapping[str, float] = field(default_factory=dict)
    nodata: float | None = None
    mask: QualityMask | None = None
    # of the quality band that comes beside the bands
    notes: str = ""

    def __post_init__(self) -> None:
        if len(self.bands) != len(self.wavelengths_nm) or len(set(self.bands)) != len(self.bands):
            raise ValueError(f"profile {self.slug}: bands and wavelengths_nm must pair up, each band named once")
        if set(self.scale) != set(self.offset):
            raise ValueError(f"profile {self.slug}: scale and offset must name the same dtypes")

    def index_of(self, band: str) -> int | None:
        """The 1-based position of a band in a multi-band file, None where the profile has no such band."""
        return self.bands.index(band) + 1 if band in self.bands else None


@cache
def profiles() -> Mapping[str, SensorProfile]:
    """Every known profile by slug, in the order of the file."""
    tables = tomllib.loads(files("flights").joinpath("sensors.toml").read_text(encoding="utf-8"))
    return {slug: _profile(slug, table) for slug, table in tables.items()}


def _profile(slug: str, table: dict[str, Any]) -> SensorProfile:
    bands, wavelengths = tuple(table.pop("bands")), tuple(table.pop("wavelengths_nm"))
    mask = table.pop("mask", None)
    if mask:
        classes = {name: tuple(numbers) for name, numbers in mask["classes"].items()}
        mask = QualityMask(mask["kind"], classes, tuple(mask["remove"]))
    return SensorProfile(slug=slug, bands=bands, wavelengths_nm=wavelengths, mask=mask, **table)


def find_profile(slug: str) -> SensorProfile:
    """The profile of that name; Refused with the nearest names when there is none."""
    known = profiles()
    if slug in known:
        return known[slug]
    meant = re.sub(r"[\s_]+", "-", slug.strip().lower())
    near = nearest(meant, known, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`run_batch.py sensors` lists the known ones"
    raise Refused(Code.MANIFEST_INVALID, f"sensor {slug!r} is not known; {hint} (or declare `bands`)")
