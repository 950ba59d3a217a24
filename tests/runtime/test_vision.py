"""Opening pictures, pixel views, token counts, single and batched encoding, weight names, prompt splicing."""

import io
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from seer_dllm.checkpoint import Weights, fill
from seer_dllm.vision import (
    ImageProcessor,
    VisionEncoder,
    load_vision_config,
    open_image,
    splice_image,
    vision_weight_names,
)
from seer_dllm.vision.images import FORMATS, MAX_PIXELS

SIZE = 24
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": SIZE,
    "patch_size": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
ANYRES = {
    "d_model": 20,
    "image_aspect_ratio": "anyres",
    "image_grid_pinpoints": [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]],
    "mm_projector_type": "mlp2x_gelu",
    "mm_patch_merge_type": "spatial_unpad",
    "mm_spatial_pool_mode": "bilinear",
}
PAD = {"hidden_size": 20, "image_aspect_ratio": "pad"}
EXTREMES = [
    (1, 1),
    (1, 500),
    (500, 1),
    (3, 4000),
    (4000, 3),
    (24, 24),
    (25, 23),
    (72, 24),
    (7, 5),
    (640, 480),
]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def encoder(config: dict) -> VisionEncoder:
    torch.manual_seed(3)
    return VisionEncoder.from_config(config, VISION).eval()


def test_open_image_sources_agree(tmp_path):
    image = picture(9, 5)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(image))
    for source in (path, str(path), path.read_bytes(), image):
        opened = open_image(source)
        assert opened.mode == "RGB"
        assert np.array_equal(np.asarray(opened), np.asarray(image))


@pytest.mark.parametrize("format", FORMATS)
def test_open_image_formats(format):
    opened = open_image(encoded(Image.new("RGB", (9, 7), (200, 100, 50)), format))
    assert opened.size == (9, 7)
    assert np.abs(np.asarray(opened).astype(int) - [200, 100, 50]).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16", "I"])
def test_open_image_modes(mode):
    grey = np.array([[0, 128, 255]], dtype=np.uint8)
    if mode.startswith("I"):
        image = Image.fromarray(grey.astype(np.uint16 if mode == "I;16" else np.int32) * 257)
        assert image.mode == mode
    else:
        image = Image.fromarray(grey).convert("RGB")
        image = image.quantize(8) if mode == "P" else image.convert(mode)
    pixels = np.asarray(open_image(image)).astype(int)
    want = grey[0] if mode != "1" else np.where(pixels[0, :, 0] > 0, 255, 0)
    assert pixels.shape == (1, 3, 3)
    assert np.abs(pixels[0] - np.asarray(want, dtype=int)[:, None]).max() <= 2


def test_open_image_drops_alpha_and_ignores_orientation():
    transparent = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert open_image(encoded(transparent)).getpixel((0, 0)) == (10, 20, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees"
    assert open_image(encoded(picture(8, 4), "JPEG", exif=exif)).size == (8, 4)


def test_open_image_palette_with_transparency_warns_of_nothing(recwarn):
    image = picture(4, 4).quantize(8)
    opened = open_image(encoded(image, transparency=bytes([0] * 4 + [255] * 4)))
    assert np.array_equal(np.asarray(opened), np.asarray(image.convert("RGB")))
    assert not recwarn.list


def test_open_image_refuses_too_many_pixels_before_decoding(tmp_path):
    path = tmp_path / "wide.png"
    path.write_bytes(encoded(picture(11, 10))[:60])  # header only: decoding would fail otherwise
    with pytest.raises(ValueError, match=r"wide\.png': must have at most 100 pixels, got 11x10$"):
        open_image(path, max_pixels=100)
    with pytest.raises(ValueError, match=r"^image: must have at most 100 pixels, got 11x10$"):
        open_image(picture(11, 10), max_pixels=100)
    assert open_image(picture(10, 10), max_pixels=100).size == (10, 10)


def test_open_image_refuses_a_decompression_bomb():
    header = bytearray(encoded(picture(1, 1)))
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(bytes(header[12:29])).to_bytes(4, "big")
    with pytest.raises(ValueError, match=rf"^image bytes: must have at most {MAX_PIXELS} pixels"):
        open_image(bytes(header))


@pytest.mark.parametrize("format", FORMATS)
def test_open_image_refuses_truncated_files(format, tmp_path):
    whole = encoded(picture(64, 64), format)
    path = tmp_path / "cut"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"^image '.*cut': must (decode completely, got OSError|be a readable PNG)"):
        open_image(path)


@pytest.mark.parametrize("data", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_open_image_refuses_what_is_no_image(data):
    with pytest.raises(ValueError, match=r"^image bytes: must be a readable PNG, JPEG.*, got "):
        open_image(data)


def test_open_image_refuses_float_pixels_missing_files_and_other_sources(tmp_path):
    with pytest.raises(ValueError, match=r"must have integer pixels, got float pixels"):
        open_image(Image.fromarray(np.zeros((2, 2), dtype=np.float32)))
    with pytest.raises(ValueError, match=r"pixels must lie in 0\.\.65535, got -1\.\.7"):
        open_image(Image.fromarray(np.array([[-1, 7]], dtype=np.int32)))
    with pytest.raises(FileNotFoundError, match=r"no\.png': must be an existing file"):
        open_image(tmp_path / "no.png")
    with pytest.raises(FileNotFoundError, match="must be an existing file"):
        open_image(tmp_path)
    with pytest.raises(TypeError, match="image must be a path, bytes or a PIL image, got int"):
        open_image(7)


@pytest.mark.parametrize("size", EXTREMES)
@pytest.mark.parametrize("config", [ANYRES, PAD], ids=["anyres", "pad"])
def test_token_count_is_what_the_encoder_yields(config, size):
    model = encoder(config)
    with torch.no_grad():
        tokens = model.encode_image(picture(*size))
    assert tokens.shape == (model.processor.n_image_tokens(*size), 20)
    assert tokens.isfinite().all()


def test_anyres_geometry():
    processor = ImageProcessor.from_config(ANYRES, VISION)
    assert processor.side == 3
    assert processor.grid(72, 24) == (3, 1)
    assert processor.kept(72, 24) == (slice(0, 3), slice(0, 9))
    assert processor.n_image_tokens(72, 24) == 9 + 3 * (9 + 1)
    # On 48x24 (3 rows of tokens) 2 : 1 fits exactly; on 48x48 (6 rows) 480x300 needs int(3.75) = 3 rows, and
    # of the 3 left one is cut on each side, the odd one stays.
    assert processor.kept(480, 240) == (slice(0, 3), slice(0, 6))
    assert processor.grid(480, 300) == (2, 2)
    assert processor.kept(480, 300) == (slice(1, 5), slice(0, 6))
    # Too thin for one column of tokens: 6 columns leave none, 3 leave the odd one.
    assert processor.grid(1, 4000) == (1, 2)
    assert processor.kept(1, 4000) == (slice(0, 6), slice(1, 2))


def test_anyres_views_are_the_squashed_picture_then_tiles_row_by_row():
    image = Image.new("RGB", (48, 48))
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]
    for index, colour in enumerate(colours):
        image.paste(colour, (24 * (index % 2), 24 * (index // 2), 24 * (index % 2) + 24, 24 * (index // 2) + 24))
    views = ImageProcessor.from_config(ANYRES, VISION)(image)
    assert views.shape == (5, 3, SIZE, SIZE) and views.dtype == torch.float32
    for view, colour in zip(views[1:], colours, strict=True):
        assert torch.allclose(view, (torch.tensor(colour) / 127.5 - 1)[:, None, None].expand_as(view), atol=1e-6)
    assert views[0, 0, 0, 0] > 0.9 and views[0, 2, -1, 0] > 0.9


def test_pad_centres_the_picture_on_the_mean_colour():
    views = ImageProcessor.from_config(PAD, VISION)(Image.new("RGB", (48, 24), (255, 255, 255)))
    assert views.shape == (1, 3, SIZE, SIZE)
    mean = torch.tensor(127 / 127.5 - 1)
    assert torch.allclose(views[0, :, :4], mean) and torch.allclose(views[0, :, -4:], mean)
    assert torch.allclose(views[0, :, 8:16], torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"image padded square must have at most \d+ pixels, got 20000x20000"):
        ImageProcessor.from_config(PAD, VISION)(Image.new("RGB", (20_000, 1)))


def test_demo_sizes():
    processor = ImageProcessor.from_config(PAD, {"image_size": 64, "patch_size": 4})
    assert processor.side == 8 and processor.n_image_tokens(300, 20) == 65


def test_so400m_sizes():
    pinpoints = "[(384, 768), (768, 384), (768, 768), (1152, 384), (384, 1152)]"
    config = {"image_aspect_ratio": "anyres", "image_grid_pinpoints": pinpoints}
    processor = ImageProcessor.from_config(config, {"image_size": 384, "patch_size": 14})
    assert processor.side == 14 and processor.n_image_tokens(768, 768) == 196 + 28 * 29
    assert ImageProcessor.from_config(config, {"image_size": 384, "patch_size": 14}, stride=1).side == 27


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_aspect_ratio": "highres"}, "image_aspect_ratio must be one of anyres, pad, got 'highres'"),
        ({"image_aspect_ratio": None}, "image_aspect_ratio must be one of anyres, pad, got None"),
        ({"image_grid_pinpoints": []}, "image_grid_pinpoints must hold"),
        ({"image_grid_pinpoints": "(1x1),...,(6x6)"}, r"image_grid_pinpoints must list \[width, height\]"),
        ({"image_grid_pinpoints": [[24, 25]]}, r"multiples of image_size 24, got \(24, 25\)"),
        ({"mm_projector_type": "linear"}, "mm_projector_type must be 'mlp2x_gelu', got 'linear'"),
        ({"mm_patch_merge_type": "flat"}, "mm_patch_merge_type must be 'spatial_unpad', got 'flat'"),
        ({"mm_spatial_pool_mode": "max"}, "mm_spatial_pool_mode must be 'bilinear', got 'max'"),
    ],
)
def test_unsupported_configs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        VisionEncoder.from_config({**ANYRES, **change}, VISION)


def test_one_kept_layer_is_the_least():
    with pytest.raises(ValueError, match="num_hidden_layers must be at least 2, got 1"):
        VisionEncoder.from_config(PAD, {**VISION, "num_hidden_layers": 1})
    assert len(encoder(PAD).tower.layers) == 2


def test_batched_views_equal_single_pictures():
    model = encoder(PAD)
    images = [picture(30, 20, 1), picture(5, 50, 2), picture(24, 24, 3)]
    pixels = torch.cat([model.processor(image) for image in images])
    with torch.no_grad():
        batch = model.encode_views(pixels)
        single = torch.stack([model.encode_image(image) for image in images])
    assert batch.shape == (3, 10, 20)
    torch.testing.assert_close(batch, single, atol=1e-5, rtol=0)
    assert torch.equal(batch[:, -1], model.newline.expand(3, -1))


def test_several_pictures_are_padded_to_one_view_each():
    model = encoder(ANYRES)
    images = [picture(60, 20), picture(20, 20)]
    with torch.no_grad():
        assert [len(tokens) for tokens in model.encode_images(images)] == [10, 10]
        assert len(model.encode_images(images[:1])[0]) == model.processor.n_image_tokens(60, 20) > 10
    with pytest.raises(ValueError, match=r"views must be 1 or 1 \+ 3x1 for a picture of \(60, 20\), got 3"):
        model(torch.zeros(3, 3, SIZE, SIZE), (60, 20))


def test_every_parameter_gets_a_gradient():
    model = encoder(ANYRES)
    model.encode_image(picture(60, 20)).square().sum().backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert without == []


def names_of(model: VisionEncoder) -> dict[str, str]:
    return vision_weight_names(dict(model.named_parameters()))


def saved_weights(model: VisionEncoder) -> dict[str, torch.Tensor]:
    own = dict(model.named_parameters())
    return {theirs: own[ours].detach().clone() for ours, theirs in names_of(model).items()}


def refill(model: VisionEncoder, tensors: dict[str, torch.Tensor], folder) -> None:
    """Fill the model from a file with these tensors."""
    save_file(tensors, folder / "model.safetensors")
    fill(model, names_of(model), Weights(folder), torch.float32, "cpu")


def test_weights_round_trip_through_the_checkpoint_names(tmp_path):
    model, other = encoder(ANYRES), VisionEncoder.from_config(ANYRES, VISION)
    saved = saved_weights(model)
    assert "model.image_newline" in saved and "model.mm_projector.2.bias" in saved
    tower = "model.vision_tower.vision_tower.vision_model."
    assert f"{tower}embeddings.position_embedding.weight" in saved
    assert f"{tower}encoder.layers.1.self_attn.out_proj.weight" in saved
    assert len(saved) == len(model.state_dict())
    saved[f"{tower}post_layernorm.weight"] = torch.ones(16)  # unused, as in the hub's files
    refill(other, saved, tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


def test_broken_checkpoints_are_refused(tmp_path):
    model = encoder(PAD)
    saved = saved_weights(model)
    with pytest.raises(ValueError, match=r"model\.image_newline must have shape \[20\], got \[3\]"):
        refill(model, {**saved, "model.image_newline": torch.zeros(3)}, tmp_path)
    del saved["model.mm_projector.0.bias"]
    with pytest.raises(ValueError, match=r"lacks 1 of \d+ tensors: model\.mm_projector\.0\.bias"):
        refill(model, saved, tmp_path)
    with pytest.raises(KeyError, match="vision weight name must start with one of"):
        vision_weight_names(["lm_head.weight"])


def test_load_vision_config(tmp_path):
    so400m = load_vision_config(tmp_path, {"mm_vision_tower": "google/siglip-so400m-patch14-384"})
    assert (so400m["hidden_size"], so400m["num_hidden_layers"], so400m["image_size"]) == (1152, 27, 384)
    with pytest.raises(ValueError, match=r"mm_vision_tower must be siglip-so400m-patch14-384.*got 'openai/clip'"):
        load_vision_config(tmp_path, {"mm_vision_tower": "openai/clip"})
    (tmp_path / "vision_config.json").write_text('{"hidden_size": 8}')
    assert load_vision_config(tmp_path, {"mm_vision_tower": "openai/clip"}) == {**so400m, "hidden_size": 8}


@pytest.mark.parametrize("ids", [[-200], [-200, 1, 2], [1, 2, -200], [1, -200, 2], [1, -200, -200, 2, -200]])
def test_splice_puts_features_in_place_of_each_placeholder(ids):
    table = torch.randn(4, 6, dtype=torch.float64)
    features = [torch.randn(n, 6) for n in range(2, 2 + ids.count(-200))]
    queue = iter(features)
    want = torch.cat([next(queue).double() if i == -200 else table[i : i + 1] for i in ids])
    assert torch.equal(splice_image(torch.tensor(ids), features, lambda text: table[text]), want)
    with pytest.raises(ValueError, match=r"prompt must hold one -200 per picture"):
        splice_image(torch.tensor([1]), features, lambda text: table[text])


def test_importing_the_package_does_not_import_transformers():
    code = "import sys, seer_dllm.vision; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
