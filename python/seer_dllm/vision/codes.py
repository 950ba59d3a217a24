"""MMaDA's pictures as words: codes of MAGVIT-v2 behind the tokenizer's words, in the language model's own embedding.

`n` codes of a picture, `D` bits of a code, `H` hidden and `V` rows of the embedding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import nn

from seer_dllm.config import check_positive
from seer_dllm.vision.magvit import MagvitEncoder, image_transform

# MMaDA's prompts give these tokens ids that LLaDA's tokenizer reserves (training/prompting_utils.py); they count where
# the tokenizer does not name the token itself.
RESERVED = {"<|mmu|>": 126089, "<|soi|>": 126084, "<|eoi|>": 126085}


@dataclass(frozen=True)
class PictureCodes:
    """Pictures -> embeddings of `[mmu][soi] codes [eoi]` (MMaDA's inference_mmu.py).

    Args:
        encoder: pixels -> codes.
        embed: ids `[...]` int64 -> `[..., H]`.
        resolution: side in pixels of the square that a picture becomes: its middle.
        offset: id of code 0.
        mmu, soi, eoi: ids of the task and of a picture's start and end.
    """

    encoder: MagvitEncoder
    embed: Callable[[torch.Tensor], torch.Tensor]
    resolution: int
    offset: int
    mmu: int
    soi: int
    eoi: int

    @classmethod
    def from_config(
        cls,
        raw: Mapping[str, Any],
        encoder: MagvitEncoder,
        embed: nn.Embedding,
        vocabulary: int,
        token_to_id: Callable[[str], int | None],
        resolution: int | None = None,
    ) -> "PictureCodes":
        """From a checkpoint's config.json and tokenizer.

        The reference's offset is the tokenizer's length, not llm_vocab_size, which counts rows that have no word.

        Args:
            vocabulary: words of the tokenizer, added ones too.
            resolution: None for a side of sqrt(num_vq_tokens) codes. The reference takes it from the settings of its
                training, with which a config.json need not agree.
        Raises:
            ValueError: the sizes of config.json, encoder, embedding and tokenizer do not fit one another.
        """
        count, stride, rows = 2**encoder.config.z_channels, encoder.config.stride, embed.num_embeddings
        if raw.get("codebook_size") not in (None, count):
            raise ValueError(
                f"config.json: codebook_size must be the picture encoder's {count}, got {raw['codebook_size']!r}"
            )
        if resolution is None:
            codes = raw.get("num_vq_tokens")
            check_positive("config.json: num_vq_tokens", codes)
            if math.isqrt(codes) ** 2 != codes:
                raise ValueError(f"config.json: num_vq_tokens must be a square number, got {codes}")
            resolution = math.isqrt(codes) * stride
        check_positive("image_resolution", resolution)
        if resolution % stride:
            raise ValueError(f"image_resolution must be a multiple of {stride} pixels per code, got {resolution}")
        special = []
        for token, reserved in RESERVED.items():
            found = token_to_id(token)
            if found is None and reserved >= vocabulary:
                raise ValueError(
                    f"tokenizer must have {token}, or the word {reserved} that stands for it, got {vocabulary} words"
                )
            special.append(reserved if found is None else found)
        known = max(*special, raw["mask_token_id"])
        if not known < vocabulary <= rows - count:
            raise ValueError(
                f"tokenizer must have {known + 1}..{rows - count} words, so that the {count} picture codes behind them "
                f"are rows of the embedding and no special ids, got {vocabulary}"
            )
        return cls(encoder, embed, resolution, vocabulary, *special)

    def ids(self, codes: torch.Tensor) -> torch.Tensor:
        """`[n]` codes, int64 in [0, 2^D) -> `[n + 3]` ids of the language model."""
        start, end = codes.new_tensor([self.mmu, self.soi]), codes.new_tensor([self.eoi])
        return torch.cat([start, codes + self.offset, end])

    def encode_images(self, images: Sequence[Image.Image]) -> list[torch.Tensor]:
        """The pictures of one prompt -> one `[n + 3, H]` each. ValueError for several: the reference takes only one."""
        if len(images) > 1:
            raise ValueError(f"images must be one picture a prompt for a mmada model, got {len(images)}")
        return [self.embed(self.ids(self.codes(image))) for image in images]

    def codes(self, image: Image.Image) -> torch.Tensor:
        """A picture -> its codes `[n]`, int64, row by row. Errors as in `image_transform`."""
        return self.encoder.codes(image_transform(image, self.resolution)[None])[0]
