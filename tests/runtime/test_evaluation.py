"""`seer eval`: the text that is scored, data that is refused, resumption, and whole runs on the demo model."""

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from PIL import Image
from scripted import llada

from seer_dllm import GenerationConfig, Truncation, api, evaluation
from seer_dllm.cli import main
from seer_dllm.collect import Sample, read_samples
from seer_dllm.demo import model_folder
from seer_dllm.evaluation import Answer, answer, built_in, prediction_of

# ---- answers ---------------------------------------------------------------------------------------------


def test_the_text_rule_of_each_family():
    assert prediction_of("!!! a dog!\n", "lavida_llada") == prediction_of("a dog! ", "lavida_dream") == "a dog!"
    assert prediction_of(" !a dog", "lavida_llada") == "!a dog"  # its evaluation strips white space last
    for family in ("llada", "llada_v", "dream", "mmada"):
        assert prediction_of("! a dog\n", family) == "! a dog"


@pytest.mark.parametrize(
    ("window", "finish", "behind"),
    [
        ([5, 0, 0, 0], "end", False),
        ([5, 0, 6, 0], "end", True),
        ([5, 0], "end", False),
        ([5, 9, 0, 0], "end", False),  # the end itself is none, even if it is spelled out
        ([5, 6, 7, 8], "length", False),
        ([5, 9, 6, 7], "stop", False),
    ],
)
def test_words_behind_the_end_are_told_of(window, finish, behind):
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(str(i) for i in ids if i))
    model = SimpleNamespace(family=SimpleNamespace(name="llada"), tokenizer=tokenizer)
    values = {name: 0 for name in api.Result.__dataclass_fields__}
    ids = window if finish == "length" else [5]
    result = api.Result(**values | {"text": "5", "ids": ids, "window_ids": window, "finish_reason": finish})
    one = Answer.of(model, ("seer", 1, "q"), result, 0.5)
    assert one.words_behind_end == behind and one.key == ("seer", 1, "q") and one.seconds == 0.5


# ---- data --------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    for name, colour in (("a", "red"), ("b", "blue"), ("same", "red")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def lines(folder, *entries):
    file = folder / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, entries)) + "\n")
    return file


def test_questions_of_a_file(pictures):
    file = lines(
        pictures,
        {"prompt": "why ?", "answer": "so"},
        {"prompt": "what ?", "image": "a.png", "answers": ["x", "y"], "id": "q2"},
        {"prompt": "what ?", "images": ["a.png", "b.png"], "answers": ["z"], "id": 7},
    )
    a, b = pictures / "a.png", pictures / "b.png"
    assert read_samples(file, scored=True) == [
        Sample("why ?", (), ("so",), 1),
        Sample("what ?", (a,), ("x", "y"), "q2"),
        Sample("what ?", (a, b), ("z",), 7),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({}, "answers must hold at least one text"),
        ({"answers": []}, "answers must hold at least one text"),
        ({"answers": "x"}, "answers must be a list of texts, got 'x'"),
        ({"answers": ["x", 5]}, "answers must be a list of texts, got ['x', 5]"),
        ({"answers": ["x", " "]}, "answers must be a list of texts, got ['x', ' ']"),
        ({"answer": 5}, "answer must be a text, got 5"),
        ({"answer": "x", "answers": ["x"]}, "answer must not be there beside answers, got 'x'"),
        ({"answer": "x", "image": ["a.png"]}, "image must be a path, got ['a.png']"),
        ({"answer": "x", "image": "a.png", "images": []}, "image must not be there beside images, got 'a.png'"),
        ({"answer": "x", "image": "none.png"}, "none.png': must be an existing file"),
        ({"answer": "x", "image": "data.jsonl"}, "must be a readable"),
        ({"answer": "x", "id": None}, "id must be a text or a whole number, got None"),
        ({"answer": "x", "id": True}, "id must be a text or a whole number, got True"),
        ({"answer": "x", "id": 1}, "id must be another than that of a line before, got 1"),
        ({"answer": "x", "label": 1}, "must be an object with prompt and, if any, images, answers and id, got"),
    ],
)
def test_a_bad_row_stops_everything_before_any_work(pictures, capsys, line, message):
    file = lines(pictures, {"prompt": "fine", "answer": "x"}, {"prompt": "q", **line})
    argv = ["eval", "--model", "demo", "--data", str(file), "--metric", "anls", "--out", str(pictures / "out")]
    with mock.patch("seer_dllm.api.load") as load:
        assert main(argv) == 2
    err = capsys.readouterr().err
    assert f"data.jsonl, line 2: {message}" in err or ("line 2: " in err and message in err)
    assert not load.called and not (pictures / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--metric", "vqa"], "metric must be one of exact, anls, relaxed_accuracy, got 'vqa'; not done: VQA accuracy"),
        (["--batch", "0"], "batch must be a positive whole number, got 0"),
        (["--samples", "0"], "samples must be a positive whole number, got 0"),
        (["--limit", "-1"], "limit must be a positive whole number, got -1"),
        (["--runs", "seer", "fast"], "runs must be one of stock, seer, got 'fast'"),
        (["--out", "{}/data.jsonl"], "out must be a folder, got the file"),
        (["--out", "{}/data.jsonl/deep"], "out must lie in a folder"),
        (["--data", "{}/none.jsonl"], "data must be a JSONL file, got"),
        (["--data", "{}/empty.jsonl"], "data must hold at least one question, got none"),
        (["--steps", "0"], "steps must be a positive whole number, got 0"),
        (["--step0", "reuse"], "step0 must be one of carry, restart, got 'reuse'"),
    ],
)
def test_bad_options(tmp_path, capsys, more, message):
    lines(tmp_path, {"prompt": "q", "answer": "x"})
    (tmp_path / "empty.jsonl").write_text("\n")
    before = sorted(tmp_path.iterdir())
    argv = ["eval", "--model", "demo", "--data", "demo", "--metric", "exact", "--out", str(tmp_path / "out"), *more]
    assert main([arg.format(tmp_path) for arg in argv]) == 2
    assert message in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("prompt", ["look at <image> closely", "<image>"])
def test_a_prompt_that_can_not_be_used_is_named(tmp_path, capsys, prompt):
    file = lines(tmp_path, {"prompt": "fine", "answer": "x"}, {"prompt": prompt, "answer": "x", "id": "odd"})
    argv = ["eval", "--model", "demo", "--data", str(file), "--metric", "exact", "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    assert "question 'odd': prompt must not hold the literal <image>" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([Sample("q", (), ("x",), 1)], "question 1: checkpoint must hold tokenizer.json"),
        ([Sample("q", (), (), 1)], "question 1: answers must hold at least one text"),
        ([Sample("q", (), ("x",)), Sample("r", (), ("x",))], "samples must have an id of their own each"),
        ([], "data must hold at least one question"),
    ],
)
def test_samples_that_can_not_be_asked_are_refused(tmp_path, samples, message):
    with pytest.raises(ValueError, match=message):
        evaluation.answer(llada(), samples, tmp_path / "p.jsonl", config=GenerationConfig(), truncation=Truncation())
    assert list(tmp_path.iterdir()) == []


# ---- whole runs --------------------------------------------------------------------------------------------

SETTINGS = ["--window", "64", "--steps", "8", "--batch", "2"]


def run(out, *more):
    return main(["eval", "--model", "demo", "--data", "demo", "--metric", "exact", "--out", str(out), *SETTINGS, *more])


def predictions(out):
    head, *records = map(json.loads, (out / "predictions.jsonl").read_text().splitlines())
    return [{**record, "seconds": 0} for record in records]


def test_an_evaluation_goes_on_where_it_stopped(tmp_path, capsys):
    assert run(tmp_path / "whole", "--samples", "3") == 0
    text = capsys.readouterr().out
    whole = predictions(tmp_path / "whole")
    assert [(r["run"], r["id"]) for r in whole] == [
        ("stock", 1), ("stock", 2), ("seer", 1), ("seer", 2), ("stock", 3), ("seer", 3),
    ]  # fmt: skip
    assert (tmp_path / "whole" / "report.md").read_text() == text
    assert all(r["prompt_tokens"] > 65 for r in whole)  # a sheet is 65 tokens
    real, calls = api.generate, []

    def stopping(model, prompts, **more):
        calls.append((len(prompts), more["truncation"] is None))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(model, prompts, **more)

    out = tmp_path / "stopped"
    with mock.patch("seer_dllm.api.generate", stopping), pytest.raises(KeyboardInterrupt):
        run(out, "--samples", "3")
    assert calls == [(2, True), (2, False), (1, True)] and predictions(out) == whole[:4]
    assert not (out / "scores.json").exists() and not (out / "report.md").exists()
    file = out / "predictions.jsonl"
    file.write_text(file.read_text()[:-30])  # a stop while writing
    assert run(out, "--samples", "3") == 0
    assert sorted(map(json.dumps, predictions(out))) == sorted(map(json.dumps, whole))
    capsys.readouterr()

    with mock.patch("seer_dllm.api.generate", side_effect=AssertionError("nothing is missing")):
        assert run(out, "--samples", "3", "--metric", "anls") == 0
        assert run(out, "--samples", "3", "--limit", "2", "--runs", "seer") == 0
    scores = json.loads((out / "scores.json").read_text())
    assert [q["id"] for q in scores["questions"]] == [1, 2] and set(scores["runs"]) == {"seer"}
    before = file.read_text()
    assert run(out, "--samples", "4") == 0  # the same questions and one more
    assert file.read_text().startswith(before) and len(predictions(out)) == 8
    capsys.readouterr()
    for more in (["--steps", "16"], ["--step0", "restart"], ["--batch", "3"], ["--dtype", "bfloat16"]):
        assert run(out, "--samples", "4", *more) == 2
        assert "must belong to this model" in capsys.readouterr().err


def test_a_journal_belongs_to_the_picture_encoder_too(tmp_path):
    model, other = (api.load(model_folder()) for _ in range(2))
    with torch.no_grad():
        next(other.vision.parameters()).add_(1)
    samples = built_in(1)
    settings = {"config": GenerationConfig(window=8, steps=1), "truncation": Truncation()}
    answer(model, samples, tmp_path / "answers.jsonl", **settings)
    with pytest.raises(ValueError, match="must belong to this model"):
        answer(other, samples, tmp_path / "answers.jsonl", **settings)


def test_scores_are_those_of_the_answers(tmp_path, capsys):
    """Against `generate` and the sheets' truth; the same question again, and one about no picture, are rows too."""
    from seer_dllm.demo.evaluate import questions

    entries, truths = [], []
    for i, (image, _, text, truth) in enumerate(questions(4)):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
        entries.append({"prompt": text, "image": f"{i}.png", "answers": ["nothing of the kind", truth]})
        truths.append(truth)
    entries += [{**entries[0], "id": "again", "answers": ["wrong"]}, {"prompt": "read row 1 .", "answer": "x"}]
    file = lines(tmp_path, *entries)
    out = tmp_path / "out"
    argv = ["eval", "--model", "demo", "--data", str(file), "--metric", "exact", "--out", str(out), *SETTINGS]
    assert main(argv) == 0
    scores = json.loads((out / "scores.json").read_text())
    model = api.load(model_folder())
    config = GenerationConfig(window=64, steps=8)
    images = [tmp_path / e["image"] if "image" in e else None for e in entries]
    for name, truncation in (("stock", None), ("seer", Truncation())):
        results = api.generate(
            model, [e["prompt"] for e in entries], images=images, config=config, truncation=truncation
        )
        rows = [q[name] for q in scores["questions"]]
        assert [row["prediction"] for row in rows] == [r.text.strip() for r in results]
        right = [r.text.split() == t.split() for r, t in zip(results, truths, strict=False)]
        assert [row["score"] for row in rows] == [*map(float, right), 0.0, 0.0] and any(right)
        total = scores["runs"][name]
        for cost in ("useful_tokens", "window_tokens", "prompt_tokens", "steps", "token_forwards"):
            assert total[cost] == pytest.approx(sum(getattr(r, cost) for r in results))
        if name == "seer":
            assert scores["pair"]["cut"] == sum(r.truncated for r in results) / 6 > 0
    assert scores["settings"]["pictures"] == 5 and scores["settings"]["truncation"]["step0"] == "carry"
    assert scores["settings"]["truncation"]["profile"]["margin"] == model.profile.margin
    assert [q["id"] for q in scores["questions"]] == [1, 2, 3, 4, "again", 6]


@pytest.mark.parametrize("text", ["a diary\n", '{"model": 3}\n', "[]\n"])
def test_another_file_is_not_touched(tmp_path, capsys, text):
    file = tmp_path / "predictions.jsonl"
    file.write_text(text)
    assert run(tmp_path, "--samples", "1") == 2
    assert "predictions.jsonl' must" in capsys.readouterr().err and file.read_text() == text


def test_records_of_another_kind_are_refused(tmp_path, capsys):
    assert run(tmp_path, "--samples", "1", "--runs", "seer") == 0
    file = tmp_path / "predictions.jsonl"
    head = file.read_text().splitlines()[0]
    file.write_text(head + '\n{"thresholds": []}\n')
    assert run(tmp_path, "--samples", "1", "--runs", "seer") == 2
    assert "must hold records of this command" in capsys.readouterr().err


def test_a_question_that_does_not_fit_is_named(tmp_path, capsys):
    file = lines(tmp_path, {"prompt": "read row 1 . " * 2000, "answer": "x", "id": "long"})
    argv = ["eval", "--model", "demo", "--data", str(file), "--metric", "exact", "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "questions 'long': prompts[0] and window must fit the model's" in err
