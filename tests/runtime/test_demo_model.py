"""The embedded model: the mechanism is real on sheets it has never seen."""

import numpy as np
import pytest
import torch
from PIL import Image

from seer_dllm import GenerationConfig, Truncation, generate, load
from seer_dllm.demo import data, model_folder
from seer_dllm.demo.vocabulary import build_tokenizer

WINDOW = 128


@pytest.fixture(scope="module")
def answers():
    """32 held-out questions, every kind four times: (true length in tokens, Seer's result, stock's result)."""
    model = load(model_folder())
    asked = data.heldout_questions(32, seed=11)
    prompts = [model.embed_prompt(question, [Image.fromarray(image)]) for image, _, question, _ in asked]
    config = GenerationConfig(window=WINDOW, steps=WINDOW // 4)
    seer = generate(model, prompts, config=config, truncation=Truncation())
    stock = generate(model, prompts, config=config, truncation=None)
    lengths = [len(model.encode(truth)) for *_, truth in asked]
    return list(zip(lengths, seer, stock, strict=True))


def test_padding_is_quieter_than_content(answers):
    """The paper's picture at step 0, against the true ends."""
    content = [np.mean(seer.sparsity[:n]) for n, seer, _ in answers]
    padding = [np.mean(seer.sparsity[n + 1 :]) for n, seer, _ in answers]
    assert np.mean(padding) - np.mean(content) > 0.1
    assert all(p > c for c, p in zip(content, padding, strict=True))


def test_windows_are_cut_to_the_content(answers):
    assert all(seer.truncated for _, seer, _ in answers)
    assert sum(seer.window_tokens for _, seer, _ in answers) < WINDOW * len(answers) / 2
    lengths = [n for n, *_ in answers]
    boundaries = [seer.boundary for _, seer, _ in answers]
    assert np.corrcoef(lengths, boundaries)[0, 1] > 0.8


def test_no_answer_is_cut_short(answers):
    for _, seer, stock in answers:
        assert seer.finish_reason == "end"
        if stock.finish_reason == "end":
            assert seer.window_tokens >= stock.useful_tokens


def test_work_shrinks_with_the_window(answers):
    assert sum(s.token_forwards for _, s, _ in answers) < 0.5 * sum(k.token_forwards for *_, k in answers)
    assert all(seer.steps <= stock.steps for _, seer, stock in answers)


def test_restart_is_stock_on_the_short_window():
    model = load(model_folder())
    image, _, question, _ = data.heldout_questions(6, seed=4)[5]
    prompt = model.embed_prompt(question, [Image.fromarray(image)])
    config = GenerationConfig(window=WINDOW)
    (seer,) = generate(model, [prompt], config=config, truncation=Truncation(step0="restart"))
    assert seer.truncated and not seer.extended
    short = GenerationConfig(window=seer.window_tokens)
    (stock,) = generate(model, [prompt], config=short, truncation=None)
    assert seer.window_ids == stock.window_ids


def test_tokenizer_is_the_tasks():
    text = "describe the sheet ."
    model = load(model_folder())
    assert model.encode(text) == build_tokenizer().encode(text, add_special_tokens=False).ids
    assert model.backbone.config.vocab_size == build_tokenizer().get_vocab_size()
    assert torch.equal(model.embed_prompt(text), model.embed_prompt(text.upper()))
    size = sum(f.stat().st_size for f in model_folder().iterdir())
    assert size <= 8_000_000
