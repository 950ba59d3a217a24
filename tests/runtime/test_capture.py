"""Recorded forwards: buffers, padding, copies and counts, with a stand-in for CUDA graphs."""

import copy

import pytest
import torch
from scripted import Script, Scripted, random_prompt, tiny
from workloads import COSTS, Recorder

from seer_dllm import GenerationConfig
from seer_dllm.api import prepare
from seer_dllm.backbone import KeyValues, Packing
from seer_dllm.canvas import Canvas, Dense, prefill
from seer_dllm.denoise import Loop
from seer_dllm.groups import Routing
from seer_dllm.router import Limits

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")


def canvas_of(lengths, cache="none", dense=None):
    model = tiny("llada_gqa")
    prompts = [random_prompt(n, n, "llada_gqa") for n in lengths]
    rows, _ = prepare(model, prompts, None, GenerationConfig(window=8, cache=cache), None)
    return Canvas(model.backbone, rows, prefill(model.backbone, rows), dense)


@pytest.mark.parametrize("cache", ["none", "prompt"])
@torch.inference_mode()
def test_a_replay_holds_nothing_of_the_last_one(cache):
    """One shape: first rows that fill it, then two shorter ones, then one; each is what runs without a recording."""
    capturer = Recorder()
    dense = Dense(3, 8, 9) if cache == "prompt" else Dense(3, 17, 0)
    shapes = [(9, 8, 7), (2, 5), (3,)]
    outs = []
    for lengths in shapes:
        canvas = canvas_of(lengths, cache, dense)
        plain = canvas.forward(canvas.embeddings())
        run = capturer.bound(canvas.backbone, dense)
        captured = canvas.forward(canvas.embeddings(), run=run)
        outs.append((canvas, plain, captured))
    for canvas, plain, captured in outs:  # compared last: later replays changed no earlier result
        real = canvas.window_at
        assert torch.equal(plain[real], captured[real])
    assert (capturer.captures, capturer.hits) == (1, 2)


@torch.inference_mode()
def test_two_canvases_share_a_shape():
    """Their replays alternate, with other cached keys, positions and masks each time."""
    capturer = Recorder()
    canvases = [canvas_of(lengths, "prompt", Dense(2, 8, 9)) for lengths in ((9, 4), (2, 7))]
    for canvas in canvases * 2:
        out = canvas.forward(canvas.embeddings(), run=capturer.bound(canvas.backbone, canvas.dense))
        assert torch.equal(out[canvas.window_at], canvas.forward(canvas.embeddings())[canvas.window_at])
    assert (capturer.captures, capturer.hits) == (1, 3)


@torch.inference_mode()
def test_models_share_no_recording():
    capturer, canvas = Recorder(), canvas_of((9, 4), "none", Dense(2, 17, 0))
    other = copy.deepcopy(canvas.backbone)
    for weight in other.parameters():
        weight.mul_(1.1)
    for backbone in (canvas.backbone, other):
        canvas.backbone = backbone
        out = canvas.forward(canvas.embeddings(), run=capturer.bound(backbone, canvas.dense))
        assert torch.equal(out[canvas.window_at], canvas.forward(canvas.embeddings())[canvas.window_at])
    assert (capturer.captures, capturer.hits) == (2, 0)


@torch.inference_mode()
def test_shapes_are_recorded_from_large_to_small():
    """Each is a hit when it is first needed; one with its lanes full and nothing to hide is another recording."""
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    shapes = [Dense(1, 8, 0), Dense(4, 24, 0), Dense(2, 8, 16), Dense(1, 8, 0)]
    capturer.warm_up(backbone, shapes)
    assert capturer.order == [Dense(4, 24, 0), Dense(2, 8, 16), Dense(1, 8, 0)] and capturer.captures == 3
    canvas = canvas_of((9,), "none", Dense(4, 24, 0))
    canvas.forward(canvas.embeddings(), run=capturer.bound(backbone, canvas.dense))
    assert (capturer.captures, capturer.hits) == (3, 1)
    full = canvas_of((16,) * 4, "none", Dense(4, 24, 0))
    assert full.mask is None
    full.forward(full.embeddings(), run=capturer.bound(backbone, full.dense))
    assert (capturer.captures, capturer.hits) == (4, 1)


def test_buffers_are_counted(caplog):
    """2 lanes of 8 fed and 16 cached tokens, float32: hidden and output, positions, keys and values, places, mask."""
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    config = backbone.config
    with torch.inference_mode(), caplog.at_level("INFO"):
        capturer.warm_up(backbone, [Dense(2, 8, 16)])
    held = config.n_layers * 2 * 48 * config.n_kv_heads * config.head_dim * 4
    assert capturer.bytes == 2 * 16 * config.hidden_size * 4 + 16 * 4 + held + 16 * 8 + 2 * 24
    assert f"{capturer.bytes} bytes" in caplog.text


def test_only_whole_forwards_are_recorded():
    backbone, packing = tiny("llada_gqa").backbone, Packing([8])
    run, hidden = Recorder().bound(backbone, Dense(1, 8, 0)), torch.zeros(8, backbone.config.hidden_size)
    for start, stop, more in ((0, 2, {}), (2, 8, {}), (0, 8, {"keep": KeyValues(packing)})):
        with pytest.raises(AssertionError):
            run(hidden, packing, start, stop, **more)


@pytest.mark.parametrize("path", ["static", "varlen"])
@pytest.mark.parametrize(("prompt", "misses"), [(684, 0), (685, 1)])
def test_p20_the_largest_bucket_is_the_maximum(prompt, misses, path):
    """case P20: 700 tokens run in the bucket of 700; 701 run eager, counted once."""
    scripted, capturer = Scripted([Script(16)]), Recorder()
    limits = Limits(max_tokens=700, max_length=700)
    assert limits.lengths.bucket_for(700) == 700 == max(limits.tokens.sizes) and limits.lengths.bucket_for(701) is None
    config = GenerationConfig(window=16, steps=2)
    rows, profile = prepare(scripted.model, [scripted.prompt(0, prompt)], None, config, None)
    loop = Loop(scripted.backbone, Routing(limits, COSTS, path, capturer))
    loop.add(rows, profile)
    while loop.rows:
        loop.step()
    assert loop.counts.misses == misses
    assert loop.counts.tokens == {"step 0": prompt + 16, "eager" if misses else path: prompt + 16}
    assert capturer.captures == 1 - misses
