"""The runtime on a CUDA device: what it answers there is what it answers on the CPU."""

import pytest
import torch
from PIL import Image

from seer_dllm import Engine, GenerationConfig, Truncation, generate, load
from seer_dllm.capture import CudaGraphs
from seer_dllm.demo import data, model_folder
from seer_dllm.engine import Request


def answers(device, cache, truncation):
    """Of eight held-out questions to the demo model, in one batch."""
    model = load(model_folder(), device=device)
    asked = data.heldout_questions(8, seed=21)
    config = GenerationConfig(window=64, block=32, steps=32, cache=cache)
    return generate(
        model,
        [question for _, _, question, _ in asked],
        images=[Image.fromarray(image) for image, *_ in asked],
        config=config,
        truncation=truncation,
    )


@pytest.mark.needs_cuda
@pytest.mark.parametrize("truncation", [None, Truncation()], ids=["stock", "cut"])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_answers_are_those_of_the_cpu(cache, truncation):
    """The demo model is sure of its tokens: sums in another order don't change one."""
    assert not torch.backends.cuda.matmul.allow_tf32
    ours, theirs = answers("cuda", cache, truncation), answers("cpu", cache, truncation)
    assert [r.text for r in ours] == [r.text for r in theirs]
    assert [(r.boundary, r.window_tokens, r.finish_reason, r.steps) for r in ours] == [
        (r.boundary, r.window_tokens, r.finish_reason, r.steps) for r in theirs
    ]
    assert any(r.truncated for r in ours) == (truncation is not None)


def captured_answers(device, mode, cache, capturer):
    """Texts of the same questions by an engine in bfloat16, where packed groups are captured as well, and its stats."""
    model = load(model_folder(), device=device, dtype="bfloat16")
    config = GenerationConfig(window=64, block=32, steps=32, cache=cache)
    asked = data.heldout_questions(8, seed=21)
    engine = Engine(model, mode=mode, capturer=capturer)
    requests = [Request(question, [Image.fromarray(image)], config) for image, _, question, _ in asked]
    return [answer.result.text for answer in engine.generate(requests, progress=False)], engine.stats()


@pytest.mark.needs_cuda
@pytest.mark.parametrize("mode", ["static", "varlen"])
@pytest.mark.parametrize("cache", ["none", "prompt", "dual"])
def test_graphs_answer_as_plain_launches_do(mode, cache):
    plain, _ = captured_answers("cuda", mode, cache, None)
    captured, stats = captured_answers("cuda", mode, cache, CudaGraphs())
    assert captured == plain
    assert stats.hits > stats.captures > 0 and stats.misses == 0 and stats.captured_bytes > 0
