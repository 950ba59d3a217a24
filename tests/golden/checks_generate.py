"""Generated ids against the references' samplers, stock and truncated, step by step where a trace is recorded."""

from dataclasses import replace
from unittest import mock

import torch
from harness import Case, golden_kind
from models import LLADA, NATIVE, before_each_step, model_of, prompt_of, run

from seer_dllm import GenerationConfig, Profile, Truncation
from seer_dllm.backbone import Probe
from seer_dllm.canvas import Canvas, prefill
from seer_dllm.policies import step_quotas
from seer_dllm.row import Row

DREAM_ALG = {
    "maskgit_plus": "low_confidence",
    "confidence_threshold": "low_confidence",
    "topk_margin": "margin",
    "entropy": "entropy",
}
COMMIT = {"entrophy": "entropy", "margin": "margin", "low_confidence": "low_confidence"}


def llada_config(kwargs) -> GenerationConfig:
    return GenerationConfig(
        window=kwargs["gen_length"],
        steps=kwargs["steps"],
        block=kwargs["block_length"],
        cfg_scale=kwargs.get("cfg_scale", 0.0),
        suppress_eos=kwargs.get("logits_eos_inf", False),
        defer_end=kwargs.get("confidence_eos_eot_inf", False),
        threshold=kwargs.get("threshold"),
        factor=kwargs.get("factor"),
        cache=kwargs.get("cache", "none"),
    )


def lavida_config(kwargs, window: int | None = None) -> GenerationConfig:
    """`generate` of LaViDa-LLaDA: steps are per block, unknown keywords ("refix_lm") are swallowed there."""
    window = window or kwargs["max_new_tokens"]
    block = min(kwargs["block_length"], window)
    per_block = (
        int(block * kwargs["step_ratio"]) if "step_ratio" in kwargs else min(kwargs.get("step_per_block", block), block)
    )
    schedule = kwargs.get("schedule") or "even"
    return GenerationConfig(
        window=window,
        block=block,
        steps=per_block * (window // block),
        schedule=schedule,
        shift=kwargs.get("schedule_kwargs", {}).get("shift", 3.0),
        commit=COMMIT[kwargs.get("remasking", "low_confidence")],
        cache="prompt" if kwargs.get("prefix_lm") else "none",
    )


def dream_config(kwargs) -> GenerationConfig:
    """`diffusion_generate` of Dream and `generate` of LaViDa-Dream, which take the same names."""
    window, alg = kwargs["max_new_tokens"], kwargs.get("alg", "entropy")
    times = kwargs.get("steps", min(512, window))
    steps = int(times * kwargs["step_ratio"]) if "step_ratio" in kwargs else times
    cached = "dual" if kwargs.get("dual_cache") else "prefix" if "block_length" in kwargs else "none"
    return GenerationConfig(
        window=window,
        block=kwargs.get("block_length"),
        steps=steps,
        times=times,
        schedule=kwargs.get("schedule") or ("even" if alg == "confidence_threshold" else "dream"),
        shift=kwargs.get("schedule_kwargs", {}).get("shift", 3.0),
        eps=kwargs.get("eps", 1e-3),
        commit=DREAM_ALG[alg],
        threshold=kwargs["threshold"] if alg == "confidence_threshold" else None,
        hold_back=alg == "confidence_threshold" and cached == "none",
        top_p=kwargs.get("top_p"),
        top_k=kwargs.get("top_k"),
        cache="prompt" if kwargs.get("prefix_lm") else cached,
    )


def mmada_config(kwargs) -> GenerationConfig:
    """`mmu_generate`: LLaDA's sampler; `top_k` and, in the plain one, `eot_token` are ignored there."""
    return GenerationConfig(
        window=kwargs["max_new_tokens"],
        steps=kwargs["steps"],
        block=kwargs["block_length"],
        cfg_scale=kwargs.get("cfg_scale", 0.0),
    )


@golden_kind("generate", family=LLADA)
@golden_kind("fast_generate", family=LLADA)
def generate(case: Case) -> None:
    model, ids = model_of(case), case.inputs["input_ids"]
    mask = case.inputs.get("attention_mask")
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    prompts = [model.embed_ids(row[keep]) for row, keep in zip(ids, real, strict=True)]
    results, history = run(model, prompts, llada_config(case.settings))
    got = torch.tensor([r.window_ids for r in results])
    if case.raises:  # the reference fails without an attention mask; packed rows need none
        assert (got != model.backbone.config.mask_id).all()
        return
    case.same("output_ids", torch.cat((ids, got), dim=1))
    assert [r.steps for r in results] == [case.expected_scalars["nfe"]] * len(results)
    if "trace_x" in case.expected:
        length = got.shape[1]
        seen = torch.stack([before_each_step(h, model.backbone.config.mask_id) for h in history], dim=1)
        want = case.expected["trace_x"][:, : len(results), -length:]  # with guidance the twins' rows follow
        assert torch.equal(seen, want)


@golden_kind("generate", family="lavida_llada")
def lavida_generate(case: Case) -> None:
    model, kwargs = model_of(case), case.settings
    draft = None
    if "draft_tokens" in case.inputs:
        draft = torch.full((kwargs["max_new_tokens"],), model.backbone.config.mask_id)
        given = case.inputs["draft_tokens"][0]
        draft[: len(given)] = given
    check_lavida(case, lavida_config(kwargs), draft)


def check_lavida(case: Case, config: GenerationConfig, draft: torch.Tensor | None = None) -> None:
    """One row of LaViDa-LLaDA or LaViDa-Dream; without its prefix mode the reference puts zeros for the prompt."""
    model, prompt = model_of(case), prompt_of(case)
    (result,), (history,) = run(model, [prompt], config, drafts=[draft])
    if case.raises:  # Dream's schedule is one column short in the reference; ours counts the slots that are left
        assert model.backbone.config.mask_id not in result.window_ids
        return
    got = torch.tensor([result.window_ids])
    if not case.settings.get("prefix_lm"):
        got = torch.cat((torch.zeros(1, len(prompt), dtype=torch.int64), got), dim=1)
    case.same("output_ids", got)
    case.same("history_tail", history[:, None])
    assert result.forwards == case.expected_scalars["nfe"]


@golden_kind("transfer_schedule", family="lavida_llada")
def transfer_schedule(case: Case) -> None:
    s = case.settings
    got = step_quotas(s["n_mask"], s["steps"], s["schedule"] or "even", s.get("schedule_kwargs", {}).get("shift", 3.0))
    case.same("num_transfer_tokens", torch.tensor([got]))


def _rows(case: Case, configs, truncation) -> list[Row]:
    model = model_of(case)
    mask_id = model.backbone.config.mask_id
    return [
        Row(
            i,
            prompt_of(case, f".{i}", i),
            torch.full((c.window,), mask_id),
            c,
            truncation,
            mask_id,
            model.end_ids,
            model.backbone.config.shift,
        )
        for i, c in enumerate(configs)
    ]


@golden_kind("step0_carry", family=NATIVE)
@torch.inference_mode()
def step0_carry(case: Case) -> None:
    """All rows as one packed batch, cut after the last probe layer."""
    backbone, s = model_of(case).backbone, case.settings
    cache = "prompt" if s.get("prefix_lm") else "none"
    rows = _rows(case, [GenerationConfig(window=s["window"], cache=cache)] * len(s["keep"]), Truncation())
    assert [len(row.prompt) for row in rows] == case.expected_scalars["prompt_len"]
    cache = prefill(backbone, rows)
    for b, row in enumerate(rows):
        if f"first_token.{b}" in case.expected:
            case.same(f"first_token.{b}", row.ids[:1])
        if s.get("slot0") == "mask":
            row.ids[0] = row.mask_id
    canvas = Canvas(backbone, rows, cache)
    probe = Probe(tuple(s["probe_layers"]), s["threshold"])
    middle = s["slice_after_layer"] + 1
    hidden = canvas.forward(canvas.embeddings(), 0, middle, probe)
    share, _ = canvas.window_values(probe.mean())
    per_layer = [canvas.window_values(probe.per_layer[i])[0] for i in probe.layers]
    one = 1.001 / backbone.config.intermediate_size
    for b in range(len(rows)):
        case.close(f"share.{b}", share[b], one)
        case.close(f"share_per_layer.{b}", torch.stack([layer[b] for layer in per_layer]), one)

    keep = {row: (k, k) for row, k in zip(rows, s["keep"], strict=True) if k < s["window"]}
    canvas, hidden = canvas.cut(hidden, keep, rows)
    after = canvas.forward(hidden, middle)
    logits = canvas.logits(after, torch.arange(len(canvas.ids)))
    for b, row in enumerate(rows):
        own = slice(canvas.starts[row], canvas.starts[row] + s["keep"][b])
        case.close(f"hidden.{b}", hidden[canvas.slot_at[own]], 1e-3)
        want = case.expected[f"logits.{b}"]  # unshifted: the token before a slot says what it holds
        if row.shift and row.prefilled:  # nothing is before the first one, which keeps its own
            want = torch.cat((want[:1], want[:-1]))
        assert (logits[own] - want[: s["keep"][b]]).abs().max() < 1e-3


READ = {
    "llada": llada_config,
    "llada_gqa": llada_config,
    "lavida_llada": lavida_config,
    "mmada": mmada_config,
    "dream": dream_config,
    "lavida_dream": dream_config,
}


def stock_config(case: Case, kwargs) -> GenerationConfig:
    """Settings of the full window whose rescaled plan is the short run's."""
    short, window = READ[case.family](case.extra.get("effective_defaults", {}) | kwargs), case.settings["window"]
    steps, times = (n and n * window // short.window for n in (short.steps, short.times))
    return replace(short, window=window, block=window, steps=steps, times=times)


def truncated(case: Case, step0: str) -> None:
    """All rows in one batch, each forced to keep what the reference kept; then each row alone: the same."""
    s = case.settings
    configs = [stock_config(case, kwargs) for kwargs in s["reference_kwargs"]]
    model = model_of(case)
    profile = Profile(probe_layers=(3, 4, 5, s["slice_after_layer"]), margin=0)
    truncation = Truncation(profile=profile, step0=step0, safety_net=False)
    prompts = [prompt_of(case, f".{i}", i) for i in range(len(configs))]

    def go(which):
        # Rows are probed in order; what each keeps is the reference's choice, not the detector's.
        with mock.patch("seer_dllm.denoise.kept_window", side_effect=[(s["keep"][i],) * 2 for i in which]):
            return run(model, [prompts[i] for i in which], [configs[i] for i in which], truncation=truncation)

    results, history = go(range(len(configs)))
    for i, result in enumerate(results):
        assert go([i])[0][0].window_ids == result.window_ids
    for b, result in enumerate(results):
        case.same(f"output_ids.{b}", torch.tensor(result.window_ids))
        known = int(model.backbone.config.shift and configs[b].cache == "prompt")  # LaViDa-Dream's prefill writes it
        case.same(f"trace.{b}", before_each_step(history[b], model.backbone.config.mask_id, known))
        assert result.steps == case.expected_scalars["denoising_forwards"][b]


@golden_kind("gen_carry", family=NATIVE)
def gen_carry(case: Case) -> None:
    truncated(case, "carry")


@golden_kind("gen_restart", family=NATIVE)
def gen_restart(case: Case) -> None:
    truncated(case, "restart")
