"""The rivals of Seer's truncation beside each other and beside Seer, on a trained model, and what they refuse."""

import pytest
import torch
from PIL import Image
from scripted import EAGER, LAYERS, Script, Scripted, Written, differences, random_prompt, tiny

from seer_dllm import Engine, GenerationConfig, Request, Truncation, generate, load
from seer_dllm.cli import main
from seer_dllm.demo import data, model_folder
from seer_dllm.rivals import EosDensity, EosLogit, Grow

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
METHODS = ["eos_logit", "eos_density", "grow", "early_stop"]


def using(method, **settings) -> Truncation:
    return Truncation(method=method, **settings)


def test_work_is_booked_whatever_the_method():
    scripted = Scripted([Script(n) for n in (0, 3, 20, 45, 64)])
    config = GenerationConfig(window=64, block=16, steps=32)
    results = scripted.answers(config, [using(method) for method in ("seer", *METHODS)])
    assert sum(r.token_forwards for r in results) * LAYERS == scripted.backbone.token_layers
    assert [r.useful_tokens for r in results] == [0, 3, 20, 45, 64]


def mixture(family: str) -> tuple[list, list, list]:
    """Rows of all methods, with other windows, blocks, steps, rules and caches."""
    numbers = [
        EosLogit(survival=0.9), Grow(start=8, check=4, enough=0.01, unsure=0.5),
        EosDensity(low=0.01, high=0.02, unit=2), "early_stop", "seer", "none",
        EosLogit(survival=0.99), EosDensity(low=0.5, unit=3), Grow(start=4, check=2),
    ]  # fmt: skip
    settings = [
        {"cache": "prefix"}, {"cache": "prompt"}, {"block": 8, "steps": 8}, {"block": 8, "cache": "dual"},
        {"block": 16}, {}, {"cfg_scale": 1.0}, {"threshold": 0.2, "cache": "prompt"},
        {"temperature": 0.7, "seed": 5, "block": 16},
    ]  # fmt: skip
    prompts = [random_prompt(i, 3 + i, family) for i in range(len(numbers))]
    return prompts, [GenerationConfig(window=32, **s) for s in settings], [Truncation(EAGER, method=m) for m in numbers]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_of_a_batch_are_the_rows_alone(family):
    model, (prompts, configs, truncations) = tiny(family), mixture(family)
    together, alone = Written(), Written()
    results = generate(model, prompts, config=configs, truncation=truncations, on_step=together)
    assert len({r.window_tokens for r in results}) > 1 and any(r.extended for r in results)
    for i, result in enumerate(results):
        (one,) = generate(model, [prompts[i]], config=configs[i], truncation=truncations[i], on_step=alone)
        assert not differences(result, one) and result.extended == one.extended
        assert together.ids[i] == alone.ids.pop(0)


@pytest.mark.parametrize("mode", ["varlen", "static", "eager"])
def test_rows_of_an_engine_are_the_rows_alone(mode):
    model, (prompts, configs, truncations) = tiny("llada"), mixture("llada")
    rows = list(zip(prompts, configs, truncations, strict=True))
    engine = Engine(model, max_batch=4, mode=mode)
    answers = engine.generate([Request(p, config=c, truncation=t) for p, c, t in rows])
    for (prompt, config, truncation), answer in zip(rows, answers, strict=True):
        (one,) = generate(model, [prompt], config=config, truncation=truncation)
        assert answer.result.window_ids == one.window_ids and answer.result.steps == one.steps


@pytest.fixture(scope="module")
def demo():
    model = load(model_folder())
    asked = data.heldout_questions(6, seed=11)
    return model, [model.embed_prompt(text, [Image.fromarray(image)]) for image, _, text, _ in asked]


@pytest.mark.parametrize("cache", ["none", "prompt"])
def test_early_stop_and_none_answer_as_stock_does(demo, cache):
    model, prompts = demo
    config = GenerationConfig(window=64, block=16, steps=16, cache=cache)
    stock = generate(model, prompts, config=config, truncation=None)
    for one, other in zip(generate(model, prompts, config=config, truncation=using("none")), stock, strict=True):
        assert not differences(one, other)
    early = generate(model, prompts, config=config, truncation=using("early_stop"))
    assert any(one.truncated for one in early)
    for one, other in zip(early, stock, strict=True):
        assert (one.text, one.ids, one.finish_reason) == (other.text, other.ids, other.finish_reason)
        assert one.window_ids == other.window_ids[: one.window_tokens]


@pytest.mark.parametrize("method", ["eos_logit", "eos_density", Grow(start=8, check=8)])
def test_rivals_answer_the_demo(demo, method):
    model, prompts = demo
    config = GenerationConfig(window=64, steps=16)
    stock = generate(model, prompts, config=config, truncation=None)
    results = generate(model, prompts, config=config, truncation=using(method))
    assert sum(r.ids == s.ids for r, s in zip(results, stock, strict=True)) >= 5
    assert sum(r.window_tokens < 64 for r in results) >= 3


@pytest.mark.parametrize("method", ["eos_logit", "eos_density", "grow"])
@pytest.mark.parametrize("name", ["suppress_eos", "defer_end"])
def test_ends_that_are_not_predicted(method, name):
    scripted, config = Scripted([Script(5)]), GenerationConfig(window=64, **{name: True})
    with pytest.raises(ValueError, match=f"{name} must be False with method '{method}'.*got True"):
        scripted.answer(config, using(method))
    assert not scripted.backbone.calls


@pytest.mark.parametrize("method", ["eos_density", "grow"])
@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ({"cache": "dual"}, {}, "cache must be none or prompt with method '{}', which moves slots, got 'dual'"),
        ({"cache": "prefix"}, {}, "cache must be none or prompt with method '{}', which moves slots, got 'prefix'"),
        ({}, {"steps_policy": "keep"}, "steps_policy must be 'rescale' with method '{}'"),
        ({}, {"drafts": [torch.tensor([3])]}, "drafts must be None with method '{}', which moves slots, got one"),
    ],
)
def test_what_moving_slots_rules_out(method, config, more, message):
    scripted, more = Scripted([Script(5)]), dict(more)
    truncation = using(method, steps_policy=more.pop("steps_policy", "rescale"))
    with pytest.raises(ValueError, match=message.format(method)):
        scripted.answer(GenerationConfig(window=64, block=16, **config), truncation, **more)
    assert not scripted.backbone.calls


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: using("crop"),
            "method must be one of seer, eos_logit, eos_density, grow, early_stop, none, got 'crop'",
        ),
        (lambda: using(None), "method must be one of .*, got None"),
        (lambda: EosLogit(survival=2), "survival must be a number in .0, 1., got 2"),
        (lambda: EosDensity(low=0.7), "low must be a number in .0, 0.6., got 0.7"),
        (lambda: EosDensity(unit=0), "unit must be a positive whole number, got 0"),
        (lambda: Grow(start=0), "start must be a positive whole number, got 0"),
        (lambda: Grow(enough=float("nan")), "enough must be a number in .0, 1., got nan"),
    ],
)
def test_bad_numbers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_command_line_names_a_method(capsys):
    assert main(["generate", "--model", "demo", "--prompt", "hi", "--method", "crop"]) == 2
    assert "method must be one of seer, eos_logit" in capsys.readouterr().err
    argv = ["--model", "demo", "--prompt", "read row 1 .", "--window", "16", "--steps", "2", "--method", "grow"]
    assert main(["generate", *argv, "--cache", "dual"]) == 2
    assert "cache must be none or prompt with method 'grow'" in capsys.readouterr().err
    assert main(["generate", *argv, "--json"]) == 0
    assert '"method": "grow"' in capsys.readouterr().out


def test_eval_compares_a_rival_with_stock(tmp_path, capsys):
    argv = ["eval", "--model", "demo", "--data", "demo", "--samples", "3", "--metric", "exact", "--window", "32"]
    assert main([*argv, "--steps", "4", "--method", "eos_logit", "--out", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert "### eos_logit against stock" in report and "| 3 questions | stock | eos_logit |" in report
    assert main([*argv, "--suppress-eos", "--method", "eos_logit", "--out", str(tmp_path / "none")]) == 2
    assert "suppress_eos must be False with method 'eos_logit'" in capsys.readouterr().err
