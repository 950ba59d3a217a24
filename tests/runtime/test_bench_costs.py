"""measure_costs.py and sim_router.py: a recorded cost model goes from one to the other."""

import sys
from pathlib import Path

import pytest

from seer_dllm.config import ModelConfig
from seer_dllm.costs import PATHS, CostModel
from seer_dllm.measure import SHAPES

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import measure_costs  # noqa: E402
import sim_router  # noqa: E402

TOY = ModelConfig(64, 32, 48, 8, 4, 4, 8, 1e4, 1e-5, mask_id=63, eos_id=62)


def test_from_measurements_to_a_simulation(tmp_path, monkeypatch, capsys):
    costs, out = tmp_path / "costs.json", tmp_path / "sim.md"
    monkeypatch.setitem(measure_costs.MODELS, "llada-8b", TOY)
    options = ["--shape", "llada-8b", "--layers", "1", "--tokens", "128", "--repeats", "1", "--out", str(costs)]
    monkeypatch.setattr(sys, "argv", ["measure_costs.py", *options])
    assert measure_costs.main() == 0
    found = CostModel.load(costs)
    assert "CPU threads, bfloat16" in found.label
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(PATHS) * sum(rows * fed <= 128 for rows, fed, _ in SHAPES)
    for path, *sizes, _, told, _ in ([cell.strip() for cell in line] for line in lines):
        rows, tokens, pairs = map(int, sizes)
        assert float(told) == pytest.approx(1e3 * found.seconds(path, rows, tokens, pairs), abs=1e-3)

    monkeypatch.setattr(
        sys, "argv", ["sim_router.py", "--costs", str(costs), "--batch", "3", "--seeds", "1", "--out", str(out)]
    )
    sim_router.main()
    text = out.read_text()
    assert text.startswith("# The router on a recorded cost model") and found.label in text and "Synthetic" not in text


def test_what_does_not_fit_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("shapes._free_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(sys, "argv", ["measure_costs.py", "--shape", "llada-8b"])
    assert measure_costs.main() == 2
    assert "layers must fit the memory" in capsys.readouterr().err
