"""How weights are read: shards and their index, what is left unread, whose memory they are in, and LLaDA-V's names."""

import json
import re
import shutil

import pytest
import torch
from folders import DOWN, HEAD, INDEX, SHARDS, configure, refused, rewrite, shard, tiny_llada, tiny_llada_v
from safetensors.torch import load_file, save_file
from scripted import GOLDEN

import seer_dllm
from seer_dllm import checkpoint
from seer_dllm.backbone import Packing
from seer_dllm.checkpoint import Weights, load_parts
from seer_dllm.families import find_family

EMBED = "model.transformer.wte.weight"


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny LLaDA that may be broken."""
    return tiny_llada(tmp_path / "model")


@pytest.fixture
def reads(monkeypatch):
    """Names of the tensors that are read from files, in order, and where each went."""
    seen: dict[str, int] = {}
    read = Weights.read

    def spy(self, name, dtype, device):
        tensor = read(self, name, dtype, device)
        seen[name] = tensor.data_ptr()
        return tensor

    monkeypatch.setattr(Weights, "read", spy)
    return seen


def logits(backbone, ids) -> torch.Tensor:
    with torch.inference_mode():
        return backbone.logits(backbone.run(backbone.embed(ids), Packing([len(ids)])))


def test_shards_equal_one_file(folder):
    whole = seer_dllm.load(folder).backbone.state_dict()
    shard(folder)
    parts = seer_dllm.load(folder).backbone.state_dict()
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_missing_shard_is_named(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, FileNotFoundError, "lacks 1 of 2 weight files: model-00002-of-00002.safetensors")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "must map tensors to files in weight_map"),
        ({"weight_map": []}, "must map tensors to files in weight_map"),
        ({"weight_map": {"a": 3}}, "must map tensors to files in weight_map"),
        ({"weight_map": {"a": "../other.safetensors"}}, "must name files of the folder, got '../other.safetensors'"),
    ],
)
def test_broken_index(folder, index, message):
    shutil.copy(folder / "model.safetensors", folder.parent / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, ValueError, "model.safetensors.index.json", message)


def test_an_index_that_is_not_json(folder):
    shard(folder)
    (folder / INDEX).write_text('{"weight_map": ')
    refused(folder, ValueError, str(folder / INDEX), "must be a JSON file")


def test_a_key_that_its_shard_lacks(folder):
    where = shard(folder)
    tensors = load_file(folder / where[DOWN])
    del tensors[DOWN]
    save_file(tensors, folder / where[DOWN])
    refused(folder, ValueError, f"{folder / where[DOWN]} must hold {DOWN}, as {INDEX} says, but lacks it")


def test_a_truncated_shard(folder):
    shard(folder)
    file = folder / SHARDS[1]
    file.write_bytes(file.read_bytes()[:-1])
    refused(folder, ValueError, f"{file} must be a whole safetensors file")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_that_shrinks_while_it_is_read(folder, dtype):
    weights = Weights(folder)
    file = folder / "model.safetensors"
    place = weights.place(DOWN)
    file.write_bytes(file.read_bytes()[: place.offset + place.nbytes - 3])
    message = f"{file} must hold all of {DOWN}, but ends before it does"
    with pytest.raises(ValueError, match=re.escape(message)):
        weights.read(DOWN, dtype, "cpu")


def test_shards_without_an_index(folder):
    whole = seer_dllm.load(folder).backbone
    shard(folder)
    (folder / INDEX).unlink()
    assert torch.equal(seer_dllm.load(folder).backbone.head.weight, whole.head.weight)
    shutil.copy(folder / SHARDS[0], folder / "model-old.safetensors")
    refused(folder, ValueError, "model-old.safetensors must not hold model.", f"which {folder / SHARDS[0]} holds too")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_quantized_weights_are_refused(folder, dtype):
    rewrite(folder, lambda tensors: tensors.update({DOWN: tensors[DOWN].to(dtype)}))
    refused(folder, ValueError, f"model.safetensors: {DOWN} must be one of F64, F32, F16, BF16, got ")


def test_errors_name_file_key_and_shapes_before_anything_is_read(folder, reads):
    where = shard(folder)
    tensors = load_file(folder / where[DOWN])
    tensors[DOWN] = tensors[DOWN].T.contiguous()
    save_file(tensors, folder / where[DOWN])
    refused(folder, ValueError, f"{folder / where[DOWN]}: {DOWN} must have shape [64, 160], got [160, 64]")
    assert reads == {}


def test_mixed_dtypes_in_the_files(folder):
    want = load_file(folder / "model.safetensors")
    rewrite(folder, lambda tensors: tensors.update({HEAD: want[HEAD].double(), DOWN: want[DOWN].bfloat16()}))
    backbone = seer_dllm.load(folder).backbone
    assert torch.equal(backbone.head.weight, want[HEAD])
    assert torch.equal(backbone.layers[7].down_proj.weight, want[DOWN].bfloat16().float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_becomes_the_parameters(folder, reads, dtype):
    backbone = seer_dllm.load(folder, dtype=dtype).backbone
    assert sorted(reads.values()) == sorted(p.data_ptr() for p in backbone.parameters())


@pytest.mark.parametrize("size", [1000, 64, 1 << 22])
def test_conversion_by_way_of_a_buffer(folder, monkeypatch, size):
    """Tensors larger, smaller and as large as the buffer."""
    monkeypatch.setattr(checkpoint, "BUFFER", size)
    weights, want = Weights(folder), load_file(folder / "model.safetensors")
    for name, tensor in want.items():
        assert torch.equal(weights.read(name, torch.float16, "cpu"), tensor.half())


def test_a_file_overwritten_later_does_not_change_the_model(folder):
    backbone = seer_dllm.load(folder).backbone
    before = logits(backbone, torch.arange(9))
    file = folder / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    assert torch.equal(logits(backbone, torch.arange(9)), before)


def test_a_tied_head_is_the_embedding_and_is_not_read(folder, reads):
    configure(folder, weight_tying=True)
    backbone = seer_dllm.load(folder).backbone
    assert backbone.head.weight is backbone.embed.weight
    assert HEAD not in reads
    rewrite(folder, lambda tensors: tensors.pop(HEAD))
    assert torch.equal(seer_dllm.load(folder).backbone.head.weight, load_file(folder / "model.safetensors")[EMBED])


def test_unused_tensors_are_not_read_and_files_are_read_front_to_back(reads):
    source = GOLDEN / "lavida_llada"
    load_parts(source, torch.float32, "cpu")
    names = list(reads)
    held = load_file(source / "model.safetensors").keys()
    assert {name for name in held if name not in names} == {
        f"model.vision_tower.vision_tower.vision_model.post_layernorm.{kind}" for kind in ("weight", "bias")
    }
    weights = Weights(source)
    offsets = [weights.place(name).offset for name in names]
    assert offsets == sorted(offsets)


def test_a_missing_vision_tensor_is_found_before_anything_is_read(tmp_path, reads):
    shutil.copytree(GOLDEN / "lavida_llada", tmp_path / "model")
    rewrite(tmp_path / "model", lambda tensors: tensors.pop("model.image_newline"))
    refused(tmp_path / "model", ValueError, "lacks 1 of", "model.image_newline")
    assert reads == {}


def test_a_broken_vision_config_is_named(tmp_path):
    shutil.copytree(GOLDEN / "lavida_llada", tmp_path / "model")
    (tmp_path / "model" / "vision_config.json").write_text("{")
    refused(tmp_path / "model", ValueError, "vision_config.json must be a JSON file")


@pytest.fixture(params=["llada", "llada_gqa"])
def llada_v(tmp_path, request):
    """A tiny LLaDA, and the same weights as LLaDA-V names them, with an image tower's tensor that nobody reads."""
    return GOLDEN / request.param, tiny_llada_v(tmp_path / "llada_v", request.param)


def test_llada_v_is_llada_under_other_names(llada_v, reads):
    source, folder = llada_v
    ids = torch.arange(3, 40)
    named, want = seer_dllm.load(folder), seer_dllm.load(source)
    assert (named.family.name, named.vision) == ("llada_v", None)
    assert torch.equal(logits(named.backbone, ids), logits(want.backbone, ids))
    assert "model.vision_tower.x" not in reads


def test_llada_v_without_a_mask_id_has_the_samplers(llada_v):
    raw = json.loads((llada_v[1] / "config.json").read_text())
    del raw["mask_token_id"]
    raw["vocab_size"] = 126464
    assert find_family(raw).read_config(raw).mask_id == 126336


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None, "num_hidden_layers": None}, "config.json lacks hidden_size, num_hidden_layers"),
        ({"hidden_act": "gelu"}, "config.json: hidden_act must be 'silu' for a LLaDA-V model, got 'gelu'"),
        ({"rope_scaling": {"factor": 2}}, "config.json: rope_scaling must be None for a LLaDA-V model"),
        ({"num_attention_heads": 3}, "config.json: hidden_size must be a multiple of num_attention_heads=3, got 64"),
        ({"num_attention_heads": "4"}, "config.json: num_attention_heads must be a positive whole number, got '4'"),
        ({"eos_token_id": [1, 2]}, "eos_id must be in [0, vocab_size="),
        ({"rope_theta": "big"}, "rope_theta must be a number of at least 0, got 'big'"),
        # The model_type alone means LaViDa, whose keys these are not.
        ({"architectures": None}, "config.json lacks d_model, n_heads"),
    ],
)
def test_llada_v_configs_that_are_refused(llada_v, changes, message):
    configure(llada_v[1], **changes)
    refused(llada_v[1], ValueError, message)
