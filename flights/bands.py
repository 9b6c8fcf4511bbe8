"""Which band of a file is red and which is NIR: declared, checked against the file, never guessed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flights.errors import Code, Refused
from flights.sensors import SensorProfile

# What a word in a band description says of the band. Only words that name one colour; anything else says nothing.
_COLOUR_WORDS = {
    "coastal": "coastal",
    "blue": "blue",
    "green": "green",
    "yellow": "yellow",
    "red": "red",
    "rededge": "rededge",
    "nir": "nir",
    "pan": "pan",
    "panchromatic": "pan",
    "lwir": "lwir",
    "thermal": "lwir",
    "swir": "swir",
    "alpha": "alpha",
}
# Every colour that a band can be called by.
COLOURS = frozenset(_COLOUR_WORDS.values())
_SPELLINGS = (
    (re.compile(r"red[\W_]*edge"), " rededge "),
    (re.compile(r"near[\W_]*infra[\W_]*red|near[\W_]*ir\b"), " nir "),
    (re.compile(r"infra[\W_]*red"), " infra "),
)


@dataclass(frozen=True, slots=True)
class BandFacts:
    """What a file says of one of its bands."""

    index: int
    # 1-based
    dtype: str
    description: str = ""
    colour_interpretation: str = "undefined"
    wavelength_nm: float | None = None
    # centre, where the file tells it
    bits: int | None = None
    # in use, where fewer than the dtype's
    scale: float = 1.0
    offset: float = 0.0
    nodata: float | None = None

    @property
    def is_alpha(self) -> bool:
        """Labelled alpha by colour interpretation (which a declared band outranks)."""
        return self.colour_interpretation == "alpha"

    def __str__(self) -> str:
        said = [repr(self.description)] if self.description else []
        said += [self.colour_interpretation] if self.colour_interpretation not in ("undefined", "gray") else []
        said += [f"{self.wavelength_nm:g} nm"] if self.wavelength_nm else []
        return f"{self.index} {', '.join(said)}" if said else f"{self.index}"


def colour_named_by(description: str) -> str | None:
    """The one colour that a band description names ('Red edge' -> 'rededge'), None where it names none or several."""
    text = description.lower()
    for pattern, word in _SPELLINGS:
        text = pattern.sub(word, text)
    named = {_COLOUR_WORDS[word] for word in re.findall(r"[a-z]+", text) if word in _COLOUR_WORDS}
    return named.pop() if len(named) == 1 else None


# Centre wavelengths, nm, that a band of that name can have among the sensors of `sensors.toml`, with room at both ends.
# Where a neighbour's range begins is a convention; a contradiction is a centre clearly within another colour.
_RANGES_NM = {
    "coastal": (400, 470),
    "blue": (430, 530),
    "green": (500, 610),
    "yellow": (570, 640),
    "red": (600, 699),
    "rededge": (695, 795),
    "nir": (745, 1000),
}
# Colour interpretations that nobody sets by default, unlike red, green, blue, gray and alpha.
_TELLING = {"coastal", "yellow", "pan", "rededge", "nir", "swir", "lwir"}


def contradiction(fact: BandFacts, name: str, *, declared: bool) -> str | None:
    """What of a file speaks against its band being `name`, None where nothing does.

    The description and the wavelength always count; colour interpretation only where the band was not `declared`.
    """
    colour = name.split("-")[0]
    described = colour_named_by(fact.description)
    if described is not None and described != colour:
        return f"the file describes it as {fact.description!r} ({described})"
    if fact.wavelength_nm and colour in _RANGES_NM:
        low, high = _RANGES_NM[colour]
        if not low <= fact.wavelength_nm <= high:
            return f"the file says {fact.wavelength_nm:g} nm ({colour} lies within {low} to {high} nm)"
    if not declared and fact.colour_interpretation in _TELLING and fact.colour_interpretation != colour:
        return f"the file labels it {fact.colour_interpretation}"
    return None


def choose_bands(
    roles: Sequence[str],
    facts: Sequence[BandFacts],
    declared: Mapping[str, int | str] | None,
    profile: SensorProfile | None,
    where: str,
) -> dict[str, int]:
    """The 1-based band of each role.

    Declared bands win over the sensor profile and outrank colour interpretation; a band description or a wavelength
    of another colour refuses the tile whichever way the band was found. `where` names the file in messages.
    """
    if declared:
        chosen = {role: _declared_band(role, declared, facts, where) for role in roles}
    elif profile is not None:
        chosen = _profile_bands(roles, profile, facts, where)
    else:
        raise Refused(Code.BAND_MISSING, f"{where}: neither `bands` nor `sensor` says which band is {roles[0]}")
    if len(set(chosen.values())) < len(chosen):
        both, taken = "both" if len(chosen) == 2 else "all", " and ".join(map(str, set(chosen.values())))
        raise Refused(
            Code.BAND_CONTRADICTION,
            f"{where}: {' and '.join(chosen)} are {both} taken from band {taken}; "
            f"the file has {_counted(facts)} ({_listed(facts)}), and an index needs a band of its own for each",
        )
    for role, index in chosen.items():
        against = contradiction(facts[index - 1], role, declared=bool(declared))
        if against:
            raise Refused(
                Code.BAND_CONTRADICTION,
                f"{where}: band {index} was taken for {role}, but {against}; the file has {_listed(facts)}. "
                "Correct `bands` or `sensor`, or the file's band descriptions.",
            )
    return chosen


def _declared_band(role: str, declared: Mapping[str, int | str], facts: Sequence[BandFacts], where: str) -> int:
    if role not in declared:
        raise Refused(Code.BAND_MISSING, f"{where}: `bands` does not say which band is {role}")
    wanted = declared[role]
    if isinstance(wanted, int):
        if wanted > len(facts):
            raise Refused(
                Code.BAND_MISSING,
                f"{where}: {role} is declared as band {wanted}, but the file has {_counted(facts)} ({_listed(facts)})",
            )
        return wanted
    exact = [f.index for f in facts if f.description.casefold() == wanted.casefold()]
    matches = exact or [f.index for f in facts if colour_named_by(f.description) == colour_named_by(wanted) is not None]
    if len(matches) != 1:
        found = "no band" if not matches else f"bands {matches}"
        raise Refused(
            Code.BAND_MISSING,
            f"{where}: {role} is declared as the band named {wanted!r}; {found} of the file bears that name "
            f"(it has {_listed(facts)}). Declare the band's number.",
        )
    return matches[0]


def _profile_bands(
    roles: Sequence[str], profile: SensorProfile, facts: Sequence[BandFacts], where: str
) -> dict[str, int]:
    if profile.layout == "files":
        raise Refused(
            Code.BAND_CONTRADICTION,
            f"{where}: sensor {profile.slug} delivers a file a band; give `src_uri` as an object "
            f'such as {{"red": ..., "nir": ...}}, or declare `bands` for a stacked file',
        )
    measured = [f for f in facts if not f.is_alpha]
    if len(measured) != len(profile.bands) or any(f.is_alpha for f in facts[: len(profile.bands)]):
        raise Refused(
            Code.BAND_CONTRADICTION,
            f"{where}: sensor {profile.slug} has {len(profile.bands)} bands ({', '.join(profile.bands)}), "
            f"the file has {_counted(facts)} ({_listed(facts)}). Name the right sensor, or declare `bands`"
            + (
                " (a NIR that is labelled alpha is taken where `bands` names it)."
                if len(measured) < len(facts)
                else "."
            ),
        )
    chosen = {}
    for role in roles:
        index = profile.index_of(role)
        if index is None:
            raise Refused(Code.BAND_MISSING, f"{where}: sensor {profile.slug} has no band {role}")
        chosen[role] = index
    # Every description is held against the profile, not only those in use: a red edge described where the profile
    # has NIR means that the whole order is another one.
    for fact, name in zip(measured, profile.bands, strict=True):
        against = contradiction(fact, name, declared=False)
        if against:
            raise Refused(
                Code.BAND_CONTRADICTION,
                f"{where}: sensor {profile.slug} has {name} as band {fact.index}, but {against}; "
                f"the file has {_listed(facts)}. Name the right sensor, or declare `bands`.",
            )
    return chosen


def _counted(facts: Sequence[BandFacts]) -> str:
    return "1 band" if len(facts) == 1 else f"{len(facts)} bands"


def _listed(facts: Sequence[BandFacts]) -> str:
    return "bands " + "; ".join(str(f) for f in facts[:16]) + (" ..." if len(facts) > 16 else "")
