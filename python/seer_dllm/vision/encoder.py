"""Pixel views to tokens of the language model: SigLIP tower, projector, 2x2 pooling, newline tokens.

`n` views of a picture, `Q` patches per view, `S` side of a view in pixels, `H` hidden of the language model.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from seer_dllm.config import read_json
from seer_dllm.vision.images import ImageProcessor

IMAGE_PLACEHOLDER = -200  # LaViDa's stand-in for a picture among the prompt's ids; never a vocabulary id

# google/siglip-so400m-patch14-384, for checkpoints that name the tower but carry no vision_config.json.
SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 384,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "attention_dropout": 0.0,
}

# Our prefix -> the checkpoint's; the first match counts. post_layernorm and head of a checkpoint are unused.
_PREFIXES = {
    "tower.layers.": "model.vision_tower.vision_tower.vision_model.encoder.layers.",
    "tower.": "model.vision_tower.vision_tower.vision_model.embeddings.",
    "projector.": "model.mm_projector.",
    "newline": "model.image_newline",
}


def load_vision_config(folder: str | Path, config: Mapping) -> dict:
    """The tower's sizes for a checkpoint folder: its vision_config.json, else so400m's.

    config: the folder's config.json; without a vision_config.json `mm_vision_tower` must be so400m or absent.
    Keys that vision_config.json leaves out have so400m's value, as in the reference.
    `num_hidden_layers` counts the last layer, which is never run. Raises ValueError for an unknown tower.
    """
    path = Path(folder) / "vision_config.json"
    if path.is_file():
        return {**SO400M, **read_json(path)}
    known = "siglip-so400m-patch14-384"
    tower = config.get("mm_vision_tower") or known
    if Path(tower).name != known:
        raise ValueError(f"mm_vision_tower must be {known}, or {path} must exist, got {tower!r}")
    return dict(SO400M)


def vision_weight_names(own_names: Iterable[str]) -> dict[str, str]:
    """Our parameter names -> LaViDa's checkpoint names. KeyError for a name that is not ours."""
    table = {}
    for name in own_names:
        prefix = next((p for p in _PREFIXES if name.startswith(p)), None)
        if prefix is None:
            raise KeyError(f"vision weight name must start with one of {', '.join(_PREFIXES)}, got {name!r}")
        table[name] = _PREFIXES[prefix] + name[len(prefix) :]
    return table


class VisionTower(nn.Module):
    """SigLIP without its last layer and without post_layernorm; explicit float32-softmax attention."""

    def __init__(self, vision_config: Mapping):
        super().__init__()
        from transformers import SiglipVisionConfig, SiglipVisionModel  # slow: never for text-only use

        sizes = {key: vision_config[key] for key in SO400M if key in vision_config}
        if sizes["num_hidden_layers"] < 2:  # the last is not run
            raise ValueError(f"vision num_hidden_layers must be at least 2, got {sizes['num_hidden_layers']}")
        sizes["num_hidden_layers"] -= 1
        siglip = SiglipVisionModel._from_config(
            SiglipVisionConfig(**sizes, vision_use_head=False), attn_implementation="eager"
        )
        siglip = getattr(siglip, "vision_model", siglip)  # transformers 4 nests one level deeper than 5
        self.patch_embedding: nn.Conv2d = siglip.embeddings.patch_embedding
        self.position_embedding: nn.Embedding = siglip.embeddings.position_embedding
        self.layers: nn.ModuleList = siglip.encoder.layers

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[N, 3, S, S]` any float dtype -> `[N, Q, hidden]` in the weights' dtype."""
        patches = self.patch_embedding(pixels.to(self.patch_embedding.weight.dtype))
        x = patches.flatten(2).transpose(1, 2) + self.position_embedding.weight
        for layer in self.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x  # transformers 4 returns (hidden, attention)
        return x


class VisionEncoder(nn.Module):
    """Pictures -> token sequences `[n_tokens, H]`, differentiable.

    Parameters: tower.*, projector.{0,2}.*, newline `[H]`.
    """

    def __init__(self, tower: VisionTower, processor: ImageProcessor, vision_hidden: int, hidden: int):
        super().__init__()
        self.processor = processor
        self.tower = tower
        self.projector = nn.Sequential(nn.Linear(vision_hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.newline = nn.Parameter(torch.randn(hidden) / math.sqrt(hidden))

    @classmethod
    def from_config(cls, model_config: Mapping, vision_config: Mapping, pool: bool = True) -> "VisionEncoder":
        """From a checkpoint's config.json and `load_vision_config`; a missing key means LaViDa's value.

        pool=False is LaViDa's low-resolution model. Raises ValueError for a variant that is not supported.
        """
        for key, only in (
            ("mm_projector_type", "mlp2x_gelu"),
            ("mm_patch_merge_type", "spatial_unpad"),
            ("mm_spatial_pool_mode", "bilinear"),
        ):
            if model_config.get(key, only) != only:
                raise ValueError(f"{key} must be {only!r}, got {model_config[key]!r}")
        hidden = model_config.get("d_model") or model_config["hidden_size"]
        processor = ImageProcessor.from_config(model_config, vision_config, stride=2 if pool else 1)
        return cls(VisionTower(vision_config), processor, vision_config["hidden_size"], hidden)

    def encode_image(self, image: Image.Image, aspect: str | None = None) -> torch.Tensor:
        """One RGB picture -> `[n_tokens, H]`, `n_tokens = processor.n_image_tokens(*image.size, aspect)`."""
        views = self.processor(image, aspect)
        return self(views.to(self.newline.device), image.size)

    def encode_images(self, images: Sequence[Image.Image]) -> list[torch.Tensor]:
        """The pictures of one prompt -> one `[n_tokens, H]` each; several are padded, one view each."""
        aspect = "pad" if len(images) > 1 else None
        return [self.encode_image(image, aspect) for image in images]

    def forward(self, views: torch.Tensor, image_size: tuple[int, int]) -> torch.Tensor:
        """Views `[n, 3, S, S]` of one picture of image_size (width, height) -> `[n_tokens, H]`.

        One view: its tokens and one newline. More: the tokens of view 0 without newline, then the joined grid
        of the tiles without the letterbox, a newline after each row.
        """
        if len(views) == 1:
            return self.encode_views(views)[0]
        across, down = self.processor.grid(*image_size)
        if len(views) != 1 + across * down:
            raise ValueError(f"views must be 1 or 1 + {across}x{down} for a picture of {image_size}, got {len(views)}")
        features = self.pooled(views)
        side, hidden = self.processor.side, features.shape[-1]
        tiles = features[1:].reshape(down, across, side, side, hidden)
        joined = tiles.permute(0, 2, 1, 3, 4).reshape(down * side, across * side, hidden)
        rows = joined[self.processor.kept(*image_size)]
        rows = torch.cat([rows, self.newline.expand(len(rows), 1, hidden)], dim=1)
        return torch.cat([features[0], rows.flatten(0, 1)])

    def encode_views(self, pixels: torch.Tensor) -> torch.Tensor:
        """A batch of single-view pictures `[N, 3, S, S]` -> `[N, side * side + 1, H]`, newline last."""
        features = self.pooled(pixels)
        return torch.cat([features, self.newline.expand(len(features), 1, -1)], dim=1)

    def pooled(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[N, 3, S, S]` -> projected and pooled features `[N, side * side, H]`."""
        features = self.projector(self.tower(pixels))
        count, patches, hidden = features.shape
        per_side, side = math.isqrt(patches), self.processor.side
        if side == per_side:
            return features
        grid = features.transpose(1, 2).reshape(count, hidden, per_side, per_side)
        grid = F.interpolate(grid, size=(side, side), mode="bilinear", align_corners=False)
        return grid.flatten(2).transpose(1, 2)


def splice_image(
    ids: torch.Tensor,
    image_features: torch.Tensor | Sequence[torch.Tensor],
    embed: Callable[[torch.Tensor], torch.Tensor],
    placeholder: int = IMAGE_PLACEHOLDER,
) -> torch.Tensor:
    """Prompt ids `[L]` int64 with a placeholder per picture -> embeddings `[L - pictures + their tokens, H]`.

    image_features: one `[n_tokens, H]`, or a sequence of them in the order of the placeholders; cast to the
    embedding's dtype and device. embed: ids `[l]` -> `[l, H]`, never sees a placeholder.
    Raises ValueError where the counts of placeholders and pictures differ.
    """
    features = [image_features] if isinstance(image_features, torch.Tensor) else list(image_features)
    places = (ids == placeholder).nonzero().flatten().tolist()
    if len(places) != len(features):
        raise ValueError(
            f"prompt must hold one {placeholder} per picture, got {len(places)} for {len(features)} pictures"
        )
    text = embed(ids[ids != placeholder])
    parts, start = [], 0
    for index, (place, feature) in enumerate(zip(places, features, strict=True)):
        end = place - index  # text tokens before this picture
        parts += [text[start:end], feature.to(text)]
        start = end
    return torch.cat([*parts, text[start:]])
