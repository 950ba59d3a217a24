"""The demo's data: answers checked by hand, the split, the pictures, the vocabulary and the scoring."""

import sys
from collections import defaultdict

import numpy as np
import pytest

from seer_dllm.demo import data, scoring
from seer_dllm.demo.questions import FRAMES, KINDS, NUMBERS, answer, question, words

_ = -1
GRID = [
    [3, _, 5, 1],
    [_, _, _, _],
    [7, 3, _, _],
    [_, _, _, 0],
]
DESCRIPTION = (
    "the sheet has 6 digits in a {} frame . the largest is 7 and the smallest is 0 . "
    "row 1 : 3 5 1 ; row 3 : 7 3 ; row 4 : 0 ."
)
EVERYWHERE = (
    "3 at row 1 column 1 , 5 at row 1 column 3 , 1 at row 1 column 4 , "
    "7 at row 3 column 1 , 3 at row 3 column 2 , 0 at row 4 column 4"
)
TABLE = (
    "| row | cells | total | ; | 1 | 3 blank 5 1 | 3 | ; | 3 | 7 3 blank blank | 2 | ; "
    "| 4 | blank blank blank 0 | 1 | ; | total | 6 |"
)


@pytest.mark.parametrize(
    ("kind", "slots", "asked", "expected"),
    [
        ("count", {}, "how many digits are there ?", "6"),
        ("cell", {"row": 3, "column": 1}, "which digit is in row 3 column 1 ?", "7"),
        ("cell", {"row": 1, "column": 2}, "which digit is in row 1 column 2 ?", "none"),
        ("cell", {"row": 4, "column": 4}, "which digit is in row 4 column 4 ?", "0"),
        ("row", {"row": 1}, "read row 1 .", "3 blank 5 1"),
        ("row", {"row": 2}, "read row 2 .", "blank blank blank blank"),
        ("above", {"digit": 2}, "list the digits above 2 .", "3 5 7 3"),
        ("above", {"digit": 7}, "list the digits above 7 .", "none"),
        ("places", {"digit": 3}, "where is the digit 3 ?", "row 1 column 1 , row 3 column 2"),
        ("places", {"digit": 9}, "where is the digit 9 ?", "nowhere"),
        ("describe", {}, "describe the sheet .", DESCRIPTION.format("red")),
        ("table", {}, "write the sheet as a table .", TABLE),
    ],
)
def test_answers(kind, slots, asked, expected):
    assert question(kind, **slots) == asked
    assert answer(kind, GRID, FRAMES.index("red"), **slots) == expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("red", "6"),
        ("green", "3 5 1 7 3 0"),
        ("blue", EVERYWHERE),
        ("yellow", DESCRIPTION.format("yellow")),
    ],
)
def test_the_mark_decides_the_format(frame, expected):
    assert answer("mark", GRID, FRAMES.index(frame)) == expected


@pytest.mark.parametrize(("first", "expected"), [(0, "7"), (2, "7"), (3, "{} 3 5 1 7 3 0"), (5, "{} 3 5 1 7 3 0")])
def test_the_first_digit_decides_the_format(first, expected):
    cells = [[_, first, _, _], *[[3, _, 5, 1], [7, 3, _, _], [_, _, _, 0]]]
    assert answer("first", cells, 0) == expected.format(first)


def test_a_large_first_digit_asks_for_all_places():
    cells = [[_] * 4, [_, 6, _, 1], [_] * 4, [_] * 4]
    assert answer("first", cells, 0) == "6 at row 2 column 2 , 1 at row 2 column 4"
    assert answer("first", cells, 0) == answer("mark", cells, FRAMES.index("blue"))


def test_one_digit_and_none():
    one = [[_] * 4, [_, 8, _, _], [_] * 4, [_] * 4]
    none = [[_] * 4 for _row in range(4)]
    assert answer("describe", one, 2).startswith("the sheet has 1 digit in a blue frame . the largest is 8")
    assert answer("describe", none, 2) == "the sheet has 0 digits in a blue frame ."
    assert [answer("mark", none, mark) for mark in range(3)] == ["0", "none", "nowhere"]
    assert answer("first", none, 0) == "0" and answer("table", none, 0).endswith("; | total | 0 |")


def test_unknown_kind():
    with pytest.raises(ValueError, match="the kinds are count, cell"):
        answer("colour", GRID, 0)


def test_unknown_split():
    with pytest.raises(ValueError, match="the splits are train, heldout"):
        data.digits("test")


def test_heldout_is_deterministic():
    first, again, other = (data.heldout_questions(27, seed) for seed in (5, 5, 6))
    assert [item[1:] for item in first] == [item[1:] for item in again] != [item[1:] for item in other]
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert [kind for _image, kind, *_texts in first] == 3 * list(KINDS)
    assert data.heldout_questions(0, 5) == []


def test_batches_agree_with_their_generator():
    first, again = (data.sample_batch(np.random.default_rng(3), 16, "heldout") for _run in range(2))
    assert np.array_equal(first[0], again[0])
    assert first[1:] == again[1:]
    assert first[0].shape == (16, 64, 64, 3)
    assert first[0].dtype == np.uint8
    assert set(data.sample_batch(np.random.default_rng(3), 8, "heldout", ("row",))[3]) == {"row"}


@pytest.mark.parametrize("split", data.SPLITS)
def test_sheets_show_what_they_say(split):
    """Ink is in the filled cells only, and the frame is whole: no digit reaches it."""
    if split == "train":
        pytest.importorskip("sklearn")
    labels = data.digits(split)[1]
    sheets = data.make_sheets(np.random.default_rng(0), 200, split)
    images = data.draw_sheets(sheets)
    assert np.array_equal(images[7], data.draw(sheets[7]))
    assert {int((sheet.cells >= 0).sum()) for sheet in sheets} == set(range(1, 17))
    assert {sheet.mark for sheet in sheets} == set(range(4))
    frame = np.ones((64, 64), bool)
    frame[2:-2, 2:-2] = False
    for sheet, image in zip(sheets, images, strict=True):
        filled = sheet.cells >= 0
        assert np.array_equal(labels[sheet.source[filled]], sheet.cells[filled])
        assert (image[frame] == data.FRAME_COLOURS[sheet.mark]).all()
        ink = np.where(frame, 0, 255 - image[..., 0].astype(int))
        assert np.array_equal(ink.reshape(4, 16, 4, 16).max(axis=(1, 3)) > 100, filled)


def test_a_drawn_digit_is_the_digit():
    """Every digit is drawn whole: the picture's ink is the digit's, whatever its place and size."""
    images = data.digits("heldout")[0].astype(float)
    for sheet in data.make_sheets(np.random.default_rng(1), 20, "heldout"):
        ink = 255.0 - data.draw(sheet)[..., 0]
        ink[[0, 1, -2, -1]] = ink[:, [0, 1, -2, -1]] = 0
        for row, column in np.argwhere(sheet.cells >= 0):
            size = data.POSES["heldout"][sheet.pose[row, column]][0]
            cell = ink[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16]
            source = images[sheet.source[row, column]].sum() * 255 / 16 * (size / 8) ** 2
            assert cell.sum() == pytest.approx(source, rel=0.08)


def test_one_split_at_a_time():
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="one split"):
        data.draw_sheets([data.make_sheet(rng, "train"), data.make_sheet(rng, "heldout")])


def test_splits_are_disjoint_and_complete():
    """The shipped file is scikit-learn's data, and training has exactly the rest, pixel for pixel."""
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    held, train = data.digits("heldout"), data.digits("train")
    assert held[0].shape == (297, 8, 8)
    assert train[0].shape == (1500, 8, 8)
    with np.load(data.HELDOUT_FILE, allow_pickle=False) as file:
        indices = file["indices"]
    assert len(set(indices.tolist())) == 297
    assert np.array_equal(held[0], bunch.images[indices])
    assert np.array_equal(held[1], bunch.target[indices])
    rest = np.setdiff1d(np.arange(1797), indices)
    assert np.array_equal(train[0], bunch.images[rest])
    assert np.array_equal(train[1], bunch.target[rest])
    # Indices alone would not tell of a picture that is in the data twice.
    assert not {image.tobytes() for image in held[0]} & {image.tobytes() for image in train[0]}
    assert set(held[1].tolist()) == set(train[1].tolist()) == set(range(10))


def test_the_heldout_file_can_be_rebuilt(tmp_path):
    pytest.importorskip("sklearn")
    data.write_heldout(tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz", allow_pickle=False) as again, np.load(data.HELDOUT_FILE) as shipped:
        assert set(again) == set(shipped) == {"images", "labels", "indices"}
        assert all(np.array_equal(again[key], shipped[key]) for key in again)


def test_only_training_needs_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    data.digits.cache_clear()
    try:
        assert len(data.digits("heldout")[1]) == 297
        with pytest.raises(ImportError, match="pip install scikit-learn"):
            data.digits("train")
    finally:
        data.digits.cache_clear()


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("tokenizers")
    from seer_dllm.demo import vocabulary

    return vocabulary.build_tokenizer()


def test_round_trip_and_lengths(tokenizer):
    """Every text comes back exactly, a token a word; two wordings need from 1 to 111 tokens."""
    _images, questions, answers, kinds = data.sample_batch(np.random.default_rng(0), 4000, "heldout")
    unknown = tokenizer.token_to_id("[UNK]")
    lengths = defaultdict(set)
    for asked, answered, kind in zip(questions, answers, kinds, strict=True):
        for text in (asked, answered):
            ids = tokenizer.encode(text).ids
            assert len(ids) == len(text.split())
            assert unknown not in ids
            assert tokenizer.decode(ids) == text
        lengths[kind].add(len(answered.split()))
    assert set(lengths) == set(KINDS)
    for kind in ("mark", "first"):
        assert min(lengths[kind]) == 1 and max(lengths[kind]) == 111
        assert len(lengths[kind]) >= 30
    assert lengths["count"] == lengths["cell"] == {1}
    assert lengths["row"] == {4}
    assert max(max(seen) for seen in lengths.values()) == max(lengths["mark"])


def test_the_chat_template_is_known(tokenizer):
    head = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n"
    tail = "\nread row 2 .<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    expected_head = ["<|startoftext|>", "<|start_header_id|>", "user", "<|end_header_id|>", "\n\n"]
    expected_tail = ["\n", "read", "row", "2", ".", "<|eot_id|>", "<|start_header_id|>", "assistant"]
    assert tokenizer.encode(head).tokens == expected_head
    assert tokenizer.encode(tail).tokens == [*expected_tail, "<|end_header_id|>", "\n\n"]


def test_typed_questions_are_known(tokenizer):
    assert tokenizer.encode("How many  digits are there?").ids == tokenizer.encode(question("count")).ids


def test_special_tokens_vanish_from_answers(tokenizer):
    assert tokenizer.decode(tokenizer.encode("3 blank<|eot_id|><|endoftext|><|mdm_mask|>").ids) == "3 blank"


def test_the_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    from tokenizers import Tokenizer

    from seer_dllm.demo import vocabulary

    loaded = Tokenizer.from_file(str(vocabulary.save(tmp_path)))
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.encode("\n\n\nread row 2 .").ids == tokenizer.encode("\n\n\nread row 2 .").ids
    ids = sorted(loaded.get_vocab().values())
    assert ids == list(range(len(ids)))
    assert {*words(), *NUMBERS} <= set(loaded.get_vocab())


def test_scoring():
    assert scoring.exact(" 3  blank\n5 ", "3 blank 5")
    assert not scoring.exact("3 blank", "3 blank 5")
    scores = scoring.score([("row", "1 2", "1 2"), ("count", "3", "4"), ("row", "1", "1 2")])
    seen = {kind: (s.right, s.asked) for kind, s in scores.items()}
    assert seen == {"row": (1, 2), "count": (0, 1), "all": (1, 3)}
    assert scoring.table(scores).splitlines()[0].split() == ["row", "1/2", "50.0", "%"]
    assert scoring.table(scoring.score([])).split() == ["all", "0/0", "0.0", "%"]
