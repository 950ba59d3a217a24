"""The model class for lmms-eval: over a stand-in of the library, and a local task of the library where it is there."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from PIL import Image

from seer_dllm import GenerationConfig, Truncation, api
from seer_dllm.demo import model_folder
from seer_dllm.demo.evaluate import questions
from seer_dllm.engine import Engine

TASKS = Path(__file__).with_name("lmms_task")

# ---- the model ---------------------------------------------------------------------------------------------

GIVEN = [
    {"max_new_tokens": 64, "step_ratio": 0.125, "prefix_lm": True},
    {"max_new_tokens": 32, "steps": 8, "block_length": 16},
    {"max_new_tokens": 64, "steps": 8, "until": [" 2", " ."]},
]
CONFIGS = [
    GenerationConfig(window=64, steps=8, times=64, cache="prompt"),
    GenerationConfig(window=32, steps=8, block=16),
    GenerationConfig(window=64, steps=8, stop=(" 2", " .")),
]


@pytest.fixture(scope="module")
def sheets():
    return [{"image": Image.fromarray(image), "question": text} for image, _, text, _ in questions(9)]


def requests(docs, given=GIVEN, pictures=lambda doc: [doc["image"]]):
    return [
        SimpleNamespace(args=(doc["question"], dict(given[i % len(given)]), pictures, i, "sheets", "test"))
        for i, doc in enumerate(docs)
    ]


def seer(lmms, docs, **arguments):
    model = lmms.Seer("demo", device="cpu", **arguments)
    model.task_dict["sheets"] = {"test": docs}
    return model


@pytest.mark.parametrize("truncation", ["seer", "off"])
def test_answers_are_those_of_generate_in_any_batch(lmms, sheets, truncation):
    model, docs = api.load(model_folder()), sheets[3:9]
    cut = Truncation() if truncation == "seer" else None
    expected = [
        api.generate(model, [doc["question"]], images=[doc["image"]], config=CONFIGS[i % 3], truncation=cut)[0]
        for i, doc in enumerate(docs)
    ]
    texts = [result.text.lstrip("!").strip() for result in expected]
    assert len(set(texts)) > 3 and any(r.finish_reason == "stop" for r in expected)
    assert any(r.truncated for r in expected) == (cut is not None)
    for batch in (1, "4"):
        assert seer(lmms, docs, batch_size=batch, truncation=truncation).generate_until(requests(docs)) == texts


def test_the_cut_is_that_of_the_arguments(lmms, sheets):
    model = seer(lmms, sheets, step0="restart", steps_policy="keep", safety_net=False)
    assert model.truncation == Truncation(step0="restart", steps_policy="keep", safety_net=False)
    assert seer(lmms, sheets).truncation == Truncation()
    with (
        mock.patch.object(Engine, "add_request", side_effect=KeyboardInterrupt) as add,
        pytest.raises(KeyboardInterrupt),
    ):
        model.generate_until(requests(sheets[:1]))
    assert add.call_args.kwargs["truncation"] is model.truncation


def test_a_request_fails_alone(lmms, told, sheets, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    model = api.load(model_folder())
    alone = [
        api.generate(model, [doc["question"]], images=[doc["image"]], config=config)[0].text.strip()
        for doc, config in ((sheets[0], CONFIGS[0]), (sheets[4], CONFIGS[1]))
    ]
    assert all(alone)

    def broken(doc):
        raise OSError("a truncated file")

    bad = requests(sheets[:5])
    bad[1].args = (bad[1].args[0], {}, broken, *bad[1].args[3:])
    bad[2].args = (bad[2].args[0], {}, lambda doc: [str(tmp_path / "torn.png")], *bad[2].args[3:])
    bad[3].args = ("read row 1 . " * 2000, *bad[3].args[1:])
    for batch in (1, 8):
        assert seer(lmms, sheets, batch_size=batch).generate_until(bad) == [alone[0], "", "", "", alone[1]]
    texts = sorted(told())
    assert len(texts) == 6
    assert texts[0] == texts[1] == "sheets, test, document 1 is scored as empty: a truncated file"
    assert "document 2 is scored as empty: image" in texts[2] and "must fit" in texts[4]


def test_all_requests_failing_is_an_error(lmms, sheets):
    def broken(doc):
        raise OSError("no such disk")

    with pytest.raises(RuntimeError, match="all 3 requests failed, the first with: no such"):
        seer(lmms, sheets, batch_size=2).generate_until(requests(sheets[:3], pictures=broken))
    assert seer(lmms, sheets).generate_until([]) == []


def test_wrong_settings_stop_everything_before_any_work(lmms, sheets):
    opened = []
    asked = requests(sheets[:3], [{}, {}, {"steps": 0}], opened.append)
    with pytest.raises(ValueError, match="gen_kwargs of sheets: steps must be a positive whole number, got 0"):
        seer(lmms, sheets).generate_until(asked)
    assert opened == []


def test_pictures_are_opened_when_it_is_their_turn(lmms, sheets):
    opened, answered, held, step = [], [], [], Engine.step

    def counted(engine):
        held.append(len(opened) - len(answered))
        answered.extend(done := step(engine))
        return done

    def pictures(doc):
        opened.append(doc)
        return [doc["image"]]

    with mock.patch.object(Engine, "step", counted):
        model = seer(lmms, sheets, batch_size=2, truncation="off")
        model.generate_until(requests(sheets[:5], [{"max_new_tokens": 16, "steps": 4}], pictures))
    assert max(held) == 2 and len(opened) == len(answered) == 5


def test_text_alone(lmms, sheets):
    model = api.load(model_folder())
    config = GenerationConfig(window=32, steps=8, block=16)
    expected = api.generate(model, ["describe the sheet ."], config=config)[0].text.strip()
    assert expected
    asked = requests([{"question": "describe the sheet ."}] * 2, GIVEN[1:2], lambda doc: [])
    asked[1].args = (*asked[1].args[:2], lambda doc: None, *asked[1].args[3:])
    assert seer(lmms, [{}, {}], batch_size=2).generate_until(asked) == [expected] * 2


def test_each_request_draws_numbers_of_its_own(lmms, sheets):
    given = {"max_new_tokens": 32, "steps": 4, "temperature": 30.0, "seed": 5}
    config = GenerationConfig(window=32, steps=4, temperature=30.0)
    asked = requests([sheets[5]] * 3, [given])
    texts = seer(lmms, [sheets[5]] * 3, batch_size=3).generate_until(asked)
    model = api.load(model_folder())
    for i, text in enumerate(texts):
        one = api.generate(
            model, [sheets[5]["question"]], images=[sheets[5]["image"]], config=replace(config, seed=5 + i)
        )
        assert text == one[0].text.strip()
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pretrained must be a checkpoint's folder or 'demo', got None"),
        ({"pretrained": 5}, "pretrained must be a checkpoint's folder or 'demo', got 5"),
        ({"pretrained": "demo", "conv_template": "llada"}, "model_args must be of pretrained, .*got conv_template"),
        ({"pretrained": "demo", "batch_size": "auto"}, "batch_size must be a positive whole number, got 'auto'"),
        ({"pretrained": "demo", "batch_size": 0}, "batch_size must be a positive whole number, got 0"),
        ({"pretrained": "demo", "truncation": "on"}, "truncation must be one of seer, off, got 'on'"),
        ({"pretrained": "demo", "truncation": False}, "truncation must be one of seer, off, got False"),
        ({"pretrained": "demo", "truncation": "off", "step0": "carry"}, "step0 must be left out with truncation=off"),
        ({"pretrained": "demo", "step0": "reuse"}, "step0 must be one of carry, restart, got 'reuse'"),
        ({"pretrained": "demo", "dtype": "int8"}, "dtype must be one of .*got 'int8'"),
        ({"pretrained": "nowhere"}, "model must be a folder with a checkpoint, got 'nowhere'"),
        ({"pretrained": "demo", "profile": "none.json"}, "none.json"),
    ],
)
def test_wrong_arguments(lmms, arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        lmms.Seer(**arguments)


@pytest.mark.parametrize(
    ("chosen", "there", "rank", "expected"),
    [
        (None, False, None, "cpu"),
        (None, True, None, "cuda:0"),
        ("cuda", True, "3", "cuda:3"),
        ("cuda:1", True, "3", "cuda:1"),
        ("cpu", True, "3", "cpu"),
    ],
)
def test_every_process_has_its_device(lmms, monkeypatch, chosen, there, rank, expected):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    with mock.patch("torch.cuda.is_available", lambda: there), mock.patch("seer_dllm.api.load") as load:
        lmms.Seer("demo", device=chosen)
    assert load.call_args.kwargs["device"] == expected


def test_what_it_can_not_do_says_so(lmms, sheets):
    model = seer(lmms, sheets)
    for method in (model.loglikelihood, model.generate_until_multi_round):
        with pytest.raises(NotImplementedError, match="generate_until"):
            method([])


def test_the_entry_point_names_the_class(lmms):
    manifest = lmms.manifest()
    module, name = manifest.simple_class_path.rsplit(".", 1)
    assert manifest.model_id == "seer" and getattr(sys.modules[module], name) is lmms.Seer
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points."lmms_eval.models"]\nseer = "seer_dllm.lmms:manifest"' in project


# ---- the library itself ------------------------------------------------------------------------------------

INSTALLED = importlib.util.find_spec("lmms_eval") is not None and any(
    point.name == "seer" for point in importlib.metadata.entry_points(group="lmms_eval.models")
)


@pytest.mark.skipif(not INSTALLED, reason="lmms-eval is not installed beside this project: make test-lmms")
def test_a_local_task_scores_the_same_in_any_batch(tmp_path):
    """Both tasks in one run, so that settings differ within a batch; no network, and an empty cache."""
    asked = questions(9)
    with (tmp_path / "sheets.jsonl").open("w") as file:
        for i, (image, _, text, truth) in enumerate(asked):
            Image.fromarray(image).save(tmp_path / f"{i}.png")
            file.write(json.dumps({"image": f"{i}.png", "question": text, "answer": truth}) + "\n")
    tasks = {
        "seer_sheets": GenerationConfig(window=128, steps=32, cache="prompt"),
        "seer_sheets_blocks": GenerationConfig(window=64, steps=32, block=32, stop=(" .",)),
    }
    offline = {"HF_HOME": str(tmp_path / "cache"), "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    model = api.load(model_folder())
    for truncation in ("seer", "off"):
        expected = {
            name: [
                result.text.strip()
                for result in api.generate(
                    model,
                    [text for _, _, text, _ in asked],
                    images=[Image.fromarray(image) for image, *_ in asked],
                    config=config,
                    truncation=Truncation() if truncation == "seer" else None,
                )
            ]
            for name, config in tasks.items()
        }
        for batch in (1, 8):
            out = tmp_path / f"{truncation}{batch}"
            done = subprocess.run(
                [
                    sys.executable, "-m", "lmms_eval", "--model", "seer", "--device", "cpu",
                    "--model_args", f"pretrained=demo,truncation={truncation}", "--batch_size", str(batch),
                    "--include_path", str(TASKS), "--tasks", ",".join(tasks),
                    "--log_samples", "--output_path", str(out),
                ],
                cwd=tmp_path, env=os.environ | offline, capture_output=True, text=True, check=False,
            )  # fmt: skip
            results = list(out.rglob("*_results.json"))
            assert done.returncode == 0 and len(results) == 1, done.stdout + done.stderr
            scores = json.loads(results[0].read_text())["results"]
            for name, texts in expected.items():
                (samples,) = out.rglob(f"*_samples_{name}.jsonl")
                lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
                assert [line["filtered_resps"] for line in lines] == texts
                right = [text.split() == truth.split() for text, (*_, truth) in zip(texts, asked, strict=True)]
                assert scores[name]["exact,none"] == pytest.approx(sum(right) / len(right)) and any(right)
