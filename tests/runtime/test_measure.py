"""Measurements that a cost model is fitted to."""

from unittest import mock

import pytest
from scripted import tiny
from workloads import Recorder

from seer_dllm.canvas import Dense
from seer_dllm.capture import Packed
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


def test_captured_paths_are_measured_as_they_run():
    """Packed: rows of 6 and 8 tokens."""
    capturer = Recorder()
    found = measure(tiny("llada_gqa").backbone, [(2, 8, 0), (2, 8, 4)], repeats=2, capturer=capturer)
    assert capturer.order == [Dense(2, 8, 0), Packed(2, 14, 0), Dense(2, 8, 4), Packed(2, 14, 8)]
    assert (capturer.captures, capturer.hits) == (4, 8)
    assert [(m.path, m.tokens) for m in found] == [("static", 16), ("varlen", 14), ("eager", 14)] * 2


def test_what_can_not_be_captured_is_measured_uncaptured():
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    with mock.patch.object(type(backbone), "device_packed", False):
        found = {m.path: m.seconds for m in measure(backbone, [(2, 8, 4)], repeats=1, capturer=capturer)}
    assert capturer.order == [Dense(2, 8, 4)] and found["varlen"] == found["eager"]


def test_repeats_are_checked():
    with pytest.raises(ValueError, match="repeats must be a positive whole number, got 0"):
        measure(tiny("llada_gqa").backbone, repeats=0)
