"""Checkpoint folders: what is refused and how, and that what is read and written is exact."""

import json
import re
from unittest import mock

import pytest
import torch
from folders import DOWN, HEAD, configure, refused, rewrite, tiny_llada
from safetensors.torch import load_file
from scripted import GOLDEN

import seer_dllm
from seer_dllm.checkpoint import Weights, load_parts, save_checkpoint
from seer_dllm.config import read_json


class NoTokenizer:
    """Stands for a tokenizer when a checkpoint is saved; the tiny models have none."""

    def save(self, path: str) -> None:
        pass


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny LLaDA that may be broken."""
    return tiny_llada(tmp_path)


def test_missing_folder(tmp_path):
    refused(tmp_path / "none", FileNotFoundError, "model must be a folder with a checkpoint", "none'")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", FileNotFoundError, "model must be a folder with a checkpoint")


def test_missing_config(folder):
    (folder / "config.json").unlink()
    refused(folder, FileNotFoundError, str(folder), "must hold config.json, which is missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"model_type": ', "config.json must be a JSON file"),
        (b"", "config.json must be a JSON file"),
        (b"\xff\xfe\x00", "config.json must be a JSON file"),
        (b"[1, 2]", "config.json must hold a JSON object, got a list"),
        (b"null", "config.json must hold a JSON object, got a NoneType"),
    ],
)
def test_broken_config(folder, text, message):
    (folder / "config.json").write_bytes(text)
    refused(folder, ValueError, message)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_json(folder / "config.json")


@pytest.mark.parametrize("model_type", ["gpt2", None, 3])
def test_unknown_family(folder, model_type):
    configure(folder, model_type=model_type)
    refused(
        folder,
        ValueError,
        f"model_type must be one of llada, llava_llada, Dream, llava_dream, mmada, got {model_type!r}",
    )


def test_missing_config_keys(folder):
    configure(folder, d_model=None, rope_theta=None, mask_token_id=None)
    refused(folder, ValueError, "config.json lacks d_model, rope_theta, mask_token_id")


@pytest.mark.parametrize(
    ("key", "value", "only"),
    [
        ("activation_type", "gelu", "'silu'"),
        ("alibi", True, "False"),
        ("attention_layer_norm", True, "False"),
        ("block_type", "sequential", "'llama'"),
        ("include_bias", True, "False"),
        ("input_emb_norm", True, "False"),
        ("layer_norm_type", "default", "'rms'"),
        ("rope", False, "True"),
        ("scale_logits", True, "False"),
    ],
)
def test_unsupported_settings(folder, key, value, only):
    configure(folder, **{key: value})
    refused(folder, ValueError, f"config.json: {key} must be {only} for a LLaDA model, got {value!r}")


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, FileNotFoundError, "must hold model.safetensors, which is missing")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickles_are_refused_unopened(folder, name):
    (folder / "model.safetensors").unlink()
    marker = folder / "opened"
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch " + bytes(marker) + b"'\ntR.")
    refused(folder, ValueError, "got only pickle files", name, "can run code")
    assert not marker.exists()


def test_a_pickle_beside_safetensors_is_ignored(folder):
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    assert seer_dllm.load(folder).backbone.config.n_layers == 8


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_truncated_weights(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, ValueError, str(file), "must be a whole safetensors file")


def test_missing_tensors_are_named(folder):
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in (HEAD, DOWN)])
    refused(folder, ValueError, f"lacks 2 of {3 + 8 * 9} tensors", HEAD, DOWN)


def test_many_missing_tensors_are_counted(folder):
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in sorted(tensors) if "blocks" in name])
    refused(folder, ValueError, "lacks 72 of 75 tensors", "and 62 more")


def test_wrong_shapes_are_named(folder):
    def transpose(tensors):
        tensors[DOWN] = tensors[DOWN].T.contiguous()

    rewrite(folder, transpose)
    refused(folder, ValueError, f"{DOWN} must have shape [64, 160], got [160, 64]")


def test_values_are_the_files(folder):
    tensors = load_file(folder / "model.safetensors")
    backbone = seer_dllm.load(folder).backbone
    assert torch.equal(backbone.head.weight, tensors[HEAD])
    assert torch.equal(backbone.layers[7].down_proj.weight, tensors[DOWN])
    assert not any(p.requires_grad or p.is_meta for p in backbone.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.bfloat16])
def test_dtypes(folder, dtype):
    want = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    model = seer_dllm.load(folder, dtype=dtype)
    assert {p.dtype for p in model.backbone.parameters()} == {want}
    assert torch.equal(model.backbone.head.weight, load_file(folder / "model.safetensors")[HEAD].to(want))
    (result,) = seer_dllm.generate(
        model, [model.embed_ids(torch.arange(5))], config=seer_dllm.GenerationConfig(window=32, steps=4)
    )
    assert result.steps > 0


def test_unknown_dtype(folder):
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16, got 'int8'"):
        seer_dllm.load(folder, dtype="int8")


def test_seer_json(folder):
    (folder / "seer.json").write_text(json.dumps({"system_prompt": None}))
    assert seer_dllm.load(folder).system_prompt is None
    (folder / "seer.json").write_text(json.dumps({"profile": {"margin": 3}}))
    refused(folder, ValueError, "seer.json must not hold a profile, which belongs into seer_profile.json beside it")


def test_round_trip_is_bit_exact(tmp_path):
    """A LaViDa model, tower and projector included, is the same after saving and loading; names are the hub's."""
    source = GOLDEN / "lavida_llada"
    raw = json.loads((source / "config.json").read_text())
    vision_config = json.loads((source / "vision_config.json").read_text())
    _, _, backbone, vision = load_parts(source, torch.float32, "cpu")
    save_checkpoint(
        tmp_path / "new", raw, vision_config, backbone, vision, NoTokenizer(), system_prompt="be brief", end_tokens=()
    )
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert set(after) <= set(before)
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert any("vision_tower" in name for name in after)
    model = seer_dllm.load(tmp_path / "new")
    assert model.system_prompt == "be brief"
    for old, new in ((backbone, model.backbone), (vision, model.vision)):
        assert old.state_dict().keys() == new.state_dict().keys()
        assert all(torch.equal(new.state_dict()[name], value) for name, value in old.state_dict().items())
    assert not list((tmp_path / "new").glob("*.partial"))


def test_a_failed_save_leaves_the_old_weights(folder):
    """Weights are written beside the old ones and then put in their place in one move."""
    raw = json.loads((folder / "config.json").read_text())
    _, _, backbone, _ = load_parts(folder, torch.float32, "cpu")
    old = (folder / "model.safetensors").read_bytes()

    def disk_full(tensors, path, metadata=None):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    with mock.patch("seer_dllm.checkpoint.save_file", disk_full), pytest.raises(OSError, match="no space left"):
        save_checkpoint(folder, raw, None, backbone, None, NoTokenizer())
    assert (folder / "model.safetensors").read_bytes() == old
    assert HEAD in Weights(folder)  # what is left of the failed attempt is not taken for weights
