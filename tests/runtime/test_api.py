"""Arguments of `load` and `generate`: each bad one is named before anything runs; stop strings; streaming."""

import pytest
import torch
from PIL import Image
from scripted import GOLDEN, MASK, Script, Scripted, llada, random_prompt, words

from seer_dllm import GenerationConfig, Profile, Truncation, generate, load


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"window": 8}}, r"config must be a GenerationConfig or one per prompt, got \{'window': 8\}"),
        ({"config": [GenerationConfig()] * 2}, r"config must be one value or one per prompt \(1\), got 2"),
        ({"truncation": True}, "truncation must be a .*Truncation.* or one per prompt, got True"),
        ({"truncation": "off"}, "truncation must be a .*Truncation.* or one per prompt, got 'off'"),
        ({"drafts": [[1.5, 2.5]]}, r"drafts\[0\] must hold whole numbers, got torch.float32"),
        ({"drafts": [[3, 512]]}, r"drafts\[0\] ids must be in \[0, 512\), got 3..512"),
        ({"drafts": [[1] * 200]}, r"drafts\[0\] must hold at most window=128 ids, got \[200\]"),
        ({"images": [["absent.png"]]}, r"images\[0\] must be empty beside embeddings"),
        ({"images": [3]}, r"images\[0\] must be a picture or a list of pictures, got a int"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(llada(), [random_prompt(0, 4)], **arguments)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("text", "prompts must be a list with one entry per row, got a str"),
        ([None], r"prompts\[0\] must be a text or float embeddings \[P, 64\], got a NoneType"),
        ([[1, 2]], r"prompts\[0\] must be a text or float embeddings \[P, 64\], got a list"),
        (
            [torch.tensor([1, 2])],
            r"prompts\[0\] must be a text or float embeddings .*, got a torch.int64 tensor",
        ),
        ([torch.zeros(3, 32)], r"prompts\[0\] must have shape \[P, 64\], got \[3, 32\]"),
        ([torch.zeros(4000, 64)], r"prompts\[0\] and window must fit the model's 4096 positions, got 4000 \+ 128"),
        (["text"], "checkpoint must hold tokenizer.json"),
    ],
)
def test_bad_prompts(prompts, message):
    with pytest.raises(ValueError, match=message):
        generate(llada(), prompts)


def test_pictures_need_a_tower():
    with pytest.raises(ValueError, match="images must be empty for a llada model, which has no image tower, got 1"):
        generate(llada(), ["text"], images=[Image.new("RGB", (8, 8))])


def test_masks_in_a_prompt_are_refused():
    with pytest.raises(ValueError, match="prompt must not hold the mask id 500"):
        llada().embed_ids(torch.tensor([1, 500]))
    with pytest.raises(ValueError, match=r"prompt ids must be in \[0, 512\), got 1..512"):
        llada().embed_ids(torch.tensor([1, 512]))


def test_profiles_of_one_batch_agree_and_fit_the_model():
    rows = [random_prompt(i, 4) for i in range(2)]
    different = [Truncation(profile=Profile(margin=m)) for m in (1, 2)]
    with pytest.raises(ValueError, match="truncation must name one profile for the whole batch, got 2"):
        generate(llada(), rows, truncation=different)
    deep = Truncation(profile=Profile(probe_layers=(3, 8)))
    with pytest.raises(ValueError, match=r"probe_layers must be below the model's 8 layers, got \(3, 8\)"):
        generate(llada(), rows, truncation=deep)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_load_refuses_dtypes(dtype):
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16, got"):
        load(GOLDEN / "llada", dtype=dtype)


def test_empty_batch():
    assert generate(llada(), []) == []


def test_stop_string_bounds_text_ids_and_count():
    scripted = Scripted([Script(20)])
    config = GenerationConfig(window=64, stop=("w7 w8", "w5"))
    result = scripted.answer(config)
    assert result.text == "w0 w1 w2 w3 w4 "
    assert result.ids == words(5) and result.useful_tokens == 5
    assert result.finish_reason == "stop"
    spanning = scripted.answer(GenerationConfig(window=64, stop=("4 w5 w",)))
    assert spanning.text == "w0 w1 w2 w3 w" and spanning.ids == words(6)
    assert scripted.answer(GenerationConfig(window=64, stop=("w77",))).finish_reason == "end"


def test_on_step_sees_every_step():
    seen = []
    scripted = Scripted([Script(10)])
    result = scripted.answer(
        GenerationConfig(window=32, steps=8), None, on_step=lambda row: seen.append(int((row.ids != MASK).sum()))
    )
    assert seen == [4, 8, 12, 16, 20, 24, 28, 32] and result.steps == 8
