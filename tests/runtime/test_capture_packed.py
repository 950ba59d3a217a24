"""Recorded forwards of packed rows: other rows in each replay, room that nobody fills, nothing the host must know."""

import copy
import random
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
import torch
from scripted import LAYERS, Script, Scripted, differences, random_prompt, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from workloads import COSTS, Recorder, family_cases, run_in_waves, scripted_cases

from seer_dllm import GenerationConfig, attention
from seer_dllm.api import prepare
from seer_dllm.backbone import Backbone, DevicePacking, KeyValues, Packing, Room
from seer_dllm.canvas import Canvas, Dense, prefill
from seer_dllm.capture import Capturer, CudaGraphs, Packed
from seer_dllm.denoise import Loop
from seer_dllm.groups import Routing, parts_of
from seer_dllm.router import Limits

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
NAN = float("nan")


def canvas_of(lengths, model=None, **config):
    """Rows of these prompts and windows of 8 and 16 slots in turn, packed."""
    model = tiny("llada_gqa") if model is None else model
    like = {"device": model.backbone.device, "dtype": model.backbone.dtype}
    prompts = [random_prompt(n, n, "llada_gqa").to(**like) for n in lengths]
    configs = [GenerationConfig(window=8 + 8 * (i % 2), **config) for i in range(len(lengths))]
    rows, _ = prepare(model, prompts, None, configs, None)
    return Canvas(model.backbone, rows, prefill(model.backbone, rows))


class Poison:
    """For a capturer: all that the rows of a replay don't write themselves is NaN."""

    def _capture(self, backbone, shape, masked):
        recorded = super()._capture(backbone, shape, masked)
        for pair in recorded.past.layers if recorded.past is not None else ():
            for tensor in pair:
                tensor.fill_(NAN)
        recorded.hidden.fill_(NAN)
        return recorded


class Poisoned(Poison, Recorder):
    pass


class PoisonedGraphs(Poison, CudaGraphs):
    pass


@pytest.fixture
def poisoned_attention():
    """Tokens of no row come out as NaN."""
    plain = attention.varlen_on_host

    def poisoned(q, k, v, cu_q, *sizes):
        out = plain(q, k, v, cu_q, *sizes)
        out[cu_q[-1] :] = NAN
        return out

    with mock.patch("seer_dllm.attention.varlen_on_host", poisoned):
        yield


def assert_replays(capturer, canvases, shape, within=1e-5):
    """Each canvas twice, in turn; compared last, as later replays may change no earlier result."""
    outs = []
    for canvas in [*canvases, *canvases]:
        plain = canvas.forward(canvas.embeddings())
        captured = canvas.forward(canvas.embeddings(), run=capturer.bound(canvas.backbone, shape))
        outs.append((plain, captured))
    for plain, captured in outs:
        assert captured.shape == plain.shape and (captured - plain).abs().max() < within * plain.abs().max()
    assert (capturer.captures, capturer.hits) == (1, 2 * len(canvases) - 1)


LENGTHS = (2, 5), (9, 2, 7, 3), (3,), (8, 6, 4)
SHAPES = pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({}, Packed(4, 69, 0)),  # 8 + 16 + 8 + 16 slots and 21 prompt tokens: four rows fill all
        ({"cache": "prompt"}, Packed(4, 48, 21)),
        ({"cfg_scale": 1.0}, Packed(8, 138, 0)),
        ({"cache": "prompt", "cfg_scale": 1.0}, Packed(8, 96, 42)),
    ],
)


@SHAPES
@torch.inference_mode()
def test_replays_of_other_rows(config, shape, poisoned_attention):
    """One shape: two rows in a room full of NaN, four that fill it, then one, then three longer ones."""
    canvases = [canvas_of(lengths, **config) for lengths in LENGTHS]
    full = canvases[1]
    assert (len(full.lanes), full.packing.total, sum(full.past.packing.cached) if full.past else 0) == (
        shape.rows, shape.fed, shape.past,
    )  # fmt: skip
    assert_replays(Poisoned(), canvases, shape)


@pytest.mark.needs_cuda
@SHAPES
@torch.inference_mode()
def test_graphs_of_other_rows(config, shape):
    """The same by CUDA graphs in bfloat16; a replay of rows that are laid already waits for nothing."""
    own = tiny("llada_gqa")
    model = replace(own, backbone=copy.deepcopy(own.backbone).to("cuda", torch.bfloat16))
    canvases, capturer = [canvas_of(lengths, model, **config) for lengths in LENGTHS], PoisonedGraphs()
    assert_replays(capturer, canvases, shape, within=0.02)
    hidden, run = canvases[-1].embeddings(), capturer.bound(model.backbone, shape)
    laid = canvases[-1].forward(hidden, run=run)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = canvases[-1].forward(hidden, run=run)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(laid, again)


@torch.inference_mode()
def test_the_full_canvas_fits_with_room_to_spare(poisoned_attention):
    assert_replays(Poisoned(), [canvas_of((9, 2, 7), cache="prompt")], Packed(16, 64, 64))


@pytest.mark.parametrize("past", [0, 16])
@torch.inference_mode()
def test_rows_without_tokens(past, poisoned_attention):
    """No rows at all, none with a token, and one between two empty ones."""
    backbone, capturer = tiny("llada_gqa").backbone, Poisoned()
    config = backbone.config
    for lengths in ((), (0, 0), (0, 3, 0)):
        packing, room = Packing(lengths), Room([2 if n else 0 for n in lengths], lengths)
        size = room.total, config.n_kv_heads, config.head_dim
        kv = KeyValues(room, [(torch.randn(size), torch.randn(size)) for _ in range(8)]) if past else None
        hidden = torch.randn(packing.total, config.hidden_size)
        got = capturer.bound(backbone, Packed(4, 16, past))(hidden, packing, 0, 8, past=kv)
        assert got.shape == hidden.shape
        if packing.total:
            assert torch.allclose(got, backbone.run(hidden, packing, past=kv), rtol=0, atol=1e-5 * got.abs().max())


def test_what_the_device_knows_of_the_rows():
    """Rows of 2 and 1 tokens at positions 3 and 1, behind 3 and 1 cached ones; before them, rows that filled all."""
    wide = DevicePacking(4, 10, 6)
    wide.take(Packing([3, 3, 3, 1]), Room([2, 2, 1, 1], [3, 3, 3, 1]))
    wide.take(Packing([2, 1], [3, 1]), Room([3, 1], [2, 1]))
    assert wide.cu_seqlens.tolist() == [0, 2, 3, 3, 3] and wide.room.cu_seqlens.tolist() == [0, 5, 7, 7, 7]
    assert wide.positions[:3].tolist() == [3, 4, 1]
    assert wide.room.keys_at.tolist() == [3, 4, 6, 9, 10, 11, 12, 13, 14, 15]  # of no row: behind all 4 + 3 keys


@torch.inference_mode()
def test_shapes_of_both_kinds_are_recorded_from_large_to_small():
    """By their tokens, fed and cached. A dense and a packed shape of the same numbers are two."""
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    shapes = [Packed(1, 16, 0), Dense(2, 16, 8), Packed(2, 32, 32), Packed(2, 16, 8), Dense(4, 8, 0), Packed(1, 16, 0)]
    capturer.warm_up(backbone, shapes)
    assert capturer.order == [Packed(2, 32, 32), Dense(2, 16, 8), Dense(4, 8, 0), Packed(2, 16, 8), Packed(1, 16, 0)]
    canvas = canvas_of((9,), cache="prompt")
    canvas.forward(canvas.embeddings(), run=capturer.bound(backbone, Packed(2, 32, 32)))
    assert (capturer.captures, capturer.hits) == (5, 1)


def test_buffers_are_counted(caplog):
    """2 lanes, 16 fed and 8 cached tokens, float32: hidden and output, positions, places of keys, two times cu_seqlens,
    keys and values of all tokens."""
    capturer, backbone = Recorder(), tiny("llada_gqa").backbone
    config = backbone.config
    with torch.inference_mode(), caplog.at_level("INFO"):
        capturer.warm_up(backbone, [Packed(2, 16, 8)])
    held = config.n_layers * 2 * 24 * config.n_kv_heads * config.head_dim * 4
    assert capturer.bytes == 2 * 16 * config.hidden_size * 4 + 16 * 4 + 16 * 8 + 2 * 3 * 4 + held
    assert f"{capturer.bytes} bytes" in caplog.text


# ---- in the loop ----


def finished(scripted, configs, prompts, limits=None, **more):
    """A loop of all scripts in packed groups, at its end, and its capturer."""
    capturer, rows = Recorder(), range(len(configs))
    prompts = [scripted.prompt(i, n) for i, n in zip(rows, prompts, strict=True)]
    rows, profile = prepare(scripted.model, prompts, None, configs, None)
    loop = Loop(scripted.backbone, Routing(limits or Limits(), COSTS, "varlen", capturer))
    loop.add(rows, profile)
    while loop.rows:
        loop.step()
    return loop, capturer


def test_padding_of_a_recording_is_counted():
    """Windows of 4 and 6 behind prompts of 5: 20 tokens at step 0, then two steps in the bucket of 32, of which the
    last has one row: 11 tokens in the bucket of 16. What was recorded is computed once more each."""
    scripted = Scripted([Script(4), Script(6)])
    configs = [GenerationConfig(window=4, steps=2), GenerationConfig(window=6, steps=3)]
    loop, capturer = finished(scripted, configs, [5, 5])
    assert loop.counts.tokens == {"step 0": 20, "varlen": 20 + 11}
    assert loop.counts.padded_tokens == 12 + 5 and loop.counts.misses == 0
    assert capturer.order == [Packed(2, 32, 0), Packed(1, 16, 0)] and capturer.hits == 0
    assert scripted.backbone.token_layers == (20 + 2 * 32 + 2 * 16) * LAYERS


def test_where_sizes_must_be_on_the_host_packed_rows_run_uncaptured():
    scripted = Scripted([Script(4), Script(6)])
    scripted.backbone.device_packed = False
    loop, capturer = finished(scripted, [GenerationConfig(window=8, steps=2)] * 2, [5, 5])
    assert loop.counts.tokens == {"step 0": 26, "varlen": 26}
    assert loop.counts.padded_tokens == capturer.captures == 0


@pytest.mark.parametrize(("prompt", "misses"), [(8, 0), (9, 1)])
def test_cached_tokens_without_a_bucket_are_a_miss(prompt, misses):
    """The largest bucket is max_rows * max_length = 16 tokens: two rows may have 8 each."""
    scripted, configs = Scripted([Script(8)] * 2), [GenerationConfig(window=8, steps=2, cache="prompt")] * 2
    loop, capturer = finished(scripted, configs, [prompt] * 2, Limits(max_rows=2, max_length=8))
    assert loop.counts.misses == misses
    assert loop.counts.tokens == {"step 0": 16, "eager" if misses else "varlen": 16}
    assert capturer.order == [Packed(2, 16, 16)] * (1 - misses)


def test_twins_have_lanes_of_their_own():
    """Three rows with a twin: 3 rows go by the bucket of 4, which makes 8 lanes."""
    model, config = tiny("llada"), GenerationConfig(window=8, cfg_scale=1.0)
    rows, _ = prepare(model, [random_prompt(i, 2) for i in range(3)], None, config, None)
    (part,) = parts_of(rows, Routing(costs=COSTS, capturer=Recorder()))
    assert (part.path, part.packed) == ("varlen", Packed(8, 64, 0))  # 6 lanes of 10 tokens
    (part,) = parts_of(rows, Routing(costs=COSTS))
    assert part.packed is None


@pytest.fixture(scope="module")
def pool():
    return [scripted_cases(40, seed) for seed in (2, 3)] + [family_cases("llada_gqa", 12, 6)]


def test_captured_workloads_equal_one_by_one(pool):
    """Packed recordings alone and beside others, with every cache and guidance: tokens and work of rows alone."""
    recorded = Counter()
    for seed in range(48):
        draw = random.Random(seed)
        cases = draw.sample(pool[seed % 3], draw.randint(1, 6))
        limits = Limits(draw.choice([1, 2, 4, 32]), draw.choice([100, 4096]), draw.choice([24, 4096]))
        routing = Routing(limits, COSTS, draw.choice(["varlen", "varlen", "cost", "pwr"]), Poisoned())
        results, loop = run_in_waves(cases, routing, draw)
        for case, result in zip(cases, results, strict=True):
            assert not differences(result, case.alone), (seed, case)
        packed = [shape for shape in routing.capturer.order if isinstance(shape, Packed)]
        recorded["cached"] += sum(shape.past > 0 for shape in packed)
        recorded["plain"] += sum(shape.past == 0 for shape in packed)
        recorded["hits"] += routing.capturer.hits
        recorded["misses"] += loop.counts.misses
    assert min(recorded.values()) > 10 and len(recorded) == 4


# ---- what a graph may hold ----


class DeviceOnly(TorchDispatchMode):
    """Fails where the host would read a value, where a shape depends on one, and where a tensor comes from the host."""

    reads = ("_local_scalar_dense", "nonzero", "masked_select", "repeat_interleave", "_unique2")

    def __init__(self, device) -> None:
        super().__init__()
        self.device, self.calls = device, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        assert name not in self.reads
        out = func(*args, **(kwargs or {}))
        for leaf in tree_flatten((args, kwargs, out))[0]:
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type == self.device, (name, leaf.device)
        self.calls.append(name)
        return out


class Watched(Capturer):
    """Runs what would be captured on tensors that have a device and no values."""

    def record(self, body):
        with DeviceOnly("meta") as watch:
            out = body()
        self.calls = watch.calls
        return body, out


@pytest.mark.parametrize("shape", [Packed(4, 64, 0), Packed(4, 64, 32), Dense(4, 16, 0), Dense(4, 16, 8)])
@torch.inference_mode()
def test_the_device_does_it_alone(shape):
    """case P21 for whole forwards: nothing waits, depends on values or comes from the host."""
    config, of_cuda = tiny("llada_gqa").backbone.config, attention.library("cuda", torch.bfloat16)
    with torch.device("meta"):
        backbone, capturer = Backbone(config).to(torch.bfloat16), Watched()
    with mock.patch("seer_dllm.attention.library", return_value=of_cuda):
        capturer.warm_up(backbone, [shape])
    if isinstance(shape, Packed):
        assert sum("varlen" in name for name in capturer.calls) == config.n_layers
    assert capturer.calls.count("index_copy_") == 2 * config.n_layers * (shape.past > 0)
    assert not any("index_select" in name or name == "index" for name in capturer.calls)  # no cached key is copied


@pytest.mark.parametrize(("dtype", "takes"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)])
def test_in_float32_no_library_goes_by_the_device(dtype, takes):
    stand_in = mock.Mock(device=torch.device("cuda"), dtype=dtype)
    assert Backbone.device_packed.fget(stand_in) == takes
