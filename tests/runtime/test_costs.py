"""The cost model: its formula, its fit, and its file."""

import json
import random

import numpy as np
import pytest

from seer_dllm.costs import DEFAULT_COSTS, PATHS, CostModel, FitError, Measurement, PathCost

MODEL = CostModel(PathCost(1.0, 0.5, 0.25), PathCost(2.0, 0.5, 0.125), PathCost(8.0, 0.0, 0.0), label="by hand")
SIZES = [(8, 64), (8, 800), (64, 4096), (64, 60000), (1024, 1 << 20)]


def measured(path, *times):
    """Measurements of 1, 2, ... tokens, each seeing all."""
    return [Measurement(path, n, n * n, seconds) for n, seconds in enumerate(times, 1)]


def test_seconds_by_hand():
    assert MODEL.seconds("static", 4, 16) == 1 + 2 + 4
    assert MODEL.seconds("varlen", 4, 16) == 2 + 2 + 2
    assert MODEL.seconds("eager", 4, 16) == 8
    assert MODEL.seconds("static", np.array([0, 2]), np.array([0, 8])).tolist() == [1.0, 4.0]


def test_the_fit_finds_the_model_behind_exact_times():
    true = DEFAULT_COSTS["cuda"]
    times = [Measurement(p, n, pairs, true.seconds(p, n, pairs)) for p in PATHS for n, pairs in SIZES]
    fitted = CostModel.fit(iter(times), "again")
    for path in PATHS:
        found, wanted = getattr(fitted, path), getattr(true, path)
        for name in ("fixed", "per_token", "per_pair"):
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-6)
    assert fitted.label == "again"
    assert fitted.error(times).worst < 1e-9


def test_no_cost_is_negative():
    """Times that fall with the size leave a constant: sum(1/t) / sum(1/t^2) = (11/6) / (49/36) = 66/49."""
    falling = [m for path in PATHS for m in measured(path, 3.0, 2.0, 1.0)]
    found = CostModel.fit(falling, "falling").eager
    assert found.fixed == pytest.approx(66 / 49)
    assert found.per_token == found.per_pair == 0


def test_the_fit_is_the_nonnegative_optimum():
    """By the conditions of optimality: no slope where a cost is positive, none downwards where it is 0."""
    draw = random.Random(5)
    zeros = positives = 0
    for _ in range(50):
        own = [Measurement("static", draw.randint(1, 50), draw.randint(1, 900), draw.uniform(1, 3)) for _ in range(6)]
        rest = [m for path in ("varlen", "eager") for m in measured(path, 1.0, 2.0, 3.0)]
        cost = CostModel.fit([*own, *rest], "random").static
        for name, column in (
            ("fixed", lambda m: 1),
            ("per_token", lambda m: m.tokens),
            ("per_pair", lambda m: m.pairs),
        ):
            terms = [
                (
                    column(m) / m.seconds,
                    (cost.fixed + cost.per_token * m.tokens + cost.per_pair * m.pairs) / m.seconds - 1,
                )
                for m in own
            ]
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
    times = [Measurement("static", n, n * n, s) for n, s in ((1, 1.75), (2, 4.0), (3, 19.0))]
    assert MODEL.error(times) == FitError(median=0.25, worst=0.75)
    assert MODEL.error([Measurement("eager", 5, 5, 2.0)]) == FitError(3.0, 3.0)
    with pytest.raises(ValueError, match="measurements must not be empty"):
        MODEL.error([])


def test_a_path_without_measurements_is_refused():
    two = [m for path in ("static", "eager") for m in measured(path, 1.0, 2.0, 3.0)]
    with pytest.raises(ValueError, match="three sizes of the varlen path at least, got 0"):
        CostModel.fit(two, "two")
    with pytest.raises(ValueError, match="three sizes of the varlen path at least, got 2"):
        CostModel.fit(two + 3 * measured("varlen", 1.0, 2.0), "repeated")


def test_file_round_trip(tmp_path):
    MODEL.save(tmp_path / "costs.json")
    assert CostModel.load(str(tmp_path / "costs.json")) == MODEL
    assert json.loads((tmp_path / "costs.json").read_text())["varlen"]["per_pair"] == 0.125


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"seer_costs": 2}, "seer_costs version 1, got 2"),
        ({"seer_costs": None}, "seer_costs version 1, got None"),
        ({"speed": 1}, "no setting 'speed'"),
        ({"label": ""}, "label must be a string that is not empty"),
        ({"static": 3}, "static must be a PathCost, got 3"),
        ({"eager": {"fixed": 1, "per_token": 1}}, "per_pair"),
        ({"eager": {"fixed": 1, "per_token": 1, "per_pair": 1, "per_row": 1}}, "no setting 'per_row'"),
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
        (("graph", 1, 1, 1.0), "path must be one of static, varlen, eager, got 'graph'"),
        (("eager", 0, 1, 1.0), "tokens must be a positive whole number, got 0"),
        (("eager", 1, 1.5, 1.0), "pairs must be a positive whole number, got 1.5"),
        (("eager", 1, 1, 0.0), "seconds must be above 0, got 0.0"),
        (("eager", 1, 1, float("inf")), "seconds must be a number of at least 0, got inf"),
    ],
)
def test_bad_measurements_are_refused(values, rule):
    with pytest.raises(ValueError, match=rule):
        Measurement(*values)


def test_defaults_say_that_they_are_not_measured():
    assert set(DEFAULT_COSTS) == {"cuda", "cpu"}
    assert all("not measured" in costs.label for costs in DEFAULT_COSTS.values())
    with pytest.raises(ValueError, match="path must be one of"):
        MODEL.seconds("graph", 1, 1)
