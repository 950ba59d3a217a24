"""What a probe report says, against the run itself, hand-worked numbers, and a second measurement of the model."""

import json
import math
import sys

import pytest
import torch
from PIL import Image
from scripted import EAGER, LAYERS, Script, Scripted, random_prompt, tiny
from test_wrap_generate import PROFILE, prompts, wrapped

import seer_dllm
from seer_dllm import GenerationConfig, Profile, Truncation, plot, probe
from seer_dllm.cli import main
from seer_dllm.demo import data, model_folder
from seer_dllm.files import check_output, written_whole
from seer_ext import ops
from seer_ext.reference import snr_candidates

WINDOW = GenerationConfig(window=64, steps=16)


@pytest.fixture(scope="module")
def demo():
    return seer_dllm.load(model_folder())


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    image, _, question, _ = data.heldout_questions(9, seed=3)[5]
    file = tmp_path_factory.mktemp("sheet") / "sheet.png"
    Image.fromarray(image).save(file)
    return file, question


@pytest.fixture(scope="module")
def report(demo, sheet):
    file, question = sheet
    return probe(demo, question, [file], WINDOW)


def scripted(curve, profile, **script):
    """Report of a scripted row whose quiet shares are `curve`."""
    model = Scripted([Script(script.pop("content", 2), curve=tuple(curve), **script)])
    return probe(model.model, model.prompt(), config=GenerationConfig(window=len(curve)), profile=profile)


# ---- the candidates ----------------------------------------------------------------------------------------


def test_candidates_by_hand():
    # window 2. j=1: [0]|[0,1]: signal 1/2, squares 0 + 1/2 over 3 slots, 2 of 3 slots above 1/4.
    # j=2: [0,0]|[1,1]: noise at its floor. j=3: [0,1]|[1]: mean 1/2 before, squares 1/2 over 3 slots.
    noise = math.sqrt(0.5 / 3)
    expected = [(1, 0.5, noise, 0.5 / noise, 2 / 3), (2, 1.0, 1e-3, 1000.0, 1.0), (3, 0.5, noise, 0.5 / noise, 1.0)]
    shown = scripted([0.0, 0.0, 1.0, 1.0], Profile(window=2, margin=0))
    for got, want in zip(shown.candidates, expected, strict=True):
        assert got == pytest.approx(want, rel=1e-6)
    assert [c.keep for c in shown.passing] == [2, 3]  # 1 has no plateau
    assert shown.boundary == 2 and shown.snr == pytest.approx(1000, rel=1e-6)


def test_the_best_candidate_is_the_ops_boundary():
    curves = torch.randint(0, 33, (100, 24)).div(32)
    found = 0
    for min_snr, plateau, min_jump in ((0.2, 0.4, 0.05), (0.0, 0.0, 0.0)):
        options = {"min_snr": min_snr, "plateau": plateau, "min_jump": min_jump}
        boundary, snr = ops.snr_boundary(curves, window=3, min_keep=2, **options)
        for b, curve in enumerate(curves.tolist()):
            passing = [c for c in snr_candidates(curve, 3, 2) if c.passes(**options)]
            best = max(passing, key=lambda c: c.snr, default=None)
            assert (boundary[b], snr[b]) == ((best.keep, pytest.approx(best.snr)) if best else (24, 0))
            found += best is not None
    assert 100 < found


@pytest.mark.parametrize("name, value", [("min_snr", 7.0), ("plateau", 0.8), ("min_jump", 0.5)])
def test_each_condition_counts(name, value):
    candidate = snr_candidates([0.0, 0.2, 1.0, 0.8], window=2)[1]  # signal 0.8, noise 0.1, snr 8, plateau 1
    low = {"min_snr": 0.0, "plateau": 0.0, "min_jump": 0.0}
    assert candidate.passes(**low | {name: value})
    assert not candidate.passes(**low | {name: {"min_snr": 8.1, "plateau": 1.1, "min_jump": 0.81}[name]})


# ---- the report --------------------------------------------------------------------------------------------


def test_quiet_shares_are_those_of_the_mlps(demo, sheet, report):
    """Measured once more, at the inputs of the down projections."""
    file, question = sheet
    backbone, shares = demo.backbone, []
    hooks = [
        layer.down_proj.register_forward_pre_hook(
            lambda _, args: shares.append((args[0].double().abs() < demo.profile.threshold).double().mean(-1))
        )
        for layer in backbone.layers
    ]
    with torch.inference_mode():
        x = torch.cat((demo.embed_prompt(question, [file]), backbone.embed(torch.full((64,), 5))))
        backbone.run(x, seer_dllm.backbone.Packing([len(x)]))
    for hook in hooks:
        hook.remove()
    expected = torch.stack(shares)[:, -64:]
    got = torch.tensor(report.quiet, dtype=torch.float64)
    assert report.layers == tuple(range(16)) and got.shape == expected.shape
    assert (got - expected).abs().max() < 1.5 / 288  # one activation at the threshold, of 288
    curve = expected[list(demo.profile.probe_layers)].mean(0)
    assert (torch.tensor(report.curve, dtype=torch.float64) - curve).abs().max() < 1e-3


def test_the_demo_report_is_what_runs(demo, sheet, report):
    file, question = sheet
    (seer,) = seer_dllm.generate(demo, [question], images=[[file]], config=WINDOW)
    (stock,) = seer_dllm.generate(demo, [question], images=[[file]], config=WINDOW, truncation=None)
    assert (report.boundary, report.snr, report.curve) == (seer.boundary, seer.snr, seer.sparsity)
    assert seer.truncated and (report.kept, report.reason) == (seer.window_tokens, None)
    assert (report.stock_text, report.stock_ids) == (stock.text, stock.window_ids)
    assert report.stock_end == stock.useful_tokens == len(demo.encode(stock.text))
    assert report.holds and report.stock_end < report.kept
    assert report.prompt_tokens == stock.prompt_tokens
    best = max(report.passing, key=lambda c: c.snr)
    assert (best.keep, best.snr) == (report.boundary, pytest.approx(report.snr))


@pytest.mark.parametrize("cache", ["none", "prompt", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream", "lavida_llada", "lavida_dream", "mmada"])
@pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
def test_every_family_and_cache_shows_what_runs(family, cache):
    """Step 0 of the run and of the report are one: with a cached prompt, Dream's first slot is no mask."""
    model, prompt = tiny(family), random_prompt(4, 9, family)
    config = GenerationConfig(window=24, block=8, steps=6, cache=cache)
    layers = model.backbone.config.n_layers
    profile = Profile(**{**EAGER.__dict__, "probe_layers": (1, layers - 1)})
    shown = probe(model, prompt, config=config, profile=profile)
    (ran,) = seer_dllm.generate(model, [prompt], config=config, truncation=Truncation(profile=profile))
    assert (shown.boundary, shown.snr, shown.curve) == (ran.boundary, ran.snr, ran.sparsity)
    assert len(shown.quiet) == layers and {len(row) for row in shown.quiet} == {24}
    skipped = int("dream" in family and cache == "prompt")
    assert [c.keep for c in shown.candidates] == list(range(1 + skipped, 24))
    (stock,) = seer_dllm.generate(model, [prompt], config=config, truncation=None)
    assert shown.stock_ids == stock.window_ids


def test_a_wrapped_model():
    (ids,) = prompts(6)
    config = GenerationConfig(window=32, steps=4)
    shown = probe(wrapped(), ids, config=config)
    found = wrapped().find_boundary(torch.cat((ids, torch.full((32,), 63)))[None], window_start=6, window=32)
    assert ([shown.boundary], [shown.snr], [shown.curve]) == (found.boundary, found.snr, found.sparsity)
    assert shown.layers == (0, 1, 2, 3, 4) and shown.profile == PROFILE and shown.stock_text == ""
    (stock,) = wrapped().generate([ids], config=config, truncation=None)
    assert shown.stock_ids == stock.window_ids
    with pytest.raises(ValueError, match="images must be empty for a wrapped model, got 1"):
        probe(wrapped(), ids, ["sheet.png"], config)
    with pytest.raises(ValueError, match="cache must be 'none' for a wrapped model, got 'prompt'"):
        probe(wrapped(), ids, config=GenerationConfig(cache="prompt"))


def test_the_profiles_layers_alone_are_run():
    model = Scripted([Script(5)])
    shown = probe(model.model, model.prompt(), config=GenerationConfig(window=32), layers="profile")
    assert shown.layers == (3, 4, 5, 6) and len(shown.quiet) == 4
    assert [(c.start, c.stop) for c in model.backbone.calls][-1] == (0, 7)
    whole = probe(model.model, model.prompt(), config=GenerationConfig(window=32))
    assert whole.layers == tuple(range(LAYERS)) and (whole.curve, whole.boundary) == (shown.curve, shown.boundary)
    with pytest.raises(ValueError, match="layers must be one of all, profile, got 'some'"):
        probe(model.model, model.prompt(), layers="some")


@pytest.mark.parametrize(
    "content, jump, boundary, kept, offset, holds",
    [
        (10, None, 10, 16, 0, True),
        (10, 6, 6, 8, -4, False),
        (10, 9, 9, 16, -1, True),  # early, but the rounding saves it
        (16, None, 16, 16, 0, False),  # room for the words, none for the end
        (10, 20, 20, 24, 10, True),
    ],
)
def test_early_late_and_whether_it_fits(content, jump, boundary, kept, offset, holds):
    model = Scripted([Script(content, jump=jump)], margin=0)
    shown = probe(model.model, model.prompt(), config=GenerationConfig(window=64))
    assert (shown.boundary, shown.kept, shown.offset, shown.holds) == (boundary, kept, offset, holds)
    assert shown.stock_end == content and shown.reason is None
    text = shown.summary()
    side = "right there" if not offset else f"{abs(offset)} {'early' if offset < 0 else 'late'}"
    assert f"the boundary is {side}" in text and ("DOES NOT hold" in text) == (not holds)
    assert f"kept {kept} of 64 slots (one block)" in text and f"ends in slot {content}" in text


def test_reasons_not_to_cut():
    small = scripted([0.3] * 4 + [0.8] * 4, Profile(margin=0))
    assert small.reason == "window too small" and (small.boundary, small.kept) == (4, 8)
    flat = scripted([0.5] * 32, Profile(margin=0))
    assert (flat.reason, flat.boundary, flat.snr, flat.kept) == ("no jump found", 32, 0, 32) and not flat.passing
    assert "no boundary" in flat.summary() and "no jump found" in flat.summary()
    late = scripted([0.3] * 30 + [0.8] * 10, Profile(margin=16))
    assert (late.reason, late.boundary, late.kept) == ("the answer needs the whole window", 30, 40) and late.holds
    endless = scripted([0.3] * 20 + [0.8] * 20, Profile(margin=0), content=99)
    assert (endless.stock_end, endless.offset, endless.holds) == (None, None, False)
    assert "no end in the window" in endless.summary()


# ---- files and the command ---------------------------------------------------------------------------------


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_json_says_what_the_report_says(report, tmp_path):
    file = tmp_path / "new" / "probe.json"
    report.save_json(file, model="demo")
    read = json.loads(file.read_text(), parse_constant=refuse)
    assert read["version"] == 1 and read["model"] == "demo"
    assert read["quiet"] == report.quiet and read["curve"] == report.curve
    assert [tuple(c.values()) for c in read["candidates"]] == [tuple(c) for c in report.candidates]
    assert list(read["candidates"][0]) == ["keep", "signal", "noise", "snr", "plateau"]
    for name in ("boundary", "snr", "kept", "block", "stock_end", "offset", "holds", "stock_text", "stock_ids"):
        assert read[name] == getattr(report, name)
    assert read["profile"]["threshold"] == report.profile.threshold and read["config"]["window"] == 64


def test_a_report_with_nan_is_not_written(report, tmp_path):
    broken = type(report)(**report.__dict__ | {"curve": [math.nan]})
    with pytest.raises(ValueError):
        broken.save_json(tmp_path / "probe.json")
    assert list(tmp_path.iterdir()) == []


def test_picture(report, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "probe.png"
    plot.draw_probe(report, file)
    with Image.open(file) as image:
        assert image.format == "PNG" and image.size == (1200, 900)
        # The map is magma: dark at the top left, unlike the paper, and of many colours.
        assert len(image.convert("RGB").getcolors(1 << 20)) > 200
        top = image.convert("L").crop((100, 20, 1000, 60))
    assert sum(top.histogram()[:128]) > 0.5 * top.width * top.height
    assert list(tmp_path.iterdir()) == [file]


def test_files_appear_whole_or_not_at_all(tmp_path):
    file = tmp_path / "a" / "file"
    with written_whole(file) as partial:
        partial.write_text("first")
        assert not file.exists()
    with pytest.raises(RuntimeError), written_whole(file) as partial:
        partial.write_text("half of the sec")
        raise RuntimeError
    assert file.read_text() == "first" and list(file.parent.iterdir()) == [file]
    with pytest.raises(ValueError, match="png must be a file, got the folder"):
        check_output("png", file.parent)
    with pytest.raises(ValueError, match="json must lie in a folder, but .*file' is a file"):
        check_output("json", file / "deeper" / "x.json")


def test_command(capsys, tmp_path, sheet, report):
    pytest.importorskip("matplotlib")
    file, question = sheet
    argv = ["probe", "--model", "demo", "--image", str(file), "--prompt", question, "--window", "64", "--steps", "16"]
    outputs = ["--json", str(tmp_path / "p.json"), "--png", str(tmp_path / "p.png"), "--layers", "profile"]
    assert main([*argv, *outputs]) == 0
    out, err = capsys.readouterr()
    assert out == report.summary() + "\n" and err == ""
    read = json.loads((tmp_path / "p.json").read_text(), parse_constant=refuse)
    assert read["layers"] == [10, 11, 12, 13] and read["curve"] == report.curve
    assert (read["model"], read["prompt"], read["images"]) == ("demo", question, [str(file)])
    with Image.open(tmp_path / "p.png") as image:
        assert image.width == 1200
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.json", "p.png"]


def test_without_matplotlib_the_extra_is_named(capsys, tmp_path, monkeypatch, sheet):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    argv = ["probe", "--model", str(tmp_path / "never loaded"), "--prompt", "x", "--png", str(tmp_path / "p.png")]
    assert main(argv) == 2
    assert capsys.readouterr().err == "seer probe: plotting needs matplotlib: pip install 'seer-ext[plot]'\n"


@pytest.mark.parametrize("option", ["json", "png"])
def test_outputs_are_checked_first(capsys, tmp_path, option):
    assert main(["probe", "--model", "nowhere", "--prompt", "x", f"--{option}", str(tmp_path)]) == 2
    assert f"seer probe: {option} must be a file, got the folder" in capsys.readouterr().err
