"""Whole runs on signals of every shape, with the embedded model's profile: no shape costs a word of the answer."""

from dataclasses import replace

import pytest
from scripted import EOS, Script, Scripted, words

import seer_dllm
from seer_dllm import GenerationConfig, Truncation
from seer_dllm.config import STEP0
from seer_dllm.demo import model_folder

WHOLE = "the answer needs the whole window"


@pytest.fixture(scope="module")
def profile():
    """Window 8, min_jump 0.03, margin 3; the layers are those of the scripted model, which has fewer."""
    demo = seer_dllm.load(model_folder()).profile
    assert (demo.window, demo.min_snr, demo.plateau, demo.min_jump, demo.margin) == (8, 1, 0.9, 0.03, 3)
    return replace(demo, probe_layers=(3, 4, 5, 6))


def ramp(slots, low, high):
    return tuple(low + (high - low) * i / (slots - 1) for i in range(slots))


def step(end, slots, low=0.45, high=0.7):
    return (low,) * end + (high,) * (slots - end)


def wave(slots, height):
    """Noise that knows no end: 1, 7, 2 and 6 eighths of the height in turn."""
    return tuple(0.6 + height * (1, 7, 2, 6)[i % 4] / 8 for i in range(slots))


# Slots, words of the answer, curve -> boundary and kept window (None: nothing cut, with the reason), growths.
SHAPES = {
    "all quiet, the end is the first slot": (64, 0, (0.7,) * 64, 64, "no jump found", 0),
    "all quiet, words all the same": (64, 20, (0.7,) * 64, 64, "no jump found", 0),
    "all dense, the window is full": (64, 64, (0.45,) * 64, 64, "no jump found", 0),
    "all dense, with an end": (64, 20, (0.45,) * 64, 64, "no jump found", 0),
    "one slot": (64, 1, step(1, 64), 1, 8, 0),
    "the end is the last slot": (64, 63, step(63, 64), 63, WHOLE, 0),
    "the margin reaches the last slot": (64, 56, step(56, 64), 56, WHOLE, 0),
    "one slot more can be cut": (64, 53, step(53, 64), 53, 56, 0),
    "two plateaus, the end at the first": (64, 20, step(20, 40) + (0.8,) * 24, 20, 24, 0),
    "two plateaus, the end at the second": (64, 40, step(20, 40) + (0.8,) * 24, 20, 24, 1),  # 24, 48
    "two plateaus, a higher second": (64, 40, step(20, 40, high=0.5) + (0.8,) * 24, 40, 48, 0),
    "a ramp over the demo's levels": (128, 20, ramp(128, 0.38, 0.73), 128, "no jump found", 0),
    "the same, longer": (256, 250, ramp(256, 0.38, 0.73), 256, "no jump found", 0),
    "a ramp over everything": (2048, 1500, ramp(2048, 0.0, 1.0), 2048, "no jump found", 0),
    "a ramp that rises by more than min_jump": (64, 30, tuple(i / 64 for i in range(64)), 8, 16, 1),  # 16, 32
    "a tiny step": (64, 20, step(20, 64, 0.68, 0.7), 64, "no jump found", 0),
    "noise": (64, 20, wave(64, 0.0299), 64, "no jump found", 0),
    "a step in noise": (64, 20, tuple(a + b for a, b in zip(step(20, 64), wave(64, 0.03), strict=True)), 20, 24, 0),
    "2048 slots, one": (2048, 1, step(1, 2048), 1, 8, 0),
    "2048 slots, many": (2048, 2000, step(2000, 2048), 2000, 2008, 0),
    "2048 slots, a lie": (2048, 1100, step(500, 2048), 500, 504, 2),  # 504, 1008, 2016
    "2048 slots, all dense": (2048, 2048, (0.45,) * 2048, 2048, "no jump found", 0),
}


@pytest.mark.parametrize("step0", STEP0)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_defined_result(shape, step0, profile):
    window, content, curve, boundary, kept, grown = SHAPES[shape]
    config = GenerationConfig(window=window, steps=16)
    scripted = Scripted([Script(content, curve=curve)])
    result = scripted.answer(config, Truncation(profile, step0))
    stock = scripted.answer(config, None)
    assert result.boundary == boundary
    if isinstance(kept, str):
        assert (result.truncated, result.reason, result.window_tokens) == (False, kept, window)
        assert (result.window_ids, result.steps) == (stock.window_ids, stock.steps)
    else:
        assert (result.truncated, result.reason) == (True, None)
        assert result.window_tokens == (kept << grown)
    assert (result.net_early, result.net_late) == (grown, 0)
    assert result.ids == stock.ids == words(content)
    assert result.finish_reason == stock.finish_reason == ("end" if EOS in stock.window_ids else "length")


def test_every_shape_in_one_batch(profile):
    """Windows of 64 to 2048 slots, cut, whole and growing rows: each is the row alone."""
    rows = list(SHAPES.values())
    scripted = Scripted([Script(content, curve=curve) for _, content, curve, *_ in rows])
    configs = [GenerationConfig(window=window, steps=16) for window, *_ in rows]
    together = scripted.answers(configs, Truncation(profile))
    assert [r.ids for r in together] == [words(content) for _, content, *_ in rows]
    assert [r.boundary for r in together] == [boundary for _, _, _, boundary, *_ in rows]
    assert [r.extended for r in together] == [grown for *_, grown in rows]
