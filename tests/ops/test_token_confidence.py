"""token_confidence: tokens are exact, confidences float64 to a few rounding steps."""

import math

import pytest
import torch

from cases import CORNER, CORRECTNESS, FLOATS, inputs
from seer_ext import ops, reference
from tolerances import assert_matches

OP = "token_confidence"
KINDS = ["prob", "margin", "entropy"]
PREFIX = r"^seer::token_confidence: "
NAN, INF = math.nan, math.inf


def assert_close(got, want):
    """Confidences are sums of float64 exponentials: relative error 1e-12, far above theirs and below
    float32's."""
    assert got.dtype == torch.float64
    assert torch.allclose(got.cpu(), want.cpu(), rtol=1e-12, atol=1e-14), (got - want).abs().max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CORRECTNESS[OP] + CORNER[OP], ids=str)
def test_matches_reference(case, device, kind):
    """case P19 among them: no rows, no columns."""
    (logits, _, suppress), _ = inputs(OP, case, device)
    for ids in (None, suppress):
        token, confidence = ops.token_confidence(logits, kind, ids)
        want_token, want_confidence = reference.token_confidence(logits, kind, ids)
        assert token.dtype == torch.int64
        assert_matches(token, want_token)
        assert_close(confidence, want_confidence)


@pytest.mark.parametrize(
    "suppress, token, prob, margin, entropy",
    [
        # logits log 3, 0, log 2: probabilities 1/2, 1/6, 1/3.
        (None, 0, 1 / 2, 1 / 6, -(math.log(2) / 2 + math.log(6) / 6 + math.log(3) / 3)),
        # Without id 0: 1/3 and 2/3.
        ([0], 2, 2 / 3, 1 / 3, -(math.log(3) / 3 + 2 / 3 * math.log(1.5))),
        ([2, 0, 2], 1, 1.0, 1.0, 0.0),  # one left: certain
        ([1, 2, 0], 0, 0.0, 0.0, 0.0),  # none left
    ],
)
def test_by_hand(impl, device, suppress, token, prob, margin, entropy):
    logits = torch.tensor([[math.log(3), 0.0, math.log(2)]], device=device)
    ids = None if suppress is None else torch.tensor(suppress, device=device)
    for kind, want in (("prob", prob), ("margin", margin), ("entropy", entropy)):
        got_token, got = impl.token_confidence(logits, kind, ids)
        assert got_token.tolist() == [token]
        assert got.item() == pytest.approx(want, rel=1e-6, abs=1e-9)  # the logits are float32


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", [8, 63, 1000, 5000])
def test_ties_go_to_the_lowest_id(impl, device, dtype, vocab):
    """case P17"""
    logits = torch.full((4, vocab), 1.0, dtype=dtype, device=device)
    logits[1, [vocab // 3, vocab // 2, vocab - 1]] = 2.0
    logits[2, -1] = 2.0
    token, confidence = impl.token_confidence(logits[:3], "margin")
    assert token.tolist() == [0, vocab // 3, vocab - 1]
    assert confidence[:2].tolist() == [0.0, 0.0] and confidence[2] > 0
    token, _ = impl.token_confidence(logits[:3], "prob", torch.tensor([0, vocab // 3], device=device))
    assert token.tolist() == [1, vocab // 2, vocab - 1]


def test_near_certain_slots_keep_their_order(impl, device):
    """Logits 22 to 40 apart: float32 probabilities are all 1, float64 ones still tell them apart up to 36."""
    gaps = torch.arange(22.0, 41.0)
    logits = torch.stack([gaps, torch.zeros(19)], 1).to(device)
    want = torch.softmax(logits.double(), -1)[:, 0]
    assert (torch.softmax(logits, -1)[:, 0] == 1).all()
    token, confidence = impl.token_confidence(logits)
    assert token.tolist() == [0] * 19
    assert (confidence - want).abs().max() <= 2**-53
    assert (confidence[:15].diff() > 0).all() and confidence[14] < 1
    assert torch.equal(confidence.argsort(stable=True), want.argsort(stable=True))


def test_order_with_many_near_zeros(device):
    """The sum over a vocabulary of far logits is what separates the slots; float32 sums would lose it."""
    logits = torch.randn(16, 5000, device=device)
    logits[:, 7] = torch.linspace(30, 33, 16, device=device)
    _, confidence = ops.token_confidence(logits)
    others = torch.exp(logits.double() - logits[:, 7:8].double())
    others[:, 7] = 0
    assert_close(1 - confidence, others.sum(-1))
    assert torch.equal(confidence.argsort(), others.sum(-1).argsort(descending=True))


def test_infinite_and_nan_logits(impl, device):
    logits = torch.tensor(
        [[-INF, 0, -INF], [-INF, -INF, -INF], [NAN, 0, 1], [0, INF, 5], [INF, 0, INF], [NAN, NAN, NAN]],
        device=device,
    )
    e = math.e
    want = {
        # -inf and NaN have probability 0. Infinite logits share everything.
        "prob": [1, 0, e / (1 + e), 1, 1 / 2, 0],
        "margin": [1, 0, (e - 1) / (e + 1), 1, 0, 0],
        "entropy": [0, 0, e / (1 + e) - math.log(1 + e), 0, -math.log(2), 0],
    }
    for kind in KINDS:
        token, confidence = impl.token_confidence(logits, kind)
        assert token.tolist() == [1, 0, 2, 1, 0, 0]
        assert confidence.tolist() == pytest.approx(want[kind], abs=1e-14)


def test_huge_logits(device):
    logits = torch.tensor([[3e38, -3e38, 0.0], [-3e38, -3e38, -3.1e38], [1e4, 1e4 - 1, -1e4]], device=device)
    token, confidence = ops.token_confidence(logits)
    assert token.tolist() == [0, 0, 0]
    assert confidence.tolist() == pytest.approx([1, 0.5, 1 / (1 + math.exp(-1))], rel=1e-12)


def test_chosen(impl, device):
    # Probabilities 1/2, 1/6, 1/3, as above.
    logits = torch.tensor([[math.log(3), 0.0, math.log(2)]], device=device).expand(3, 3)
    chosen = torch.tensor([2, 1, 0], device=device)
    token, confidence = impl.token_confidence(logits, chosen=chosen)
    assert token.tolist() == [2, 1, 0]
    assert confidence.tolist() == pytest.approx([1 / 3, 1 / 6, 1 / 2], rel=1e-6)
    # A suppressed token has probability 0; the others share the rest.
    _, confidence = impl.token_confidence(logits, suppress=torch.tensor([1], device=device), chosen=chosen)
    assert confidence.tolist() == pytest.approx([2 / 5, 0, 3 / 5], rel=1e-6)
    # Margin and entropy describe the distribution, whichever token was chosen.
    for kind in ("margin", "entropy"):
        want = impl.token_confidence(logits, kind)[1]
        assert torch.equal(impl.token_confidence(logits, kind, chosen=chosen)[1], want)


def test_rows_do_not_depend_on_the_batch(device):
    logits = torch.randn(6, 3001, device=device).mul_(3)
    key = torch.arange(6, device=device) - 3
    temperature = torch.tensor([0.0, 0.5, 1.0, 0.0, 2.0, 0.7], device=device)
    for kind in KINDS:
        together = ops.token_confidence(logits, kind, temperature=temperature, key=key)
        for n in (5, 2, 0):
            row = slice(n, n + 1)
            alone = ops.token_confidence(logits[row], kind, temperature=temperature[row], key=key[row])
            assert_matches(alone[0], together[0][row])
            assert_matches(alone[1], together[1][row])
        backwards = ops.token_confidence(logits.flip(0), kind, temperature=temperature.flip(0), key=key.flip(0))
        assert_matches(backwards[0].flip(0), together[0])
        assert_matches(backwards[1].flip(0), together[1])


# ---- sampling ----------------------------------------------------------------------------------------------


def uniform(key, vocab_id):
    """The counter generator on Python integers: splitmix64's finalizer, top 23 bits, half a step off the
    ends."""

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    return ((mix((mix(key % 2**64) + (vocab_id + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 41) + 0.5) / 2**23


def gumbel(key, vocab_id):
    return -math.log(-math.log(uniform(key, vocab_id)))


def test_the_generator_is_splitmix64():
    # Key 0 is splitmix64 from seed 0, whose published first outputs begin E220A8397B1DCDAF, 6E789E6AA1B965F4.
    assert uniform(0, 0) == ((0xE220A8397B1DCDAF >> 41) + 0.5) / 2**23
    assert uniform(0, 1) == ((0x6E789E6AA1B965F4 >> 41) + 0.5) / 2**23


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_noise_by_hand(impl, device, temperature):
    """Key 0: u = 0.883311, 0.431528, gumbel 2.0868, 0.1739. Id 1 overtakes id 0 when ahead by T * 1.9129."""
    args = {
        "temperature": torch.tensor([temperature], device=device),
        "key": torch.zeros(1, dtype=torch.int64),
    }
    args["key"] = args["key"].to(device)
    for ahead, token in ((1.90, 0), (1.92, 1)):
        logits = torch.tensor([[0.0, ahead * temperature]], device=device)
        got, confidence = impl.token_confidence(logits, **args)
        assert got.item() == token
        # Confidence is the noiseless probability of what was drawn.
        p = 1 / (1 + math.exp(-ahead * temperature))
        assert confidence.item() == pytest.approx(p if token else 1 - p, rel=1e-6)


def test_draws_follow_the_counter_generator(impl, device):
    """Against Python integers and floats, for extreme keys too. Rows with a runner-up within 1e-4 are left
    out."""
    vocab, heat = 150, 1.5
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 12345, *range(10**12, 10**12 + 34)]
    logits = torch.randn(len(keys), vocab)
    clear, want = [], []
    for n, key in enumerate(keys):
        scores = [logits[n, v].item() + heat * gumbel(key, v) for v in range(vocab)]
        runner_up, best = sorted(scores)[-2:]
        want.append(scores.index(best))
        clear.append(best - runner_up > 1e-4)
    assert sum(clear) >= len(keys) - 2 and len(set(want)) > len(keys) // 2
    token, _ = impl.token_confidence(
        logits.to(device),
        temperature=torch.full((len(keys),), heat, device=device),
        key=torch.tensor(keys, device=device),
    )
    assert [t for t, ok in zip(token.tolist(), clear, strict=True) if ok] == [
        t for t, ok in zip(want, clear, strict=True) if ok
    ]


@pytest.mark.parametrize("heat", [0.5, 1.0, 3.0])
def test_frequencies_are_the_softmax(impl, device, heat):
    """20,000 keys: chi-square below 23.5, which true draws from 5 ids exceed once in 10,000."""
    n = 20_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5], device=device)
    token, _ = impl.token_confidence(
        logits.expand(n, 5),
        temperature=torch.full((n,), heat, device=device),
        key=torch.arange(n, device=device),
    )
    expected = n * torch.softmax(logits.double() / heat, -1)
    counts = torch.bincount(token, minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


def test_suppressed_ids_are_never_drawn(impl, device):
    n = 500
    logits = torch.tensor([[9.0, 0.0, 9.0, 0.0]], device=device).expand(n, 4)
    heat, key = torch.full((n,), 5.0, device=device), torch.arange(n, device=device)
    token, _ = impl.token_confidence(logits, suppress=torch.tensor([0, 2], device=device), temperature=heat, key=key)
    assert set(token.tolist()) == {1, 3}


def test_without_heat_the_key_changes_nothing(impl, device):
    logits = torch.randn(6, 500, device=device)
    temperature = torch.tensor([0.0, -1.0, NAN, 0.0, -0.0, 0.0], device=device)
    key = torch.arange(6, device=device)
    got = impl.token_confidence(logits, temperature=temperature, key=key)
    want = impl.token_confidence(logits)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


# ---- layout and errors -------------------------------------------------------------------------------------


def test_outer_strides(device):
    """case P18: logits of some positions, or of the model's own ids only, without a copy; NaN lies around
    them."""
    wide = torch.full((8, 300), NAN, device=device)
    wide[::2, 5:255] = torch.randn(4, 250, device=device)
    view = wide[::2, 5:255]
    for got, want in zip(ops.token_confidence(view), ops.token_confidence(view.contiguous()), strict=True):
        assert_matches(got, want)
    every_other = torch.arange(8, device=device)[::2]
    got = ops.token_confidence(view, chosen=every_other)
    assert_matches(got[1], ops.token_confidence(view, chosen=every_other.contiguous())[1])
    with pytest.raises(ValueError, match=PREFIX + r"logits must .*contiguous.*, got "):
        ops.token_confidence(wide[:, ::2])


def test_errors(device):
    logits = torch.randn(3, 10, device=device)
    three = torch.zeros(3, dtype=torch.int64, device=device)
    heat = torch.ones(3, device=device)
    with pytest.raises(ValueError, match=PREFIX + r"logits must .*, got "):
        ops.token_confidence(logits[0])
    with pytest.raises(TypeError, match=PREFIX + r"logits must have dtype .*, got "):
        ops.token_confidence(logits.double())
    with pytest.raises(ValueError, match=PREFIX + r"kind must be .*prob.*margin.*entropy.*, got '?\"?confidence"):
        ops.token_confidence(logits, "confidence")
    with pytest.raises(TypeError, match=PREFIX + r"suppress must have dtype .*, got "):
        ops.token_confidence(logits, suppress=three.float())
    with pytest.raises(ValueError, match=PREFIX + r"chosen must have shape \[N\]=\[3\], got \[2\]"):
        ops.token_confidence(logits, chosen=three[:2])
    with pytest.raises(ValueError, match=PREFIX + r"temperature must have shape \[N\]=\[3\], got \[2\]"):
        ops.token_confidence(logits, temperature=heat[:2], key=three)
    with pytest.raises(ValueError, match=PREFIX + r"key must .*, got "):
        ops.token_confidence(logits, temperature=heat)
    with pytest.raises(ValueError, match=PREFIX + r"temperature must be absent where chosen is given, got "):
        ops.token_confidence(logits, chosen=three, temperature=heat, key=three)
    with pytest.raises(TypeError, match=PREFIX + r"temperature must have dtype float32, got float64"):
        ops.token_confidence(logits, temperature=heat.double(), key=three)
    with pytest.raises(TypeError, match=PREFIX + r"key must have dtype .*, got "):
        ops.token_confidence(logits, temperature=heat, key=three.float())


@pytest.mark.parametrize("bad", [-1, 10])
def test_ids_out_of_range_raise_on_the_cpu(bad):
    logits = torch.randn(2, 10)
    with pytest.raises(ValueError, match=PREFIX + rf"chosen.* must .*, got {bad}"):
        ops.token_confidence(logits, chosen=torch.tensor([0, bad]))
    with pytest.raises(ValueError, match=PREFIX + rf"suppress.* must .*, got {bad}"):
        ops.token_confidence(logits, suppress=torch.tensor([0, bad]))
