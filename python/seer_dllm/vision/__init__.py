"""Pictures for the language model: opening and tiling (`images`), SigLIP and projection (`encoder`), and MMaDA's
codes (`magvit`), which it reads as words (`codes`)."""

from seer_dllm.vision.codes import PictureCodes
from seer_dllm.vision.encoder import (
    IMAGE_PLACEHOLDER,
    VisionEncoder,
    VisionTower,
    load_vision_config,
    splice_image,
    vision_weight_names,
)
from seer_dllm.vision.images import MAX_PIXELS, ImageProcessor, open_image
from seer_dllm.vision.magvit import MagvitConfig, MagvitEncoder, image_transform, image_transform_squash

__all__ = [
    "IMAGE_PLACEHOLDER",
    "MAX_PIXELS",
    "ImageProcessor",
    "MagvitConfig",
    "MagvitEncoder",
    "PictureCodes",
    "VisionEncoder",
    "VisionTower",
    "image_transform",
    "image_transform_squash",
    "load_vision_config",
    "open_image",
    "splice_image",
    "vision_weight_names",
]
