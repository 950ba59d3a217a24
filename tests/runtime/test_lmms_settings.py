"""What `gen_kwargs` of lmms-eval's tasks ask for, those of the commands in bench/LMMS_EVAL.md among them."""

import re
from pathlib import Path

import pytest

from seer_dllm import GenerationConfig

TASK = {"max_new_tokens": 16, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": ["\n\n"]}


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        # MME's task file and what the library adds, asked of each reference as its evaluation does
        ("lavida_llada", TASK, GenerationConfig(window=16)),
        (
            "lavida_dream",
            TASK | {"alg": "topk_margin", "prefix_lm": True},
            GenerationConfig(window=16, schedule="dream", commit="margin", cache="prompt"),
        ),
        ("mmada", TASK | {"max_new_tokens": 2, "steps": 2, "block_length": 2}, GenerationConfig(window=2)),
        # LaViDa's captions: half of the steps, in a schedule
        (
            "lavida_llada",
            {"max_new_tokens": 32, "prefix_lm": True, "step_ratio": 0.5, "schedule": "shift", "schedule__shift": 0.33},
            GenerationConfig(window=32, steps=16, schedule="shift", shift=0.33, times=32, cache="prompt"),
        ),
        (
            "lavida_dream",
            {"max_new_tokens": 32, "prefix_lm": True, "step_ratio": 0.5, "alg": "topk_margin"},
            GenerationConfig(window=32, steps=16, times=32, schedule="dream", commit="margin", cache="prompt"),
        ),
        # LLaDA-V's ChartQA, MMaDA's MathVerse, LLaDA's GPQA
        (
            "llada_v",
            {
                "temperature": 0, "cfg": 0, "remasking": "low_confidence", "gen_length": 16, "block_length": 16,
                "gen_steps": 8, "stopping_criteria": ["\n"], "until": ["\n\n"],
            },
            GenerationConfig(window=16, steps=8, stop=("\n",)),
        ),
        (
            "mmada",
            {"max_new_tokens": 256, "steps": 128, "block_length": 32, "cfg_scale": 1.5},
            GenerationConfig(window=256, steps=128, block=32, cfg_scale=1.5),
        ),
        (
            "llada",
            {"gen_length": 64, "confidence_eos_eot_inf": True, "logits_eos_inf": False},
            GenerationConfig(window=64, defer_end=True),
        ),
        # what is left open
        ("lavida_llada", {}, GenerationConfig(window=256, block=128)),
        ("lavida_dream", {}, GenerationConfig(window=256, schedule="dream", commit="entropy")),
        ("mmada", {"max_new_tokens": 100}, GenerationConfig(window=100)),
        ("mmada", {"max_new_tokens": None, "until": None, "steps": None}, GenerationConfig(window=256, block=128)),
        # steps of a block: at most its slots, or a share of them
        ("mmada", {"block_length": 64, "step_per_block": 16}, GenerationConfig(window=256, block=64, steps=64)),
        ("mmada", {"block_length": 64, "step_per_block": 128}, GenerationConfig(window=256, block=64)),
        ("mmada", {"block_length": 64, "step_ratio": 0.3}, GenerationConfig(window=256, block=64, steps=76, times=256)),
        # stop strings, one or several, each once
        ("llada", {"until": "\n\n"}, GenerationConfig(window=256, block=128)),
        ("llada", {"until": ""}, GenerationConfig(window=256, block=128)),
        ("llada", {"until": ["\n\n", "Q:"]}, GenerationConfig(window=256, block=128, stop=("\n\n", "Q:"))),
        (
            "llada",
            {"until": ["A:", "Q:"], "stopping_criteria": "A:", "stop": ["\n\n"]},
            GenerationConfig(window=256, block=128, stop=("A:", "Q:", "\n\n")),
        ),
        # sampling, our own names, rules by LaViDa's spelling
        (
            "dream",
            {"window": 32, "temperature": 0.2, "top_p": 0.95, "top_k": 5, "do_sample": True},
            GenerationConfig(window=32, temperature=0.2, top_p=0.95, top_k=5, schedule="dream", commit="entropy"),
        ),
        ("llada", {"window": 8, "top_p": 1.0}, GenerationConfig(window=8)),
        ("llada", {"window": 8, "remasking": "entrophy"}, GenerationConfig(window=8, commit="entropy")),
        ("dream", {"window": 8, "alg": "maskgit_plus"}, GenerationConfig(window=8, schedule="dream")),
        (
            "llada",
            {"window": 64, "block": 32, "cache": "dual", "threshold": 0.9, "seed": 7},
            GenerationConfig(window=64, block=32, cache="dual", threshold=0.9, seed=7),
        ),
        ("llada", {"window": 8, "prefix_lm": False}, GenerationConfig(window=8)),
    ],
)  # fmt: skip
def test_settings_of_a_task(lmms, told, family, given, expected):
    before = dict(given)
    assert lmms.settings(given, family) == expected
    assert given == before and told() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"refix_lm": True}, "refix_lm must be one of window, .*it is none, got True"),
        ({"max_new_tokens": 16, "gen_length": 16}, "gen_length must be left out beside max_new_tokens.*got 16"),
        ({"cache": "none", "prefix_lm": True}, "prefix_lm must be left out beside cache.*got True"),
        ({"num_beams": 5}, "num_beams must be 1, got 5"),
        ({"repetition_penalty": 1.1}, "repetition_penalty must be 1, got 1.1"),
        ({"max_new_tokens": "many"}, "window must be a positive whole number, got 'many'"),
        ({"max_new_tokens": 0}, "window must be a positive whole number, got 0"),
        ({"max_new_tokens": 300}, "window must be a multiple of block=128, got 300"),
        (
            {"max_new_tokens": 64, "block_length": 128, "step_ratio": 0.5},
            "window must be a multiple of block=128, got 64",
        ),
        ({"block_length": 0, "step_ratio": 0.5}, "block must be a positive whole number, got 0"),
        ({"steps": 8, "step_ratio": 0.5}, "steps must be given by one name"),
        ({"step_per_block": 8, "step_ratio": 0.5}, "steps must be given by one name"),
        ({"step_ratio": 2.0}, r"step_ratio must be a number in \[0, 1\], got 2.0"),
        ({"step_ratio": 0.001}, "steps must be a positive whole number, got 0"),
        ({"step_per_block": 0}, "step_per_block must be a positive whole number, got 0"),
        ({"remasking": "origin"}, "commit must be one of .*got 'origin'"),
        ({"alg": ["entropy"]}, r"commit must be one of .*got \['entropy'\]"),
        ({"prefix_lm": 1}, "prefix_lm must be True or False, got 1"),
        ({"do_sample": "no"}, "do_sample must be True or False, got 'no'"),
        ({"until": 5}, "until must be a string or a list of strings, got 5"),
        ({"stop": ["A", 5]}, "stop must be a string or a list of strings, got"),
    ],
)
def test_settings_that_make_no_sense(lmms, given, message):
    with pytest.raises(ValueError, match=message):
        lmms.settings(given, "lavida_llada")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"image_aspect_ratio": "original"},
            "image_aspect_ratio='original' is not used: pictures are prepared as the checkpoint says",
        ),
        ({"do_sample": False, "temperature": 0.2}, "temperature=0.2 is not used with do_sample=False"),
        ({"do_sample": False, "top_p": 0}, "top_p=0 is not used with do_sample=False"),
        ({"do_sample": False, "top_k": 5}, "top_k=5 is not used with do_sample=False"),
    ],
)
def test_settings_that_change_nothing_are_told_of(lmms, told, given, message):
    for _ in range(2):  # as for each request of a task
        assert lmms.settings(given, "mmada") == GenerationConfig(window=256, block=128)
    assert told() == [message]


PAGE = (Path(__file__).parents[2] / "bench/LMMS_EVAL.md").read_text()


def page_table():
    """Task -> LaViDa's, LLaDA-V's and MMaDA's tokens, block and steps as the page's table has them."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("|") and line.count("|") == 6]
    return {task: row[2:] for row in rows for task in re.findall("`([a-z0-9_]+)`", row[1])}


def test_the_commands_of_the_page_are_its_table(lmms):
    """The page's table follows `tests/golden/data/NOTES.md`; each of its commands must ask for just that."""
    table, lists, family, seen = page_table(), {}, None, set()
    column = {"lavida_llada": 0, "lavida_dream": 0, "mmada": 2}
    for line in PAGE.replace("\\\n", "").splitlines():
        if found := re.fullmatch(r"(\w+)=([a-z0-9_,]+)", line):
            lists[found[1]] = found[2]
        if found := re.match("(LaViDa-LLaDA|LaViDa-Dream|MMaDA)[,:]", line):
            family = found[1].lower().replace("-", "_")
        if not (found := re.fullmatch(r"run --tasks (\S+) +--gen_kwargs (\S+)", line)):
            continue
        tasks = re.sub(r"\$(\w+)", lambda name: lists[name[1]], found[1]).split(",")
        given = {name: parsed(value) for name, value in (pair.split("=") for pair in found[2].split(","))}
        config = lmms.settings(given, family)
        assert config.stop == () and config.temperature == 0
        assert config.cache == ("prompt" if family == "lavida_dream" or "coco2017_cap_val_lite" in tasks else "none")
        for task in tasks:
            seen.add((family, task))
            cell = table[task][column[family]]
            assert cell.split(",")[0].strip() == f"{config.window} / {config.block} / {config.steps}", task
    wanted = {(family, task) for family, i in column.items() for task, row in table.items() if row[i].strip() != "–"}
    assert seen == wanted and len(wanted) == 3 * 15


def parsed(value):
    """As lmms-eval reads a value of its command line."""
    if value in ("True", "False"):
        return value == "True"
    return int(value) if value.isdecimal() else float(value) if re.fullmatch(r"[0-9.]+", value) else value
