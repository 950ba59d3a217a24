"""MMaDA's pictures: the transforms to a square of pixels, and MAGVIT-v2's encoder, which makes them codes.

The encoder is a chain of convolutions that halves the side at each level but the last. Quantisation looks nothing up:
the signs of the `D` channels at a place are the bits of its code (Yu et al. 2023, arXiv 2310.05737, section 3.1).
`n` pictures, `S` side in pixels, `f` pixels per code and side, `D` bits of a code.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from seer_dllm.vision.images import MAX_PIXELS, open_image

CONFIG_FILE = "magvitv2_config.json"
Source = str | os.PathLike | bytes | Image.Image


@dataclass(frozen=True)
class MagvitConfig:
    """Sizes of the encoder. The defaults are those of the published weights, whose own config.json names none.

    ch: channels after the first convolution. ch_mult: channels of each level, in units of ch.
    num_res_blocks: residual blocks of each level. z_channels: D.
    Raises ValueError, naming the key, for a size that cannot be.
    """

    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 2, 2, 4, 4)
    num_res_blocks: tuple[int, ...] = (4, 3, 4, 3, 4)
    z_channels: int = 13
    group_norm_groups: int = 32
    group_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for key in ("ch", "z_channels", "group_norm_groups"):
            if not _is_size(getattr(self, key)):
                raise ValueError(f"{CONFIG_FILE}: {key} must be a positive integer, got {getattr(self, key)!r}")
        for key in ("ch_mult", "num_res_blocks"):
            sizes = getattr(self, key)
            if not isinstance(sizes, tuple) or not sizes or not all(map(_is_size, sizes)):
                raise ValueError(f"{CONFIG_FILE}: {key} must list positive integers, got {sizes!r}")
        if len(self.num_res_blocks) != len(self.ch_mult):
            raise ValueError(
                f"{CONFIG_FILE}: num_res_blocks must have one entry per ch_mult ({len(self.ch_mult)}), "
                f"got {len(self.num_res_blocks)}"
            )
        if self.z_channels > 62:
            raise ValueError(f"{CONFIG_FILE}: z_channels must be at most 62 for int64 codes, got {self.z_channels}")
        for channels in (self.ch, *(self.ch * times for times in self.ch_mult)):
            if channels % self.group_norm_groups:
                raise ValueError(
                    f"{CONFIG_FILE}: ch * ch_mult must be multiples of group_norm_groups={self.group_norm_groups}, "
                    f"got {channels}"
                )
        if type(self.group_norm_eps) is not float or not self.group_norm_eps > 0:
            raise ValueError(f"{CONFIG_FILE}: group_norm_eps must be a positive float, got {self.group_norm_eps!r}")

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "MagvitConfig":
        """From magvitv2_config.json: objects `encoder` and `quantize`; what they leave out has its default.

        Raises ValueError, naming the key, for a size that cannot be and for a variant that is not built here.
        """
        encoder, quantize = raw.get("encoder", {}), raw.get("quantize", {})
        for name, part in (("encoder", encoder), ("quantize", quantize)):
            if not isinstance(part, Mapping):
                raise ValueError(f"{CONFIG_FILE}: {name} must be an object, got {part!r}")
        for key, only in (("in_ch", 3), ("double_z", False)):
            if encoder.get(key, only) != only:
                raise ValueError(f"{CONFIG_FILE}: {key} must be {only!r}, got {encoder[key]!r}")
        sizes = {field.name: encoder[field.name] for field in fields(cls) if field.name in encoder}
        made = cls(**{key: tuple(size) if isinstance(size, list) else size for key, size in sizes.items()})
        bits = quantize.get("codebook_dim", made.z_channels)
        if bits != made.z_channels:
            raise ValueError(f"{CONFIG_FILE}: codebook_dim must equal z_channels={made.z_channels}, got {bits!r}")
        # A level has attention if its side, for a picture of `resolution`, is listed. Published: [5], so none has.
        resolution, wanted = encoder.get("resolution", 256), encoder.get("attn_resolutions", [5])
        if not _is_size(resolution):
            raise ValueError(f"{CONFIG_FILE}: resolution must be a positive integer, got {resolution!r}")
        sides = [resolution >> level for level in range(len(made.ch_mult))]
        if not isinstance(wanted, list) or any(side in wanted for side in sides):
            raise ValueError(f"{CONFIG_FILE}: attn_resolutions must list none of the sides {sides}, got {wanted!r}")
        return made

    @property
    def stride(self) -> int:
        """f, pixels per code and side."""
        return 2 ** (len(self.ch_mult) - 1)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


class ResidualBlock(nn.Module):
    """`[n, c_in, h, w]` -> `[n, c_out, h, w]`: twice GroupNorm, SiLU, 3x3 convolution; plus the input.

    Attributes have the checkpoint's names here and in `Attention`.
    """

    def __init__(self, c_in: int, c_out: int, config: MagvitConfig):
        super().__init__()
        self.norm1 = nn.GroupNorm(config.group_norm_groups, c_in, config.group_norm_eps)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2 = nn.GroupNorm(config.group_norm_groups, c_out, config.group_norm_eps)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(inner)))


class Attention(nn.Module):
    """`[n, c, h, w]` -> the same: each place attends to all, with one head of size c; plus the input."""

    def __init__(self, channels: int, config: MagvitConfig):
        super().__init__()
        self.norm = nn.GroupNorm(config.group_norm_groups, channels, config.group_norm_eps)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        q, k, v = (conv(normed).flatten(2).transpose(1, 2)[:, None] for conv in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)[:, 0]  # [n, h * w, c]
        return x + self.proj_out(mixed.transpose(1, 2).reshape(x.shape))


def _chain(config: MagvitConfig) -> Iterator[tuple[str, nn.Module]]:
    """The encoder's modules in order, each with its name in the checkpoint ("" without parameters)."""
    channels = config.ch
    yield "conv_in", nn.Conv2d(3, channels, 3, padding=1)
    for level, (times, blocks) in enumerate(zip(config.ch_mult, config.num_res_blocks, strict=True)):
        if level:  # halves an even side; the border is on the right and below only
            yield "", nn.ZeroPad2d((0, 1, 0, 1))
            yield f"down.{level - 1}.downsample.conv", nn.Conv2d(channels, channels, 3, stride=2)
        for block in range(blocks):
            yield f"down.{level}.block.{block}", ResidualBlock(channels, config.ch * times, config)
            channels = config.ch * times
    yield "mid.block_1", ResidualBlock(channels, channels, config)
    yield "mid.attn_1", Attention(channels, config)
    yield "mid.block_2", ResidualBlock(channels, channels, config)
    yield "norm_out", nn.GroupNorm(config.group_norm_groups, channels, config.group_norm_eps)
    yield "", nn.SiLU()
    yield "conv_out", nn.Conv2d(channels, config.z_channels, 3, padding=1)
    yield "quant_conv", nn.Conv2d(config.z_channels, config.z_channels, 1)


class MagvitEncoder(nn.Module):
    """MAGVIT-v2 without its decoder. Parameters: layers.{i}.*, i counting along the chain."""

    def __init__(self, config: MagvitConfig):
        super().__init__()
        self.config = config
        self._prefixes, layers = zip(*_chain(config), strict=True)
        self.layers = nn.Sequential(*layers)

    def weight_names(self) -> dict[str, str]:
        """Our parameter names -> the checkpoint's."""
        table = {}
        for name, _ in self.named_parameters():
            _, index, rest = name.split(".", 2)
            table[name] = f"encoder.{self._prefixes[int(index)]}.{rest}"
        return table

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[n, 3, S, S]` float in [-1, 1] -> `[n, D, S / f, S / f]` in the weights' dtype, before quantisation.

        Raises ValueError for another shape or dtype, and where S is not a multiple of f.
        """
        f = self.config.stride
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ValueError(f"pixels must have shape [n, 3, S, S], got {list(pixels.shape)}")
        if not pixels.is_floating_point():  # bytes have another scale
            raise ValueError(f"pixels must be floating point in [-1, 1], got {pixels.dtype}")
        height, width = pixels.shape[2:]
        if height != width or height == 0 or height % f:
            raise ValueError(f"pixels must be square with a side that is a multiple of {f}, got {height}x{width}")
        return self.layers(pixels.to(self.layers[0].weight))  # its dtype and device

    @torch.no_grad()
    def codes(self, pixels: torch.Tensor) -> torch.Tensor:
        """`[n, 3, S, S]` float in [-1, 1] -> `[n, (S / f)^2]` int64 in [0, 2^D), row by row. Errors as in forward."""
        return quantize(self(pixels))

    def codebook_entry(self, codes: torch.Tensor) -> torch.Tensor:
        """`[n, side^2]` int64 -> `[n, D, side, side]` float32 of -1 and 1: the quantised encoding of the codes.

        Raises ValueError where the codes of a picture fill no square, or lie outside [0, 2^D).
        """
        bits = self.config.z_channels
        side = math.isqrt(codes.shape[-1])
        if codes.ndim != 2 or side * side != codes.shape[1]:
            raise ValueError(f"codes must have shape [n, side * side], got {list(codes.shape)}")
        if codes.numel() and (codes.min() < 0 or codes.max() >= 2**bits):
            raise ValueError(f"codes must lie in 0..{2**bits - 1}, got {codes.min()}..{codes.max()}")
        return code_signs(codes, bits).transpose(1, 2).reshape(len(codes), bits, side, side)


def quantize(z: torch.Tensor) -> torch.Tensor:
    """`[n, D, h, w]` -> `[n, h * w]` int64: sum over channels i of (z_i > 0) * 2^(D - 1 - i), row by row."""
    bits = z.shape[1]
    values = 2 ** torch.arange(bits - 1, -1, -1, device=z.device)
    return ((z > 0) * values[:, None, None]).sum(1).flatten(1)


def code_signs(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """`[...]` int64 in [0, 2^bits) -> `[..., bits]` float32: 1 for a bit that is set, else -1, highest bit first."""
    places = torch.arange(bits - 1, -1, -1, device=codes.device)
    return ((codes[..., None] >> places & 1) * 2 - 1).float()


def image_transform(source: Source, resolution: int) -> torch.Tensor:
    """A picture -> `[3, resolution, resolution]` float32 in [-1, 1]: the middle square, bicubic.

    The shorter side is scaled to the resolution, the longer in proportion and rounded down; where the crop leaves an
    odd rest, its half is rounded to even, as by torchvision's CenterCrop in the reference.
    Raises as `open_image` does, and ValueError for a picture so thin that its scaled size would be enormous.
    """
    image = open_image(source)
    _check_resolution(resolution)
    shorter = min(image.size)
    width, height = (resolution * side // shorter for side in image.size)
    if width * height > 4 * MAX_PIXELS:
        raise ValueError(
            f"image of {image.width}x{image.height} must have at most {4 * MAX_PIXELS} pixels when its shorter side is "
            f"{resolution}, got {width}x{height}; image_transform_squash takes it"
        )
    left, top = round((width - resolution) / 2), round((height - resolution) / 2)
    scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    return _to_pixels(scaled.crop((left, top, left + resolution, top + resolution)))


def image_transform_squash(source: Source, resolution: int) -> torch.Tensor:
    """A picture -> `[3, resolution, resolution]` float32 in [-1, 1]: all of it, each side scaled alone, bicubic.

    The reference takes this for documents and diagrams, where a crop would lose content.
    Raises as `open_image` does.
    """
    image = open_image(source)
    _check_resolution(resolution)
    return _to_pixels(image.resize((resolution, resolution), Image.Resampling.BICUBIC))


def _check_resolution(resolution: int) -> None:
    if not _is_size(resolution) or resolution * resolution > MAX_PIXELS:
        raise ValueError(f"resolution must be a positive integer, squared at most {MAX_PIXELS}, got {resolution!r}")


def _to_pixels(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return ((pixels.float() / 255 - 0.5) / 0.5).contiguous()
