"""Walking a raster: every pixel once, whole blocks, within the budget."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flights.windows import Window, strips

sizes = {
    "height": st.integers(1, 120),
    "width": st.integers(1, 120),
    "block_height": st.integers(1, 150),
    "block_width": st.integers(1, 150),
    "bytes_per_pixel": st.integers(1, 50),
    "budget": st.one_of(st.integers(1, 2000), st.integers(1, 10**6)),
}


@settings(deadline=None)
@given(**sizes)
def test_every_pixel_once_in_block_row_order(
    height: int, width: int, block_height: int, block_width: int, bytes_per_pixel: int, budget: int
) -> None:
    seen = np.zeros((height, width), int)
    corners = []
    for window in strips(height, width, block_height, block_width, bytes_per_pixel, budget):
        assert window.height > 0
        assert window.width > 0
        assert window.row_off + window.height <= height
        assert window.col_off + window.width <= width
        (top, bottom), (left, right) = window.slices
        seen[top:bottom, left:right] += 1
        corners.append((window.row_off, window.col_off))
    assert (seen == 1).all()
    block_rows = [row // block_height for row, _ in corners]
    assert block_rows == sorted(block_rows)


@settings(deadline=None)
@given(**sizes)
def test_the_budget_holds_unless_one_block_exceeds_it(
    height: int, width: int, block_height: int, block_width: int, bytes_per_pixel: int, budget: int
) -> None:
    block = block_height * min(block_width, width) * bytes_per_pixel
    for window in strips(height, width, block_height, block_width, bytes_per_pixel, budget):
        assert window.height * window.width * bytes_per_pixel <= max(budget, block)


@settings(deadline=None)
@given(**sizes)
def test_blocks_that_fit_are_never_cut(
    height: int, width: int, block_height: int, block_width: int, bytes_per_pixel: int, budget: int
) -> None:
    if block_height * min(block_width, width) * bytes_per_pixel > budget:
        return
    for window in strips(height, width, block_height, block_width, bytes_per_pixel, budget):
        (top, bottom), (left, right) = window.slices
        assert top % block_height == 0
        assert bottom % block_height == 0 or bottom == height
        assert left % block_width == 0
        assert right % block_width == 0 or right == width


@settings(deadline=None)
@given(**sizes)
def test_a_block_above_the_budget_is_cut_into_windows_that_need_no_second_one(
    height: int, width: int, block_height: int, block_width: int, bytes_per_pixel: int, budget: int
) -> None:
    if block_height * min(block_width, width) * bytes_per_pixel <= budget:
        return
    for window in strips(height, width, block_height, block_width, bytes_per_pixel, budget):
        assert window.row_off // block_height == (window.row_off + window.height - 1) // block_height
        assert window.col_off // block_width == (window.col_off + window.width - 1) // block_width


@pytest.mark.parametrize(
    ("arguments", "windows"),
    [
        # One window where everything fits.
        ((100, 80, 16, 16, 4, 10**6), [(0, 0, 100, 80)]),
        # Full-width strips of whole block rows: 16 x 80 x 4 = 5120 bytes a block row.
        ((40, 80, 16, 16, 4, 5120), [(0, 0, 16, 80), (16, 0, 16, 80), (32, 0, 8, 80)]),
        ((40, 80, 16, 16, 4, 10239), [(0, 0, 16, 80), (16, 0, 16, 80), (32, 0, 8, 80)]),
        ((40, 80, 16, 16, 4, 10240), [(0, 0, 32, 80), (32, 0, 8, 80)]),
        # A block row above the budget is split at block columns: 16 x 16 x 4 = 1024 bytes a block.
        ((16, 80, 16, 16, 4, 5119), [(0, 0, 16, 64), (0, 64, 16, 16)]),
        ((16, 40, 16, 16, 4, 1024), [(0, 0, 16, 16), (0, 16, 16, 16), (0, 32, 16, 8)]),
        ((20, 20, 16, 16, 4, 1024), [(0, 0, 16, 16), (0, 16, 16, 4), (16, 0, 4, 16), (16, 16, 4, 4)]),
    ],
)
def test_windows(arguments: tuple[int, ...], windows: list[tuple[int, ...]]) -> None:
    height, width, block_height, block_width, bytes_per_pixel, budget = arguments
    found = list(strips(height, width, block_height, block_width, bytes_per_pixel, budget))
    assert found == [Window(*w) for w in windows]


def test_a_wide_raster_costs_what_a_narrow_one_does() -> None:
    budget = 64 * 2**20
    for width in (2_000, 50_000, 1_000_000):
        largest = max(w.height * w.width * 40 for w in strips(2_000, width, 512, 512, 40, budget))
        assert largest <= budget
