"""Measurements that a cost model is fitted to."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from scripted import tiny
from workloads import Recorder

from seer_dllm.canvas import Dense
from seer_dllm.capture import Packed
from seer_dllm.costs import CostModel
from seer_dllm.denoise import Loop
from seer_dllm.measure import SHAPES, cost_model, measure


def test_sizes_and_paths():
    """Dense: 3 x 10 tokens that see 10 + 6; packed: 6, 8 and 10 tokens that see 3, 5 and 6 more."""
    found = {m.path: m for m in measure(tiny("llada_gqa").backbone, [(3, 8, 5)], repeats=1)}
    packed = 6 * (6 + 3) + 8 * (8 + 5) + 10 * (10 + 6)
    assert {path: (m.rows, m.tokens, m.pairs) for path, m in found.items()} == {
        "static": (3, 30, 30 * 16), "varlen": (3, 24, packed), "eager": (3, 24, packed),
    }  # fmt: skip
    assert found["varlen"].seconds == found["eager"].seconds > 0


def test_a_cost_model_can_be_fitted():
    """`cost_model` is the fit of what `measure` found, and its label says how far off that is."""
    backbone = tiny("llada_gqa").backbone
    found = measure(backbone, SHAPES[:10], repeats=1)
    costs = cost_model(backbone, found)
    assert len(found) == 30 and costs == replace(CostModel.fit(found, "again"), label=costs.label)
    error = costs.error(found)
    off = f"{100 * error.median:.1f} % off in the median, {100 * error.worst:.1f} % at worst"
    assert costs.label == f"measured on {torch.get_num_threads()} CPU threads, float32, {off}"
    with mock.patch("seer_dllm.measure.measure", lambda given: found if given is backbone else None):
        assert cost_model(backbone) == costs


def test_captured_paths_are_measured_as_they_run():
    """Rows of 6 and 10 tokens; packed in buckets from 16 on; dense from 8 on, and for 3 and 5 cached ones too."""
    capturer = Recorder()
    found = measure(tiny("llada_gqa").backbone, [(2, 8, 0), (2, 8, 4)], repeats=2, capturer=capturer)
    assert set(capturer.order) == {Dense(2, 16, 0), Packed(2, 16, 0), Dense(2, 16, 8), Packed(2, 16, 16)}
    assert capturer.captures == 4 and capturer.hits >= 4 * 2  # none is recorded while it is timed
    assert [(m.path, m.tokens) for m in found] == [("static", 32), ("varlen", 16), ("eager", 16)] * 2
    assert [m.pairs for m in found] == [32 * 16, 136, 136, 32 * 24, 6 * 9 + 10 * 15, 6 * 9 + 10 * 15]


def test_what_can_not_be_captured_is_measured_uncaptured():
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    with mock.patch.object(type(backbone), "device_packed", False):
        found = {m.path: m.seconds for m in measure(backbone, [(2, 8, 4)], repeats=1, capturer=capturer)}
    assert capturer.order == [Dense(2, 16, 8)] and found["varlen"] == found["eager"]


@pytest.mark.parametrize("past", [0, 5])
def test_what_is_timed_is_a_step_of_all_rows(past):
    """However often rows are done: 3 rows of 6, 8 and 10 slots, or of half as many behind a prompt, one slot a step."""
    backbone, steps = tiny("llada_gqa").backbone, []

    def step(loop):
        before = [(row, row.counters.steps) for row in loop.rows]
        done = real(loop)
        steps.append((len(before), done, [row.counters.steps - n for row, n in before]))
        return done

    real = Loop.step
    with mock.patch.object(Loop, "step", step):
        measure(backbone, [(3, 8, past)], repeats=9)
    assert {(n, tuple(made)) for n, _, made in steps} == {(3, (1, 1, 1))} and not any(done for _, done, _ in steps)
    assert len(steps) > 2 * 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "repeats must be a positive whole number, got 0"),
        ({"shapes": [(0, 8, 0)]}, "rows must be a positive whole number, got 0"),
        ({"shapes": [(1, 7, 0)]}, "shapes must feed 8 tokens at least and see 0 cached ones at least, got 7, 0"),
        ({"shapes": [(1, 8, -1)]}, "shapes must feed 8 tokens at least and see 0 cached ones at least, got 8, -1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure(tiny("llada_gqa").backbone, **arguments)
