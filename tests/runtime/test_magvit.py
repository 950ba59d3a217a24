"""MMaDA's pictures: bit order by hand, transforms, sizes and damaged weights refused, names, batches."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from seer_dllm.checkpoint import load_magvit
from seer_dllm.vision import MagvitConfig, MagvitEncoder, image_transform, image_transform_squash
from seer_dllm.vision.magvit import CONFIG_FILE, Attention, code_signs, quantize

# Two levels, so two pixels per code and side; the second level changes the channels.
SMALL = {
    "encoder": {
        "ch": 4,
        "ch_mult": [1, 2],
        "num_res_blocks": [1, 2],
        "z_channels": 3,
        "group_norm_groups": 2,
        "resolution": 16,
    },
    "quantize": {"codebook_dim": 3},
}


@pytest.fixture
def model() -> MagvitEncoder:
    return MagvitEncoder(MagvitConfig.from_json(SMALL)).eval()


def changed(part: str, **keys) -> dict:
    return {**SMALL, part: {**SMALL[part], **keys}}


def tensors_of(model: MagvitEncoder) -> dict[str, torch.Tensor]:
    own = dict(model.named_parameters())
    saved = {theirs: own[ours].detach().clone() for ours, theirs in model.weight_names().items()}
    return {**saved, "quantize.embedding": code_signs(torch.arange(8), 3)}


def write(folder, tensors, config=SMALL):
    save_file(tensors, folder / "magvitv2.safetensors")
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(shape) * 2 - 1


def test_channel_0_is_the_highest_bit_and_zero_is_no_bit():
    for signs, code in [
        ((1, -1, -1), 4),
        ((-1, 1, -1), 2),
        ((-1, -1, 1), 1),
        ((1, 1, -1), 6),
        ((0, 0, 1e-30), 1),
        ((1, 1, 1), 7),
    ]:
        z = torch.tensor(signs, dtype=torch.float32).reshape(1, 3, 1, 1)
        assert quantize(z).tolist() == [[code]]


def test_codes_come_row_by_row():
    z = torch.tensor([[[-1.0, -1.0], [1.0, 1.0]], [[-1.0, 1.0], [-1.0, 1.0]]])[None]  # high bits, low bits
    codes = quantize(z)
    assert codes.tolist() == [[0, 1, 2, 3]]
    assert codes.dtype == torch.int64


def test_a_picture_of_one_code_follows_the_last_bias(model):
    """With the last convolution's weights zero its bias is z: each sign flips one bit, channel 0 the highest."""
    last = model.layers[-1]
    torch.nn.init.zeros_(last.weight)
    for channel, bit in enumerate([4, 2, 1]):
        last.bias.data = torch.full((3,), -1.0)
        assert model.codes(noise(1, 3, 2, 2)).tolist() == [[0]]
        last.bias.data[channel] = 1.0
        assert model.codes(noise(1, 3, 2, 2)).tolist() == [[bit]]


def test_codebook_entry_by_hand(model):
    entry = model.codebook_entry(torch.tensor([[6, 0, 1, 7]]))
    assert entry.dtype == torch.float32
    assert entry.tolist() == [[[[1, -1], [-1, 1]], [[1, -1], [-1, 1]], [[-1, -1], [1, 1]]]]


def test_codebook_entry_inverts_quantize(model):
    codes = torch.randint(0, 8, (5, 9))
    assert torch.equal(quantize(model.codebook_entry(codes)), codes)
    wide = torch.tensor([0, 1, 2**61, 2**62 - 1])
    assert torch.equal(quantize(code_signs(wide, 62).T[None, :, :, None])[0], wide)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(1, 5, dtype=torch.int64), r"codes must have shape \[n, side \* side\], got \[1, 5\]"),
        (torch.zeros(4, dtype=torch.int64), r"codes must have shape \[n, side \* side\], got \[4\]"),
        (torch.tensor([[8]]), r"codes must lie in 0\.\.7, got 8\.\.8"),
        (torch.tensor([[-1]]), r"codes must lie in 0\.\.7, got -1\.\.-1"),
    ],
)
def test_codebook_entry_refuses(model, codes, message):
    with pytest.raises(ValueError, match=message):
        model.codebook_entry(codes)


@torch.no_grad()
def test_attention_is_one_head_over_all_places(model):
    attention = next(layer for layer in model.layers if isinstance(layer, Attention))
    x = noise(2, 8, 3, 5)
    flat = attention.norm(x).flatten(2)
    q, k, v = (
        torch.einsum("oc,ncp->nop", conv.weight[:, :, 0, 0], flat) + conv.bias[:, None]
        for conv in (attention.q, attention.k, attention.v)
    )
    weights = (torch.einsum("ncp,ncr->npr", q, k) / 8**0.5).softmax(-1)  # p attends to r
    want = x + attention.proj_out(torch.einsum("npr,ncr->ncp", weights, v).reshape(x.shape))
    torch.testing.assert_close(attention(x), want, atol=1e-6, rtol=0)


@torch.no_grad()
def test_halving_reads_no_border_on_the_left_and_above(model):
    """The code at row i sees rows 2i, 2i + 1 and 2i + 2 of the level above, never row 2i - 1."""
    pad, conv = model.layers[2], model.layers[3]
    x = noise(1, 4, 4, 4)
    got = conv(pad(x))
    assert got.shape == (1, 4, 2, 2)
    want = F.conv2d(x[:, :, :3, :3], conv.weight, conv.bias)
    torch.testing.assert_close(got[:, :, :1, :1], want, atol=1e-6, rtol=0)


def test_batch_equals_single_and_repeats(model):
    pixels = noise(5, 3, 16, 16)
    codes = model.codes(pixels)
    assert codes.shape == (5, 64)
    assert torch.equal(codes, model.codes(pixels))
    single = torch.cat([model.codes(one[None]) for one in pixels])
    assert torch.equal(codes, single)
    assert len(codes.unique()) > 1
    assert model.codes(pixels[:0]).shape == (0, 64)
    assert torch.equal(model.codes(pixels.double()), codes)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (torch.zeros(3, 8, 8), r"pixels must have shape \[n, 3, S, S\], got \[3, 8, 8\]"),
        (torch.zeros(1, 4, 8, 8), r"pixels must have shape \[n, 3, S, S\], got \[1, 4, 8, 8\]"),
        (torch.zeros(1, 3, 8, 6), "pixels must be square with a side that is a multiple of 2, got 8x6"),
        (torch.zeros(1, 3, 7, 7), "pixels must be square with a side that is a multiple of 2, got 7x7"),
        (torch.zeros(1, 3, 0, 0), "pixels must be square with a side that is a multiple of 2, got 0x0"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "pixels must be floating point in .*, got torch.uint8"),
    ],
)
def test_pictures_of_another_size_are_refused(model, pixels, message):
    with pytest.raises(ValueError, match=message):
        model.codes(pixels)


def test_published_sizes():
    config = MagvitConfig.from_json({"_class_name": "MAGVITv2"})
    assert config == MagvitConfig()
    assert config.stride == 16  # so 512x512 pixels are 1024 codes
    with torch.device("meta"):
        encoder = MagvitEncoder(config)
        assert encoder(torch.empty(1, 3, 512, 512)).shape == (1, 13, 32, 32)
    own = dict(encoder.named_parameters())
    shapes = {theirs: list(own[ours].shape) for ours, theirs in encoder.weight_names().items()}
    assert shapes["encoder.conv_in.weight"] == [128, 3, 3, 3]
    assert shapes["encoder.down.3.block.0.conv1.weight"] == [512, 256, 3, 3]
    assert shapes["encoder.down.4.block.3.norm2.bias"] == [512]
    assert shapes["encoder.down.3.downsample.conv.weight"] == [512, 512, 3, 3]
    assert shapes["encoder.mid.attn_1.proj_out.weight"] == [512, 512, 1, 1]
    assert shapes["encoder.conv_out.weight"] == [13, 512, 3, 3]
    assert shapes["encoder.quant_conv.weight"] == [13, 13, 1, 1]
    # Where the channels change, and only there, the input passes a 1x1 convolution.
    shortcuts = [name for name in shapes if name.endswith("nin_shortcut.weight")]
    assert shortcuts == [f"encoder.down.{level}.block.0.nin_shortcut.weight" for level in (1, 3)]
    assert "encoder.down.4.downsample.conv.weight" not in shapes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("encoder", ch="4"), "ch must be a positive integer, got '4'"),
        (changed("encoder", ch=5), "multiples of group_norm_groups=2, got 5"),
        (changed("encoder", ch_mult=[]), "ch_mult must list positive integers"),
        (changed("encoder", ch_mult=[1, 0]), "ch_mult must list positive integers"),
        (changed("encoder", num_res_blocks=2), "num_res_blocks must list positive integers, got 2"),
        (changed("encoder", num_res_blocks=[1]), r"num_res_blocks must have one entry per ch_mult \(2\), got 1"),
        (changed("encoder", z_channels=63), "z_channels must be at most 62"),
        (changed("encoder", group_norm_eps=0), "group_norm_eps must be a positive float, got 0"),
        (changed("encoder", in_ch=1), "in_ch must be 3, got 1"),
        (changed("encoder", double_z=True), "double_z must be False, got True"),
        (
            changed("encoder", attn_resolutions=[8]),
            r"attn_resolutions must list none of the sides \[16, 8\], got",
        ),
        (changed("encoder", attn_resolutions=5), "attn_resolutions must list"),
        (changed("encoder", resolution="16"), "resolution must be a positive integer, got '16'"),
        (changed("quantize", codebook_dim=4), "codebook_dim must equal z_channels=3, got 4"),
        ({"encoder": [1]}, "encoder must be an object"),
    ],
)
def test_configs_that_cannot_be_are_refused(config, message):
    with pytest.raises(ValueError, match=f"{CONFIG_FILE}: .*{message}"):
        MagvitConfig.from_json(config)


def test_weights_round_trip_through_the_file(model, tmp_path):
    tensors = tensors_of(model)
    assert "encoder.down.1.block.0.nin_shortcut.weight" in tensors
    write(tmp_path, {**tensors, "decoder.conv_in.bias": torch.zeros(3)})  # the decoder is left alone
    loaded = load_magvit(tmp_path, "cpu")
    pixels = noise(2, 3, 8, 8)
    assert torch.equal(loaded.codes(pixels), model.codes(pixels))
    assert {(p.dtype, p.requires_grad) for p in loaded.parameters()} == {(torch.float32, False)}


def test_a_missing_tensor_is_named(model, tmp_path):
    tensors = tensors_of(model)
    del tensors["encoder.mid.attn_1.k.bias"]
    write(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"lacks 1 of \d+ tensors: encoder\.mid\.attn_1\.k\.bias"):
        load_magvit(tmp_path, "cpu")


def test_a_wrong_shape_is_named(model, tmp_path):
    write(tmp_path, {**tensors_of(model), "encoder.conv_out.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"encoder\.conv_out\.bias must have shape \[3\], got \[4\]"):
        load_magvit(tmp_path, "cpu")


@pytest.mark.parametrize("table", [code_signs(torch.arange(8), 3).flip(1), torch.ones(4, 3), torch.ones(8, 4)])
def test_another_code_table_is_refused(model, tmp_path, table):
    write(tmp_path, {**tensors_of(model), "quantize.embedding": table.contiguous()})
    with pytest.raises(ValueError, match=r"quantize\.embedding must hold the signs of 0\.\.7"):
        load_magvit(tmp_path, "cpu")


def test_files_that_cannot_be_read_are_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold magvitv2\.safetensors"):
        load_magvit(tmp_path, "cpu")
    pickled = tmp_path / "pytorch_model.bin"
    torch.save({}, pickled)
    with pytest.raises(ValueError, match=r"only pickle files \(pytorch_model\.bin\).*convert them to magvitv2\.s"):
        load_magvit(tmp_path, "cpu")
    (tmp_path / "magvitv2.safetensors").write_bytes(pickled.read_bytes())  # a pickle by another name
    with pytest.raises(ValueError, match=r"magvitv2\.safetensors must be a whole safetensors file"):
        load_magvit(tmp_path, "cpu")
    write(tmp_path, tensors_of(model))
    whole = (tmp_path / "magvitv2.safetensors").read_bytes()
    (tmp_path / "magvitv2.safetensors").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match=r"magvitv2\.safetensors must be a whole safetensors file"):
        load_magvit(tmp_path, "cpu")
    (tmp_path / CONFIG_FILE).write_text("{")
    with pytest.raises(ValueError, match=rf"{CONFIG_FILE} must be a JSON file"):
        load_magvit(tmp_path, "cpu")


def stripes(width: int, height: int) -> Image.Image:
    """Column x has red x, row y has green y."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    return Image.fromarray(pixels)


def levels(pixels: torch.Tensor) -> torch.Tensor:
    return ((pixels + 1) * 127.5).round()


@pytest.mark.parametrize(
    ("size", "left", "top"), [((8, 8), 0, 0), ((12, 8), 2, 0), ((11, 8), 2, 0), ((13, 8), 2, 0), ((8, 11), 0, 2)]
)
def test_transform_crops_the_middle(size, left, top):
    """Unscaled, so that the crop shows: half of an odd rest (1.5, 2.5) goes to the even neighbour."""
    pixels = image_transform(stripes(*size), 8)
    assert pixels.shape == (3, 8, 8) and pixels.dtype == torch.float32
    assert levels(pixels[0, 0]).tolist() == list(range(left, left + 8))
    assert levels(pixels[1, :, 0]).tolist() == list(range(top, top + 8))


def test_transform_rounds_the_longer_side_down():
    """5x3 with the shorter side at 4: 20 / 3 is 6 wide, 1 cut on each side."""
    image = stripes(5, 3)
    want = image.resize((6, 4), Image.Resampling.BICUBIC).crop((1, 0, 5, 4))
    assert torch.equal(levels(image_transform(image, 4)), torch.from_numpy(np.array(want)).permute(2, 0, 1).float())


def test_transforms_span_minus_one_to_one():
    for one in (image_transform, image_transform_squash):
        for grey, value in [(0, -1.0), (255, 1.0), (51, -0.6)]:
            pixels = one(Image.new("RGB", (5, 9), (grey,) * 3), 4)
            torch.testing.assert_close(pixels, torch.full((3, 4, 4), value), atol=1e-6, rtol=0)


def test_squash_keeps_both_ends():
    image = Image.new("RGB", (60, 20))
    image.paste((255, 0, 0), (0, 0, 20, 20))
    image.paste((0, 0, 255), (40, 0, 60, 20))
    squashed, cropped = image_transform_squash(image, 12), image_transform(image, 12)
    assert squashed[0, 6, 0] > 0.9 and squashed[2, 6, -1] > 0.9
    assert (cropped[0, 6, 2:-2] < -0.9).all() and (cropped[2, 6, 2:-2] < -0.9).all()


def test_transforms_open_pictures_safely(tmp_path):
    path = tmp_path / "a.png"
    stripes(9, 6).convert("RGBA").save(path)
    assert torch.equal(image_transform(path, 4), image_transform(stripes(9, 6), 4))
    for one in (image_transform, image_transform_squash):
        with pytest.raises(ValueError, match="image bytes: must be a readable PNG"):
            one(b"no picture", 4)
        for resolution in (0, -1, 2.0, 10**6):
            with pytest.raises(ValueError, match="resolution must be a positive integer"):
                one(stripes(4, 4), resolution)


def test_a_sliver_is_not_blown_up():
    sliver = Image.new("RGB", (1, 100_000))
    with pytest.raises(ValueError, match="shorter side is 512, got 512x51200000; image_transform_squash takes it"):
        image_transform(sliver, 512)
    assert image_transform_squash(sliver, 16).shape == (3, 16, 16)
