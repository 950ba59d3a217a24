"""The cost model: its formula, its fit, and its file."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from seer_dllm.costs import DEFAULT_COSTS, PATHS, CostModel, FitError, Measurement, PathCost

MODEL = CostModel(PathCost(1.0, 0.5, 0.25), PathCost(2.0, 0.5, 0.125, 3.0), PathCost(8.0, 0.0, 0.0), label="by hand")
SIZES = [(1, 8, 64), (1, 8, 800), (4, 64, 1024), (1, 64, 60000), (64, 1024, 1 << 14)]


def measured(path, *times):
    """Measurements of 1, 2, ... tokens that see each other, every third one of two rows."""
    return [Measurement(path, 1 + (n % 3 == 0), n, n * n, seconds) for n, seconds in enumerate(times, 1)]


def test_seconds_by_hand():
    assert MODEL.seconds("static", 2, 4, 16) == 1 + 2 + 4
    assert MODEL.seconds("varlen", 2, 4, 16) == 2 + 2 + 2 + 6
    assert MODEL.seconds("eager", 2, 4, 16) == 8
    assert MODEL.seconds("static", 1, np.array([0, 2]), np.array([0, 8])).tolist() == [1.0, 4.0]


def test_the_fit_finds_the_model_behind_exact_times():
    true = replace(DEFAULT_COSTS["cuda"], varlen=PathCost(5e-3, 27e-6, 2e-9, 4e-5))
    times = [Measurement(p, *size, true.seconds(p, *size)) for p in PATHS for size in SIZES]
    fitted = CostModel.fit(iter(times), "again")
    for path in PATHS:
        found, wanted = getattr(fitted, path), getattr(true, path)
        for name in ("fixed", "per_token", "per_pair", "per_row"):
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-6, abs=1e-12)
    assert fitted.label == "again"
    assert fitted.error(times).worst < 1e-9


def test_no_cost_is_negative():
    """Times that fall with the size leave a constant: sum(1/t) / sum(1/t^2) = (25/12) / (205/144) = 60/41."""
    sizes = [(1, 1, 1), (2, 2, 2), (2, 3, 9), (3, 4, 16)]
    falling = [Measurement(path, *size, 4.0 - i) for path in PATHS for i, size in enumerate(sizes)]
    found = CostModel.fit(falling, "falling").eager
    assert found.fixed == pytest.approx(60 / 41)
    assert found.per_token == found.per_pair == found.per_row == 0


def test_the_fit_is_the_nonnegative_optimum():
    """By the conditions of optimality: no slope where a cost is positive, none downwards where it is 0."""
    draw = random.Random(5)
    zeros = positives = 0
    for _ in range(50):
        sizes = [(draw.randint(1, 20), draw.randint(1, 50), draw.randint(1, 900)) for _ in range(6)]
        own = [Measurement("static", *size, draw.uniform(1, 3)) for size in sizes]
        rest = [m for path in ("varlen", "eager") for m in measured(path, 1.0, 2.0, 3.0, 4.0)]
        cost = CostModel.fit([*own, *rest], "random").static
        for name, column in (
            ("fixed", lambda m: 1),
            ("per_token", lambda m: m.tokens),
            ("per_pair", lambda m: m.pairs),
            ("per_row", lambda m: m.rows),
        ):
            terms = []
            for m in own:
                told = cost.fixed + cost.per_token * m.tokens + cost.per_pair * m.pairs + cost.per_row * m.rows
                terms.append((column(m) / m.seconds, told / m.seconds - 1))
            slope = sum(a * off for a, off in terms) / sum(a for a, _ in terms)
            if getattr(cost, name) > 0:
                positives += 1
                assert abs(slope) < 1e-9
            else:
                zeros += 1
                assert slope > -1e-9
    assert zeros > 10 and positives > 10


def test_error_by_hand():
    """Static predicts 1.75, 3 and 4.75 seconds for one to three tokens."""
    times = [Measurement("static", 1, n, n * n, s) for n, s in ((1, 1.75), (2, 4.0), (3, 19.0))]
    assert MODEL.error(times) == FitError(median=0.25, worst=0.75)
    assert MODEL.error([Measurement("eager", 1, 5, 5, 2.0)]) == FitError(3.0, 3.0)
    with pytest.raises(ValueError, match="measurements must not be empty"):
        MODEL.error([])


def test_a_path_without_measurements_is_refused():
    two = [m for path in ("static", "eager") for m in measured(path, 1.0, 2.0, 3.0, 4.0)]
    rule = "sizes of the varlen path that tell fixed cost, rows, tokens and pairs apart, got "
    with pytest.raises(ValueError, match=rule + r"\[\]"):
        CostModel.fit(two, "two")
    with pytest.raises(ValueError, match=rule + r"\[\[1, 1, 1\], \[1, 2, 4\], \[2, 3, 9\]\]"):
        CostModel.fit(two + 3 * measured("varlen", 1.0, 2.0, 3.0), "repeated")
    for rows in (lambda n: 1, lambda n: n):  # one number of rows; as many as tokens
        alike = [Measurement("varlen", rows(n), n, n * n, 1.0) for n in range(1, 9)]
        with pytest.raises(ValueError, match=rule):
            CostModel.fit(two + alike, "alike")


def test_file_round_trip(tmp_path):
    MODEL.save(tmp_path / "costs.json")
    assert CostModel.load(str(tmp_path / "costs.json")) == MODEL
    values = json.loads((tmp_path / "costs.json").read_text())
    assert values["varlen"] == {"fixed": 2.0, "per_token": 0.5, "per_pair": 0.125, "per_row": 3.0}
    del values["static"]["per_row"]  # as files of before were
    (tmp_path / "costs.json").write_text(json.dumps(values))
    assert CostModel.load(tmp_path / "costs.json") == MODEL


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"seer_costs": 2}, "seer_costs version 1, got 2"),
        ({"seer_costs": None}, "seer_costs version 1, got None"),
        ({"speed": 1}, "no setting 'speed'"),
        ({"label": ""}, "label must be a string that is not empty"),
        ({"static": 3}, "static must be a PathCost, got 3"),
        ({"eager": {"fixed": 1, "per_token": 1}}, "per_pair"),
        ({"eager": {"fixed": 1, "per_token": 1, "per_pair": 1, "per_head": 1}}, "no setting 'per_head'"),
        ({"eager": {"fixed": -1, "per_token": 1, "per_pair": 1}}, "fixed must be a number of at least 0, got -1"),
        ({"eager": {"fixed": 1, "per_token": float("nan"), "per_pair": 1}}, "per_token must be a number"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, change, rule):
    path = tmp_path / "costs.json"
    MODEL.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=rule) as caught:
        CostModel.load(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="costs must be a file"):
        CostModel.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("fast")
    with pytest.raises(ValueError, match=r"text\.json must be a JSON file"):
        CostModel.load(tmp_path / "text.json")


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (("graph", 1, 1, 1, 1.0), "path must be one of static, varlen, eager, got 'graph'"),
        (("eager", 0, 1, 1, 1.0), "rows must be a positive whole number, got 0"),
        (("eager", 1, 0, 1, 1.0), "tokens must be a positive whole number, got 0"),
        (("eager", 1, 1, 1.5, 1.0), "pairs must be a positive whole number, got 1.5"),
        (("eager", 1, 1, 1, 0.0), "seconds must be above 0, got 0.0"),
        (("eager", 1, 1, 1, float("inf")), "seconds must be a number of at least 0, got inf"),
    ],
)
def test_bad_measurements_are_refused(values, rule):
    with pytest.raises(ValueError, match=rule):
        Measurement(*values)


def test_defaults_say_that_they_are_not_measured():
    assert set(DEFAULT_COSTS) == {"cuda", "cpu"}
    assert all("not measured" in costs.label for costs in DEFAULT_COSTS.values())
    with pytest.raises(ValueError, match="path must be one of"):
        MODEL.seconds("graph", 1, 1, 1)
