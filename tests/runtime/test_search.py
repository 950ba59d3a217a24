"""The search for a profile: bounds, margins and costs by hand, and curves with a known answer."""

from unittest import mock

import numpy as np
import pytest
import torch

from seer_dllm import GenerationConfig, Profile
from seer_dllm.calibrate import Refused, choose, findings, split
from seer_dllm.search import FULL, Costs, Measured, Search, clopper_pearson, samples_needed

WINDOW, LAYERS, THRESHOLDS = 64, 8, (0.01, 0.1, 1.0)
CONFIG = GenerationConfig(window=WINDOW, steps=16)


# ---- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "n", "confidence", "bound"),
    [
        (0, 10, 0.95, 0.2589),  # 1 - 0.05^(1/10)
        (1, 100, 0.95, 0.0466),  # published tables, as the others
        (5, 10, 0.95, 0.7776),
        (2, 50, 0.95, 0.1206),
        (9, 10, 0.95, 0.9949),
        (10, 10, 0.95, 1.0),
        (0, 0, 0.95, 1.0),
        (0, 1, 0.9, 0.9),
    ],
)
def test_clopper_pearson(failures, n, confidence, bound):
    assert clopper_pearson(failures, n, confidence) == pytest.approx(bound, abs=5e-5)


def test_samples_for_one_in_a_thousand():
    assert clopper_pearson(0, 2994, 0.95) > 0.001 >= clopper_pearson(0, 2995, 0.95)
    assert samples_needed(0.001, 0.95) == 2995
    assert samples_needed(0.01, 0.95) == 299 and samples_needed(0.5, 0.5) == 1
    assert clopper_pearson(7, 100_000, 0.99) == pytest.approx(16e-5, rel=0.01)  # Poisson: 16.0 for 7 at 99 %


# ---- the search --------------------------------------------------------------------------------------------


def planted(n=120, layers=(2, 3), threshold=0.1, offset=0, noise=0.02, early=0, needs=None, seed=0) -> Measured:
    """Curves that are flat but for some layers at one threshold, quiet from the first slot behind the end.

    offset 1: the share of a slot stands at the position before it. early: quiet so many slots too early.
    """
    rng = np.random.default_rng(seed)
    needs = rng.integers(1, WINDOW // 2, n) if needs is None else np.array(needs)
    n = len(needs)
    shares = 0.5 + noise * rng.standard_normal((n, LAYERS, len(THRESHOLDS), WINDOW + 1))
    quiet = np.arange(-1, WINDOW) + offset >= needs[:, None] - early  # of each position's slot
    at = THRESHOLDS.index(threshold)
    for layer in layers:
        shares[:, layer, at] = np.where(quiet, 0.8, 0.3) + noise * rng.standard_normal(quiet.shape)
    ended = torch.from_numpy(needs < WINDOW)
    return Measured(
        (shares.clip(0, 1) * FULL).round().astype(np.uint16),
        THRESHOLDS,
        torch.from_numpy(needs),
        ended,
        torch.full((n,), 20),
        torch.full((n,), 16),
        torch.zeros((n, 2), dtype=torch.int64),
    )


def searcher(max_cut=0.001, config=CONFIG) -> Search:
    return Search(Costs(config, LAYERS), max_cut, 0.95)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("layers", "threshold"), [((2, 3), 0.1), ((5,), 1.0), ((0, 1, 2), 0.01)])
def test_what_is_planted_is_found(layers, threshold, offset):
    """The earliest planted layers suffice. The offset shows in answers of one slot, and in a slot more."""
    found = searcher(0.1).best(planted(layers=layers, threshold=threshold, offset=offset))
    profile = found[0].profile
    assert profile.probe_layers[0] <= layers[0] <= profile.probe_layers[-1] <= layers[-1]
    assert (profile.threshold, profile.slot_offset) == (threshold, offset)
    assert profile.margin <= 1 and found[0].too_short == 0
    assert found[0].kept.tolist() == found[0].needed.tolist()
    assert [o.cost for o in found] == sorted(o.cost for o in found)


def test_the_margin_makes_up_for_what_is_quiet_too_early():
    """Quiet three slots before the end, exactly; that 10, 11, 12 are rounded up to 16 is luck that does not count."""
    for needs in ([9, 17, 25, 13], [13, 14, 15]):
        measured = planted(early=3, noise=0.0, needs=needs * 12)
        outcome = searcher(0.1).fitted(measured, Profile((2, 3), 0.1))
        assert (outcome.profile.margin, outcome.too_short) == (3, 0)
        assert searcher(0.001).fitted(measured, Profile((2, 3), 0.1)).profile.margin == 4  # one more, from so few


def test_a_tail_asks_for_slack():
    """One in ten is 10 slots short, the rest 0: the tail's mean over the 90 % quantile is worked out by hand.

    30 deficits: 27 of 0, 3 of 10. Quantile at rank 26.1: 0 + 0.1 * 10 = 1; the three exceed it by 9, so a slot more
    lets 8/9 through, and ln(-ln(0.05) / (30 * 0.001)) / ln(9/8) = 4.6037 / 0.11778 = 39.09: the slack is 40.
    """
    measured, early = planted(noise=0.0, needs=[24] * 30), planted(noise=0.0, needs=[24] * 30, early=10)
    measured.shares[:3] = early.shares[:3]
    outcome = searcher().fitted(measured, Profile((2, 3), 0.1))
    assert outcome.profile.margin == 10 + 40
    assert searcher(0.1).fitted(measured, Profile((2, 3), 0.1)).profile.margin == 10  # 30 samples show one in ten


def test_the_margin_must_do_for_a_layer_more_or_less_too():
    """Layers 2-3 find every end; with layer 4 the boundary is 6 slots early: 3 of 9, 11 of 17, 19 of 25."""
    measured = planted(needs=[9, 17, 25] * 10)

    def boundaries(search, measured, profile):
        return measured.needs - (6 if profile.probe_layers == (2, 3, 4) else 0)

    with mock.patch.object(Search, "_boundaries", boundaries):
        assert searcher(0.1).fitted(measured, Profile((2, 3), 0.1)).profile.margin == 6
        assert searcher(0.1).fitted(measured, Profile((5, 6), 0.1)).profile.margin == 0


def test_a_window_without_an_end_needs_all_of_it():
    """One such row whose curve jumps makes the margin as large as it takes, and nothing is cut any more."""
    measured = planted(noise=0.0, needs=[10] * 39 + [WINDOW])
    measured.shares[39] = measured.shares[0]
    outcome = searcher().fitted(measured, Profile((2, 3), 0.1))
    assert outcome.kept.tolist() == [WINDOW] * 40 and outcome.cost == 1.0
    assert searcher().outcome(measured, Profile((2, 3), 0.1, margin=4)).too_short == 1


def test_costs_by_hand():
    """8 layers, prompt 20, window 64, 16 steps; kept 16 slots: 4 steps; probe layers up to 3, so 4 are done."""
    measured = planted(2, needs=[10, 64])
    stock = 16 * 84 * 8
    kept = torch.tensor([16, 64])
    assert Costs(CONFIG, LAYERS).stock(measured).tolist() == [stock] * 2
    assert Costs(CONFIG, LAYERS).cut(measured, kept, 4).tolist() == [84 * 4 + 36 * (4 * 8 - 4), stock]
    again = Costs(CONFIG, LAYERS, restarts=True).cut(measured, kept, 4).tolist()
    assert again == [84 * 4 + 36 * 4 * 8, stock + 84 * 4]
    cached = Costs(GenerationConfig(window=WINDOW, steps=16, cache="prompt"), LAYERS)
    assert cached.cut(measured, kept, 4).tolist() == [64 * 4 + 16 * (4 * 8 - 4), 16 * 64 * 8]


def test_late_layers_must_be_better():
    """Where two ranges cut alike, the early one is cheaper and is taken."""
    measured = planted(noise=0.01)
    measured.shares[:, 6:8] = measured.shares[:, 2:4]
    assert max(searcher().best(measured)[0].profile.probe_layers) <= 3


def test_profiles_with_too_large_a_margin_are_not_probed():
    """As in `why_not`: a window of at most margin + 8."""
    measured = planted(noise=0.0, needs=[4] * 40)
    assert searcher().outcome(measured, Profile((2, 3), 0.1, margin=WINDOW - 8)).cost == 1.0
    assert searcher().outcome(measured, Profile((2, 3), 0.1, margin=WINDOW - 17)).cost < 1.0


def halves(measured):
    return torch.arange(0, len(measured), 2), torch.arange(1, len(measured), 2)


def test_noise_is_refused():
    measured = planted(layers=())
    with pytest.raises(Refused, match=r"no profile meets the bound .*; best was layer"):
        choose(measured, searcher(), *halves(measured))


def test_what_fails_on_the_others_is_refused():
    """The samples that choose are clean; of those that test, every third is quiet ten slots early."""
    needs = [20, 30] * 60
    measured, early = planted(needs=needs), planted(needs=needs, early=10)
    measured.shares[1::6] = early.shares[1::6]
    message = r"no profile meets the bound of 0.10%; best was layer.*: 20 of 60 windows cut too short \(at most 44.65%"
    with pytest.raises(Refused, match=message):
        choose(measured, searcher(), *halves(measured))


def test_answers_that_do_not_end_are_refused():
    measured = planted(needs=[WINDOW] * 80 + [5] * 20)
    with pytest.raises(Refused, match="must end inside the window, at least 25% of them.*got 20 of 100"):
        choose(measured, searcher(), *halves(measured))


def test_findings_by_hand():
    measured = planted(noise=0.0, needs=[10, 10, 30, 30] * 15)
    candidates, tested = choose(measured, searcher(0.05), *halves(measured))
    found = findings(measured.rows(halves(measured)[1]), tested, 0.001, 0.95)
    assert (found["tested_on"], found["cut"], found["cut_too_short"], found["proven"]) == (30, 30, 0, False)
    assert found["bound"] == pytest.approx(1 - 0.05 ** (1 / 30)) and found["samples_needed"] == 2995
    assert (found["kept_share"], found["oracle_share"]) == (0.375, 0.375)  # 10 slots in 16 of 64, 30 in 32
    curve = found["quiet_share_around_end"]
    assert list(curve) == list(range(-16, 33))
    assert curve[-1] == pytest.approx(0.3, abs=0.2) and curve[0] == pytest.approx(0.8, abs=0.2)
    assert findings(measured, tested, 0.1, 0.95)["proven"]


def test_split():
    chosen, held = split(401, 2995, None)
    assert (len(chosen), len(held)) == (201, 200) and sorted([*chosen.tolist(), *held.tolist()]) == list(range(401))
    assert len(split(4000, 2995, None)[1]) == 2995  # as the bound needs
    assert len(split(2000, 2995, None)[1]) == 1500  # as can be spared
    assert len(split(100, 2995, 0.3)[1]) == 30
    for n, holdout in ((59, None), (100, 0.2), (100, 0.8), (0, None)):
        with pytest.raises(ValueError, match="samples must leave at least 30 for choosing and 30 for the test"):
            split(n, 2995, holdout)
