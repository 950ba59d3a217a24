"""Metrics against values worked out by hand from the published definitions."""

import re

import pytest

from seer_dllm.metrics import METRICS, anls, exact, find_metric, levenshtein, relaxed_accuracy


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("same", "same", 0),
        ("kitten", "sitting", 3),  # k -> s, e -> i, + g
        ("flaw", "lawn", 2),  # - f, + n
        ("ab", "ba", 2),  # a swap is no single edit
        ("ok👍", "ok", 1),  # one code point, though two UTF-16 units and four bytes
        ("Ö", "O\u0308", 2),  # composed and decomposed are different code points
    ],
)
def test_edit_distance(a, b, distance):
    assert levenshtein(a, b) == levenshtein(b, a) == distance


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("red", ["red"], 1.0),
        ("red", ["blue", "red"], 1.0),
        ("Red", ["red"], 0.0),
        ("red .", ["red"], 0.0),
        ("  two\n words ", ["two words"], 1.0),
        ("twowords", ["two words"], 0.0),
        ("", ["red"], 0.0),
        ("", [""], 1.0),
    ],
)
def test_exact(prediction, answers, score):
    assert exact(prediction, answers) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("ITC Limited", ["itc limited"], 1.0),
        ("itc limted", ["ITC Limited"], 10 / 11),  # one of eleven
        (" itc  limited\n", ["itc limited"], 1.0),
        ("newyork", ["New York"], 7 / 8),  # a space is a character
        ("ac", ["ab"], 0.5),  # kept at the threshold, as the challenge's scorer does
        ("axx", ["abc"], 0.0),  # 1/3 is below it
        ("pepsi", ["coca cola"], 0.0),
        ("12 june", ["june 12", "12 jun", "june"], 6 / 7),  # 2/7 and 4/7 are worse
        ("resume", ["résumé"], 4 / 6),
        ("ok", ["ok👍"], 2 / 3),
        ("", ["yes"], 0.0),
        ("yes", [""], 0.0),
        ("", [" "], 1.0),
        ("e\u0301", ["é"], 0.0),
        ("the answer is 7", ["7"], 0.0),  # 14 of 15: wordiness costs
    ],
)
def test_anls(prediction, answers, score):
    assert anls(prediction, answers) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "answers", "right"),
    [
        ("105", ["100"], True),
        ("105.01", ["100"], False),
        ("95", ["100"], True),
        ("94.99", ["100"], False),
        ("1.05", ["1"], True),  # in binary floating point the difference is above 0.05
        ("100", ["105"], True),  # 5 of 105, not of 100
        ("100", ["95"], False),  # 5 of 95
        ("-10", ["-10.5"], True),
        ("-10", ["10"], False),
        ("+3", ["3"], True),
        (".5", ["0.51"], True),
        ("5.", ["5"], True),
        ("1e3", ["1000"], True),
        ("12%", ["12.5%"], True),
        ("12 %", ["12%"], True),
        ("12%", ["0.12"], True),
        ("12%", ["12"], False),
        ("0", ["0"], True),
        ("0.0", ["0"], False),  # zero is compared as text
        ("0.001", ["0"], False),
        ("0", ["0.01"], False),
        ("1,200", ["1200"], False),  # a comma makes it a text
        ("1,200", ["1,200"], True),
        ("1,201", ["1,200"], False),
        ("$5", ["5"], False),
        ("Yes", ["yes"], True),
        ("yes ", ["Yes"], True),
        ("yes.", ["yes"], False),
        ("Blau", ["blue", "blau"], True),
        ("", ["5"], False),
        ("", [""], True),
        ("nan", ["5"], False),
        ("nan", ["NaN"], True),
        ("inf", ["5"], False),
        ("٣", ["3"], False),  # other scripts' digits are texts
        ("1_0", ["10"], False),
        ("9" * 5000, ["9" * 5000], True),
        ("1e999999999", ["5"], False),
    ],
)
def test_relaxed_accuracy(prediction, answers, right):
    assert relaxed_accuracy(prediction, answers) == float(right)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("answers", [[], (), "text"])
def test_answers_must_be_a_list_with_something_in_it(name, answers):
    with pytest.raises(ValueError, match="answers must be a list of at least one text, got"):
        METRICS[name]("x", answers)


def test_an_unknown_metric_tells_what_there_is_and_what_there_is_not():
    assert find_metric("anls") is anls
    with pytest.raises(
        ValueError, match=re.escape("must be one of exact, anls, relaxed_accuracy, got 'vqa'")
    ) as caught:
        find_metric("vqa")
    for name in ("VQA accuracy", "MME", "MMMU", "MathVista", "CIDEr"):
        assert name in str(caught.value).split("not done:")[1]
