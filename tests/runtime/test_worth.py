"""Whether a cut pays, worked out by hand."""

from dataclasses import replace

import pytest

from seer_dllm.costs import DEFAULT_COSTS, CostModel, PathCost
from seer_dllm.router import RowSize
from seer_dllm.worth import worth_cutting

CUDA = DEFAULT_COSTS["cuda"]


def packed(*varlen):
    """Costs of the packed path in round numbers."""
    return CostModel(PathCost(0, 1, 0), PathCost(*varlen), PathCost(0, 1, 0), label="round numbers")


def test_a_cut_pays_where_it_saves_more_than_it_costs():
    """Alone, fixed 10: 4 x (10 + 32) = 168 before, 1 x (10 + 8) = 18 after: 150 saved. Of ten rows: 132 - 9 = 123."""
    costs = packed(10, 1, 0)
    now, short = RowSize("a", 32, 40, 4), RowSize("a", 8, 16, 1)
    assert worth_cutting(now, short, costs, overhead=149)[:2] == (True, 150)
    assert worth_cutting(now, short, costs, overhead=150)[:2] == (False, 150)
    assert worth_cutting(now, short, costs, overhead=122, batch=10)[:2] == (True, 123)
    verdict = worth_cutting(now, short, costs, overhead=124, batch=10)
    assert not verdict.worth
    assert verdict.reason == "predicted saving 123000.000 ms is no more than the cut's 124000.000 ms"
    # Attention counts by what is fed times what is seen: 4 x 32 x 40 - 8 x 16.
    assert worth_cutting(now, short, packed(0, 0, 1), overhead=0).saving == 4992
    # What a row costs by itself is saved with its steps, whatever the batch: 3 x 7.
    assert worth_cutting(now, short, packed(0, 0, 0, 7), overhead=0, batch=10).saving == 21


def test_a_window_of_32_cut_to_30_is_left_alone():
    """Two slots of 32 behind a prompt of 1000, at equal steps: 16 x 2 x 27 us is less than a forward."""
    now, cut_row = RowSize(0, 1032, 1032, 16), RowSize(0, 1030, 1030, 16)
    verdict = worth_cutting(now, cut_row, CUDA, overhead=CUDA.seconds("varlen", 1, 1032, 1032 * 1032) / 4)
    assert not verdict.worth and verdict.saving == pytest.approx(16 * (2 * 27e-6 + (1032**2 - 1030**2) * 1.95e-9))
    assert not worth_cutting(now, now, CUDA, overhead=0.0).worth


def test_cuts_that_are_none_are_refused():
    now = RowSize("a", 32, 40, 4)
    for wrong in ({"fed": 33}, {"attended": 41}, {"steps": 5}):
        with pytest.raises(ValueError, match=f"cut must have no more {next(iter(wrong))} than now="):
            worth_cutting(now, replace(now, **wrong), CUDA, overhead=0.0)
    with pytest.raises(ValueError, match="overhead must be a number of at least 0, got -1"):
        worth_cutting(now, now, CUDA, overhead=-1)
    with pytest.raises(ValueError, match="batch must be a positive whole number, got 0"):
        worth_cutting(now, now, CUDA, overhead=0.0, batch=0)
