"""Measurements that a cost model is fitted to."""

import pytest
from scripted import tiny
from workloads import Recorder

from seer_dllm.costs import CostModel
from seer_dllm.measure import SHAPES, measure


def test_sizes_and_paths():
    """Dense: 3 x 8 tokens that see 8 + 5; packed: 6, 8 and 10 tokens that see 5 more."""
    found = {m.path: m for m in measure(tiny("llada_gqa").backbone, [(3, 8, 5)], repeats=1)}
    assert {path: (m.tokens, m.pairs) for path, m in found.items()} == {
        "static": (24, 24 * 13), "varlen": (24, 6 * 11 + 8 * 13 + 10 * 15), "eager": (24, 320),
    }  # fmt: skip
    assert found["varlen"].seconds == found["eager"].seconds > 0


def test_a_cost_model_can_be_fitted():
    backbone = tiny("llada_gqa").backbone
    assert CostModel.fit(measure(backbone, SHAPES[:8], repeats=1), "here").label == "here"


def test_static_is_measured_as_it_runs():
    capturer = Recorder()
    measure(tiny("llada_gqa").backbone, [(2, 8, 0), (2, 8, 4)], repeats=2, capturer=capturer)
    assert (capturer.captures, capturer.hits) == (2, 4)


def test_repeats_are_checked():
    with pytest.raises(ValueError, match="repeats must be a positive whole number, got 0"):
        measure(tiny("llada_gqa").backbone, repeats=0)
