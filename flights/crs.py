"""Whether a file's coordinate reference system is the one that a manifest declares."""

from functools import lru_cache

from pyproj import CRS
from pyproj.exceptions import CRSError


@lru_cache(maxsize=256)
def is_epsg(wkt: str, epsg: int) -> bool:
    """True where a CRS is that EPSG code: equal, axis order aside, or identified by PROJ as that code.

    The second covers what is the same system in other words: ESRI's, or a bare ellipsoid in the datum's place. Of a
    compound CRS the horizontal part counts.
    """
    try:
        found, wanted = CRS.from_wkt(wkt), CRS.from_epsg(epsg)
    except CRSError:
        return False
    if found.equals(wanted, ignore_axis_order=True):
        return True
    if found.is_compound:
        found = found.sub_crs_list[0]
    return found.equals(wanted, ignore_axis_order=True) or found.to_epsg(min_confidence=70) == epsg


@lru_cache(maxsize=256)
def is_same(wkt: str, other_wkt: str) -> bool:
    """True where two CRS are one, axis order aside."""
    if wkt == other_wkt:
        return True
    try:
        return CRS.from_wkt(wkt).equals(CRS.from_wkt(other_wkt), ignore_axis_order=True)
    except CRSError:
        return False


@lru_cache(maxsize=256)
def name_of(wkt: str) -> str:
    """A CRS in a few words, for messages: its EPSG code where it has one, and its name."""
    try:
        crs = CRS.from_wkt(wkt)
    except CRSError:
        return f"an unreadable CRS ({wkt[:60]}...)"
    code = crs.to_epsg()
    return f"EPSG:{code} ({crs.name})" if code else f"{crs.name!r} without an EPSG code"
