"""A flight as its manifest declares it: checked, frozen values; JSON in, values out.

What only storage can tell (whether two URIs are one object) is checked by `intake`.
"""

import contextlib
import json
import math
import os.path
import posixpath
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flights.bands import COLOURS
from flights.errors import Code, FlightsError, ManifestRefused
from flights.hints import did_you_mean
from flights.indices import INDICES
from flights.sensors import SensorProfile, find_profile

# The role of a quality band among the files of a tile.
MASK = "mask"
MAX_TILES = 1_000_000
# An error that only says that a value is of the other kind that a key may have.
_ELSE = "of_the_other_kind"
_NAME = re.compile(r"[\w-](?:[\w .-]*[\w-])?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,30}")


def _shown(value: object) -> str:
    """A value as its manifest has it, cut short; strings as they are, in quotes."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _name(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{_shown(value)} is a number, not a name; write it in quotes: "{_shown(value)}"')
    if not isinstance(value, str) or len(value.encode()) > 120 or not _NAME.fullmatch(value) or ".." in value:
        raise ValueError(
            f"{_shown(value)} is no name: letters, digits, '.', '_', '-' and inner spaces, no path, at most 120 bytes"
        )
    return value


def _tenant(value: object) -> str:
    name = _name(value)
    if " " in name:
        raise ValueError(f"{_shown(value)} holds a space: a tenant is part of the name of a queue, which workers list")
    return name


def _epsg(value: object) -> int:
    text = str(value).strip().upper().removeprefix("EPSG:")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{4,6}", text):
        raise ValueError(f"{_shown(value)} is not an EPSG code; write 32615 or 'EPSG:32615'")
    return int(text)


def _uri(value: object) -> str:
    """`s3://bucket/key`, `file:///path` or a path; what a key spells is left as it is."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{_shown(value)} is not a path or URI")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} cannot be written as UTF-8") from None
    if value.startswith("~/"):
        raise ValueError(f"{value!r}: ~ is the shell's word for a home folder, not known here; write the path out")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", value) is None:
        return value
    if local := re.fullmatch(r"file://(?:localhost)?(/.*)", value, flags=re.DOTALL):
        return "/" + unquote(local[1]).lstrip("/")  # a file URI is percent-encoded; a path and an S3 key are not
    if re.fullmatch(r"s3://[^/]+(/.*)?", value, flags=re.DOTALL):
        return value
    raise ValueError(f"{value!r} is not s3://bucket/key, file:///path or a local path")


def object_uri(value: object) -> str:
    """A URI that names one object, not a folder; ValueError where it does not."""
    uri = _uri(value)
    if uri.endswith("/") or (uri.startswith("s3://") and uri.count("/") < 3):
        raise ValueError(f"{value!r} is a folder; a file or object is needed")
    return uri


def _source_uri(value: object) -> str:
    if isinstance(value, dict):
        raise PydanticCustomError(_ELSE, "an object: a file a band")
    return object_uri(value)


def _role(value: object) -> str:
    if not isinstance(value, str) or not _ROLE.fullmatch(value):
        hint = f"; did you mean {value.lower()}?" if isinstance(value, str) and _ROLE.fullmatch(value.lower()) else ""
        raise ValueError(f"{_shown(value)} is no name of a band: lower-case letters, digits and '-'{hint}")
    return value


def _band(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and 1 <= len(value) <= 200:
        return value
    raise ValueError(f"{_shown(value)} is neither the number of a band (1 for the first) nor a band description")


def _nodata(value: object) -> float | None:
    if isinstance(value, str) and value.lower() == "nan":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f'{_shown(value)} is not a number or "nan"')
    return value if value is None or value != value else _number(value)  # NaN is unlike itself


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{str(value)[:20]} is beyond what a float64 holds")
    return number


def _scale(value: object) -> float:
    scale = _number(value)
    if scale <= 0:
        raise ValueError(f"{_shown(value)} is no scale: reflectance = pixel * scale + offset, and a scale is above 0")
    return scale


def _index(value: object) -> object:
    if not isinstance(value, str) or value not in INDICES:
        hint = did_you_mean(value, INDICES) if isinstance(value, str) else ""
        said = f"{_shown(value)} is not a known index; known are {', '.join(INDICES)}"
        raise ValueError(f"{said}; {hint}" if hint else said)
    return value


def _dtype(value: object) -> object:
    if value not in ("float32", "int16"):
        raise ValueError(f"{_shown(value)} is no dtype of products; known are float32, int16 (ten-thousandths)")
    return value


def _acquired(value: object) -> object:
    if value is None or isinstance(value, date):
        return value
    if isinstance(value, str) and _DATE.match(value):
        with contextlib.suppress(ValueError):
            if _DATE.fullmatch(value.removesuffix("T00:00:00")):  # as run records of 0.1 before 2026-11-30 have a date
                return date.fromisoformat(value[:10])
            if (moment := datetime.fromisoformat(value)).tzinfo:
                return moment
    raise ValueError(
        f"{_shown(value)} is not a date such as 2026-06-14, nor a timestamp with its zone such as 2026-06-14T17:03:00Z"
    )


def _tiles(value: object) -> object:
    if isinstance(value, list | tuple) and not 1 <= len(value) <= MAX_TILES:
        raise ValueError(f"{len(value)} tiles; a flight has 1 to {MAX_TILES}")
    return value


Name = Annotated[str, BeforeValidator(_name)]
Tenant = Annotated[str, BeforeValidator(_tenant)]
Epsg = Annotated[int, BeforeValidator(_epsg)]
Uri = Annotated[str, BeforeValidator(_uri)]
ObjectUri = Annotated[str, BeforeValidator(object_uri)]
SourceUri = Annotated[str, BeforeValidator(_source_uri)]
Number = Annotated[float, BeforeValidator(_number)]
Scale = Annotated[float, BeforeValidator(_scale)]
Nodata = Annotated[float | None, BeforeValidator(_nodata)]
Role = Annotated[str, BeforeValidator(_role)]
Band = Annotated[int | str, BeforeValidator(_band)]
Bands = Annotated[dict[Role, Band], Field(min_length=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Radiometry(_Frozen):
    """What a flight or a tile may declare of its bands; a tile's word wins over its flight's."""

    sensor: str | None = None
    bands: Bands | None = None
    scale: Scale | dict[Role, Scale] | None = None
    offset: Number | dict[Role, Number] | None = None
    nodata: dict[Role, Nodata] | Nodata = None
    mask_classes: tuple[str, ...] | None = None
    # what a quality band removes; by default what its sensor profile names

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.sensor is not None:
            try:
                find_profile(self.sensor)
            except FlightsError as error:
                raise ValueError(str(error)) from None
        return self

    @field_serializer("nodata", when_used="json")
    def _strict_nodata(self, value: object) -> object:
        """JSON has no NaN: the word is the manifest's own."""
        if isinstance(value, dict):
            return {role: self._strict_nodata(number) for role, number in value.items()}
        return "nan" if isinstance(value, float) and math.isnan(value) else value

    def declared(self, key: Literal["scale", "offset", "nodata"], role: str) -> float | None:
        """The declared value of `key` for one band, None where nothing is declared."""
        value = getattr(self, key)
        return value.get(role) if isinstance(value, dict) else value


class Tile(Radiometry):
    """One tile: a source (one file, or a file a band), where its product goes, and the CRS it must have."""

    tile_id: Name
    src_uri: SourceUri | dict[Role, ObjectUri]
    dst_uri: ObjectUri | Literal[""] = ""
    epsg: Epsg

    @property
    def sources(self) -> dict[str, str]:
        """URI by role; the role "" is one file that holds every band."""
        return self.src_uri if isinstance(self.src_uri, dict) else {"": self.src_uri}


class Flight(Radiometry):
    """One flight, complete in itself: every URI absolute, every tile with its destination."""

    flight_id: Name
    tenant: Tenant | None = None
    out_uri: Uri = ""
    acquired: Annotated[datetime | date | None, BeforeValidator(_acquired)] = None
    index: Annotated[str, BeforeValidator(_index)] = "ndvi"
    dtype: Annotated[Literal["float32", "int16"], BeforeValidator(_dtype)] = "float32"
    # of products: values as they are, or ten-thousandths
    tiles: Annotated[tuple[Tile, ...], BeforeValidator(_tiles)]

    @property
    def report_uri(self) -> str:
        """Where the flight's report is published."""
        return join_uri(self.out_uri, f"{self.flight_id}.report.json")

    @property
    def mosaic_uri(self) -> str:
        """Where the flight's mosaic is published."""
        return join_uri(self.out_uri, f"{self.flight_id}.{self.index}.tif")

    def radiometry(self, tile: Tile) -> Radiometry:
        """What holds for a tile: its own word, else the flight's.

        A tile's own `sensor` sets aside what the flight says of bands and pixels. Scale and offset of a band are the
        tile's, or the flight's, never one from each.
        """
        flight = Radiometry() if tile.sensor else self
        merged: dict[str, dict[str, float | None]] = {"scale": {}, "offset": {}, "nodata": {}}
        for role in INDICES[self.index].roles:
            calibrated = tile.declared("scale", role) is not None or tile.declared("offset", role) is not None
            owner, fill = tile if calibrated else flight, tile.declared("nodata", role)
            merged["scale"][role] = owner.declared("scale", role)
            merged["offset"][role] = owner.declared("offset", role)
            merged["nodata"][role] = flight.declared("nodata", role) if fill is None else fill
        values: dict[str, Any] = {
            key: {role: v for role, v in by_role.items() if v is not None} for key, by_role in merged.items()
        }
        return Radiometry(
            sensor=tile.sensor or self.sensor,
            bands=tile.bands or flight.bands,
            mask_classes=self.mask_classes if tile.mask_classes is None else tile.mask_classes,
            scale=values["scale"] or None,
            offset=values["offset"] or None,
            nodata=values["nodata"] or None,
        )

    def profile(self, tile: Tile) -> SensorProfile | None:
        """The sensor profile that holds for a tile, None where none is declared."""
        slug = self.radiometry(tile).sensor
        return find_profile(slug) if slug else None


def join_uri(folder: str, relative: str) -> str:
    """A URI below a folder or prefix; an absolute `relative` stands for itself."""
    if relative.startswith("s3://"):
        return relative
    if relative.startswith("/"):
        return tidy_path(relative)
    if not folder.startswith("s3://"):
        return tidy_path(os.path.join(folder, relative))
    # A prefix is opaque and kept as it is spelled; only the relative path is one, and may climb.
    parts = folder.rstrip("/").split("/")
    for step in posixpath.normpath(relative).split("/"):
        if step == "..":
            if len(parts) <= len(("s3:", "", "bucket")):
                raise _invalid(f"{relative!r} climbs out of the bucket of {folder!r}")
            parts.pop()
        elif step != ".":
            parts.append(step)
    return "/".join(parts)


def tidy_path(path: str) -> str:
    """An absolute path without `.` and empty steps; `..` stays, since what it climbs from may be a link."""
    return "/" + "/".join(step for step in path.split("/") if step not in ("", "."))


def folder_of(uri: str) -> str:
    """The folder or prefix that holds a URI, without a closing slash."""
    return uri.rsplit("/", 1)[0] or "/"


def parse_manifest(raw: bytes, base_uri: str) -> Flight:
    """The flight that a manifest declares; `base_uri` is the folder or prefix that its relative URIs start from.

    Raises ManifestRefused with everything that is wrong with it, each with its place.
    """
    document = _decode(raw)
    if not isinstance(document, dict):
        raise _invalid(f'a manifest is an object, {{"flight_id": ..., "tiles": [...]}}; this is {_shown(document)}')
    if {"run_id", "outcomes"} <= document.keys():
        raise _invalid("this is a flight's report, not its manifest")
    known_id = document.get("flight_id")
    flight_id = known_id if isinstance(known_id, str) and _NAME.fullmatch(known_id) else ""
    try:
        flight = Flight.model_validate(document)
        return _resolved(flight, base_uri)
    except ValidationError as error:
        raise ManifestRefused(Code.MANIFEST_INVALID, _explained(error), flight_id) from None
    except ManifestRefused as refused:
        raise ManifestRefused(refused.code, str(refused), flight_id) from None


def _decode(raw: bytes) -> Any:
    """JSON as a value; byte-order mark and CRLF accepted, repeated keys and NaN refused."""
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        tiff = raw[:2] in (b"II", b"MM") and b"\0" in raw[:4]
        what = "a raster, not a manifest" if tiff else f"not UTF-8 ({error.reason} at byte {error.start})"
        raise ManifestRefused(Code.MANIFEST_NOT_JSON, f"{what}; a manifest is JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ManifestRefused(Code.MANIFEST_NOT_JSON, _not_json(error)) from None
    except (ValueError, RecursionError) as error:
        raise ManifestRefused(Code.MANIFEST_NOT_JSON, f"not JSON: {error}") from None


# What Python's parser finds, in a reader's words.
_JSON_WORDS = {
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing after a key",
    "Expecting property name": "a key in double quotes is missing",
    "Expecting value": "no value (text stands in double quotes; true, false and null are written so)",
    "Invalid \\": "a lone backslash (write \\\\, or / in a path)",
    "Invalid control character": "a line break or tab within a text",
    "Unterminated string": "a text without its closing quote",
    "Extra data": "more after its end",
}


def _not_json(error: json.JSONDecodeError) -> str:
    """Where JSON ends, and what stands there."""
    if not error.doc.strip():
        return "is empty"
    before, rest = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    if before.endswith(",") and rest[:1] in ("}", "]"):
        line = before.count("\n") + 1
        return f"not JSON: a comma too many before {rest[0]!r}, at the end of line {line}"
    if rest.startswith(("//", "/*", "#")):
        return f"not JSON, which has no comments: {rest.splitlines()[0]!r} at line {error.lineno}"
    if rest.startswith("'"):
        return f"not JSON: strings stand in double quotes; {rest.splitlines()[0]!r} at line {error.lineno}"
    near = " ".join(error.doc[max(0, error.pos - 20) : error.pos + 20].split())
    said = next((ours for theirs, ours in _JSON_WORDS.items() if error.msg.startswith(theirs)), error.msg)
    return f"not JSON: {said} at line {error.lineno}, column {error.colno}, near {near!r}"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return dict(pairs)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


# How pydantic names the branches of a union in an error's place; a key of a manifest is never spelled like that.
_BRANCH = re.compile(r"(function-\w+|dict|literal|nullable|constrained-\w+)(\[.*)?|constrained-\w+", flags=re.DOTALL)


def _explained(error: ValidationError) -> str:
    """Up to ten complaints, each with its place in the manifest."""
    by_place: dict[str, list[tuple[bool, str]]] = {}
    for one in error.errors(include_url=False):
        if one["type"] == _ELSE:
            continue
        ours = one["type"] in ("value_error", "extra_forbidden")
        by_place.setdefault(_place(one["loc"]), []).append((ours, _said(one)))
    lines = []
    for place, said in by_place.items():  # of a union each branch complains; our own words say it best
        best = [text for ours, text in said if ours] or [text for _, text in said]
        lines += [f"{place}: {text}" if place else text for text in dict.fromkeys(best)]
    more = f"; and {len(lines) - 10} more" if len(lines) > 10 else ""
    return "; ".join(lines[:10]) + more


def _place(loc: Sequence[int | str]) -> str:
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part != "[key]" and not _BRANCH.fullmatch(part):
            place += f".{part}" if place else part
    return place


# What pydantic finds in values that have no words of ours.
_WORDS = {
    "missing": "required, but missing",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "too_short": "is empty",
}


def _said(error: Mapping[str, Any]) -> str:
    kind, shown = error["type"], _shown(error["input"])
    if kind == "extra_forbidden":
        return _unknown_key(error["loc"])
    if kind in _WORDS:
        return _WORDS[kind] if kind in ("missing", "too_short") else f"{shown} {_WORDS[kind]}"
    return str(error["msg"]).removeprefix("Value error, ")


def _unknown_key(loc: Sequence[int | str]) -> str:
    """An unknown key, with the known one that was probably meant, or the place where it belongs."""
    key, of_tile = str(loc[-1]), loc[0] == "tiles"
    here, elsewhere = (Tile, Flight) if of_tile else (Flight, Tile)
    if key in elsewhere.model_fields:
        return f"unknown key: it belongs to {'the flight, not to a tile' if of_tile else 'each of the tiles'}"
    return "unknown key; " + did_you_mean(key, here.model_fields, f"known are {', '.join(here.model_fields)}")


def _resolved(flight: Flight, base_uri: str) -> Flight:
    """The flight with absolute URIs and every destination filled in, free of contradictions within itself."""
    out_uri = join_uri(base_uri, flight.out_uri) if flight.out_uri else ""
    tiles = []
    for tile in flight.tiles:
        if not tile.dst_uri and not out_uri:
            raise _invalid(f"tile {tile.tile_id!r} has no dst_uri and the flight has no out_uri to derive it from")
        dst = tile.dst_uri or join_uri(out_uri, f"tiles/{tile.tile_id}.{flight.index}.tif")
        src: Any = {role: join_uri(base_uri, uri) for role, uri in tile.sources.items()}
        tiles.append(tile.model_copy(update={"src_uri": src.get("", src), "dst_uri": join_uri(base_uri, dst)}))
    out_uri = (out_uri or _common_folder([t.dst_uri for t in tiles])).rstrip("/") or "/"
    flight = flight.model_copy(update={"out_uri": out_uri, "tiles": tuple(tiles)})
    _check_tiles(flight)
    return flight


def _common_folder(uris: list[str]) -> str:
    folders = [folder_of(uri).split("/") for uri in uris]
    depth = 0
    while all(len(f) > depth for f in folders) and len({f[depth] for f in folders}) == 1:
        depth += 1
    common = "/".join(folders[0][:depth])
    if not re.fullmatch(r"s3://[^/]+.*|/.+", common):
        raise _invalid("the tiles' destinations share no folder; declare the flight's out_uri")
    return common


def _check_tiles(flight: Flight) -> None:
    seen: set[str] = set()
    roles = INDICES[flight.index].roles
    for tile in flight.tiles:
        if tile.tile_id in seen:
            raise ManifestRefused(Code.TILE_CLASH, f"two tiles share the same tile_id {tile.tile_id!r}")
        seen.add(tile.tile_id)
        rule = flight.radiometry(tile)
        _check_band_names(flight.index, tile, rule, flight)
        if isinstance(tile.src_uri, dict):
            lacking = [role for role in roles if role not in tile.src_uri]
            extra = [role for role in tile.src_uri if role not in (*roles, MASK)]
            if lacking or extra:
                wrong = f"lacks {', '.join(lacking)}" if lacking else f"names {', '.join(extra)}, which is not used"
                raise _invalid(f"tile {tile.tile_id!r}: src_uri {wrong}; {flight.index} needs {', '.join(roles)}")
            if MASK in tile.src_uri or rule.mask_classes:
                _check_mask(tile, rule)
        else:
            _check_one_file(flight.index, tile, rule)


def _check_one_file(index: str, tile: Tile, rule: Radiometry) -> None:
    """Refuse what cannot say where the bands of a single file are, whatever the file holds."""
    roles = INDICES[index].roles
    profile = find_profile(rule.sensor) if rule.sensor else None
    if rule.bands is not None:
        lacking = [role for role in roles if role not in rule.bands]
        if lacking:
            raise _invalid(f"tile {tile.tile_id!r}: `bands` does not say which band is {', '.join(lacking)}")
        taken = [rule.bands[role] for role in roles]
        twice = next((band for band in taken if taken.count(band) > 1), None)
        if twice is not None:
            raise _invalid(
                f"tile {tile.tile_id!r}: {' and '.join(r for r in roles if rule.bands[r] == twice)} are both taken "
                f"from band {twice!r}; {index} needs a band of its own for each"
            )
    elif profile is None:
        raise _invalid(
            f"tile {tile.tile_id!r}: neither `sensor` nor `bands` says which band is which; name the `sensor` "
            f"(`run_batch.py sensors` lists the known ones), or give `bands` the numbers of {', '.join(roles)}"
        )
    elif profile.layout == "files":
        files = ", ".join(f'"{role}": ...' for role in roles)
        raise _invalid(
            f"tile {tile.tile_id!r}: sensor {profile.slug} delivers a file a band; give src_uri as an object "
            f"({{{files}}}), or declare `bands` for a stacked file"
        )
    if rule.mask_classes:
        raise _invalid(f'tile {tile.tile_id!r}: mask_classes needs a "mask" file among src_uri')


def _check_band_names(index: str, tile: Tile, rule: Radiometry, flight: Flight) -> None:
    """Refuse values for bands that nobody has: a misspelt band would be read without its scale."""
    profile = find_profile(rule.sensor) if rule.sensor else None
    known = {*INDICES[index].roles, *COLOURS, *(profile.bands if profile else ())}
    for key in ("bands", "scale", "offset", "nodata"):
        named = [name for said in (tile, flight) if isinstance(value := getattr(said, key), dict) for name in value]
        strange = [name for name in named if name not in known]
        if strange:
            used = f"{index} uses {', '.join(INDICES[index].roles)}"
            raise _invalid(
                f"tile {tile.tile_id!r}: {key} names {', '.join(strange)}, which is no band of "
                f"{profile.slug if profile else index}; {did_you_mean(strange[0], known, used)}"
            )


def _check_mask(tile: Tile, rule: Radiometry) -> None:
    profile = find_profile(rule.sensor) if rule.sensor else None
    if MASK not in tile.sources:
        raise _invalid(f'tile {tile.tile_id!r}: mask_classes needs a "mask" file among src_uri')
    if profile is None or profile.mask is None:
        raise _invalid(
            f"tile {tile.tile_id!r}: only a `sensor` profile says what the values of a mask mean, "
            f"and {rule.sensor or 'no sensor'} has none"
        )
    strange = [name for name in rule.mask_classes or () if name not in profile.mask.classes]
    if strange:
        raise _invalid(
            f"tile {tile.tile_id!r}: mask class {', '.join(strange)} is not known to {profile.slug}; "
            f"it has {', '.join(profile.mask.classes)}"
        )


def _invalid(message: str) -> ManifestRefused:
    return ManifestRefused(Code.MANIFEST_INVALID, message)
