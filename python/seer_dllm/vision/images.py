"""Pictures to pixel views: opening, letterboxing, tiling, and the geometry of the token grid.

Follows LaViDa's processing. One picture becomes `n` square views `[n, 3, S, S]`, float32 in [-1, 1]:
`anyres`: the whole picture squashed to a square, then the tiles, row by row, of the picture letterboxed onto
the best of the configured canvases; `pad`: one view, the picture padded to a square with the mean colour.
"""

import ast
import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 64_000_000
ASPECTS = ("anyres", "pad")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # decoders that start no other program
PAD_COLOUR = (127, 127, 127)  # int(255 * mean)


def open_image(source: str | os.PathLike | bytes | Image.Image, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A path, the bytes of a file, or a PIL image -> RGB PIL image of at least 1x1.

    As in the reference: alpha is dropped, EXIF orientation not applied, of several frames the first counts.
    16-bit greyscale is scaled to 8 bits (PIL alone would clip it to white).
    The size is checked from the header, before any pixel is decoded.
    Raises FileNotFoundError for a missing file, TypeError for another kind of source, else ValueError.
    """
    if isinstance(source, Image.Image):
        return _decode(source, "image", max_pixels)
    if isinstance(source, bytes | bytearray | memoryview):
        name, file = "image bytes", io.BytesIO(source)
    elif isinstance(source, str | os.PathLike):
        name, file = f"image {os.fspath(source)!r}", Path(source)
        if not file.is_file():
            raise FileNotFoundError(f"{name}: must be an existing file")
    else:
        raise TypeError(f"image must be a path, bytes or a PIL image, got {type(source).__name__}")
    try:
        opened = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name}: must have at most {max_pixels} pixels; {error}") from error
    except Exception as error:  # decoders raise almost anything on hostile bytes
        raise ValueError(f"{name}: must be a readable {', '.join(FORMATS)}, got {_why(error)}") from error
    with opened:
        return _decode(opened, name, max_pixels)


def _decode(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise ValueError(f"{name}: must be at least 1x1 pixels, got {width}x{height}")
    if width * height > max_pixels:
        raise ValueError(f"{name}: must have at most {max_pixels} pixels, got {width}x{height}")
    try:
        image.load()
    except Exception as error:
        raise ValueError(f"{name}: must decode completely, got {_why(error)}") from error
    if image.mode == "F":
        raise ValueError(f"{name}: must have integer pixels, got float pixels (mode F); convert it to 8 bits")
    if image.mode.startswith("I"):  # I;16 and relatives; some Pillow versions open 16-bit files as 32-bit I
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(f"{name}: pixels must lie in 0..65535, got {grey.min()}..{grey.max()}")
        image = Image.fromarray((grey.astype(np.float64) / 257).round().astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")  # the same colours, without Pillow's warning about palette transparency
    return image.convert("RGB")


def _why(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "something else"
    return f"{type(error).__name__} ({error})" if str(error) else type(error).__name__


@dataclass(frozen=True)
class ImageProcessor:
    """Pixel views of a picture and the geometry of its tokens.

    view_size: S, side of a view in pixels. side: tokens per side of a view after pooling.
    aspect: "anyres" or "pad". pinpoints: canvases (width, height) in pixels, multiples of S; unused by "pad".
    """

    view_size: int
    side: int
    aspect: str = "anyres"
    pinpoints: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.aspect not in ASPECTS:
            raise ValueError(f"image_aspect_ratio must be one of {', '.join(ASPECTS)}, got {self.aspect!r}")
        if self.aspect == "anyres" and not self.pinpoints:
            raise ValueError("image_grid_pinpoints must hold a (width, height) for anyres, got none")
        for pair in self.pinpoints:
            if len(pair) != 2 or any(v < self.view_size or v % self.view_size for v in pair):
                raise ValueError(f"image_grid_pinpoints must be multiples of image_size {self.view_size}, got {pair}")

    @classmethod
    def from_config(cls, model_config: Mapping, vision_config: Mapping, stride: int = 2) -> "ImageProcessor":
        """Reads image_aspect_ratio, image_grid_pinpoints, image_size, patch_size. stride: of the pooling."""
        size, patch = vision_config["image_size"], vision_config["patch_size"]
        aspect = model_config.get("image_aspect_ratio")
        pinpoints = (model_config.get("image_grid_pinpoints") or ()) if aspect == "anyres" else ()
        try:
            if isinstance(pinpoints, str):
                pinpoints = ast.literal_eval(pinpoints)
            pinpoints = tuple((int(width), int(height)) for width, height in pinpoints)
        except (ValueError, TypeError, SyntaxError) as error:
            raise ValueError(f"image_grid_pinpoints must list [width, height], got {pinpoints!r}") from error
        return cls(size, math.ceil(size // patch / stride), aspect, pinpoints)

    def __call__(self, image: Image.Image, aspect: str | None = None) -> torch.Tensor:
        """RGB image -> `[n, 3, S, S]` float32. aspect: instead of the configured one."""
        size = (self.view_size, self.view_size)
        if self._is_pad(aspect):
            views = [_pad_to_square(image).resize(size, Image.Resampling.BICUBIC)]
        else:
            views = [image.resize(size, Image.Resampling.BICUBIC), *self._tiles(image)]
        pixels = torch.from_numpy(np.stack([np.asarray(view, dtype=np.uint8) for view in views]))
        scaled = (pixels.permute(0, 3, 1, 2).double() * (1 / 255)).float()  # the reference rounds here
        return ((scaled - 0.5) / 0.5).contiguous()

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Tiles (across, down) of the canvas an anyres picture of this size goes on."""
        canvas = self._canvas(width, height)
        return canvas[0] // self.view_size, canvas[1] // self.view_size

    def kept(self, width: int, height: int) -> tuple[slice, slice]:
        """Rows and columns of the joined grid `[down * side, across * side]` that are picture, not letterbox.

        An odd rest of the letterbox stays, and a very long, thin picture may keep no column (or row) at all.
        """
        across, down = self.grid(width, height)
        columns, rows = across * self.side, down * self.side
        if width / height > columns / rows:
            cut = (rows - int(height * (columns / width))) // 2
            return slice(cut, rows - cut), slice(0, columns)
        cut = (columns - int(width * (rows / height))) // 2
        return slice(0, rows), slice(cut, columns - cut)

    def n_image_tokens(self, width: int, height: int, aspect: str | None = None) -> int:
        """Length of the token sequence of a picture of this size, newline tokens included."""
        base = self.side * self.side
        if self._is_pad(aspect):
            return base + 1
        rows, columns = self.kept(width, height)
        return base + (rows.stop - rows.start) * (columns.stop - columns.start + 1)

    def _is_pad(self, aspect: str | None) -> bool:
        aspect = aspect or self.aspect
        if aspect not in ASPECTS:
            raise ValueError(f"aspect must be one of {', '.join(ASPECTS)}, got {aspect!r}")
        if aspect == "anyres" and not self.pinpoints:
            raise ValueError("aspect 'anyres' needs image_grid_pinpoints, got none")
        return aspect == "pad"

    def _canvas(self, width: int, height: int) -> tuple[int, int]:
        """The canvas that keeps the most of the picture's pixels; of equals the smallest, then the first."""

        def merit(canvas: tuple[int, int]) -> tuple[int, int]:
            scale = min(canvas[0] / width, canvas[1] / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            return shown, shown - canvas[0] * canvas[1]

        return max(self.pinpoints, key=merit)

    def _tiles(self, image: Image.Image) -> list[Image.Image]:
        """The picture letterboxed on black, cut into S x S tiles row by row."""
        width, height = image.size
        canvas = self._canvas(width, height)
        scale_w, scale_h = canvas[0] / width, canvas[1] / height
        if scale_w < scale_h:
            size = canvas[0], min(math.ceil(height * scale_w), canvas[1])
        else:
            size = min(math.ceil(width * scale_h), canvas[0]), canvas[1]
        board = Image.new("RGB", canvas)
        corner = (canvas[0] - size[0]) // 2, (canvas[1] - size[1]) // 2
        board.paste(image.resize(size, Image.Resampling.BICUBIC), corner)
        step = self.view_size
        return [
            board.crop((x, y, x + step, y + step)) for y in range(0, canvas[1], step) for x in range(0, canvas[0], step)
        ]


def _pad_to_square(image: Image.Image) -> Image.Image:
    width, height = image.size
    side = max(width, height)
    if side * side > 4 * MAX_PIXELS:
        raise ValueError(f"image padded square must have at most {4 * MAX_PIXELS} pixels, got {side}x{side}")
    board = Image.new("RGB", (side, side), PAD_COLOUR)
    board.paste(image, ((side - width) // 2, (side - height) // 2))
    return board
