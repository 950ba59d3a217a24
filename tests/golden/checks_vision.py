"""LaViDa's pictures: pixel views, tile grids, vision features, prompt embeddings."""

from functools import cache

import torch
from harness import Case, Family, golden_kind
from PIL import Image
from torch.nn import functional as F

from seer_dllm.checkpoint import Weights, fill
from seer_dllm.vision import ImageProcessor, VisionEncoder, load_vision_config, splice_image, vision_weight_names

LAVIDA = {"lavida_llada", "lavida_dream"}
EMBEDDING = {"lavida_llada": "model.transformer.wte.weight", "lavida_dream": "model.embed_tokens.weight"}


@cache
def encoder(of: Family) -> VisionEncoder:
    model = VisionEncoder.from_config(of.config, load_vision_config(of.folder, of.config))
    fill(model, vision_weight_names(dict(model.named_parameters())), Weights(of.folder), torch.float32, "cpu")
    return model


def processor(case: Case) -> ImageProcessor:
    return ImageProcessor.from_config(case.config, case.vision_config)


@golden_kind("process_images", family=LAVIDA)
def process_images(case: Case) -> None:
    image = Image.fromarray(case.inputs["image_u8"].numpy())
    assert image.size == tuple(case.settings["image_size_wh"])
    case.close("pixel_values", processor(case)(image), atol=1e-6)


@golden_kind("grid", family=LAVIDA)
def grid(case: Case) -> None:
    of = processor(case)
    case.same("grid_wh", torch.tensor([of.grid(width, height) for width, height in case.settings["sizes"]]))


@golden_kind("vision", family=LAVIDA)
@torch.no_grad()
def vision(case: Case) -> None:
    model, pixels = encoder(case.of), case.inputs["pixel_values"]
    tower = model.tower(pixels[:1])
    got = {"tower_view0": tower, "projected_view0": model.projector(tower), "pooled": model.pooled(pixels)}
    for role in case.expected:
        case.close(role, got[role], atol=1e-4)


@golden_kind("inputs_embeds", family=LAVIDA)
@torch.no_grad()
def inputs_embeds(case: Case) -> None:
    model, size = encoder(case.of), tuple(case.settings["image_size_wh"])
    features = model(case.inputs["pixel_values"], size)
    assert len(features) == model.processor.n_image_tokens(*size)
    table = case.weights[EMBEDDING[case.family]]
    embeds = splice_image(
        case.inputs["input_ids"][0],
        features,
        lambda ids: F.embedding(ids, table),
        placeholder=case.token_ids["image_placeholder"],
    )
    case.close("inputs_embeds", embeds[None], atol=1e-4)
