"""Whether a product looks wrong: counts of what its pixels were, and the limits beyond which a person should look."""

from dataclasses import dataclass

from flights.report import Quality, Review


@dataclass(frozen=True, slots=True)
class Limits:
    """Fractions of the pixels with data."""

    implausible: float
    saturated: float


def judge(quality: Quality, valid_pixels: int, limits: Limits) -> tuple[Review, ...]:
    """Why a product wants a look before it is used; empty where nothing stands out."""
    if valid_pixels == 0:
        if quality.some_data == 0:
            return ()  # a wholly empty tile is what its source says it is
        message = f"no valid pixel, though {quality.some_data} pixels of the source hold data in a band in use"
        return (Review(code="nothing_valid", message=message),)
    found = []
    implausible = max(quality.clipped + quality.undefined, quality.negative, quality.bright)
    if implausible > limits.implausible * quality.measured:
        message = (
            f"{_share(implausible, quality.measured)} are implausible ({quality.negative} with negative reflectance, "
            f"{quality.bright} with a reflectance above 3, {quality.clipped} beyond the index's range, "
            f"{quality.undefined} without a value): a wrong offset or scale, or a wrong band?"
        )
        found.append(Review(code="implausible_values", message=message))
    if quality.saturated > limits.saturated * quality.measured:
        message = f"{_share(quality.saturated, quality.measured)} are saturated: their index is only a bound"
        found.append(Review(code="saturated", message=message))
    return tuple(found)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} pixels ({part / whole:.1%})"
