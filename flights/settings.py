"""The one reader of the environment: a frozen object, made once and passed as an argument.

`AWS_*` is boto3's business and read by boto3 itself.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from flights.errors import Code, Refused
from flights.hints import nearest
from flights.manifest import Uri


def _state_home() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME", ""))  # a relative one is to be ignored, by the XDG specification
    return (home if home.is_absolute() else Path.home() / ".local" / "state") / "flights"


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _broker_url(value: object) -> object:
    """Without the value in its messages: it may hold a password."""
    try:
        parts = urlsplit(str(value))
        sound = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
        sound = sound and re.fullmatch(r"/?[0-9]*", parts.path) is not None
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("is not redis://[:PASSWORD@]HOST[:PORT]/DB, nor rediss:// (TLS)")
    return value


Folder = Annotated[Path, AfterValidator(Path.expanduser)]
BrokerUrl = Annotated[str, BeforeValidator(_broker_url)]


def _absolute(value: Path | str) -> Path | str:
    """Commands and workers run in folders of their own, so that a relative path would be two."""
    if str(value) and not str(value).startswith(("/", "s3://")):
        raise ValueError("is a relative path; an absolute one is needed")
    return value


class Settings(BaseSettings):
    """Every knob; names in the environment are `FLIGHTS_` + the field in capitals unless said otherwise."""

    model_config = SettingsConfigDict(
        env_prefix="FLIGHTS_", frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    broker_url: BrokerUrl | None = Field(default=None, validation_alias="CELERY_BROKER_URL")
    """`CELERY_BROKER_URL`: the fleet's Redis. None: the embedded default."""
    result_backend: BrokerUrl | None = Field(default=None, validation_alias="CELERY_RESULT_BACKEND")
    """`CELERY_RESULT_BACKEND`: where chord parts are counted; the broker when not set."""

    state_dir: Annotated[Folder, AfterValidator(_absolute)] = Field(default_factory=_state_home)
    """The embedded server, scratch space and, by default, run records."""
    runs_uri: Annotated[Uri | Literal[""], AfterValidator(_absolute)] = ""
    """Where run records live: a folder or an s3:// prefix. Default: `runs` in the state folder."""
    scratch_dir: Annotated[Folder, AfterValidator(_absolute)] | None = None
    """Where sources are mirrored and products are made. Default: `scratch` in the state folder."""

    workers: int = Field(default_factory=_usable_cores, ge=1)
    """Processes of the embedded worker. Default: the cores this process may use."""

    tile_soft_limit_s: int = Field(default=600, ge=1)
    """A tile that takes longer ends as failed."""
    tile_hard_limit_s: int = Field(default=660, ge=2)
    """A tile that does not hear the soft limit is killed."""
    max_deliveries: int = Field(default=3, ge=1)
    """How often a tile's message may begin and never end before the tile is called failed."""
    transient_attempts: int = Field(default=4, ge=1)
    """How often a tile is tried within one delivery while its errors are transient."""
    claim_lease_s: int = Field(default=20, ge=2)
    """How long a tile stays claimed by a worker that has fallen silent."""

    sweep_after_s: int = Field(default=120, ge=1)
    """A run without progress for so long is stuck: `sweep` sends what is missing and ends it."""
    stale_after_s: int = Field(default=24 * 3600, ge=60)
    """Temporary files and unfinished uploads that are older are removed by `sweep`."""
    min_free_bytes: int = Field(default=512 * 2**20, ge=0)
    """A worker with less free scratch space takes no more tiles until there is more."""

    partial_reads: bool = True
    """Fetch from S3 only the blocks of the bands in use, where bands lie apart; such a read cannot be held to the
    checksum that S3 keeps of the whole object."""
    window_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Memory budget of one window, all bands and intermediate arrays together."""
    max_block_bytes: int = Field(default=2 * 2**30, ge=2**20)
    """A source whose single block is larger, decoded, is refused."""
    max_pixels: int = Field(default=40_000_000_000, ge=1)
    """A source with more pixels is refused from its header."""
    review_implausible_fraction: float = Field(default=0.01, ge=0, le=1)
    """A product with more of its valid pixels out of range or of negative reflectance wants a review."""
    review_saturated_fraction: float = Field(default=0.05, ge=0, le=1)
    """A product with more of its valid pixels at the top of the source's range wants a review."""
    cog_compress: Literal["zstd", "deflate"] = "zstd"
    """Compression of products: zstd level 1, or deflate for older readers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tile_hard_limit_s <= self.tile_soft_limit_s:
            raise ValueError("FLIGHTS_TILE_HARD_LIMIT_S must be above FLIGHTS_TILE_SOFT_LIMIT_S")
        return self

    @property
    def embedded(self) -> bool:
        """True where no fleet is named and this machine does the work."""
        return self.broker_url is None

    @property
    def runs(self) -> str:
        """The folder or prefix of run records, without a closing slash."""
        return (self.runs_uri or str(self.state_dir / "runs")).rstrip("/")

    @property
    def scratch(self) -> Path:
        """The folder for mirrored sources and products under way."""
        return self.scratch_dir or self.state_dir / "scratch"


# Names read before settings exist, by the processes of the embedded default.
_OWN_NAMES = {"FLIGHTS_EMBEDDED_PARENT"}


def load_settings() -> Settings:
    """Settings from the environment; Refused with every wrong or unknown name."""
    known = {f"FLIGHTS_{field.upper()}" for field in Settings.model_fields} - {
        "FLIGHTS_BROKER_URL",
        "FLIGHTS_RESULT_BACKEND",
    }
    unknown = sorted(n for n in os.environ if n.startswith("FLIGHTS_") and n not in known | _OWN_NAMES)
    if unknown:
        near = nearest(unknown[0].removeprefix("FLIGHTS_"), (name.removeprefix("FLIGHTS_") for name in known))
        hint = f"; did you mean FLIGHTS_{near[0]}?" if near else ""
        raise Refused(
            Code.SETTINGS_INVALID,
            f"unknown setting {', '.join(unknown)}{hint}; the known ones are {', '.join(sorted(known))}",
        )
    try:
        return Settings()
    except ValidationError as error:
        found = [e for e in error.errors() if e.get("ctx", {}).get("expected") != "''"]  # "or not set"
        raise Refused(Code.SETTINGS_INVALID, "; ".join(_complaint(e) for e in found)) from None


_WORDS = {
    "int_parsing": "is not a whole number",
    "float_parsing": "is not a number",
    "bool_parsing": "is neither true nor false",
}


def _complaint(error: Mapping[str, Any]) -> str:
    """One wrong setting; a URL's value is not shown, it may hold a password."""
    bound = error.get("ctx", {})
    said = _WORDS.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    if error["type"] == "greater_than_equal":
        said = f"must be at least {bound['ge']}"
    elif error["type"] == "literal_error":
        said = f"is not {bound['expected']}"
    elif error["type"] == "less_than_equal":
        said = f"must be at most {bound['le']}"
    if not error["loc"]:
        return str(said)
    name = str(error["loc"][0])
    return f"FLIGHTS_{name.upper()}={error['input']!r}: {said}" if name.islower() else f"{name}: {said}"
