"""Which band is which: words in descriptions, declared bands, sensor profiles, and what is refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flights.bands import BandFacts, choose_bands, colour_named_by
from flights.errors import Code, Refused
from flights.sensors import SensorProfile, find_profile

ROLES = ("red", "nir")


def facts(*descriptions: str, alpha: Sequence[int] = (), dtype: str = "uint16") -> list[BandFacts]:
    """Bands with these descriptions; those in `alpha` (1-based) are labelled alpha."""
    return [
        BandFacts(index=i, dtype=dtype, description=text, colour_interpretation="alpha" if i in alpha else "undefined")
        for i, text in enumerate(descriptions, 1)
    ]


def profile(*bands: str) -> SensorProfile:
    return SensorProfile("made-up", "made up", "bands", bands, (0.0,) * len(bands), "this test")


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("description", "colour"),
    [
        ("Red", "red"),
        ("RED", "red"),
        ("band 3: red", "red"),
        ("B4_red_650nm", "red"),
        ("red-668", "red"),
        ("sur_refl_red", "red"),
        ("Red edge", "rededge"),
        ("RedEdge", "rededge"),
        ("red-edge", "rededge"),
        ("RED_EDGE", "rededge"),
        ("Red  Edge 1", "rededge"),
        ("rededge-717", "rededge"),
        ("Vegetation red edge", "rededge"),
        ("Red.Edge", "rededge"),  # R's make.names puts a dot for a space
        ("Red\u2013edge", "rededge"),  # a typesetter's dash
        ("NIR", "nir"),
        ("nir08", "nir"),
        ("Near infrared", "nir"),
        ("near-infrared (NIR)", "nir"),
        ("NearInfraRed", "nir"),
        ("near infra-red", "nir"),
        ("Near.Infra.Red", "nir"),
        ("near IR", "nir"),
        ("Infrared", None),
        ("Infra-red", None),
        ("thermal infrared", "lwir"),
        ("short-wave infrared", None),
        ("SWIR 1", "swir"),
        ("Panchromatic", "pan"),
        ("Coastal aerosol", "coastal"),
        ("alpha", "alpha"),
        ("", None),
        ("Band 1", None),
        ("B08", None),
        ("red, green, blue", None),
        ("red edge, nir", None),
        ("NIR - red", None),
        ("redness", None),
        ("coloured", None),
        ("filtered", None),
        ("greenhouse", None),
        ("nirvana", None),
        ("pants", None),
    ],
)
def test_the_colour_that_a_description_names(description: str, colour: str | None) -> None:
    assert colour_named_by(description) == colour


WORDS = ["blue", "green", "yellow", "red", "nir", "swir", "pan", "lwir", "alpha", "coastal"]


@settings(deadline=None)
@given(
    st.sampled_from([*WORDS, "rededge"]),
    st.sampled_from(["", "Band 3 ", "B3_", "1: ", "refl-", "(", "μ "]),
    st.sampled_from(["", " 650 nm", "_2", ")", "-717", " [DN]"]),
    st.booleans(),
)
def test_one_colour_word_is_found_in_any_company(word: str, before: str, after: str, upper: bool) -> None:
    text = before + word + after
    assert colour_named_by(text.upper() if upper else text) == word


@settings(deadline=None)
@given(st.permutations(WORDS).map(lambda words: words[:2]), st.sampled_from([" ", ", ", "-", "_", "/", " and "]))
def test_two_colours_name_none(words: list[str], between: str) -> None:
    assert colour_named_by(between.join(words)) is None


@settings(deadline=None)
@given(st.text())
def test_any_text_names_a_known_colour_or_none(text: str) -> None:
    assert colour_named_by(text) in {*WORDS, "rededge", None}


# ---------------------------------------------------------------- declared bands


@pytest.mark.parametrize(
    ("declared", "bands", "chosen"),
    [
        ({"red": 3, "nir": 5}, facts("", "", "", "", ""), {"red": 3, "nir": 5}),
        ({"red": 1, "nir": 2}, facts("Red", "NIR"), {"red": 1, "nir": 2}),
        ({"red": 2, "nir": 1, "blue": 9}, facts("", ""), {"red": 2, "nir": 1}),
        ({"red": 1, "nir": 4}, facts("", "", "", "", alpha=[4]), {"red": 1, "nir": 4}),
        ({"red": 1, "nir": 2}, facts("", "near infrared", alpha=[1, 2]), {"red": 1, "nir": 2}),
        ({"red": "red", "nir": "NIR"}, facts("nir", "RED"), {"red": 2, "nir": 1}),
        ({"red": "red", "nir": "nir"}, facts("Red edge", "B4 red", "near-infrared"), {"red": 2, "nir": 3}),
        ({"red": "red", "nir": "nir"}, facts("red-650", "Red", "NIR"), {"red": 2, "nir": 3}),  # the exact name wins
        ({"red": "B04", "nir": "b08"}, facts("B02", "B03", "B04", "B08"), {"red": 3, "nir": 4}),
        ({"red": "668", "nir": 2}, facts("668", "842"), {"red": 1, "nir": 2}),
    ],
)
def test_declared_bands(declared: dict[str, int | str], bands: list[BandFacts], chosen: dict[str, int]) -> None:
    assert choose_bands(ROLES, bands, declared, None, "t.tif") == chosen


def test_declared_bands_win_over_the_profile() -> None:
    mavic = find_profile("dji-mavic-3m")  # four bands, red second
    assert choose_bands(ROLES, facts("", "", "", "", ""), {"red": 3, "nir": 5}, mavic, "t.tif") == {"red": 3, "nir": 5}


@pytest.mark.parametrize(
    ("declared", "bands", "code", "named"),
    [
        ({"red": 3, "nir": 5}, facts("", "", "", ""), Code.BAND_MISSING, ["nir", "band 5", "4 bands"]),
        ({"red": 1, "nir": 2}, facts("Red"), Code.BAND_MISSING, ["nir", "band 2", "1 band"]),
        ({"red": 3}, facts("", "", "", ""), Code.BAND_MISSING, ["`bands`", "nir"]),
        ({"red": "red", "nir": "nir"}, facts("Red", "Red edge"), Code.BAND_MISSING, ["'nir'", "'Red edge'"]),
        ({"red": "red", "nir": 3}, facts("red", "RED", "nir"), Code.BAND_MISSING, ["'red'", "[1, 2]"]),
        ({"red": "red", "nir": 3}, facts("red a", "red b", "nir"), Code.BAND_MISSING, ["'red'", "[1, 2]"]),
        ({"red": "B4", "nir": 2}, facts("", ""), Code.BAND_MISSING, ["'B4'"]),
        ({"red": 1, "nir": 2}, facts("Green", "NIR"), Code.BAND_CONTRADICTION, ["band 1", "red", "'Green'"]),
        ({"red": 1, "nir": 2}, facts("Red", "Red edge"), Code.BAND_CONTRADICTION, ["band 2", "nir", "'Red edge'"]),
        ({"red": 1, "nir": 2}, facts("Red.Edge", "NIR"), Code.BAND_CONTRADICTION, ["band 1", "red", "'Red.Edge'"]),
        ({"red": 2, "nir": 1}, facts("Red", "NIR"), Code.BAND_CONTRADICTION, ["red", "'NIR'"]),
        ({"red": 1, "nir": 2}, facts("", "alpha", alpha=[2]), Code.BAND_CONTRADICTION, ["band 2", "'alpha'"]),
        ({"red": "Green", "nir": 2}, facts("Green", "NIR"), Code.BAND_CONTRADICTION, ["red", "'Green'"]),
        ({"red": 2, "nir": 2}, facts("", ""), Code.BAND_CONTRADICTION, ["red", "nir", "band 2"]),
        ({"red": "x", "nir": 1}, facts("x", "y"), Code.BAND_CONTRADICTION, ["red", "nir", "band 1"]),
    ],
)
def test_declared_bands_that_are_refused(
    declared: dict[str, int | str], bands: list[BandFacts], code: Code, named: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        choose_bands(ROLES, bands, declared, None, "s3://raw/t.tif")
    assert refused.value.code is code
    for part in ["s3://raw/t.tif", *named]:
        assert part in str(refused.value)


def test_nothing_declared_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        choose_bands(ROLES, facts("Red", "NIR"), None, None, "t.tif")
    assert refused.value.code is Code.BAND_MISSING
    for part in ("t.tif", "`bands`", "`sensor`", "red"):
        assert part in str(refused.value)


# ---------------------------------------------------------------- sensor profiles


@pytest.mark.parametrize(
    ("slug", "bands", "chosen"),
    [
        ("micasense-rededge-mx", facts("", "", "", "", ""), {"red": 3, "nir": 5}),
        ("micasense-rededge-mx", facts("", "", "", "", "", "", alpha=[6]), {"red": 3, "nir": 5}),
        ("micasense-rededge-mx", facts("Blue", "Green", "Red", "Red edge", "NIR"), {"red": 3, "nir": 5}),
        ("micasense-rededge-mx-raw", facts("Blue", "Green", "Red", "NIR", "Red edge"), {"red": 3, "nir": 4}),
        ("micasense-rededge-mx", facts("Band 1", "Band 2", "Band 3", "Band 4", "Band 5"), {"red": 3, "nir": 5}),
        ("naip", facts("Red", "Green", "Blue", "NIR"), {"red": 1, "nir": 4}),
        ("dji-mavic-3m", facts("Green", "Red", "RedEdge", "NIR"), {"red": 2, "nir": 4}),
        ("odm", facts("Red", "Green", "Blue", "NIR", "Rededge", "", alpha=[6]), {"red": 1, "nir": 4}),
        (
            "micasense-dual",
            facts(
                "B-444 blue",
                "Blue",
                "Green-531",
                "Green",
                "Red-650",
                "Red",
                "RedEdge-705",
                "RedEdge",
                "RedEdge-740",
                "NIR",
            ),
            {"red": 6, "nir": 10},
        ),
    ],
)
def test_bands_of_a_sensor(slug: str, bands: list[BandFacts], chosen: dict[str, int]) -> None:
    assert choose_bands(ROLES, bands, None, find_profile(slug), "t.tif") == chosen


@pytest.mark.parametrize(
    ("sensor", "bands", "code", "named"),
    [
        # Another number of bands: what the profile has, and what the file has.
        ("micasense-rededge-mx", facts("", "", "", ""), Code.BAND_CONTRADICTION, ["micasense-rededge-mx", "4 bands"]),
        ("micasense-rededge-mx", facts("", "", "", "", "", ""), Code.BAND_CONTRADICTION, ["6 bands"]),
        ("naip", facts("", "", "", "", alpha=[4]), Code.BAND_CONTRADICTION, ["naip", "alpha"]),
        ("naip", facts("", "", "", "", "", alpha=[2]), Code.BAND_CONTRADICTION, ["naip", "2 alpha"]),
        # A band that nobody uses gives the wrong order away.
        (
            "micasense-rededge-mx",
            facts("Blue", "Green", "Red", "NIR", "Red edge"),
            Code.BAND_CONTRADICTION,
            ["'NIR'"],
        ),
        ("micasense-rededge-mx", facts("", "", "", "NIR", ""), Code.BAND_CONTRADICTION, ["band 4", "rededge", "'NIR'"]),
        ("naip", facts("Blue", "Green", "Red", "NIR"), Code.BAND_CONTRADICTION, ["'Blue'"]),
        ("naip", facts("", "", "Red", ""), Code.BAND_CONTRADICTION, ["blue", "'Red'"]),
        ("planetscope-4b", facts("", "", "", "Red.Edge"), Code.BAND_CONTRADICTION, ["nir", "'Red.Edge'"]),
        # A file a band.
        ("sentinel-2-l2a", facts("", ""), Code.BAND_CONTRADICTION, ["sentinel-2-l2a", "src_uri"]),
    ],
)
def test_files_that_contradict_their_sensor(sensor: str, bands: list[BandFacts], code: Code, named: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        choose_bands(ROLES, bands, None, find_profile(sensor), "t.tif")
    assert refused.value.code is code
    for part in ["t.tif", *named]:
        assert part in str(refused.value)


def test_a_sensor_that_lacks_the_band_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        choose_bands(ROLES, facts("", "", ""), None, profile("red", "green", "blue"), "t.tif")
    assert refused.value.code is Code.BAND_MISSING
    assert "made-up" in str(refused.value)
    assert "nir" in str(refused.value)


def test_a_message_lists_what_the_file_says_of_its_bands() -> None:
    with pytest.raises(Refused) as refused:
        choose_bands(ROLES, facts("Blue", "", "Near IR", alpha=[2]), {"red": 9, "nir": 3}, None, "t.tif")
    assert "1 'Blue'; 2 alpha; 3 'Near IR'" in str(refused.value)


# ---------------------------------------------------------------- what else a file says


def telling(wavelength_nm: float | None = None, label: str = "undefined", description: str = "") -> list[BandFacts]:
    """A red band and a second one, of which the file says this."""
    second = BandFacts(2, "uint16", description, colour_interpretation=label, wavelength_nm=wavelength_nm)
    return [BandFacts(1, "uint16"), second]


@pytest.mark.parametrize("by_profile", [False, True])
@pytest.mark.parametrize(
    ("wavelength_nm", "refused"),
    [(None, False), (842, False), (790, False), (865, False), (668, True), (717, True), (475, True), (1610, True)],
)
def test_a_wavelength_outranks_every_declaration(wavelength_nm: float | None, refused: bool, by_profile: bool) -> None:
    declared = None if by_profile else {"red": 1, "nir": 2}
    sensor = profile("red", "nir") if by_profile else None
    if not refused:
        assert choose_bands(ROLES, telling(wavelength_nm), declared, sensor, "t.tif") == {"red": 1, "nir": 2}
        return
    with pytest.raises(Refused) as error:
        choose_bands(ROLES, telling(wavelength_nm), declared, sensor, "t.tif")
    assert error.value.code is Code.BAND_CONTRADICTION
    assert f"{wavelength_nm} nm" in str(error.value)


@pytest.mark.parametrize(
    ("label", "refused"),
    [
        ("undefined", False),
        ("gray", False),
        ("red", False),
        ("green", False),
        ("nir", False),
        ("rededge", True),
        ("pan", True),
        ("coastal", True),
    ],
)
def test_a_telling_colour_label_contradicts_a_sensor_but_no_declared_band(label: str, refused: bool) -> None:
    bands = telling(label=label)
    assert choose_bands(ROLES, bands, {"red": 1, "nir": 2}, None, "t.tif") == {"red": 1, "nir": 2}
    if not refused:
        assert choose_bands(ROLES, bands, None, profile("red", "nir"), "t.tif") == {"red": 1, "nir": 2}
        return
    with pytest.raises(Refused) as error:
        choose_bands(ROLES, bands, None, profile("red", "nir"), "t.tif")
    assert error.value.code is Code.BAND_CONTRADICTION
    assert label in str(error.value)
