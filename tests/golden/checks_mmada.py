"""MMaDA's prompts with a picture, and its samplers, step by step."""

import torch
from checks_generate import mmada_config
from harness import Case, golden_kind
from models import before_each_step, model_of, run

from seer_dllm.checkpoint import load_magvit
from seer_dllm.vision import PictureCodes


@golden_kind("mmu_prompt", family="mmada")
def mmu_prompt(case: Case) -> None:
    """The fixture has no tokenizer, so the ids that one would give stand in the case."""
    ids = {name: case.settings["token_ids"][name] for name in ("mmu", "soi", "eoi")}
    offset = case.settings["image_token_offset"]
    encoder, embed = load_magvit(case.folder, "cpu"), model_of(case).backbone.embed
    pictures = PictureCodes(encoder, embed, resolution=encoder.config.stride, offset=offset, **ids)
    rows = zip(case.inputs["codes"], case.inputs["text_ids"], strict=True)
    case.same("input_ids", torch.stack([torch.cat((pictures.ids(codes), text)) for codes, text in rows]))


def answers(case: Case):
    """Config, mask id, results, and the windows `[B, steps, G]` after each step; the prompts go in without padding."""
    model, ids, config = model_of(case), case.inputs["input_ids"], mmada_config(case.settings)
    mask = case.inputs.get("attention_mask")
    if mask is None or config.cfg_scale > 0:  # the reference drops the mask then, so that pads count
        mask = torch.ones_like(ids)
    real = mask[:, : ids.shape[1]].bool()
    prompts = [model.embed_ids(row[keep]) for row, keep in zip(ids, real, strict=True)]
    results, history = run(model, prompts, config)
    if len(prompts) > 1:
        assert [run(model, [p], config)[0][0].window_ids for p in prompts] == [r.window_ids for r in results]
    return config, model.backbone.config.mask_id, results, torch.stack(history)


@golden_kind("mmu_generate", family="mmada")
def mmu_generate(case: Case) -> None:
    """Where the reference fails, for a mask that does not span the window, ours needs none: each row is as alone."""
    _, mask_id, results, history = answers(case)
    got = torch.tensor([r.window_ids for r in results])
    assert torch.equal(history[:, -1], got)
    if case.raises:
        assert (got != mask_id).all()
        return
    case.same("output_ids", torch.cat((case.inputs["input_ids"], got), dim=1))
    assert [r.steps for r in results] == [case.expected_scalars["nfe"]] * len(results)
    seen = torch.stack([before_each_step(h, mask_id) for h in history], dim=1)
    case.same("trace_tail", seen)


@golden_kind("mmu_generate_fast", family="mmada")
def mmu_generate_fast(case: Case) -> None:
    """Ours does better: it has no early stop.

    The reference stops after a block whose last token is eot in every row, and returns the masks behind it. Ours is
    equal up to there, step by step, and then fills them.
    """
    config, mask_id, results, history = answers(case)
    steps = case.expected_scalars["nfe"]
    assert [r.steps for r in results] == [config.steps] * len(results)
    assert not any(mask_id in r.window_ids for r in results)
    case.same("trace_tail", torch.stack([before_each_step(h, mask_id)[:steps] for h in history], dim=1))
    case.same("output_ids", torch.cat((case.inputs["input_ids"], history[:, steps - 1]), dim=1))
    if steps < config.steps:
        done = config.block * steps * (config.window // config.block) // config.steps
        assert (history[:, steps - 1, done - 1] == case.settings["eot_token"]).all()
