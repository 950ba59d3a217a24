"""MMaDA folders: prompts worked out by hand, codes of the fixture's pictures in them, answers, and what is refused."""

import io
import json

import pytest
import torch
from folders import MMADA_WORDS, byte_tokenizer, configure, refused, tiny_mmada
from PIL import Image
from safetensors.torch import load_file
from scripted import GOLDEN
from torch import nn

import seer_dllm
from seer_dllm import GenerationConfig
from seer_dllm.chat import prompt_ids
from seer_dllm.checkpoint import load_magvit
from seer_dllm.cli import main
from seer_dllm.vision import MagvitEncoder, PictureCodes

CASES = load_file(GOLDEN / "mmada" / "cases.safetensors")
PICTURES = {name: Image.fromarray(CASES[f"img.{name}.u8"].numpy()) for name in "ab"}
BOS, HEAD, HEADED, EOT = 260, 261, 262, 289
ASK = [BOS, HEAD, *b"user", HEADED, *b"\nHow many?", EOT, HEAD, *b"assistant", HEADED, *b"\n"]
SHORT = GenerationConfig(window=32, steps=16, block=16)


def read(name: str, offset: int = 300) -> list[int]:
    """[mmu][soi] codes [eoi] of a picture, the codes from the reference."""
    return [285, 286, *(CASES[f"get_code_{name}.codes"][0] + offset).tolist(), 287]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> seer_dllm.Model:
    return seer_dllm.load(tiny_mmada(tmp_path_factory.mktemp("mmada")))


@pytest.fixture
def folder(tmp_path):
    return tiny_mmada(tmp_path)


@pytest.fixture(scope="module")
def encoder() -> MagvitEncoder:
    return load_magvit(GOLDEN / "mmada", "cpu")


def holds(model: seer_dllm.Model, images: list, ids: list[int]) -> None:
    """The prompt "How many?" with these pictures has these ids."""
    assert torch.equal(model.embed_prompt(" How many?\n", images), model.embed_ids(torch.tensor(ids)))


def test_prompts_by_hand(model):
    assert (model.family.name, model.end_ids) == ("mmada", (270, EOT))
    holds(model, [], ASK)
    for name, picture in PICTURES.items():
        holds(model, [picture], read(name) + ASK)
    system = [BOS, HEAD, *b"system", HEADED, *b"\nBe kind.", EOT]
    assert prompt_ids(model.encode, "mmada", "How many?", 0, "Be kind.") == system + ASK[1:]


def test_pictures_from_files_and_bytes(model, tmp_path):
    file, stream = tmp_path / "a.png", io.BytesIO()
    PICTURES["a"].save(file)
    PICTURES["a"].convert("RGBA").save(stream, "PNG")
    for picture in (file, str(file), stream.getvalue()):
        holds(model, [picture], read("a") + ASK)


def test_rounded_weights_read_the_same_codes(folder):
    model = seer_dllm.load(folder, dtype="bfloat16")
    assert model.embed_prompt("How many?", [PICTURES["a"]]).dtype == torch.bfloat16
    holds(model, [PICTURES["a"]], read("a") + ASK)


@pytest.mark.parametrize("truncation", [None, "default"])
def test_answers_of_a_batch_are_those_of_its_rows(model, truncation):
    prompts, images = ["How many?", "How many?", "How many?", "Why"], [PICTURES["a"], None, [PICTURES["b"]], None]
    results = seer_dllm.generate(model, prompts, images=images, config=SHORT, truncation=truncation)
    for prompt, image, result in zip(prompts, images, results, strict=True):
        (alone,) = seer_dllm.generate(model, [prompt], images=[image], config=SHORT, truncation=truncation)
        assert alone.window_ids == result.window_ids
    assert [r.prompt_tokens for r in results] == [67 + len(ASK), len(ASK), 67 + len(ASK), len(ASK) - 6]
    assert len({tuple(r.window_ids) for r in results}) == 4  # pictures and questions matter


def test_the_command_answers_with_and_without_a_picture(folder, tmp_path, capsys):
    file = tmp_path / "a.png"
    PICTURES["a"].save(file)
    argv = ["generate", "--model", str(folder), "--prompt", "How many?", "--window", "16", "--steps", "8", "--json"]
    for more, tokens in (([], len(ASK)), (["--image", str(file)], 67 + len(ASK))):
        assert main(argv + more) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["prompt_tokens"] == tokens and len(answer["window_ids"]) == answer["window_tokens"] > 0
    assert main([*argv, "--image", str(file), "--image", str(file)]) == 2
    assert "images must be one picture a prompt for a mmada model, got 2" in capsys.readouterr().err


def test_without_the_encoder_only_pictures_are_refused(folder, tmp_path, capsys):
    (folder / "magvitv2.safetensors").unlink()
    holds(seer_dllm.load(folder), [], ASK)
    file = tmp_path / "a.png"
    PICTURES["a"].save(file)
    assert main(["generate", "--model", str(folder), "--prompt", "How many?", "--image", str(file)]) == 2
    error = capsys.readouterr().err
    assert "must hold magvitv2.safetensors" in error and "showlab/magvitv2" in error and error.count("\n") == 1


def test_without_a_tokenizer_it_is_the_tokenizer_that_is_missing(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="checkpoint must hold tokenizer.json"):
        seer_dllm.load(folder).embed_prompt("How many?", [PICTURES["a"]])


@pytest.mark.parametrize("more", [0, 10])
def test_codes_stand_behind_the_tokenizers_words(folder, more):
    """Whatever llm_vocab_size says."""
    configure(folder, llm_vocab_size=350)
    words = [*MMADA_WORDS, *(f"<|more_{i}|>" for i in range(more))]
    byte_tokenizer(words).save(str(folder / "tokenizer.json"))
    holds(seer_dllm.load(folder), [PICTURES["a"]], read("a", 300 + more) + ASK)


def test_a_tokenizer_without_the_chats_tokens_gets_them(folder):
    """As in the reference; they count before the codes. The names of 261, 262 and 289 are given to other words."""
    chat = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    byte_tokenizer([f"other {w}" if w in chat else w for w in MMADA_WORDS]).save(str(folder / "tokenizer.json"))
    model = seer_dllm.load(folder)
    new = {HEAD: 300, HEADED: 301, EOT: 302}
    holds(model, [PICTURES["b"]], read("b", 303) + [new.get(i, i) for i in ASK])
    assert model.end_ids == (270, 302)


def test_the_side_of_pictures_can_be_set(folder):
    """64 pixels at 4 a code make 16 * 16 codes."""
    (folder / "seer.json").write_text(json.dumps({"image_resolution": 64}))
    assert len(seer_dllm.load(folder).embed_prompt("How many?", [PICTURES["a"]])) == 256 + 3 + len(ASK)


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n and then nothing of the kind"])
def test_damaged_pictures(model, data):
    with pytest.raises(ValueError, match="image bytes: must be a readable PNG"):
        seer_dllm.generate(model, ["How many?"], images=[data])


def test_pictures_too_large_or_too_thin(model):
    with pytest.raises(ValueError, match="must have at most 64000000 pixels, got 8001x8001"):
        model.embed_prompt("How many?", [Image.new("1", (8001, 8001))])
    with pytest.raises(ValueError, match="when its shorter side is 32, got 32x19200000"):
        model.embed_prompt("How many?", [Image.new("1", (1, 600_000))])


def test_ids_of_the_published_tokenizer(encoder):
    """Its largest id is 126348, and it names none of the three tokens."""
    raw = {"num_vq_tokens": 1024, "mask_token_id": 126336}
    found = PictureCodes.from_config(raw, encoder, nn.Embedding(134656, 1), 126349, lambda token: None)
    assert found.ids(torch.tensor([0, 63])).tolist() == [126089, 126084, 126349, 126412, 126085]
    assert found.resolution == 32 * 4


@pytest.mark.parametrize(
    ("changes", "vocabulary", "message"),
    [
        ({"codebook_size": 128}, 300, "config.json: codebook_size must be the picture encoder's 64, got 128"),
        ({"num_vq_tokens": 60}, 300, "config.json: num_vq_tokens must be a square number, got 60"),
        ({"num_vq_tokens": None}, 300, "config.json: num_vq_tokens must be a positive whole number, got None"),
        ({}, 287, "tokenizer must have 288..312 words, .* got 287"),
        ({}, 313, "tokenizer must have 288..312 words, .* got 313"),
        ({"mask_token_id": 299}, 299, "tokenizer must have 300..312 words, .* got 299"),
    ],
)
def test_sizes_that_do_not_fit(encoder, changes, vocabulary, message):
    raw = {"codebook_size": 64, "num_vq_tokens": 64, "mask_token_id": 281} | changes
    ids = {"<|mmu|>": 285, "<|soi|>": 286, "<|eoi|>": 287}
    with pytest.raises(ValueError, match=message):
        PictureCodes.from_config(raw, encoder, nn.Embedding(376, 1), vocabulary, ids.get)


def test_folders_that_are_refused(folder):
    (folder / "seer.json").write_text(json.dumps({"image_resolution": 30}))
    refused(folder, ValueError, "image_resolution must be a multiple of 4 pixels per code, got 30")
    byte_tokenizer([w for w in MMADA_WORDS if w != "<|mmu|>"]).save(str(folder / "tokenizer.json"))
    (folder / "seer.json").unlink()
    refused(folder, ValueError, "tokenizer must have <|mmu|>, or the word 126089 that stands for it, got 299 words")
    configure(folder, new_vocab_size=312)
    refused(folder, ValueError, "config.json: new_vocab_size must equal the embedding's 376 rows, got 312")
    configure(folder, new_vocab_size=None, d_model=None)
    refused(folder, ValueError, "config.json lacks d_model")
