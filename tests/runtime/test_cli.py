"""The `seer` command: one clear sentence and exit code 2 for bad input, and what it prints for good input."""

import json
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from seer_dllm.cli import main
from seer_dllm.demo import data, model_folder


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    """A held-out sheet as a PNG, with its kind, question and answer."""
    image, kind, question, answer = data.heldout_questions(1, seed=3)[0]
    file = tmp_path_factory.mktemp("sheet") / "sheet.png"
    Image.fromarray(image).save(file)
    return file, kind, question, answer


def refused(capsys, *argv) -> str:
    """Runs `seer generate`, which must refuse; returns its one line on stderr."""
    try:
        code = main(["generate", *map(str, argv)])
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1 and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--window", "0"], "window must be a positive whole number, got 0"),
        (["--window", "-5"], "window must be a positive whole number, got -5"),
        (["--window", "many"], "invalid int value: 'many'"),
        (["--window", "100", "--block", "32"], "window must be a multiple of block=32, got 100"),
        (["--steps", "7", "--block", "32"], "steps must be a multiple of the 4 blocks, got 7"),
        (["--temperature", "-1"], "temperature must be a number of at least 0, got -1.0"),
        (["--top-p", "2"], "top_p must be a number in [0, 1], got 2.0"),
        (["--top-k", "0"], "top_k must be a positive whole number, got 0"),
        (["--eps", "2"], "eps must be a number in [0, 1], got 2.0"),
        (["--steps", "8", "--times", "4"], "times must be at least steps=8, got 4"),
        (["--hold-back"], "hold_back must be False without a threshold, got True"),
        (["--step0", "reuse"], "step0 must be one of carry, restart, got 'reuse'"),
        (["--cache", "disk"], "cache must be one of none, prompt, prefix, dual, got 'disk'"),
        (["--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        (["--device", "cuda"], "device must be"),
        (["--device", "toaster"], "device must be a torch device such as cpu or cuda, got 'toaster'"),
        (["--prompt", "  "], "prompt must hold some text"),
    ],
)
def test_bad_settings(capsys, argv, message):
    assert message in refused(capsys, "--model", "demo", "--prompt", "read row 1 .", *argv)


def test_unknown_schedule_lists_the_choices(capsys):
    """case P13"""
    err = refused(capsys, "--model", "demo", "--prompt", "read row 1 .", "--schedule", "low_confidence")
    assert "schedule must be one of even, linear, shift, cosine, logit_normal, dream, got 'low_confidence'" in err


def test_missing_checkpoint(capsys, tmp_path):
    err = refused(capsys, "--model", tmp_path / "none", "--prompt", "x")
    assert "model must be a folder with a checkpoint, got" in err and "none" in err
    assert "must hold config.json, which is missing" in refused(capsys, "--model", tmp_path, "--prompt", "x")


def test_partial_checkpoint_names_the_missing_keys(capsys, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "partial"
    shutil.copytree(model_folder(), folder)
    tensors = load_file(folder / "model.safetensors")
    gone = "model.transformer.blocks.2.up_proj.weight"
    del tensors[gone]
    save_file(tensors, folder / "model.safetensors")
    err = refused(capsys, "--model", folder, "--prompt", "x")
    assert "lacks 1 of" in err and gone in err


def test_pickle_checkpoint_is_refused(capsys, tmp_path):
    folder = tmp_path / "pickle"
    shutil.copytree(model_folder(), folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    err = refused(capsys, "--model", folder, "--prompt", "x")
    assert "must hold safetensors weights, got only pickle files (pytorch_model.bin)" in err


def test_unreadable_and_huge_images(capsys, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of the kind")
    assert "broken.png" in refused(capsys, "--model", "demo", "--prompt", "x", "--image", broken)
    assert "absent.png" in refused(capsys, "--model", "demo", "--prompt", "x", "--image", tmp_path / "absent.png")
    huge = tmp_path / "huge.png"
    Image.new("1", (8001, 8001)).save(huge)
    err = refused(capsys, "--model", "demo", "--prompt", "x", "--image", huge)
    assert "huge.png" in err and "64000000" in err.replace(",", "")


def test_generate_prints_the_answer(capsys, sheet):
    file, _, question, _ = sheet
    argv = ["generate", "--model", "demo", "--image", str(file), "--prompt", question, "--window", "64"]
    assert main(argv) == 0
    text, note = capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text"] == text.strip()
    assert report["settings"]["window"] == 64 and report["prompt_tokens"] > 65
    assert f"{report['useful_tokens']} useful tokens" in note
    assert main([*argv, "--json", "--stock"]) == 0
    stock = json.loads(capsys.readouterr().out)
    assert stock["boundary"] is None and not stock["truncated"] and stock["window_tokens"] == 64
    assert stock["reason"] == "truncation is off"


def test_demo_writes_what_it_reads_and_draws_the_curves(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plots" / "curves.png"
    assert main(["demo", "--sheets", "2", "--window", "96", "--out", str(tmp_path), "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "window=96, steps=96, block=96, cache=none" in out and "Seer / stock" in out
    assert out.count("boundary") >= 2 and "induced by a penalty" in out
    for file in (tmp_path / "sheet1.png", tmp_path / "sheet2.png", plot):
        with Image.open(file) as image:
            assert image.width > 100


def test_demo_refuses_a_bad_count(capsys):
    assert main(["demo", "--sheets", "0"]) == 2
    assert "sheets must be a positive whole number, got 0" in capsys.readouterr().err


def test_installed_command_answers_help():
    run = subprocess.run([sys.executable, "-m", "seer_dllm.cli", "--help"], capture_output=True, text=True, check=True)
    assert "generate" in run.stdout and "demo" in run.stdout
