"""Settings are checked when they are made, and the message names the setting, the rule and the value."""

import dataclasses
import math
import re

import pytest

from seer_dllm import GenerationConfig, Profile, Truncation
from seer_dllm.config import ModelConfig, from_mapping

SIZES = {
    "vocab_size": 64, "hidden_size": 8, "intermediate_size": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2,
    "head_dim": 2, "rope_theta": 1e4, "norm_eps": 1e-5, "mask_id": 63, "eos_id": 62,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 0}, "window must be a positive whole number, got 0"),
        ({"window": -3}, "window must be a positive whole number, got -3"),
        ({"window": True}, "window must be a positive whole number, got True"),
        ({"window": 64.0}, "window must be a positive whole number, got 64.0"),
        ({"window": "64"}, "window must be a positive whole number, got '64'"),
        ({"window": None}, "window must be a positive whole number, got None"),
        ({"block": 0}, "block must be a positive whole number, got 0"),
        ({"block": True}, "block must be a positive whole number, got True"),
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"steps": 1.5}, "steps must be a positive whole number, got 1.5"),
        ({"window": 100, "block": 32}, "window must be a multiple of block=32, got 100"),
        ({"window": 32, "block": 64}, "window must be a multiple of block=64, got 32"),
        ({"window": 128, "block": 32, "steps": 6}, "steps must be a multiple of the 4 blocks, got 6"),
        (
            {"schedule": "random"},
            "schedule must be one of even, linear, shift, cosine, logit_normal, dream, got 'random'",
        ),
        ({"commit": "confidence"}, "commit must be one of low_confidence, margin, entropy, random, got 'confidence'"),
        ({"cache": "both"}, "cache must be one of none, prompt, prefix, dual, got 'both'"),
        ({"cache": None}, "cache must be one of none, prompt, prefix, dual, got None"),
        ({"threshold": 0.9, "factor": 1.0}, "threshold must be None when factor is given, got 0.9"),
        ({"threshold": 1.1}, "threshold must be a number in [0, 1], got 1.1"),
        ({"threshold": math.nan}, "threshold must be a number in [0, 1], got nan"),
        ({"threshold": True}, "threshold must be a number in [0, 1], got True"),
        ({"factor": -1}, "factor must be a number of at least 0, got -1"),
        ({"factor": "1"}, "factor must be a number of at least 0, got '1'"),
        ({"temperature": -0.1}, "temperature must be a number of at least 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be a number of at least 0, got nan"),
        ({"temperature": math.inf}, "temperature must be a number of at least 0, got inf"),
        ({"temperature": None}, "temperature must be a number of at least 0, got None"),
        ({"cfg_scale": -1.0}, "cfg_scale must be a number of at least 0, got -1.0"),
        ({"shift": 0}, "shift must be above 0, got 0"),
        ({"shift": -2}, "shift must be a number of at least 0, got -2"),
        ({"shift": "3"}, "shift must be a number of at least 0, got '3'"),
        ({"shift": math.inf}, "shift must be a number of at least 0, got inf"),
        ({"eps": -0.1}, "eps must be a number in [0, 1], got -0.1"),
        ({"eps": 1.5}, "eps must be a number in [0, 1], got 1.5"),
        ({"eps": None}, "eps must be a number in [0, 1], got None"),
        ({"times": 0}, "times must be a positive whole number, got 0"),
        ({"times": 2.0}, "times must be a positive whole number, got 2.0"),
        ({"steps": 64, "times": 63}, "times must be at least steps=64, got 63"),
        ({"window": 32, "times": 16}, "times must be at least steps=32, got 16"),
        ({"top_p": 1.1}, "top_p must be a number in [0, 1], got 1.1"),
        ({"top_p": -1}, "top_p must be a number in [0, 1], got -1"),
        ({"top_p": math.nan}, "top_p must be a number in [0, 1], got nan"),
        ({"top_p": True}, "top_p must be a number in [0, 1], got True"),
        ({"top_k": 0}, "top_k must be a positive whole number, got 0"),
        ({"top_k": 5.0}, "top_k must be a positive whole number, got 5.0"),
        ({"hold_back": 1}, "hold_back must be True or False, got 1"),
        ({"hold_back": True}, "hold_back must be False without a threshold, got True"),
        ({"hold_back": True, "factor": 1.0}, "hold_back must be False without a threshold, got True"),
        ({"seed": 1.5}, "seed must be a whole number of at most 64 bits, got 1.5"),
        ({"seed": True}, "seed must be a whole number of at most 64 bits, got True"),
        ({"seed": 1 << 63}, "seed must be a whole number of at most 64 bits, got 9223372036854775808"),
        ({"suppress_eos": "no"}, "suppress_eos must be True or False, got 'no'"),
        ({"defer_end": 1}, "defer_end must be True or False, got 1"),
        ({"stop": "end"}, "stop must be a sequence of strings, got the string 'end'"),
        ({"stop": ("a", "")}, "stop must hold strings that are not empty, got ('a', '')"),
        ({"stop": [3]}, "stop must hold strings that are not empty, got (3,)"),
    ],
)
def test_generation_errors(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GenerationConfig(**values)


def test_generation_defaults_and_edges():
    config = GenerationConfig()
    assert (config.window, config.block, config.steps, config.blocks) == (128, 128, 128, 1)
    config = GenerationConfig(window=96, block=24, steps=8, stop=["a", "b"])
    assert (config.blocks, config.stop) == (4, ("a", "b"))
    assert GenerationConfig(window=1).steps == 1
    GenerationConfig(window=64, block=32, steps=200)  # more steps than slots: never more than masks are made
    GenerationConfig(window=64, block=16, steps=3, threshold=0.5)  # steps don't count with a threshold
    GenerationConfig(window=64, steps=32, times=32, top_p=0, top_k=1 << 40, eps=0, threshold=1, hold_back=True)
    for edge in (
        {"eps": 1},
        {"top_p": 1},
        {"threshold": 0},
        {"threshold": 1},
        {"factor": 0},
        {"temperature": 2},
        {"seed": -(1 << 63)},
    ):
        GenerationConfig(**edge)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"probe_layers": ()}, "probe_layers must be whole numbers of at least 0, got ()"),
        ({"probe_layers": (3, -1)}, "probe_layers must be whole numbers of at least 0, got (3, -1)"),
        ({"probe_layers": (True,)}, "probe_layers must be whole numbers of at least 0, got (True,)"),
        ({"probe_layers": (1.0,)}, "probe_layers must be whole numbers of at least 0, got (1.0,)"),
        ({"threshold": -0.1}, "threshold must be a number of at least 0, got -0.1"),
        ({"window": 0}, "window must be a positive whole number, got 0"),
        ({"min_snr": -1}, "min_snr must be a number of at least 0, got -1"),
        ({"min_jump": math.nan}, "min_jump must be a number of at least 0, got nan"),
        ({"plateau": 1.5}, "plateau must be a number in [0, 1], got 1.5"),
        ({"margin": -1}, "margin must be a whole number of at least 0, got -1"),
        ({"margin": 1.0}, "margin must be a whole number of at least 0, got 1.0"),
        ({"margin": True}, "margin must be a whole number of at least 0, got True"),
    ],
)
def test_profile_errors(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Profile(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step0": "reuse"}, "step0 must be one of carry, restart, got 'reuse'"),
        ({"steps_policy": "shrink"}, "steps_policy must be one of rescale, keep, got 'shrink'"),
        ({"safety_net": "off"}, "safety_net must be True or False, got 'off'"),
        ({"profile": {"margin": 3}}, "profile must be a Profile or None, got {'margin': 3}"),
    ],
)
def test_truncation_errors(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Truncation(**values)


@pytest.mark.parametrize("asked", [None, "carry", "restart"])
@pytest.mark.parametrize(
    ("cache", "suits"), [("none", "carry"), ("prompt", "carry"), ("prefix", "restart"), ("dual", "restart")]
)
def test_step0_suits_the_cache_unless_asked(cache, suits, asked):
    assert Truncation(step0=asked).step0_with(cache) == (asked or suits)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *[({name: 0}, f"{name} must be a positive whole number, got 0") for name in list(SIZES)[:7]],
        ({"n_heads": 3}, "n_heads must be a multiple of n_kv_heads=2, got 3"),
        ({"mask_id": 64}, "mask_id must be in [0, vocab_size=64), got 64"),
        ({"eos_id": -1}, "eos_id must be in [0, vocab_size=64), got -1"),
    ],
)
def test_model_errors(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ModelConfig(**{**SIZES, **values})


@pytest.mark.parametrize(
    "settings", [GenerationConfig(), Profile(), Truncation(), ModelConfig(**SIZES)], ids=lambda s: type(s).__name__
)
def test_settings_are_frozen(settings):
    for field in dataclasses.fields(settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, 1)


def test_from_mapping():
    assert from_mapping(Profile, {"margin": 3, "probe_layers": [1, 2]}) == Profile(margin=3, probe_layers=(1, 2))
    message = (
        "Profile has no setting 'layers', 'marge'; it has probe_layers, threshold, window, min_snr, plateau, "
        "min_jump, margin, slot_offset"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_mapping(Profile, {"marge": 3, "layers": [1], "margin": 2})
    with pytest.raises(ValueError, match="margin must be a whole number"):
        from_mapping(Profile, {"margin": -3})
    assert hash(from_mapping(Profile, {"probe_layers": [1, 2]})) == hash(Profile(probe_layers=(1, 2)))
