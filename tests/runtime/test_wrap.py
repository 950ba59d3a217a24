"""Wrapped models: the boundary for a loop of the caller's, what a probe leaves behind, parts by path and by search."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from toy import DEPTH, EOS, MASK, Glu, Stage, Toy

import seer_dllm
from seer_dllm import Profile
from seer_dllm.backbone import Backbone
from seer_dllm.config import ModelConfig
from seer_dllm.structure import find_down_projections

PROFILE = Profile(probe_layers=(1, 2), threshold=0.01, margin=0)


@pytest.fixture
def toy():
    with torch.no_grad():
        return Toy()


def wrapped(model, **settings):
    settings = {"mask_id": MASK, "eos_id": EOS, "profile": PROFILE} | settings
    return seer_dllm.wrap(model, **settings)


def entered(model):
    """Counts how often each stage, and the head, begins to run."""
    counts = [0] * (DEPTH + 1)

    def count(i):
        def hook(*_):
            counts[i] += 1

        return hook

    for i, module in enumerate((*model.trunk.stages, model.out)):
        module.register_forward_pre_hook(count(i))
    return counts


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


# ---- the boundary ------------------------------------------------------------------------------------------


def padded_batch():
    """Prompts of 3 and 5 tokens, windows of 24 and 20 slots that are loud in 10 and 4, padded left and right to 32."""
    ids, loud = torch.zeros(2, 32, dtype=torch.int64), torch.zeros(2, 32)
    ids[0, 5:8], ids[0, 8:32], loud[0, 5:18] = 1, MASK, 1  # padding, prompt, window
    ids[1, 0:5], ids[1, 5:25], loud[1, 0:9] = 1, MASK, 1  # prompt, window, padding
    return ids, loud, [8, 5], [24, 20]


def test_boundary_of_rows_padded_left_and_right(toy):
    ids, loud, starts, windows = padded_batch()
    found = wrapped(toy).find_boundary(ids, window_start=starts, window=windows, loud=loud)
    assert found.boundary == [10, 4]
    # Loud slots have half of their activations below the threshold, quiet ones all of them.
    assert found.sparsity == [[0.5] * 10 + [1.0] * 14, [0.5] * 4 + [1.0] * 16]
    assert found.snr == pytest.approx([500.0, 500.0])  # a jump of 0.5 over the floor of the noise, 1e-3
    same = wrapped(toy).find_boundary(ids, window_start=torch.tensor(starts), window=torch.tensor(windows), loud=loud)
    assert same == found


def test_no_jump_and_fixed_slots(toy):
    ids, loud, *_ = padded_batch()
    model = wrapped(toy)
    flat = model.find_boundary(ids[:1], window_start=8, window=24)
    assert (flat.boundary, flat.snr) == ([24], [0.0])
    ids[0, 8 + 12] = 2  # a fixed word behind the jump at slot 10
    behind = model.find_boundary(ids[:1], window_start=8, window=24, loud=loud[:1])
    # Slots 5..9 are loud, 10..20 quiet: signal 0.3125, variances 15/256 and 0.
    assert behind.boundary == [13] and behind.snr == pytest.approx([0.3125 / (15 / 512) ** 0.5])


def test_forward_kwargs_are_made_for_the_shape(toy):
    model = wrapped(toy, forward_kwargs=lambda batch, length: {"loud": torch.zeros(batch, length)})
    ids, loud, *_ = padded_batch()
    assert model.find_boundary(ids, window_start=8, window=16).sparsity == [[1.0] * 16] * 2
    assert model.find_boundary(ids[:1], window_start=8, window=24, loud=loud[:1]).boundary == [10]


def test_a_probe_ends_with_its_last_layer(toy):
    model, counts = wrapped(toy), entered(toy)
    model.find_boundary(torch.full((2, 24), MASK), window_start=0, window=24)
    assert counts == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    model.find_boundary(torch.full((2, 24), MASK), window_start=0, window=24, profile=Profile(probe_layers=(5, 0)))
    assert counts == [2, 2, 2, 1, 1, 1, 0, 0, 0]


def test_a_model_that_catches_exceptions_ends_too(toy):
    class Cautious(Toy):
        def forward(self, *args, **kwargs):
            try:
                return super().forward(*args, **kwargs)
            except Exception as error:
                raise RuntimeError("fell over") from error

    model = wrapped(Cautious())
    assert model.find_boundary(torch.full((1, 24), MASK), window_start=0, window=24).boundary == [24]


def test_nothing_stays_behind(toy):
    model = wrapped(toy)
    ids, loud, starts, windows = padded_batch()
    before = toy(ids)
    model.find_boundary(ids, window_start=starts, window=windows, loud=loud)
    assert hooks(toy) == 0 and torch.equal(toy(ids), before)
    with pytest.raises(RuntimeError, match="size of tensor"):  # the model's own error
        model.find_boundary(ids, window_start=starts, window=windows, loud=loud[:, :7])
    assert hooks(toy) == 0 and torch.equal(toy(ids), before)
    toy.requires_grad_(True)  # and it can still be trained
    model.find_boundary(ids, window_start=starts, window=windows, loud=loud)
    toy(ids).sum().backward()


def test_a_probe_inside_a_probe(toy):
    """A model that asks for its own boundary while it is asked: each probe sees its own forward."""
    model = wrapped(toy)
    ids, loud, starts, windows = padded_batch()
    inner = []

    def ask(*_):
        if not inner:
            inner.append(None)
            inner[0] = model.find_boundary(ids[1:], window_start=5, window=20, loud=loud[1:])

    toy.trunk.stages[2].register_forward_pre_hook(ask)
    outer = model.find_boundary(ids[:1], window_start=8, window=24, loud=loud[:1])
    assert (outer.boundary, inner[0].boundary) == ([10], [4])


def test_a_probe_leaves_other_threads_alone(toy):
    model, ids = wrapped(toy), torch.full((1, 24), MASK)
    expected, logits = toy(ids), []

    def run_whole(*_):
        if not logits and threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: logits.append(toy(ids)))
            thread.start()
            thread.join()

    toy.trunk.stages[0].register_forward_pre_hook(run_whole)
    model.find_boundary(ids, window_start=0, window=24)
    assert torch.equal(logits[0], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": None}, "input_ids or inputs_embeds must be given"),
        ({"input_ids": torch.zeros(24)}, r"input_ids must be a filled tensor \[B, L\] of whole .*, got .*32 \[24\]"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(1, 24, 6)}, "inputs_embeds must be left out"),
        ({"window": 25}, "must lie in the 24 positions, got 0 and 25 in row 0"),
        ({"window_start": -1}, "must lie in the 24 positions, got -1 and 24 in row 0"),
        ({"window": [8, 8]}, r"window must be a whole number or one per row \(1\), got \[8, 8\]"),
        ({"window_start": 0.5}, r"window_start must be a whole number or one per row \(1\), got 0.5"),
        ({"profile": Profile(probe_layers=(8,))}, "probe_layers must be below the model's 8 layers"),
    ],
)
def test_bad_arguments_of_find_boundary(toy, arguments, message):
    model, counts = wrapped(toy), entered(toy)
    with pytest.raises(ValueError, match=message):
        model.find_boundary(**{"input_ids": torch.full((1, 24), MASK), "window_start": 0, "window": 24} | arguments)
    assert counts == [0] * (DEPTH + 1)


# ---- finding the parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "paths", [{}, {"layers": "trunk.stages"}, {"mlp_down": "ff.c"}, {"layers": "trunk.stages", "mlp_down": "ff.c"}]
)
def test_parts_are_found_by_path_and_by_structure(toy, paths):
    model = wrapped(toy, **paths)
    assert list(model.backbone.downs) == [f"trunk.stages.{i}.ff.c" for i in range(DEPTH)]
    assert list(model.backbone.downs.values()) == [stage.ff.c for stage in toy.trunk.stages]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (
            {"layers": "trunk.layers"},
            "layers must be the path of a module, got 'trunk.layers': trunk has no 'layers', it has stages",
        ),
        ({"layers": "model.layers"}, "the Toy has no 'model', it has words, trunk, out"),
        ({"layers": "out"}, "layers must be the path of a filled ModuleList, got 'out', a Linear"),
        (
            {"layers": "trunk.stages", "mlp_down": "ff.down"},
            "mlp_down must be .* got 'ff.down': trunk.stages.0.ff has no 'down', it has a, b, c",
        ),
        ({"head": "out.proj"}, "head must be .* got 'out.proj': out has no 'proj', it has no modules"),
        ({"embed": "word"}, "embed must be .* got 'word': the Toy has no 'word', it has words, trunk, out"),
        ({"embed": "trunk"}, r"embed must have a weight \[V, H\], got a Module without"),
        ({"mlp_down": "ff.down"}, "one ModuleList whose items all hold a module 'ff.down' must be there .* got none"),
    ],
)
def test_a_path_that_is_not_there(toy, paths, message):
    with pytest.raises(ValueError, match=message):
        wrapped(toy, **paths)


def test_two_lists_of_layers_are_ambiguous(toy):
    toy.vision = nn.ModuleList(Stage() for _ in range(2))
    with pytest.raises(ValueError, match="layers must be given: .* got trunk.stages, vision"):
        wrapped(toy.eval())
    assert list(wrapped(toy, layers="trunk.stages").backbone.downs)[0] == "trunk.stages.0.ff.c"


def test_layers_with_two_mlps_need_a_path(toy):
    for stage in toy.trunk.stages:
        stage.expert = Glu()
    toy.eval()
    with pytest.raises(ValueError, match="mlp_down must be given: trunk.stages.0 must hold one gated MLP .* expert.c"):
        wrapped(toy, layers="trunk.stages")
    assert list(wrapped(toy, mlp_down="ff.c").backbone.downs)[5] == "trunk.stages.5.ff.c"


def test_an_mlp_without_a_gate_is_not_found():
    with pytest.raises(ValueError, match="whose items all hold one gated MLP .*gate and up.*, got none"):
        wrapped(Toy(gated=False))


def test_attention_is_not_taken_for_an_mlp(toy):
    """Wide heads: q, k and v lead from 6 to 8, as gate and up do, and one projection back."""
    for stage in toy.trunk.stages:
        stage.attention = nn.ModuleDict({name: nn.Linear(6, 8) for name in "qkv"} | {"o": nn.Linear(8, 6)})
    assert list(wrapped(toy.eval()).backbone.downs)[0] == "trunk.stages.0.ff.c"


@pytest.mark.parametrize(("heads", "head_dim"), [((4, 4), 16), ((4, 2), 16), ((4, 4), 8), ((4, 2), 32)])
def test_layers_without_submodules_are_searched_as_well(heads, head_dim):
    """As LLaDA's: attention and MLP side by side in one module. Ours is, whatever the widths of its heads."""
    config = ModelConfig(32, 64, 160, 3, *heads, head_dim, 1e4, 1e-5, mask_id=1, eos_id=2)
    downs = find_down_projections(Backbone(config), None, None)
    assert list(downs) == [f"layers.{i}.down_proj" for i in range(3)]


def test_shared_layers_are_refused(toy):
    toy.trunk.stages[1] = toy.trunk.stages[0]
    with pytest.raises(ValueError, match="a down projection of their own, got 'trunk.stages', which shares them"):
        wrapped(toy)


def test_two_embeddings_are_ambiguous(toy):
    toy.positions = nn.Embedding(3, 3)
    with pytest.raises(ValueError, match="embed must be given: .* got words, positions"):
        wrapped(toy.eval())
    assert wrapped(toy, embed="words").backbone.config.vocab_size == 12


def test_a_layer_that_is_not_called_is_named(toy):
    toy.trunk.stages[1].forward = lambda x, loud: x
    with pytest.raises(ValueError, match="model must call trunk.stages.1.ff.c in its forward"):
        wrapped(toy).find_boundary(torch.full((1, 24), MASK), window_start=0, window=24)


# ---- checks at wrap time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_id": None}, r"mask_id must be given, or .* in \[0, 12\), got None"),
        ({"mask_id": 12}, "mask_id must be .* got 12"),
        ({"eos_id": [10]}, r"eos_id must be .* got \[10\]"),
        ({"profile": Profile(probe_layers=(3, 8))}, "probe_layers must be below the model's 8 layers"),
        ({"shift": 1}, "shift must be True or False, got 1"),
    ],
)
def test_bad_settings(toy, settings, message):
    with pytest.raises(ValueError, match=message):
        wrapped(toy, **settings)


def test_training_mode_is_refused(toy):
    with pytest.raises(ValueError, match="model must be a torch module in eval mode .* got one in training mode"):
        wrapped(toy.train())
    with pytest.raises(ValueError, match="model must be a torch module in eval mode .* got a str"):
        wrapped("toy")


def test_a_causal_model_is_refused():
    with torch.no_grad():
        deaf = Toy(mixing=False)
    with pytest.raises(ValueError, match="model must be bidirectional"):
        wrapped(deaf)
    assert wrapped(deaf, check=False).backbone.config.n_layers == DEPTH


def test_a_head_that_is_not_the_whole_truth_is_refused(toy):
    class Scaled(Toy):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * 0.5

    with pytest.raises(ValueError, match="head must give the logits that the model returns"):
        wrapped(Scaled(), head="out")
    assert wrapped(toy, head="out").backbone.head is toy.out


def test_what_is_not_logits_is_refused(toy):
    class Silent(Toy):
        def forward(self, *args, **kwargs):
            return (super().forward(*args, **kwargs),)

    with pytest.raises(ValueError, match=r"model must return one row of logits per token .*\[1, 4\], got a tuple"):
        wrapped(Silent())


def test_wrapping_needs_no_transformers():
    script = "import sys, seer_dllm; assert seer_dllm.wrap; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
