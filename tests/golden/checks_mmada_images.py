"""MMaDA's pictures: transforms to pixels, the encoder's output and codes, codebook entries."""

from functools import cache

from harness import Case, Family, golden_kind
from PIL import Image

from seer_dllm.checkpoint import load_magvit
from seer_dllm.vision import MagvitEncoder, image_transform, image_transform_squash


@cache
def encoder(of: Family) -> MagvitEncoder:
    return load_magvit(of.folder, "cpu")


@golden_kind("image_transform", family="mmada")
def transform(case: Case) -> None:
    image = Image.fromarray(case.inputs["image_u8"].numpy())
    one = image_transform_squash if case.settings["squash"] else image_transform
    got = one(image, case.settings["resolution"])
    batched = case.expected["pixel_values"].ndim == 4
    case.close("pixel_values", got[None] if batched else got, atol=1e-6)


@golden_kind("magvit_get_code", family="mmada")
def magvit_get_code(case: Case) -> None:
    model, pixels = encoder(case.of), case.inputs["pixel_values"]
    case.close("encoder_out", model(pixels), atol=1e-4)
    case.same("codes", model.codes(pixels))


@golden_kind("codebook_entry", family="mmada")
def codebook_entry(case: Case) -> None:
    case.same("z_q", encoder(case.of).codebook_entry(case.inputs["codes"]))
