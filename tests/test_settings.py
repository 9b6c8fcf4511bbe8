"""Settings: the defaults, where each comes from, and what is refused by name."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from flights.errors import Code, Refused
from flights.settings import load_settings


def refusal() -> Refused:
    with pytest.raises(Refused) as refused:
        load_settings()
    assert refused.value.code is Code.SETTINGS_INVALID
    return refused.value


def test_defaults(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.embedded
    assert settings.broker_url is None
    assert settings.result_backend is None
    assert settings.state_dir == tmp_path / "state"
    assert settings.runs == str(tmp_path / "state" / "runs")
    assert settings.scratch == tmp_path / "state" / "scratch"
    assert settings.workers == len(os.sched_getaffinity(0))
    assert settings.tile_soft_limit_s < settings.tile_hard_limit_s
    assert settings.cog_compress == "zstd"


@pytest.mark.parametrize(
    ("xdg", "folder"),
    [
        ("/srv/state", "/srv/state/flights"),
        (None, "~/.local/state/flights"),
        ("", "~/.local/state/flights"),
        ("state", "~/.local/state/flights"),
    ],
)
def test_the_state_folder_is_where_the_desktop_convention_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, xdg: str | None, folder: str
) -> None:
    monkeypatch.delenv("FLIGHTS_STATE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_STATE_HOME", xdg)
    assert load_settings().state_dir == Path(folder.replace("~", str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "value", "field", "found"),
    [
        ("CELERY_BROKER_URL", "redis://fleet/0", "broker_url", "redis://fleet/0"),
        ("CELERY_RESULT_BACKEND", "redis://fleet/1", "result_backend", "redis://fleet/1"),
        ("FLIGHTS_STATE_DIR", "/srv/flights", "state_dir", Path("/srv/flights")),
        ("FLIGHTS_RUNS_URI", "s3://runs/x/", "runs", "s3://runs/x"),
        ("FLIGHTS_RUNS_URI", "/srv/runs", "runs", "/srv/runs"),
        ("FLIGHTS_SCRATCH_DIR", "/scratch", "scratch", Path("/scratch")),
        ("FLIGHTS_WORKERS", "3", "workers", 3),
        ("FLIGHTS_TILE_SOFT_LIMIT_S", "30", "tile_soft_limit_s", 30),
        ("FLIGHTS_TILE_HARD_LIMIT_S", "1000", "tile_hard_limit_s", 1000),
        ("FLIGHTS_MAX_DELIVERIES", "5", "max_deliveries", 5),
        ("FLIGHTS_WINDOW_BYTES", "1048576", "window_bytes", 2**20),
        ("FLIGHTS_MAX_PIXELS", "1", "max_pixels", 1),
        ("FLIGHTS_COG_COMPRESS", "deflate", "cog_compress", "deflate"),
    ],
)
def test_settings_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, found: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load_settings(), field) == found


def test_a_named_broker_is_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://fleet/0")
    assert not load_settings().embedded


def test_an_empty_broker_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `CELERY_BROKER_URL=` in an env file leaves it; Celery would take "" for an AMQP broker on this machine."""
    monkeypatch.setenv("CELERY_BROKER_URL", "")
    assert load_settings().embedded


@pytest.mark.parametrize("name", ["BROKER_URL", "broker_url", "RESULT_BACKEND", "result_backend", "WORKERS"])
def test_another_programs_variable_is_not_ours(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    without = load_settings()
    monkeypatch.setenv(name, "3")
    assert load_settings() == without


def test_another_programs_broker_does_not_outrank_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://ours/0")
    monkeypatch.setenv("BROKER_URL", "amqp://theirs")
    assert load_settings().broker_url == "redis://ours/0"


@pytest.mark.parametrize(
    "name", ["FLIGHTS_WROKERS", "FLIGHTS_workers", "FLIGHTS_", "FLIGHTS_BROKER_URL", "FLIGHTS_RESULT_BACKEND"]
)
def test_an_unknown_name_is_refused_and_the_known_ones_listed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    said = str(refusal())
    assert name in said.split(";")[0]
    assert "FLIGHTS_WORKERS" in said.split(";")[1]
    assert "FLIGHTS_BROKER_URL" not in said.split(";")[1]


def test_a_misspelt_name_is_answered_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_RUNS_URL", "s3://farm/runs")
    assert "did you mean FLIGHTS_RUNS_URI?" in str(refusal())


def test_a_home_folder_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("FLIGHTS_STATE_DIR", "~/flights")
    assert load_settings().state_dir == Path("/home/me/flights")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FLIGHTS_COG_COMPRESS", "ZSTD", "FLIGHTS_COG_COMPRESS='ZSTD': is not 'zstd' or 'deflate'"),
        ("FLIGHTS_PARTIAL_READS", "maybe", "is neither true nor false"),
        ("CELERY_BROKER_URL", "redis://127.0.0.1:6379/abc", "CELERY_BROKER_URL: is not redis://"),
    ],
)
def test_a_wrong_value_is_told_in_words(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    assert said in str(refusal())
    assert "Input should be" not in str(refusal())


def test_a_runs_uri_of_another_kind_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_RUNS_URI", "http://farm/runs")
    assert str(refusal()).count("FLIGHTS_RUNS_URI") == 1


@pytest.mark.parametrize("name", ["FLIGHTS_RUNS_URI", "FLIGHTS_SCRATCH_DIR", "FLIGHTS_STATE_DIR"])
def test_a_relative_path_would_be_two(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "here")
    assert str(refusal()) == f"{name}='here': is a relative path; an absolute one is needed"


def test_a_bound_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_WORKERS", "0")
    monkeypatch.setenv("FLIGHTS_REVIEW_SATURATED_FRACTION", "5")
    said = str(refusal())
    assert "FLIGHTS_WORKERS='0': must be at least 1" in said
    assert "FLIGHTS_REVIEW_SATURATED_FRACTION='5': must be at most 1" in said


def test_every_unknown_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_COLOUR", "1")
    monkeypatch.setenv("FLIGHTS_SHAPE", "1")
    said = str(refusal())
    assert "FLIGHTS_COLOUR" in said
    assert "FLIGHTS_SHAPE" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLIGHTS_WORKERS", "0"),
        ("FLIGHTS_WORKERS", "-1"),
        ("FLIGHTS_WORKERS", "many"),
        ("FLIGHTS_WORKERS", "1.5"),
        ("FLIGHTS_TILE_SOFT_LIMIT_S", "0"),
        ("FLIGHTS_TILE_HARD_LIMIT_S", "1"),
        ("FLIGHTS_TILE_SOFT_LIMIT_S", "10m"),
        ("FLIGHTS_MAX_DELIVERIES", "0"),
        ("FLIGHTS_TRANSIENT_ATTEMPTS", "0"),
        ("FLIGHTS_CLAIM_LEASE_S", "0"),
        ("FLIGHTS_WINDOW_BYTES", "64MB"),
        ("FLIGHTS_WINDOW_BYTES", "1000"),
        ("FLIGHTS_MAX_BLOCK_BYTES", "-1"),
        ("FLIGHTS_MAX_PIXELS", "0"),
        ("FLIGHTS_COG_COMPRESS", "lzw"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert f"{name}={value!r}" in str(refusal())


def test_every_bad_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTS_WORKERS", "many")
    monkeypatch.setenv("FLIGHTS_COG_COMPRESS", "lzw")
    said = str(refusal())
    assert "FLIGHTS_WORKERS" in said
    assert "FLIGHTS_COG_COMPRESS" in said


@pytest.mark.parametrize(("soft", "hard"), [("600", "600"), ("700", None), (None, "599"), ("10", "9")])
def test_limits_in_the_wrong_order_are_refused(
    monkeypatch: pytest.MonkeyPatch, soft: str | None, hard: str | None
) -> None:
    for name, value in (("FLIGHTS_TILE_SOFT_LIMIT_S", soft), ("FLIGHTS_TILE_HARD_LIMIT_S", hard)):
        if value is not None:
            monkeypatch.setenv(name, value)
    said = str(refusal())
    assert "FLIGHTS_TILE_SOFT_LIMIT_S" in said
    assert "FLIGHTS_TILE_HARD_LIMIT_S" in said


def test_a_refusal_names_no_setting_that_does_not_exist_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:hunter2@fleet/0")
    monkeypatch.setenv("FLIGHTS_TILE_SOFT_LIMIT_S", "700")
    said = str(refusal())
    assert "hunter2" not in said
    assert "FLIGHTS_SETTINGS" not in said


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().workers = 2
