"""`seer eval-demo`: its plan, its resumption, and the figures of its report on records worked out by hand."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from seer_dllm.cli import main
from seer_dllm.demo import evaluate, report
from seer_dllm.demo.evaluate import BASE, GRID, STAR, WINDOWS, Record, Setting, Task
from seer_dllm.demo.questions import KINDS

SMALL = Setting(32, 8, 32, "prompt")


def record(**values) -> Record:
    """A right "row" answer of 4 tokens in the base setting, unless told otherwise."""
    plain = {
        "setting": BASE, "run": "carry", "index": 0, "kind": "row", "needs": 5, "planned": 8, "right": True,
        "quiet_answer": 0.8, "quiet_padding": 1.0,
        "ids": [1, 2, 3, 4], "boundary": 5, "truncated": True, "reason": None, "net_early": 0, "net_late": 0,
        "finish_reason": "end", "steps": 8, "forwards": 8, "token_forwards": 1000.0, "useful_tokens": 4,
        "window_tokens": 8, "prompt_tokens": 80,
    }  # fmt: skip
    return Record(**{**plain, **values})


def cells(table: str, row: int) -> list[str]:
    """The cells of a row below the head of a Markdown table."""
    return [cell.strip() for cell in table.splitlines()[2 + row].strip("|").split("|")]


def test_the_plan_covers_what_it_promises():
    full = evaluate.plan(full=True)
    assert len({(t.setting, t.run) for t in full}) == len(full) == 24 * 3
    assert {s.window for s in GRID} == {64, 128, 256} and {s.cache for s in GRID} == {"none", "prompt"}
    assert {s.window // s.steps for s in GRID} == {1, 4} and {s.block == s.window for s in GRID} == {True, False}
    assert set(STAR) < set(GRID) and set(WINDOWS) < set(STAR)
    for task in evaluate.plan(full=False):
        assert task.questions % len(KINDS) == 0 and task.setting.config.window == task.setting.window
    assert {t.run for t in full} == {"stock", "carry", "restart"}


def test_a_longer_evaluation_asks_what_a_shorter_asks():
    longest = evaluate.questions(evaluate.DRAWN + 20)
    assert [asked[1] for asked in longest] == [KINDS[i % len(KINDS)] for i in range(len(longest))]
    for n in (0, 1, 30, evaluate.DRAWN, evaluate.DRAWN + 9):
        asked = evaluate.questions(n)
        assert len(asked) == n
        for (image, *text), (same, *same_text) in zip(asked, longest, strict=False):
            assert (image == same).all() and text == same_text
    images = {asked[0].tobytes() for asked in longest}
    assert len(images) == len(longest)  # no sheet is asked about twice


@pytest.fixture
def small_plan(monkeypatch):
    monkeypatch.setattr(evaluate, "plan", lambda full: [Task(SMALL, run, 4 if full else 2) for run in evaluate.RUNS])


def test_evaluation_resumes_and_extends(tmp_path, small_plan, capsys):
    """A stop in the middle of a line loses that answer only; a longer plan adds to what is there."""
    assert main(["eval-demo", "--out", str(tmp_path)]) == 0
    file = tmp_path / "answers.jsonl"
    whole = file.read_text()
    assert len(whole.splitlines()) == 1 + 3 * 2
    file.write_text(whole[: whole.rstrip("\n").rfind("\n") + 20])
    assert main(["eval-demo", "--out", str(tmp_path)]) == 0
    assert file.read_text() == whole
    assert main(["eval-demo", "--full", "--out", str(tmp_path)]) == 0
    lines = file.read_text().splitlines()
    assert file.read_text().startswith(whole) and len(lines) == 1 + 3 * 4
    taken = [json.loads(line) for line in lines[1:]]
    assert sorted((t["run"], t["index"]) for t in taken) == [
        (r, i) for r in ("carry", "restart", "stock") for i in range(4)
    ]
    assert [t["kind"] for t in taken[:2]] == list(KINDS[:2])
    out = capsys.readouterr().out
    assert "### Exact answers" in out and (tmp_path / "report.md").read_text() in out


def test_records_of_other_weights_are_refused(tmp_path, small_plan, capsys):
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"model": "another", "seed": 1}) + "\n")
    assert main(["eval-demo", "--out", str(tmp_path)]) == 2
    assert "must belong to this model" in capsys.readouterr().err
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize("text", ["not json\n", '{"seed": 1}\n', '{"model": "m"}\n{"setting": {"window": 3}}\n'])
def test_something_else_is_refused_and_left_alone(tmp_path, text):
    file = tmp_path / "answers.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="must hold records of this command"):
        evaluate.read(file, "m")
    assert file.read_text() == text


def test_records_survive_the_file(tmp_path):
    file = tmp_path / "answers.jsonl"
    made = [record(), record(index=1, boundary=None, truncated=False, reason="no jump found")]
    file.write_text("\n".join(map(json.dumps, [{"model": "m"}, *map(asdict, made)])) + "\n")
    assert evaluate.read(file, "m") == made


def test_accuracy_by_hand():
    made = [record(run="stock", index=i, right=i > 0, kind=kind) for i, kind in enumerate(("row", "row", "count"))]
    line = cells(report.accuracy(made), 0)
    assert line[1:4] == ["stock", "3", "66.7 %"]
    by_kind = dict(zip(KINDS, line[4:], strict=True))
    assert by_kind["row"] == "50.0 %" and by_kind["count"] == "100.0 %" and by_kind["table"] == "-"


def test_safety_by_hand():
    """Five questions: untouched, early boundary caught by the net, cut and lost, a shorter answer, not cut."""
    stock = [
        record(run="stock", index=i, useful_tokens=n, window_tokens=128, truncated=False, boundary=None, ids=[n] * n)
        for i, n in enumerate((4, 20, 30, 6, 4))
    ]
    stock = [replace(s, token_forwards=10_000.0) for s in stock]
    cut = [
        record(index=0, ids=[4] * 4),
        record(index=1, boundary=9, net_early=1, useful_tokens=20, window_tokens=32, ids=[20] * 20),
        record(index=2, boundary=9, useful_tokens=16, window_tokens=16, finish_reason="length", ids=[30] * 16),
        record(index=3, boundary=7, useful_tokens=5, window_tokens=16, ids=[6] * 5),
        record(index=4, truncated=False, boundary=128, window_tokens=128, reason="no jump found", ids=[4] * 4),
    ]
    line = cells(report.safety([*stock, *cut]), 0)
    assert line[1:] == ["carry", "0.800 / 1.000", "4/5", "2", "1", "0", "1", "1", "60.0 %", "40.0", "10.00x"]


def test_a_row_without_padding_has_no_quiet_share_of_it():
    made = [record(run=run, quiet_padding=None) for run in ("stock", "carry")]
    assert cells(report.safety(made), 0)[2] == "- / -"
    made += [record(run=run, index=1) for run in ("stock", "carry")]
    assert cells(report.safety(made), 0)[2] == "0.800 / 1.000"


def test_controls_by_hand():
    """Two kinds of need 5 or 21, and always 2; Seer keeps 8, 24 and 8 slots and cuts nothing short."""
    made = [
        record(index=0, kind="mark", needs=5, planned=8),
        record(index=1, kind="mark", needs=21, planned=24),
        record(index=2, kind="count", needs=2, planned=8),
    ]
    needs = {kind: np.array([2]) for kind in KINDS} | {"mark": np.array([5, 5, 5, 21])}
    table = report.controls(made, needs)
    assert [cells(table, i)[1:] for i in range(4)] == [
        ["13.3", "1.00x", "0.0 %"],
        ["18.7", "1.40x", "0.0 %"],  # 24, 24, 8
        ["24.0", "1.80x", "0.0 %"],
        ["13.3", "1.00x", "0.0 %"],
    ]
    # With one of three cut short, the constants may cut a third: 5 of the four marks' needs, hence 8 slots.
    made[1] = replace(made[1], planned=16)
    table = report.controls(made, needs)
    assert cells(table, 0)[1:] == ["10.7", "1.00x", "33.3 %"]
    assert cells(table, 1)[1:] == ["8.0", "0.75x", "33.3 %"]
    assert cells(table, 3)[3] == "0.0 %"


def test_correlation_by_hand():
    made = [record(index=i, kind="mark", needs=n, boundary=b) for i, (n, b) in enumerate([(1, 2), (2, 4), (3, 6)])]
    made += [record(index=3 + i, needs=5, boundary=7) for i in range(3)]
    lines = report.correlations(made).splitlines()[2:]
    assert len(lines) == 2, "a wording that always needs as much has no correlation"
    assert cells(report.correlations(made), 0)[:4] == ["mark", "3", "1-3", "1.000"]


def test_answers_equal_across_windows():
    """Of three questions one does not fit 64 slots and one differs at 256."""
    made = []
    for setting in WINDOWS:
        made += [
            record(setting=setting, index=0),
            record(setting=setting, index=1, needs=100, ids=[setting.window] if setting.window == 64 else [7]),
            record(setting=setting, index=2, ids=[setting.window // 256]),
        ]
    table = report.same_answers(made)
    assert cells(table, 0) == ["carry", "64/128/256", "1/2", "50.0 %"]
    assert cells(table, 1) == ["carry", "128/256", "2/3", "66.7 %"]


def test_a_report_of_few_records_has_all_its_parts():
    text = report.report([record(run=run, index=i) for run in evaluate.RUNS for i in range(2)], str.split)
    assert text.count("### ") == 5 and "nan" not in text
