"""A wrapped Hugging Face model answers as the native backbone does with the same weights."""

import json
from functools import cache

import pytest
import torch
from safetensors.torch import save_file
from toy import DEPTH, EOS, MASK, Toy

import seer_dllm
from seer_dllm import GenerationConfig, Profile, Truncation

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4, "rms_norm_eps": 1e-5}
LLAMA_MASK, LLAMA_EOS = 63, 62
# The weights are random, so that the only thing to be found is noise: any jump will do.
PROFILE = Profile(probe_layers=(1, 2), threshold=0.1, margin=0, min_snr=0.0, plateau=0.0)
RESTART = Truncation(step0="restart", safety_net=False)


@cache
def llama():
    """transformers' Llama, made bidirectional, with weights that are large enough to matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SIZES, **HEADS, is_causal=False, attn_implementation="eager", initializer_range=0.3)
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).requires_grad_(False).eval()
    model.lm_head.weight[LLAMA_MASK] = 0  # never the best of 64
    return model


@cache
def wrapped(**settings):
    return seer_dllm.wrap(llama(), mask_id=LLAMA_MASK, eos_id=LLAMA_EOS, profile=PROFILE, **settings)


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """The same weights as a checkpoint of LLaDA-V, whose names are Llama's."""
    folder = tmp_path_factory.mktemp("llada_v")
    save_file(llama().state_dict(), folder / "model.safetensors")
    ids = {"mask_token_id": LLAMA_MASK, "eos_token_id": LLAMA_EOS}
    family = {"model_type": "llava_llada", "architectures": ["LlavaLLaDAModelLM"]}
    (folder / "config.json").write_text(json.dumps(SIZES | HEADS | ids | family))
    model = seer_dllm.load(folder)
    model.profile = PROFILE
    return model


def prompts(*lengths):
    numbers = torch.Generator().manual_seed(7)
    return [torch.randint(0, 60, (n,), generator=numbers) for n in lengths]


def test_logits_are_those_of_the_native_model(native):
    ids = prompts(9)[0]
    packing = seer_dllm.backbone.Packing([9])
    with torch.inference_mode():
        expected = native.backbone.logits(native.backbone.run(native.backbone.embed(ids), packing))
        for model in (wrapped(), wrapped(head="lm_head")):
            got = model.backbone.logits(model.backbone.run(model.backbone.embed(ids), packing))
            assert torch.allclose(got, expected, rtol=0, atol=1e-4)
    assert expected.abs().max() > 1  # so that the tolerance says something


@pytest.mark.parametrize("settings", [{}, {"head": "lm_head"}], ids=["logits", "head"])
@pytest.mark.parametrize("truncation", [None, RESTART, Truncation(step0="restart", steps_policy="keep")])
def test_answers_are_those_of_the_native_model(native, settings, truncation):
    """Rows of different lengths, one of them with guidance, one sampled, one with a draft, one not cut."""
    rows = prompts(5, 9, 5, 7)
    configs = [
        GenerationConfig(window=32, block=8, steps=16),
        GenerationConfig(window=32, cfg_scale=0.5, steps=8),
        GenerationConfig(window=24, temperature=0.7, seed=11, commit="margin"),
        GenerationConfig(window=16, threshold=0.5),
    ]
    drafts = [None, None, torch.tensor([5, 6]), None]
    truncations = [truncation] * 3 + [None]
    expected = seer_dllm.generate(
        native, [native.embed_ids(ids) for ids in rows], config=configs, truncation=truncations, drafts=drafts
    )
    got = wrapped(**settings).generate(rows, config=configs, truncation=truncations, drafts=drafts)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.window_ids == theirs.window_ids and len(set(ours.window_ids)) > 4
        fields = ("boundary", "truncated", "reason", "steps", "net_early", "net_late", "finish_reason", "window_tokens")
        assert [getattr(ours, name) for name in fields] == [getattr(theirs, name) for name in fields]
        assert ours.sparsity == (theirs.sparsity and pytest.approx(theirs.sparsity, abs=1e-6))
    if truncation is RESTART:
        assert any(result.window_tokens < config.window for result, config in zip(got, configs, strict=True))
    if truncation is not None and truncation.safety_net:
        assert any(result.net_early for result in got)


def test_a_shifted_model(tmp_path):
    """Dream is Qwen2 made bidirectional, its logits shifted by one."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(5)
    config = Qwen2Config(**SIZES, **HEADS, is_causal=False, attn_implementation="eager", initializer_range=0.3)
    model = Qwen2ForCausalLM(config).requires_grad_(False).eval()
    model.lm_head.weight[LLAMA_MASK] = 0
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    ids = {"mask_token_id": LLAMA_MASK, "eos_token_id": LLAMA_EOS}
    (tmp_path / "config.json").write_text(json.dumps(SIZES | HEADS | ids | {"model_type": "Dream"}))
    native = seer_dllm.load(tmp_path)
    native.profile = PROFILE
    rows, config = prompts(5, 9), GenerationConfig(window=32, steps=8, schedule="dream", top_k=20, commit="entropy")
    answers = {}
    for shift in (False, True):
        own = seer_dllm.wrap(model, mask_id=LLAMA_MASK, eos_id=LLAMA_EOS, profile=PROFILE, shift=shift)
        answers[shift] = [r.window_ids for r in own.generate(rows, config=config, truncation=RESTART)]
    embedded = [native.embed_ids(row) for row in rows]
    expected = [r.window_ids for r in seer_dllm.generate(native, embedded, config=config, truncation=RESTART)]
    assert answers[True] == expected and any(len(ids) < 32 for ids in expected)
    assert answers[False] != expected


def test_embeddings_and_lists_are_prompts_too():
    (ids,) = prompts(6)
    config = GenerationConfig(window=16, steps=4)
    with torch.inference_mode():
        embedded = llama().get_input_embeddings()(ids)
    results = [wrapped().generate([p], config=config, truncation=None)[0] for p in (ids, ids.tolist(), embedded)]
    assert results[0].window_ids == results[1].window_ids == results[2].window_ids
    assert results[0].text == "" and results[0].prompt_tokens == 6


def test_what_is_counted_is_what_ran(native):
    """A row that is not cut pays for the probe, as its forward can't go on from there."""
    counts = [0] * SIZES["num_hidden_layers"]
    handles = []
    for i, layer in enumerate(llama().model.layers):
        handles.append(layer.register_forward_pre_hook(lambda *_, i=i: counts.__setitem__(i, counts[i] + 1)))
    strict = Truncation(step0="restart", profile=Profile(probe_layers=(1, 2), margin=0, min_jump=1.0))
    (result,) = wrapped().generate(prompts(5), config=GenerationConfig(window=16, steps=2), truncation=strict)
    for handle in handles:
        handle.remove()
    assert (result.truncated, result.reason) == (False, "no jump found")
    assert counts == [3, 3, 3, 2, 2]  # the probe, then two steps
    assert (result.steps, result.forwards) == (2, 3)
    assert result.token_forwards == pytest.approx(21 * (3 + 5 + 5) / 5)  # 5 + 16 tokens


def test_no_cache_is_filled_that_nobody_reads():
    asked = []
    handle = llama().model.register_forward_pre_hook(
        lambda module, args, kwargs: asked.append(kwargs["use_cache"]), with_kwargs=True
    )
    wrapped().generate(prompts(5), config=GenerationConfig(window=16, steps=2), truncation=None)
    handle.remove()
    assert asked == [False, False]


def test_probing_the_last_layer(native):
    deep = Truncation(step0="restart", profile=Profile(probe_layers=(4,), margin=0, min_jump=1.0))
    config = GenerationConfig(window=16, steps=4)
    (got,) = wrapped().generate(prompts(5), config=config, truncation=deep)
    (stock,) = seer_dllm.generate(native, [native.embed_ids(prompts(5)[0])], config=config, truncation=None)
    assert got.window_ids == stock.window_ids and got.boundary == 16


def test_the_boundary_in_a_loop_of_the_callers_is_that_of_ours(native):
    """A padded batch with a mask and positions of the caller's, against the native rows without padding."""
    rows, window = prompts(5, 9), 24
    config = GenerationConfig(window=window, steps=2)
    expected = seer_dllm.generate(native, [native.embed_ids(p) for p in rows], config=config, truncation=RESTART)
    length = 9 + window
    ids = torch.stack([torch.cat((p.new_zeros(9 - len(p)), p, p.new_full((window,), LLAMA_MASK))) for p in rows])
    seen = torch.arange(length) >= torch.tensor([[4], [0]])
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None, None].expand(2, 1, length, length)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    given = {"window_start": 9, "window": window, "attention_mask": mask, "position_ids": positions}
    found = wrapped().find_boundary(ids, **given)
    assert found.boundary == [result.boundary for result in expected]
    assert found.snr == pytest.approx([result.snr for result in expected], rel=1e-3)
    assert wrapped().find_boundary(inputs_embeds=llama().get_input_embeddings()(ids), **given) == found
    assert found.boundary != wrapped().find_boundary(ids, window_start=9, window=window).boundary  # padding seen


def test_a_causal_llama_is_refused_unless_its_mask_is_given():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, attn_implementation="eager")).eval()
    ids = {"mask_id": LLAMA_MASK, "eos_id": LLAMA_EOS}
    with pytest.raises(ValueError, match="model must be bidirectional"):
        seer_dllm.wrap(model, **ids)
    seen = lambda batch, length: {"attention_mask": torch.zeros(batch, 1, length, length)}  # noqa: E731
    assert seer_dllm.wrap(model, **ids, forward_kwargs=seen).backbone.config.n_layers == 5


def test_a_model_that_takes_ids_alone():
    """Its steps by hand: all slots of the toy depend on the mean of all tokens, so the loop is plain to write."""
    with torch.no_grad():
        toy = Toy()
    toy.out.bias[MASK] = -9.0
    model = seer_dllm.wrap(toy, mask_id=MASK, eos_id=EOS)
    prompt, window = torch.tensor([1, 2, 3]), torch.full((6,), MASK)
    for _ in range(6):
        probability, token = toy(torch.cat((prompt, window))[None])[0, 3:].double().softmax(-1).max(-1)
        best = int(probability.masked_fill(window != MASK, -1.0).argmax())
        window[best] = token[best]
    for prompts in ([prompt], [prompt, prompt[:1]], [prompt.tolist()]):
        result = model.generate(prompts, config=GenerationConfig(window=6), truncation=None)[0]
        assert result.window_ids == window.tolist()
    with pytest.raises(ValueError, match=r"prompts\[0\] must be token ids \[P\] for this .*, got torch.float32"):
        model.generate([torch.zeros(3, 6)])


def test_ids_alone_are_cut_as_well():
    """The MLPs are loud for the prompt and 10 slots: stock's run on a window of 16, after one probe of 27 tokens."""
    with torch.no_grad():
        toy = Toy()
    loud = lambda batch, length: {"loud": (torch.arange(length) < 13).float().expand(batch, length)}  # noqa: E731
    model = seer_dllm.wrap(toy, mask_id=MASK, eos_id=EOS, profile=Profile(margin=0), forward_kwargs=loud)
    (cut,) = model.generate([[1, 2, 3]], config=GenerationConfig(window=24), truncation=RESTART)
    (stock,) = model.generate([[1, 2, 3]], config=GenerationConfig(window=16), truncation=None)
    assert (cut.boundary, cut.window_tokens, cut.window_ids) == (10, 16, stock.window_ids)
    assert cut.token_forwards == pytest.approx(stock.token_forwards + 27 * 7 / DEPTH)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"truncation": Truncation(step0="carry")}, "step0 must be 'restart' for a wrapped model, .* got 'carry'"),
        ({"truncation": [Truncation(step0="carry")]}, "step0 must be 'restart'"),
        ({"config": GenerationConfig(cache="prompt")}, "cache must be 'none' for a wrapped model, got 'prompt'"),
        ({"config": [GenerationConfig(stop=("x",))]}, "stop must be empty for a wrapped model"),
        ({"config": 3}, "config must be a GenerationConfig"),
        ({"truncation": "off"}, "truncation must be a .*Truncation"),
        ({"prompts": "text"}, "prompts must be a list"),
        ({"prompts": ["text"]}, r"prompts\[0\] must be token ids \[P\] or embeddings \[P, H\] .*, got a str"),
        ({"prompts": [3]}, r"prompts\[0\] must be token ids .* got a int"),
        ({"prompts": [torch.ones(1, 3, dtype=torch.int64)]}, r"prompts\[0\] must be .* got torch.int64 \[1, 3\]"),
        ({"prompts": [torch.zeros(3, 8)]}, r"prompts\[0\] must have shape \[P, 32\], got \[3, 8\]"),
        ({"prompts": [[64]]}, r"prompt ids must be in \[0, 64\), got 64..64"),
        ({"prompts": [[LLAMA_MASK]]}, "prompt must not hold the mask id 63"),
        ({"prompts": [[1] * 2000]}, "prompts.0. and window must fit the model's 2048 positions, got 2000 .+ 128"),
    ],
)
def test_what_generate_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        wrapped().generate(**{"prompts": [[1, 2, 3]]} | arguments)
