"""bench_denoise.py --shape on toy layers: ends arrive where they were given, runs are counted right, costs add up."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from seer_dllm import GenerationConfig, Model, Profile, generate
from seer_dllm.backbone import Backbone, Packing, Probe
from seer_dllm.config import ModelConfig
from seer_dllm.families import FAMILIES
from seer_dllm.row import Counters

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import denoise_runs as runs  # noqa: E402
import denoise_shapes  # noqa: E402
import shapes  # noqa: E402

MASK, EOS, PROMPT = 63, 62, 30
TOY = ModelConfig(64, 32, 48, 8, 4, 4, 8, 1e4, 1e-5, mask_id=MASK, eos_id=EOS)
FAMILY = next(family for family in FAMILIES if family.prefix_trained)  # no warning about its prompt cache
PLAIN = GenerationConfig(window=64, steps=32)
BLOCKS = GenerationConfig(window=64, steps=32, block=16)
STOCK, SEER, KEEP, ORACLE, EARLY = runs.WAYS


def toy(shift: bool = False, dtype: torch.dtype = torch.float32) -> shapes.GivenEnds:
    return shapes.random_backbone(replace(TOY, shift=shift, qkv_bias=shift), dtype, kind=shapes.GivenEnds)


def setting(config: GenerationConfig, ends=(5,), backbone=None, margin: int = 16) -> runs.Setting:
    profile = Profile(probe_layers=(0, 1), margin=margin)
    model = Model(FAMILY, backbone or toy(), None, None, (EOS,), profile)
    return runs.Setting(model, torch.randn(PROMPT, TOY.hidden_size), config, ends)


# ---- given ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("cache", ["none", "prompt"])
@pytest.mark.parametrize(
    ("config", "end", "kept"),
    [
        (PLAIN, 2, 24),  # 2 + margin 16, rounded up to 8
        (PLAIN, 5, 24),
        (PLAIN, 8, 24),
        (PLAIN, 9, 32),
        (PLAIN, 40, 56),
        (PLAIN, 63, 64),  # nothing to cut
        (PLAIN, 64, 64),  # no end at all
        (BLOCKS, 5, 32),  # whole blocks of 16
        (BLOCKS, 16, 32),
        (BLOCKS, 17, 48),
    ],
)
def test_an_answer_ends_where_it_was_told_to(shift, cache, config, end, kept):
    model = setting(config, backbone=toy(shift)).model
    model.backbone.end = PROMPT + end
    prompt = torch.randn(PROMPT, TOY.hidden_size)
    config = replace(config, cache=cache)
    stock, seer = (
        generate(model, [prompt], config=config, truncation=None)[0],
        generate(model, [prompt], config=config)[0],
    )
    for result, window in ((stock, 64), (seer, kept)):
        assert (result.useful_tokens, result.window_tokens, result.extended) == (end, window, 0)
        assert result.finish_reason == ("end" if end < 64 else "length")
        assert MASK not in result.window_ids and set(result.window_ids[end:]) <= {EOS}
    assert seer.truncated == (kept < 64)
    assert seer.boundary == (min(end, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_else_is_what_the_weights_say(dtype):
    given = toy(dtype=dtype)
    plain = Backbone(given.config).to(dtype).requires_grad_(False)
    plain.load_state_dict(given.state_dict())
    given.end = 6
    hidden, packing = torch.randn(10, TOY.hidden_size).to(dtype), Packing([10])
    probes = Probe((0, 3), 0.01), Probe((0, 3), 0.01)
    out, want = given.run(hidden, packing, probe=probes[0]), plain.run(hidden, packing, probe=probes[1])
    assert torch.equal(out[:, 1:], want[:, 1:])
    assert out[:, 0].tolist() == [-1] * 6 + [1] * 4
    assert list(probes[0].per_layer) == list(probes[1].per_layer) == [0, 3]
    assert torch.equal(given.run(hidden, packing, 0, 3), plain.run(hidden, packing, 0, 3))  # before the last layer
    words = [i for i in range(64) if i not in (MASK, EOS)]
    logits = given.logits(out)
    assert torch.equal(logits[:, words], plain.logits(out)[:, words])
    assert logits.isfinite().all()
    assert (logits.argmax(1) == EOS).tolist() == [False] * 6 + [True] * 4
    assert not (logits.argmax(1) == MASK).any()


def test_fewer_layers_are_the_first_ones():
    given = toy()
    fewer = shapes.first_layers(given, 3)
    given.end = fewer.end = 4
    hidden, packing = torch.randn(6, TOY.hidden_size), Packing([6])
    assert (fewer.config.n_layers, len(fewer.layers)) == (3, 3)
    assert torch.equal(fewer.run(hidden, packing)[:, 1:], given.run(hidden, packing, 0, 3)[:, 1:])


# ---- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["none", "prompt"])
@pytest.mark.parametrize(
    ("way", "end", "slots", "steps"),
    [  # stock has 4 blocks of 8 steps
        (STOCK, 5, 64, 32),
        (SEER, 5, 32, 16),
        (KEEP, 5, 32, 32),
        (ORACLE, 5, 8, 4),  # half a block has half of its steps
        (ORACLE, 16, 32, 16),
        (EARLY, 5, 64, 8),
        (EARLY, 15, 64, 8),
        (EARLY, 16, 64, 16),
        (EARLY, 63, 64, 32),
        (EARLY, 64, 64, 32),
    ],
)
def test_what_a_way_does(way, end, slots, steps, cache):
    own = setting(replace(BLOCKS, cache=cache))
    for sample in (None, 2):
        run = runs.answer(own, way, end, sample)
        assert (run.useful, run.slots, run.cost.steps) == (end, slots, steps)
        assert run.forwards == steps + (cache == "prompt")
        assert run.cost.first > 0 and run.cost.later > 0


def test_a_shifted_model_with_a_cached_prompt_has_one_slot_less_to_fill():
    own = setting(GenerationConfig(window=64, block=16, cache="prompt"), backbone=toy(shift=True))
    assert runs.answer(own, STOCK, 5).cost.steps == 63
    assert runs.answer(own, EARLY, 5).cost.steps == 15
    assert runs.answer(own, SEER, 5).cost.steps == 31


def test_a_sample_counts_as_whole_runs_do():
    own = setting(BLOCKS, ends=(5, 20))
    whole, part = runs.measured(own), runs.sampled(own, 2)

    def counted(found):
        return {w.name: [(r.useful, r.slots, r.cost.steps, r.forwards) for r in rs] for w, rs in found.items()}

    assert counted(whole) == counted(part)
    assert list(whole) == list(runs.WAYS)
    assert [run.cost.steps for run in whole[EARLY]] == [8, 16]


def test_a_sample_times_no_steps_that_are_not_made(monkeypatch):
    """Of 24 slots at a slot a step, 12 are masked: 12 steps, the first of which is left out, though 20 are asked."""
    counted = []
    monkeypatch.setattr(runs, "mean", lambda times: counted.append(len(times)) or 1.0)
    assert runs.answer(setting(GenerationConfig(window=64)), SEER, 5, sample=20).cost.steps == 24
    assert counted == [11]


def test_one_block_has_no_early_stop():
    assert EARLY not in runs.measured(setting(PLAIN)) and EARLY not in runs.sampled(setting(PLAIN), 2)


def test_repeats_keep_the_run_of_median_time(monkeypatch):
    fresh = iter([9.0, 1.0, 5.0])

    def answered(own, way, end, sample=None):
        cost = runs.Cost(next(fresh) if way is STOCK else 1.0, 0.0, 1)
        return runs.Run(way, cost, end, 64, 1)

    monkeypatch.setattr(runs, "answer", answered)
    assert runs.measured(setting(PLAIN), repeats=3)[STOCK][0].cost.first == 5.0


def test_a_run_with_the_net_is_no_measurement():
    with pytest.raises(RuntimeError, match="must end at slot 8 after .* calls of the net"):
        runs.answer(setting(PLAIN, margin=0), SEER, 8)  # keeps 8 slots, the last of which is a word


@pytest.mark.parametrize(
    ("end", "steps", "counters"),
    [(6, 12, {}), (None, 12, {}), (5, 13, {}), (5, 12, {"net_early": 1}), (5, 12, {"net_late": 1})],
)
def test_runs_that_were_not_meant(end, steps, counters):
    runs.check(SimpleNamespace(end=lambda: 5, counters=Counters()), 5, 64, 12, 12)
    with pytest.raises(RuntimeError, match="must end at slot 5 after 12 steps without the safety net"):
        runs.check(SimpleNamespace(end=lambda: end, counters=Counters(**counters)), 5, 64, steps, 12)


# ---- costs -------------------------------------------------------------------------------------------------


def run(way, first, later, steps, slots=64):
    return [runs.Run(way, runs.Cost(first, later, steps), 5, slots, steps)]


def test_a_whole_model_from_two_numbers_of_layers():
    """A layer costs 2 on the full window, 0.5 on the cut one, 1 in the prefill; a step 3 beside them, the first one 5.
    The probe takes 1 layer in the runs, of 2 and 4 layers, and 7 of the whole model's 10."""
    few = {STOCK: run(STOCK, 11.0, 7.0, 8), SEER: run(SEER, 9.5, 4.0, 3, 24)}
    many = {STOCK: run(STOCK, 17.0, 11.0, 8), SEER: run(SEER, 12.5, 5.0, 3, 24)}
    found = runs.extrapolated(few, many, (2, 4, 10), (1, 7))
    stock, seer = found[STOCK][0].cost, found[SEER][0].cost
    assert (stock.first, stock.later, stock.seconds) == (35.0, 23.0, 196.0)
    assert (seer.first, seer.later, seer.seconds) == (30.5, 8.0, 46.5)
    assert found[SEER][0].slots == 24


@pytest.mark.parametrize(("cache", "prefill"), [("none", 0.0), ("prompt", 7.0)])
def test_what_bare_passes_predict(monkeypatch, cache, prefill):
    costs = {
        ("layers", 64, 0, None): 10.0, ("layers", 64, 0, 2): 4.0, ("layers", 24, 2, None): 1.0,
        ("layers", 24, 0, None): 3.0, ("head", 33, 0, None): 5.0, ("head", 13, 0, None): 2.0,
        ("prefill", 0, 0, None): 7.0,
    }  # fmt: skip

    def timed(_, kind, slots=0, start=0, stop=None):
        return costs[kind, slots, start, stop]

    monkeypatch.setattr(runs.Bare, "_timed", timed)
    bare = runs.Bare(setting(replace(PLAIN, cache=cache)))
    # 32 steps of 2 slots see 64, 62, ... 2 masks: 33 in the mean; 12 steps of 2 slots 13.
    assert bare.seconds(run(STOCK, 0, 0, 32)[0]) == prefill + 32 * 15.0
    assert bare.seconds(run(SEER, 0, 0, 12, slots=24)[0]) == prefill + (4.0 + 1.0 + 2.0) + 11 * 5.0


@pytest.mark.parametrize("cache", ["none", "prompt"])
def test_bare_passes_run(cache):
    own = setting(replace(BLOCKS, cache=cache))
    assert runs.Bare(own).seconds(runs.answer(own, SEER, 5)) > 0


@pytest.mark.parametrize(
    ("layers", "of", "probed"),
    [(32, 32, (3, 4, 5, 6)), (28, 28, (3, 4, 5, 6)), (2, 32, (0,)), (4, 32, (0,)), (8, 32, (0, 1)), (1, 32, (0,)),
     (8, 8, (0, 1, 2, 3))],
)  # fmt: skip
def test_probe_layers(layers, of, probed):
    assert runs.probe_layers(layers, of) == probed


# ---- the command -------------------------------------------------------------------------------------------


def test_ends(tmp_path):
    listed, lines = tmp_path / "a.json", tmp_path / "b.txt"
    listed.write_text("[5, 17]\n")
    lines.write_text("5\n\n17\n")
    assert shapes.read_ends(str(listed), 64, 3) == shapes.read_ends(str(lines), 64, 3) == [5, 17]
    assert shapes.read_ends("headline", 64, 3) == [5]
    for name in ("uniform", "short", "bimodal", "heavy"):
        drawn = shapes.read_ends(name, 64, 50)
        assert len(drawn) == 50 and all(1 <= end < 64 for end in drawn) and len(set(drawn)) > 5
        assert drawn == shapes.read_ends(name, 64, 50)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[5, 0]", "in [1, window=64], one at least, got 0"),
        ("65", "in [1, window=64], one at least, got 65"),
        ("2.5", "got 2.5"),
        ("[true]", "got True"),
        ("[]", "got none"),
        ("", "got none"),
        ("five", "a JSON list or a number a line"),
        ("[5", "a JSON list or a number a line"),
    ],
)
def test_ends_that_are_refused(tmp_path, text, said):
    file = tmp_path / "ends"
    file.write_text(text)
    with pytest.raises(ValueError) as error:
        shapes.read_ends(str(file), 64, 3)
    assert said in str(error.value)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command on toy layers; its output, or what it refused."""
    monkeypatch.setitem(shapes.MODELS, "llada-8b", TOY)

    def call(*extra: str) -> str:
        argv = ["--shape", "llada-8b", "--window", "64", "--prompt", "30", "--block", "16", *extra]
        try:
            denoise_shapes.main(argv)
        except SystemExit as stop:
            assert stop.code == 2
            return capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--layers", "9"], "layers must be in [1, 8], as llada-8b has them, got 9"),
        (["--layers", "0"], "layers must be in [1, 8]"),
        (["--layers", "1", "--sample", "2"], "layers must be 2 at least with --sample"),
        (["--layers", "2", "--sample", "0"], "sample must be at least 1, got 0"),
        (["--layers", "2", "--prompt", "4090"], "must fit the model's 4096 positions, got 4090 + 64"),
        (["--layers", "2", "--prompt", "-1"], "must fit the model's 4096 positions, got -1 + 64"),
        (["--layers", "2", "--steps", "30"], "steps must be a multiple of the 4 blocks, got 30"),
        (["--layers", "2", "--device", "cuda", "--busy"], "busy must be left out on a GPU"),
        (["--layers", "2", "--ends", "nowhere"], "bimodal, heavy or a file, got 'nowhere'"),
    ],
)
def test_what_is_refused(command, extra, said):
    assert said in command(*extra)


def test_too_little_memory_is_refused_by_number(command, monkeypatch):
    monkeypatch.setattr(shapes, "random_backbone", None)
    monkeypatch.setattr(shapes, "_free_bytes", lambda device: 1_000_000)
    assert "layers must fit the memory: 8 in torch.bfloat16 need" in command("--layers", "8", "--prompt", "4000")


def test_memory_that_is_needed(monkeypatch):
    """LLaDA-8B has 8.02e9 weights, 16.03 GB in bfloat16; on top come its head once more, keys, activations, logits."""
    free = {"bytes": 16_030_000_000}
    monkeypatch.setattr(shapes, "_free_bytes", lambda device: free["bytes"])
    arguments = shapes.LLADA, torch.bfloat16, torch.device("cpu"), 1114, 32
    with pytest.raises(ValueError, match="32 in torch.bfloat16 need 1[78]"):
        shapes.check_memory(*arguments)
    free["bytes"] = 20_000_000_000
    shapes.check_memory(*arguments)


def test_measured_tables(command, tmp_path):
    out, numbers = tmp_path / "sub" / "out.md", tmp_path / "out.json"
    shown = command("--layers", "4", "--ends", "short", "--out", str(out), "--json", str(numbers))
    assert out.read_text() == shown
    found = json.loads(numbers.read_text())
    assert [(t["cache"], t["kind"]) for t in found["tables"]] == [
        (cache, "measured, 4 of 8 layers") for cache in ("none", "prompt")
    ]
    for table in found["tables"]:
        stock, *others = table["runs"]
        assert [r["run"] for r in table["runs"]] == [way.name for way in runs.WAYS]
        assert (stock["steps"], stock["ratio"]) == (4 * 32, 1.0)
        for other in others:
            assert other["ratio"] == pytest.approx(stock["seconds"] / other["seconds"])
            assert other["steps_factor"] == pytest.approx(128 / other["steps"])
    assert [(c["cache"], c["steps"]) for c in found["two_by_two"]] == [
        (cache, steps) for cache in ("none", "prompt") for steps in ("rescale", "keep")
    ]
    assert all(c["predicted"] > 0 for c in found["two_by_two"])
    assert "measured / predicted" in shown and "modelled" not in shown


def test_modelled_tables(command, tmp_path):
    numbers = tmp_path / "out.json"
    shown = command("--layers", "4", "--sample", "2", "--cache", "none", "--json", str(numbers))
    found = json.loads(numbers.read_text())
    kind = "modelled, from 3 steps of each run at 2 and 4 layers, for all 8 layers"
    assert [t["kind"] for t in found["tables"]] == [kind]
    assert "predicted" not in found["two_by_two"][0]
    assert "measured" not in shown and "later step, 8 layers, modelled" in shown
    shown = command("--layers", "8", "--sample", "2", "--cache", "none")
    assert "modelled, from 3 steps of each run:" in shown.replace("\n\n", ":") and "at 4" not in shown
