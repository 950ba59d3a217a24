"""Dream's and LaViDa-Dream's samplers, and Fast-dLLM's block caches, LLaDA's among them."""

from unittest import mock

import torch
from checks_generate import READ, check_lavida, dream_config
from harness import Case, golden_kind
from models import LLADA, before_each_step, model_of, run

DEFAULTS = {"top_k": 50}  # of transformers' generation config, which Dream's builds on


def forwards(case: Case, prompts, config):
    """Results, histories, and the tokens that each forward computed."""
    model, lengths = model_of(case), []
    plain = model.backbone.run

    def counted(hidden, *args, **kwargs):
        lengths.append(len(hidden))
        return plain(hidden, *args, **kwargs)

    with mock.patch.object(model.backbone, "run", counted):
        results, history = run(model, prompts, config)
    return results, history, lengths


@golden_kind("fast_prefix_cache", family=LLADA)
@golden_kind("fast_dual_cache", family=LLADA)
def fast_cache(case: Case) -> None:
    """One row, as in the reference, and then beside another row whose blocks begin at other steps."""
    cache = case.kind.removeprefix("fast_").removesuffix("_cache")
    check_block_cache(case, case.inputs["input_ids"], READ[case.family](case.settings | {"cache": cache}))


def check_block_cache(case: Case, ids: torch.Tensor, config) -> None:
    prompt = model_of(case).embed_ids(ids[0])
    (result,), _, lengths = forwards(case, [prompt], config)
    case.same("output_ids", torch.cat((ids, torch.tensor([result.window_ids])), dim=1))
    case.same("forward_lens", torch.tensor(lengths))
    assert len(lengths) == result.forwards == case.expected_scalars["nfe"]
    mates = [prompt[:5], prompt, prompt[3:]]
    alone = [forwards(case, [mate], config)[0][0].window_ids for mate in mates]
    assert [r.window_ids for r in forwards(case, mates, config)[0]] == alone


@golden_kind("diffusion_generate", family="dream")
def diffusion_generate(case: Case) -> None:
    model, ids = model_of(case), case.inputs["input_ids"]
    config = dream_config(DEFAULTS | case.settings)
    if "forward_lens" in case.expected:
        check_block_cache(case, ids, config)
        return
    mask = case.inputs.get("attention_mask")
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    prompts = [model.embed_ids(row[keep]) for row, keep in zip(ids, real, strict=True)]
    results, history = run(model, prompts, config)
    case.same("output_ids", torch.cat((ids, torch.tensor([r.window_ids for r in results])), dim=1))
    seen = torch.stack([before_each_step(h, model.backbone.config.mask_id) for h in history], dim=1)
    assert torch.equal(seen, case.expected["trace_x"][:, :, -config.window :])
    assert [r.steps for r in results] == [case.expected_scalars["nfe"]] * len(results)


@golden_kind("generate", family="lavida_dream")
def lavida_generate(case: Case) -> None:
    check_lavida(case, dream_config({"top_p": 0.95, "alg": "entropy"} | DEFAULTS | case.settings))
