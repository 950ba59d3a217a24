"""Comparing two runs: bootstrap intervals of clustered scores, and totals and pairs worked out by hand."""

import pytest
from PIL import Image

from seer_dllm import comparison
from seer_dllm.collect import Sample
from seer_dllm.comparison import bootstrap
from seer_dllm.evaluation import Answer, compare

# ---- the bootstrap -----------------------------------------------------------------------------------------


def test_two_pictures_by_hand():
    """Means of draws: 0 and 1 in a quarter of them each, 1/2 in half; so 2.5 % and 97.5 % are at the ends."""
    assert bootstrap([0, 1], ["a", "b"]) == (0.0, 1.0)
    assert bootstrap([0, 0, 1], ["a", "a", "b"]) == (0.0, 1.0)


def test_one_picture_has_no_interval():
    assert bootstrap([0, 1, 1], ["a"] * 3) is None
    assert bootstrap([1.0], ["a"]) is None


def test_equal_values_have_no_spread():
    assert bootstrap([0.25] * 6, range(6)) == (0.25, 0.25)


def test_questions_about_one_picture_are_one_draw():
    """400 pictures with four equal scores each: the mean's standard error is 0.5 / sqrt(400), not sqrt(1600)."""
    scores = [float(i % 2) for i in range(400) for _ in range(4)]
    low, high = bootstrap(scores, [i for i in range(400) for _ in range(4)])
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=2e-3)
    low, high = bootstrap(scores, range(1600))
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.0125, 0.5 + 1.96 * 0.0125), abs=2e-3)


def test_pictures_count_by_their_questions():
    """200 pictures with three right answers, 200 with one wrong. A draw has K of the first, binomial with mean 200 and
    deviation 10, and the mean 3 K / (3 K + 400 - K)."""
    scores, pictures = [], []
    for i in range(200):
        scores += [1.0, 1.0, 1.0, 0.0]
        pictures += [2 * i] * 3 + [2 * i + 1]
    low, high = bootstrap(scores, pictures)
    expected = [3 * k / (400 + 2 * k) for k in (200 - 19.6, 200 + 19.6)]
    assert (low, high) == pytest.approx(expected, abs=2e-3)


def test_draws_go_by_the_seed():
    scores, pictures = [i**0.5 for i in range(20)], range(20)
    assert bootstrap(scores, pictures) == bootstrap(scores, list(map(str, pictures)))
    assert bootstrap(scores, pictures, seed=1) != bootstrap(scores, pictures, seed=2)


# ---- comparing ---------------------------------------------------------------------------------------------


def made(run, prediction, **values) -> Answer:
    plain = {
        "id": 1, "question": "q", "text": prediction, "words_behind_end": False, "seconds": 0.5,
        "ids": [1, 2], "boundary": 3, "truncated": run == "seer", "reason": None, "net_early": 0, "net_late": 0,
        "finish_reason": "end", "steps": 8, "forwards": 8, "token_forwards": 1000.0, "useful_tokens": 2,
        "window_tokens": 8, "prompt_tokens": 80,
    }  # fmt: skip
    if run == "stock":
        plain |= {"boundary": None, "steps": 64, "token_forwards": 6000.0, "window_tokens": 64, "seconds": 2.0}
    return Answer(run=run, prediction=prediction, **{**plain, **values})


@pytest.fixture
def pictures(tmp_path):
    for name, colour in (("a", "red"), ("b", "blue"), ("same", "red")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def test_a_comparison_by_hand(pictures):
    """Two questions about one picture (once by another name), one about another, one about none."""
    samples = [
        Sample("q", (pictures / "a.png",), ("abcd",), 1),
        Sample("r", (pictures / "same.png",), ("abcd", "wxyz"), 2),
        Sample("q", (pictures / "b.png",), ("abcd",), "three"),
        Sample("q", (), ("abcd",), 4),
    ]
    answers = {
        "stock": [
            made("stock", "abcd"),
            made("stock", "wxyy", words_behind_end=True),
            made("stock", "none"),
            made("stock", "abcd", useful_tokens=30, ids=[7] * 30),
        ],
        "seer": [
            made("seer", "abcd"),
            made("seer", "wxyz", ids=[1, 3], net_early=1),
            made("seer", "none", truncated=False, window_tokens=64),
            made("seer", "abxx", finish_reason="length", useful_tokens=8, ids=[7] * 8, net_late=2),
        ],
    }
    found = compare(samples, answers, "anls")
    assert found["pictures"] == 3
    stock, seer, pair = found["runs"]["stock"], found["runs"]["seer"], found["pair"]
    assert stock["score"] == (1 + 0.75 + 0 + 1) / 4 and seer["score"] == (1 + 1 + 0 + 0.5) / 4
    assert (stock["questions"], stock["useful_tokens"], stock["window_tokens"], stock["steps"]) == (4, 36, 256, 256)
    assert (seer["useful_tokens"], seer["window_tokens"], seer["prompt_tokens"], seer["seconds"]) == (14, 88, 320, 2.0)
    assert (stock["ended"], seer["ended"], stock["words_behind_end"], seer["words_behind_end"]) == (4, 3, 1, 0)
    assert pair["difference"] == pytest.approx(-0.0625)  # 0, +0.25, 0, -0.5
    assert pair["interval"] == pytest.approx((-0.5, 0.125))  # no picture but 4's, or but a's, has probability 1/27
    assert (pair["wins"], pair["losses"], pair["ties"], pair["differing_bound"]) == (1, 1, 2, None)
    assert (pair["cut"], pair["net_early"], pair["net_late"], pair["lost"]) == (0.75, 0.25, 0.25, 0.25)
    assert (pair["same_ids"], pair["fewer_token_forwards"], pair["less_time"]) == (0.5, 6.0, 4.0)
    assert found["questions"][2] == {
        "id": "three", "answers": ("abcd",),
        "stock": {"prediction": "none", "score": 0.0}, "seer": {"prediction": "none", "score": 0.0},
    }  # fmt: skip
    text = comparison.report({"metric": "anls", "pictures": 3, "stop": ["\n"]}, found["runs"], pair)
    assert "| mean anls | 0.6875 [" in text and "| -0.0625 [-0.5000, +0.1250] |" in text
    assert "| useful tokens, per question | 9.0 | 3.5 |" in text and '| stop | ["\\n"] |' in text
    assert "| better / worse / equal | 1 / 1 / 2 |" in text and "of which there are 3" in text


def test_without_a_difference_there_is_a_bound_instead():
    """None of 20 pictures differs: at most 1 - 0.05^(1/20) = 13.9 % do."""
    samples = [Sample("q", (), ("x",), i) for i in range(20)]
    answers = {run: [made(run, "x", id=i) for i in range(20)] for run in ("seer", "stock")}
    pair = compare(samples, answers, "exact")["pair"]
    assert pair["interval"] is None and pair["differing_bound"] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert "no score differs, hence at most 13.9 %" in comparison.report(
        {"metric": "exact", "pictures": 20}, compare(samples, answers, "exact")["runs"], pair
    )


def test_one_run_is_not_compared():
    found = compare([Sample("q", (), ("x",), 1)], {"seer": [made("seer", "")]}, "exact")
    assert found["pair"] is None and found["runs"]["seer"]["score"] == 0.0
    assert "Seer against stock" not in comparison.report({"metric": "exact", "pictures": 1}, found["runs"], None)


def test_answers_without_a_word_are_reported():
    nothing = {"useful_tokens": 0, "ids": []}
    answers = {run: [made(run, "", **nothing)] for run in ("stock", "seer")}
    found = compare([Sample("q", (), ("x",), 1)], answers, "anls")
    assert "| useful tokens per second | 0.0 | 0.0 |" in comparison.report(
        {"metric": "anls", "pictures": 1}, found["runs"], found["pair"]
    )
