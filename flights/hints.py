"""What somebody who misspelt a name may have meant."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, at_most: int = 3, cutoff: float = 0.6) -> list[str]:
    """The known names that a word stands closest to, capitals aside; the very word alone where it is among them."""
    by_lower = {name.lower(): name for name in known}
    if word.lower() in by_lower:
        return [by_lower[word.lower()]]
    begun = [name for lower, name in by_lower.items() if len(word) > 2 and lower.startswith(word.lower())]
    if begun:
        return begun[:at_most]
    return [by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, at_most, cutoff)]


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A question that names the nearest of the known names; `otherwise` where none is near."""
    near = nearest(word, known)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
