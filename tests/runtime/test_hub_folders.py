"""A whole folder of every family: its prompts worked out by hand, its ends, and the command's answers from it."""

import json

import pytest
import torch
from folders import DREAM_IDS, LLADA_IDS, hub_folder
from PIL import Image

import seer_dllm
from seer_dllm import GenerationConfig
from seer_dllm.chat import prompt_ids
from seer_dllm.cli import main
from seer_dllm.config import CACHES
from seer_dllm.text import load_tokenizer

FAMILIES = ["llada", "llada_v", "lavida_llada", "dream", "lavida_dream", "mmada"]
LAVIDA = ["lavida_llada", "lavida_dream"]
SYSTEM = (
    b"You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    b"provides, and assist the user with a variety of tasks using natural language."
)
PICTURE = -200


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def get(family):
        if family not in made:
            made[family] = hub_folder(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A square of 2x2 tiles and a wide picture, as files."""
    folder, files = tmp_path_factory.mktemp("pictures"), []
    for name, size in (("square", (110, 110)), ("wide", (90, 50))):
        values = torch.randint(0, 256, (*size[::-1], 3), generator=torch.Generator().manual_seed(len(files)))
        files.append(folder / f"{name}.png")
        Image.fromarray(values.to(torch.uint8).numpy()).save(files[-1])
    return files


def with_pictures(images: int) -> list[int]:
    """`<image> <image>`, and a new line before the text."""
    return [PICTURE, *[ord(" "), PICTURE] * (images - 1), ord("\n")] if images else []


def llada_prompt(family: str, images: int = 0, system: bytes = b"") -> list[int]:
    (bos, head, headed, eot), *_ = LLADA_IDS[family]
    before = [head, *b"system", headed, *b"\n\n", *system, eot] if system else []
    user = [head, *b"user", headed, *b"\n\n", *with_pictures(images), *b"How many?", eot]
    return [bos, *before, *user, head, *b"assistant", headed, *b"\n\n"]


def dream_prompt(family: str, images: int, system: bytes) -> list[int]:
    (head, end), *_ = DREAM_IDS[family]
    before = [head, *b"system\n", *system, end, *b"\n"] if system else []
    user = [head, *b"user\n", *with_pictures(images), 256, *b"w many?", end, *b"\n"]  # "Ho" is one word
    return [*before, *user, head, *b"assistant\n"]


@pytest.mark.parametrize(
    ("family", "images", "want"),
    [
        ("llada", 0, llada_prompt("llada")),
        ("llada_v", 0, llada_prompt("llada_v", 0, SYSTEM)),
        *[("lavida_llada", n, llada_prompt("lavida_llada", n, SYSTEM)) for n in (0, 1, 2, 3)],
        ("dream", 0, dream_prompt("dream", 0, b"You are a helpful assistant.")),
        *[("lavida_dream", n, dream_prompt("lavida_dream", n, SYSTEM)) for n in (0, 1, 2, 3)],
    ],
)
def test_prompts_by_hand(folder_of, family, images, want):
    model = seer_dllm.load(folder_of(family))
    assert model.family.name == family
    assert prompt_ids(model.encode, model.family.chat, "How many?", images) == want
    if not images:
        assert torch.equal(model.embed_prompt("How many?"), model.embed_ids(torch.tensor(want)))


@pytest.mark.parametrize(
    ("family", "want"),
    [
        ("llada", llada_prompt("llada", 0, b"Be kind.")),
        ("lavida_llada", llada_prompt("lavida_llada", 0, b"Be kind.")),
        ("dream", dream_prompt("dream", 0, b"Be kind.")),
        ("lavida_dream", dream_prompt("lavida_dream", 0, b"Be kind.")),
    ],
)
def test_other_system_messages(folder_of, family, want):
    model = seer_dllm.load(folder_of(family))
    assert prompt_ids(model.encode, model.family.chat, "How many?", 0, "Be kind.") == want
    for none in (None, ""):
        bare = llada_prompt(family) if family in LLADA_IDS else dream_prompt(family, 0, b"")
        assert prompt_ids(model.encode, model.family.chat, "How many?", 0, none) == bare


@pytest.mark.parametrize("family", LAVIDA)
def test_pictures_stand_where_the_template_puts_them(folder_of, pictures, family):
    """One picture: 14x14 tokens of the whole, and 28 rows of 28 and a newline. Several: 14x14 and a newline each."""
    model = seer_dllm.load(folder_of(family))
    opened = [Image.open(file) for file in pictures]
    before = prompt_ids(model.encode, model.family.chat, "How many?", 1).index(PICTURE)
    bare = len(prompt_ids(model.encode, model.family.chat, "How many?", 0))
    one = model.embed_prompt("How many?", opened[:1])
    assert len(one) == bare + 1 + 196 + 28 * 29
    assert torch.equal(one[before : before + 196 + 28 * 29], model.vision.encode_image(opened[0]))
    two = model.embed_prompt("How many?", pictures)
    assert len(two) == bare + 2 + 2 * 197
    features = [model.vision.encode_image(image, "pad") for image in opened]
    assert torch.equal(two[before : before + 197], features[0])
    assert torch.equal(two[before + 198 : before + 198 + 197], features[1])
    space = model.backbone.embed(torch.tensor([ord(" ")]))
    assert torch.equal(two[before + 197 : before + 198], space)


@pytest.mark.parametrize("family", ["dream", "lavida_dream"])
def test_dreams_tokenizer_is_qwen2s_and_its_code_stays_unread(folder_of, family):
    folder = folder_of(family)
    tokenizer = load_tokenizer(folder)
    (head, end), eos, mask, words = DREAM_IDS[family]
    assert len(tokenizer) == words
    assert tokenizer.encode("<|im_start|>Ho Ho<|im_end|>") == [head, 256, ord(" "), 256, end]
    assert tokenizer.encode("<|endoftext|><|mask|>") == [eos, mask]
    assert tokenizer.decode([head, 256, *"ñ 3".encode(), end, eos]) == "Hoñ 3"
    seer_dllm.load(folder)
    assert (folder / "tokenization_dream.py").is_file() and not (folder / "ran").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_ends_of_turn_and_eos_end_an_answer(folder_of, family):
    model = seer_dllm.load(folder_of(family))
    end_of_turn = {"mmada": 289} | {f: ids[0][-1] for f, ids in (LLADA_IDS | DREAM_IDS).items()}
    eos = model.backbone.config.eos_id
    assert model.end_ids == (eos, end_of_turn[family])
    for end in model.end_ids:
        draft = [*b"Hi", end, *b"and more", eos]
        config = GenerationConfig(window=len(draft))
        (result,) = seer_dllm.generate(model, ["How many?"], config=config, drafts=[draft])
        assert (result.text, result.ids, result.finish_reason) == ("Hi", [*b"Hi"], "end")
    draft = [*b"Hi"]
    (result,) = seer_dllm.generate(model, ["How many?"], config=GenerationConfig(window=2), drafts=[draft])
    assert (result.text, result.finish_reason) == ("Hi", "length")


def answer(capsys, folder, *more) -> dict:
    argv = ["generate", "--model", folder, "--prompt", "How many?", "--window", "16", "--steps", "4", "--json", *more]
    assert main([str(a) for a in argv]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out) | {"stderr": err}
    assert report["window_tokens"] == len(report["window_ids"]) == 16
    assert report["useful_tokens"] == len(report["ids"]) <= 16 and isinstance(report["text"], str)
    assert report["finish_reason"] in ("end", "length") and report["steps"] == 4
    assert report["seconds"] > 0 and report["reason"] == "window too small"
    return report


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_command_answers_with_text_alone(folder_of, capsys, family, cache):
    """4 steps on prompt and window; what is fed by the later ones depends on the cache."""
    report = answer(capsys, folder_of(family), "--cache", cache, "--block", "8")
    prompt = report["prompt_tokens"]
    assert report["settings"]["cache"] == cache
    fed = {
        "none": 4 * (prompt + 16),
        "prompt": prompt + 4 * 16,
        "prefix": 2 * (prompt + 16) + 16 + 8,
        "dual": 2 * (prompt + 16) + 8 + 8,
    }
    approximate = cache == "prompt" and family not in LAVIDA
    said = f"seer generate: the prompt cache is an approximation for {family} models"
    assert report["stderr"].startswith(said) if approximate else not report["stderr"]
    assert report["stderr"].count("\n") == approximate
    assert report["token_forwards"] == fed[cache] and report["forwards"] == 4 + (cache == "prompt")


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("family", LAVIDA)
def test_the_command_answers_with_pictures(folder_of, pictures, capsys, family, cache):
    folder = folder_of(family)
    bare = answer(capsys, folder, "--cache", cache)["prompt_tokens"]
    one = answer(capsys, folder, "--cache", cache, "--image", pictures[0])
    assert one["prompt_tokens"] == bare + 1 + 196 + 28 * 29
    two = answer(capsys, folder, "--cache", cache, "--image", pictures[0], "--image", pictures[1])
    assert two["prompt_tokens"] == bare + 2 + 2 * 197
    assert one["window_ids"] != two["window_ids"]


@pytest.mark.parametrize("family", ["llada", "llada_v", "dream"])
def test_text_models_read_no_pictures(folder_of, pictures, capsys, family):
    argv = ["generate", "--model", folder_of(family), "--prompt", "x", "--image", pictures[0]]
    assert main([str(a) for a in argv]) == 2
    error = capsys.readouterr().err
    assert f"images must be empty for a {family} model, which has no image tower, got 1" in error
    assert error.count("\n") == 1


SETTINGS = {
    "window": 64, "steps": 32, "block": 32, "schedule": "dream", "shift": 2.0, "eps": 0.01, "times": 64,
    "commit": "low_confidence", "threshold": 0.5, "hold_back": True, "factor": None, "temperature": 0.5, "top_p": 0.9,
    "top_k": 7, "seed": 3, "cfg_scale": 0.5, "cache": "dual", "suppress_eos": True, "defer_end": True,
    "stop": ["a", "b"],
}  # fmt: skip


def test_every_setting_has_an_option_and_is_reported(folder_of, capsys):
    argv = ["generate", "--model", str(folder_of("dream")), "--prompt", "How many?", "--json"]
    for name, value in SETTINGS.items():
        option = "--" + name.replace("_", "-")
        argv += [option] if value is True else [x for v in value for x in (option, v)] if name == "stop" else []
        argv += [option, str(value)] if value not in (True, None) and name != "stop" else []
    assert main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    truncation = report["settings"].pop("truncation")
    assert report["settings"] == {"model": str(folder_of("dream"))} | SETTINGS
    assert set(SETTINGS) == set(GenerationConfig.__dataclass_fields__)
    assert (truncation["step0"], truncation["steps_policy"], truncation["safety_net"]) == ("restart", "rescale", True)
    assert truncation["profile"]["margin"] == 16


@pytest.mark.parametrize(
    ("options", "step0"),
    [
        ([], "carry"),
        (["--cache", "prefix"], "restart"),
        (["--cache", "dual", "--step0", "carry"], "carry"),
        (["--step0", "restart"], "restart"),
    ],
)
def test_step0_is_reported_as_it_is_done(folder_of, capsys, options, step0):
    argv = ["generate", "--model", str(folder_of("llada")), "--prompt", "How many?", "--window", "8", "--steps", "1"]
    assert main([*argv, "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["truncation"]["step0"] == step0
    assert main([*argv, "--json", *options, "--stock"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["truncation"] is None
