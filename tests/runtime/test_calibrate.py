"""Calibration: collecting and resuming, sample files, refusals, and whole runs."""

import json
import math
import re
from statistics import fmean
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from scripted import llada, tiny
from toy import EOS, MASK, Toy

import seer_dllm
from seer_dllm import GenerationConfig, Profile, api, calibrate
from seer_dllm.calibrate import Refused
from seer_dllm.cli import main
from seer_dllm.collect import Collector, Quantiles, Sample, Sweep, read_samples
from seer_dllm.search import Costs, Measured, Search

CONFIG = GenerationConfig(window=64, steps=16)


# ---- collecting --------------------------------------------------------------------------------------------


def questions(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 40, (2 + i % 4,), generator=generator) for i in range(n)]
    return [Sample(llada().embed_ids(prompt)) for prompt in ids]


def same(a: Measured, b: Measured) -> bool:
    names = ("needs", "ended", "prompts", "steps", "unread")
    equal = all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)
    return equal and a.thresholds == b.thresholds and np.array_equal(a.shares, b.shares)


def test_collecting_goes_on_where_it_stopped(tmp_path):
    collector, samples = Collector(llada(), GenerationConfig(window=32, steps=4), 3), questions(10)
    whole = collector.collect(samples, tmp_path / "whole.jsonl")
    work, calls, real = tmp_path / "work.jsonl", [], api.generate

    def stopping(model, prompts, **more):
        calls.append(len(prompts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(model, prompts, **more)

    with mock.patch("seer_dllm.api.generate", stopping), pytest.raises(KeyboardInterrupt):
        collector.collect(samples, work)
    assert calls == [8, 3, 3, 3]  # eight for the thresholds; six are kept
    with work.open("a") as file:
        file.write('{"needs": 3, "en')  # a stop while writing
    calls.clear()
    with mock.patch("seer_dllm.api.generate", lambda m, p, **k: calls.append(len(p)) or real(m, p, **k)):
        assert same(collector.collect(samples, work), whole)
        assert calls == [3, 1]
        assert same(collector.collect(samples, work), whole) and calls == [3, 1]
    for other in (Collector(llada(), GenerationConfig(window=32, steps=8), 3), Collector(tiny("llada_gqa"), CONFIG, 3)):
        with pytest.raises(ValueError, match="work '.*' must belong to this model"):
            other.collect(samples, work)
    with pytest.raises(ValueError, match="must belong to this model"):
        collector.collect(questions(10, seed=1), work)


@pytest.mark.parametrize("text", ["a diary", '{"model": 3}\n', "[]\n"])
def test_another_file_is_not_touched(tmp_path, text):
    work = tmp_path / "work.jsonl"
    work.write_text(text)
    with pytest.raises(ValueError, match="work '.*' must"):
        Collector(llada(), CONFIG, 3).collect(questions(4), work)
    assert work.read_text() == text


@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
@pytest.mark.parametrize("cache", ["none", "prompt", "prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "lavida_dream"])
def test_shares_are_those_of_the_probe(family, cache, tmp_path):
    """The curve of any profile is the one that a run with it reports, in rows of several lengths and one without."""
    model, config = tiny(family), GenerationConfig(window=48, steps=4, cache=cache)
    ids = [torch.arange(1, 1 + n) for n in (5, 0, 3, 4)]
    samples = [Sample(model.embed_ids(i)) for i in ids]
    measured = Collector(model, config, 3).collect(samples, tmp_path / "work.jsonl")
    for offset in (0, 1):
        profile = Profile((1, 2, 3), measured.thresholds[7], margin=0, slot_offset=offset)
        results = seer_dllm.generate(
            model, [s.prompt for s in samples], config=config, truncation=seer_dllm.Truncation(profile)
        )
        curves = torch.tensor([result.sparsity for result in results])
        assert torch.allclose(measured.curves(profile), curves, atol=2e-5)
        found = Search(Costs(config, 8), 0.001, 0.95)._boundaries(measured, profile)
        assert found.tolist() == [result.boundary for result in results]
        stock = seer_dllm.generate(model, [s.prompt for s in samples], config=config, truncation=None)
        ends = [next((i for i, t in enumerate(r.window_ids) if t in model.end_ids), None) for r in stock]
        assert measured.needs.tolist() == [48 if end is None else end + 1 for end in ends]
        assert measured.prompts.tolist() == [5, 0, 3, 4] and measured.steps.tolist() == [r.steps for r in stock]


def test_what_the_probes_measure():
    act = torch.tensor([[0.0, -1.0, 2.0, -3.0], [0.5, 0.5, 0.5, math.nan]])
    sweep = Sweep((0,), 0.0, thresholds=(0.4, 1.5))
    assert sweep.measure(act).tolist() == [[0.25, 0.5], [0.0, 0.75]]
    assert Quantiles((0,), 0.0, thresholds=(0.0, 0.5, 1.0)).measure(act[:1]).tolist() == [[0.0, 1.5, 3.0]]


def lines(tmp_path, *entries):
    file = tmp_path / "data.jsonl"
    file.write_bytes(b"\n".join(e if isinstance(e, bytes) else json.dumps(e).encode() for e in entries))
    return file


def test_samples_of_a_file(tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "pictures" / "a.png")
    file = lines(tmp_path, {"prompt": "why ?"}, b"", {"prompt": "what ?", "images": ["pictures/a.png"]}, b" ")
    assert read_samples(file) == [
        Sample("why ?", id=1),
        Sample("what ?", (tmp_path / "pictures" / "a.png",), id=3),
    ]
    assert read_samples(lines(tmp_path)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: Expecting property name"),
        (b"\xff\xfe\xff", "line 2: 'utf-8' codec"),
        (["x"], "line 2: must be an object with prompt and, if any, images, answers and id, got a list"),
        ({"prompt": "x", "picture": "a.png"}, "if any, images, answers and id, got 'prompt', 'picture'"),
        ({}, "line 2: prompt must hold some text, got None"),
        ({"prompt": " "}, "line 2: prompt must hold some text, got ' '"),
        ({"prompt": "x", "images": "a.png"}, "line 2: images must be a list of paths, got 'a.png'"),
        ({"prompt": "x", "images": ["a.png"]}, "must be an existing file"),
        ({"prompt": "x", "images": ["data.jsonl"]}, "must be a readable"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    file = lines(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_samples(file)
    assert str(caught.value).startswith(f"{file}, line 2: ")


def test_a_sample_that_can_not_be_run_is_named(tmp_path):
    samples = [*questions(4), Sample("text, without a tokenizer")]
    with pytest.raises(ValueError, match=re.escape("samples[4]: checkpoint must hold tokenizer.json")):
        Collector(llada(), CONFIG, 3).collect(samples, tmp_path / "work.jsonl")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_cut": 0.0}, "max_cut must be a number in [1e-06, 0.5], got 0.0"),
        ({"confidence": 1.0}, "confidence must be a number in [0.5, 1], got 1.0"),
        ({"holdout": 1.5}, "holdout must be a number in [0, 1], got 1.5"),
        ({"batch": 0}, "batch must be a positive whole number, got 0"),
        ({"config": GenerationConfig(suppress_eos=True)}, "suppress_eos and defer_end must be off"),
        ({"config": GenerationConfig(window=16)}, "window must have at least 32 slots for calibration, got 16"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(more, message):
    with mock.patch.object(Collector, "collect") as collect, pytest.raises(ValueError, match=re.escape(message)):
        calibrate.calibrate(llada(), questions(80), **more)
    assert not collect.called


# ---- whole runs --------------------------------------------------------------------------------------------


class Ending(Toy):
    """Answers with `3 * first prompt token` words; with `shows`, its MLPs are loud up to there and quiet behind."""

    def __init__(self, shows: bool) -> None:
        super().__init__()
        self.shows = shows

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        position = torch.arange(tokens.shape[1]) - 3  # the prompts here have three tokens
        content = position < 3 * tokens[:, :1]
        logits = super().forward(tokens, content.float() if self.shows else None)
        logits[..., MASK] = -100.0
        logits[..., EOS] = torch.where(content, -100.0, 100.0)
        return logits


def wrapped(shows):
    with torch.no_grad():
        return seer_dllm.wrap(Ending(shows), mask_id=MASK, eos_id=EOS, check=False)


PROMPTS = [Sample([i % 9, 1, 2]) for i in range(90)]


def test_a_wrapped_model_is_calibrated(tmp_path):
    """The first layer shows all: quiet from the end token on, so one slot more is needed than the boundary.

    Answers without a word have no jump; 3, 6, ... 24 words need 4, 7, ... 25 slots: 8, 8, 16, 16, 16, 24, 24, 32.
    """
    model = wrapped(shows=True)
    found = calibrate.calibrate(model, PROMPTS, config=GenerationConfig(window=64, steps=8), max_cut=0.1)
    assert found.profile.probe_layers == (0,)
    assert found.profile.margin <= 1
    e = found.evidence
    assert (e["runtime"], e["cut_too_short"], e["proven"], e["samples"]) == ("wrap", 0, True, 90)
    model.profile = found.profile
    results = model.generate([s.prompt for s in PROMPTS[:9]], config=GenerationConfig(window=64, steps=8))
    assert [r.window_tokens for r in results[1:]] == [8, 8, 16, 16, 16, 24, 24, 32]
    assert not any(r.extended for r in results)


def test_its_twin_without_the_signal_is_refused():
    config = GenerationConfig(window=64, steps=8)
    with pytest.raises(
        Refused, match="no profile meets the bound and saves 10% of the work of a constant window, .*; best was"
    ):
        calibrate.calibrate(wrapped(shows=False), PROMPTS, config=config)


def test_random_weights_are_refused():
    samples = questions(60)
    with pytest.raises(Refused, match="stock's answers must end inside the window|no profile meets the bound"):
        calibrate.calibrate(llada(), samples, config=GenerationConfig(window=32, steps=2), batch=30)


@pytest.fixture(scope="module")
def built_in(tmp_path_factory):
    """`seer calibrate` on few of the built-in questions with few steps: exit code, the profile's file, the journal."""
    folder = tmp_path_factory.mktemp("calibrated")
    argv = ["calibrate", "--model", "demo", "--samples", "60", "--window", "64", "--steps", "8", "--batch", "30"]
    argv += ["--max-cut", "0.25"]  # what 30 samples can prove though three fail
    argv += ["--out", str(folder / "p.json"), "--work", str(folder / "work.jsonl")]
    return main(argv), folder, argv


def test_the_demo_model_is_calibrated(built_in, capsys):
    code, folder, argv = built_in
    assert code == 0
    content = json.loads((folder / "p.json").read_text())
    e = content["evidence"]
    assert (content["version"], e["data"], e["runtime"], e["samples"], e["tested_on"]) == (1, "demo", "native", 60, 30)
    assert e["settings"]["window"] == 64 and e["cut_too_short"] <= 3 and 0 < e["oracle_share"] < 0.8 > e["kept_share"]
    assert e["proven"] and e["samples_needed"] == 11  # 0.75^11 < 0.05
    behind = [share for offset, share in e["quiet_share_around_end"].items() if int(offset) > 0]
    before = [share for offset, share in e["quiet_share_around_end"].items() if int(offset) < -1]
    assert fmean(behind) > fmean(before) + 0.02
    model = seer_dllm.load(calibrate.model_folder(), profile=folder / "p.json")
    assert model.profile == Profile(**content["profile"])
    (folder / "p.json").unlink()
    pytest.importorskip("matplotlib")
    assert main([*argv, "--plot", str(folder / "curve.png")]) == 0  # from the journal alone
    out = capsys.readouterr().out
    assert "chosen: layer" in out and "on 30 samples that had no say" in out and f"written: {folder}" in out
    assert json.loads((folder / "p.json").read_text()) == content
    assert (folder / "curve.png").stat().st_size > 1000 and (folder / "work.jsonl").exists()


def test_a_refusal_writes_nothing(built_in, capsys, monkeypatch):
    _, folder, argv = built_in
    monkeypatch.setattr(calibrate, "LEAST_SAVED", 0.99)
    other = [str(folder / "other.json") if arg.endswith("p.json") else arg for arg in argv]
    assert main(other) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert "seer calibrate: no profile meets the bound and saves 99%" in err and "best was layer" in err
    assert not (folder / "other.json").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "demo", "--out", "{}"], "out must be a file that can be written"),
        (["--model", "demo", "--out", "{}/none/p.json"], "out must be a file that can be written"),
        (["--model", "{}", "--out", "{}/p.json"], "data must name a JSONL file of sample prompts"),
        (["--model", "demo", "--out", "{}/p.json", "--data", "{}/none.jsonl"], "data must be a JSONL file"),
        (["--model", "demo", "--out", "{}/p.json", "--samples", "0"], "samples must be a positive whole number"),
        (["--model", "demo", "--out", "{}/p.json", "--samples", "30"], "samples must leave at least 30"),
        (["--model", "demo", "--window", "many"], "invalid int value"),
        (["--model", "demo", "--steps", "0"], "steps must be a positive whole number, got 0"),
    ],
)
def test_bad_options(tmp_path, capsys, argv, message):
    try:
        code = main(["calibrate", *(arg.format(tmp_path) for arg in argv)])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
