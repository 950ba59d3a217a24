"""The engine: every request answered as if alone, or failed with its own reason, whatever happens around it."""

import gc
import random
import weakref

import pytest
import torch
from scripted import EAGER, LAYERS, MASK, Script, Scripted, differences, random_prompt, tiny, words
from workloads import COSTS, Recorder, family_cases, scripted_cases

from seer_dllm import GenerationConfig, Profile, Truncation
from seer_dllm.backbone import KeyValues
from seer_dllm.canvas import Canvas
from seer_dllm.config import STEP0
from seer_dllm.costs import CostModel, PathCost
from seer_dllm.engine import Cancelled, Engine, Request
from seer_dllm.router import MODES, Limits

FAMILIES = ["llada", "llada_gqa", "dream", "lavida_llada", "lavida_dream", "mmada"]
pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
FOUR = GenerationConfig(window=4)


def requests_of(cases) -> list[Request]:
    return [Request(c.prompt, config=c.config, truncation=c.truncation) for c in cases]


@pytest.mark.parametrize("mode", MODES)
def test_answers_are_those_of_each_request_alone(mode):
    """40 requests, three at a time, captured or not."""
    cases = scripted_cases(40, seed=3)
    engine = Engine(
        cases[0].model, max_batch=3, mode=mode, costs=COSTS, capturer=Recorder() if mode == "cost" else None
    )
    for case, answer in zip(cases, engine.generate(requests_of(cases), progress=False), strict=True):
        assert answer.error is None and not differences(answer.result, case.alone)
    stats = engine.stats()
    assert (stats.answered, stats.failed, stats.running, stats.waiting) == (40, 0, 0, 0) and not engine.active
    assert sum(stats.path_shares.values()) == pytest.approx(1)
    assert stats.real_tokens + stats.padded_tokens >= stats.real_tokens > 0
    assert stats.useful_tokens == sum(case.alone.useful_tokens for case in cases)


@pytest.mark.parametrize("family", FAMILIES)
def test_real_models(family):
    cases = family_cases(family, 8, seed=11)
    engine = Engine(cases[0].model, max_batch=3, limits=Limits(max_rows=2, max_tokens=256), costs=COSTS, mode="cost")
    for case, answer in zip(cases, engine.generate(requests_of(cases), progress=False), strict=True):
        assert not differences(answer.result, case.alone)


def test_p2_many_requests_in_one_call():
    """case P2: equal prompts get equal answers, which are those of a batch of one."""
    prompt = random_prompt(4, 6)
    config = GenerationConfig(window=24, steps=12, block=12)
    engine = Engine(tiny("llada"))
    answers = engine.generate([Request(prompt, config=config, truncation=None)] * 3, progress=False)
    (alone,) = Engine(tiny("llada")).generate([Request(prompt, config=config, truncation=None)], progress=False)
    assert [a.result.window_ids for a in answers] == [alone.result.window_ids] * 3


@pytest.mark.parametrize("cache", ["prompt", "prefix", "dual"])
def test_p8_a_cached_prefix_in_a_batch_of_two(cache):
    """case P8: prompts of 5, window 16; the second one joins when the first has its keys cached already."""
    model, prompts = tiny("llada"), [random_prompt(i, 5) for i in (6, 7)]
    config = GenerationConfig(window=16, steps=8, block=8, cache=cache)
    engine, done = Engine(model, mode="static"), {}
    for prompt in prompts:
        engine.add_request(prompt, config=config, truncation=None)
        done |= {a.id: a.result for a in engine.step()}
    while engine.active:
        done |= {a.id: a.result for a in engine.step()}
    for i, prompt in enumerate(prompts, 1):
        (alone,) = Engine(model).generate([Request(prompt, config=config, truncation=None)], progress=False)
        assert not differences(done[i], alone.result)


def test_requests_are_admitted_in_order_as_others_finish():
    """Two at once; of 2, 6, 2, 2 and 4 steps: the third begins when the first is done, and so on."""
    scripted, seen, ended = Scripted([Script(6)]), [], []
    engine = Engine(scripted.model, max_batch=2)
    for steps in (2, 6, 2, 2, 4):
        config = GenerationConfig(window=12, steps=steps)
        engine.add_request(
            scripted.prompt(), config=config, truncation=None, callback=lambda row: seen.append(row.index)
        )
    while engine.active:
        assert len(engine._running) <= 2
        ended.append([a.id for a in engine.step()])
    assert seen == [1, 2] * 2 + [2, 3] * 2 + [2, 4] * 2 + [5] * 4
    assert ended == [[], [1], [], [3], [], [2, 4], [], [], [], [5]]


def test_what_fails_fails_alone():
    """Every request gets its own reason; those beside it get their answers."""
    scripted = Scripted([Script(4)])
    good, long = scripted.prompt(), scripted.prompt(0, 5000)
    engine = Engine(scripted.model, max_batch=2)

    def broken(row):
        raise KeyError("of the caller's")

    bad = {
        "must fit the model's 4096 positions": Request(long),
        "drafts\\[0\\] ids must be in": Request(good, draft=[99]),
        "drafts\\[0\\] must hold at most window=4": Request(good, config=FOUR, draft=[1] * 5),
        "images must be empty|images\\[0\\]": Request(good, images=["nowhere.png"]),
        "must have shape \\[P, 5\\]": Request(torch.zeros(3, 4)),
        "config must be a GenerationConfig": Request(good, config={"window": 4}),
        "truncation must be a": Request(good, truncation=True),
        "probe_layers must be below": Request(good, truncation=Truncation(Profile(probe_layers=(99,)))),
        "of the caller's": Request(good, callback=broken),
    }
    requests = [r for one in bad.values() for r in (one, Request(good, config=FOUR))]
    answers = engine.generate(requests, progress=False)
    for reason, answer in zip(bad, answers[::2], strict=True):
        assert answer.result is None
        with pytest.raises(Exception, match=reason):
            raise answer.error
    assert all(a.error is None and a.result.ids == words(4) for a in answers[1::2])
    stats = engine.stats()
    assert (stats.answered, stats.failed, stats.cancelled) == (9, 9, 0)
    with pytest.raises(ValueError, match="every must be one of step, block, got 'token'"):
        engine.add_request(good, every="token")
    with pytest.raises(TypeError, match="windows"):
        engine.add_request(good, windows=4)


@pytest.mark.parametrize(
    "wrong",
    [{"images": ["missing.png"]}, {"draft": [-1]}, {"config": GenerationConfig(1 << 20)}],
    ids=["picture", "draft", "too long"],
)
def test_what_failed_is_freed_at_once(wrong):
    """Though its answer is kept, and without the cyclic collector."""
    engine, prompt = Engine(tiny("llada_gqa")), random_prompt(4, 4, "llada_gqa").clone()
    alive = weakref.ref(prompt)
    gc.collect()
    gc.disable()
    try:
        engine.add_request(prompt, **wrong)
        del prompt
        answers = engine.step()
        assert answers[0].error is not None and alive() is None
    finally:
        gc.enable()


def test_where_a_request_failed_is_in_the_log(caplog):
    caplog.set_level("DEBUG", "seer_dllm.engine")
    engine = Engine(tiny("llada_gqa"))
    engine.add_request(random_prompt(4, 4, "llada_gqa"), draft=[-1])
    assert engine.step()[0].error is not None and "Traceback" in caplog.text


def test_cancelling():
    """A waiting one, a running one, one by its own callback, one by another's; twice is once."""
    scripted = Scripted([Script(9)])
    engine, config = Engine(scripted.model, max_batch=4), GenerationConfig(window=16, cache="prompt")

    def cancels(row):
        if row.counters.steps == 3:
            assert engine.cancel(row.index) and engine.cancel(5)

    ids = [engine.add_request(scripted.prompt(), config=config, callback=c) for c in (None, None, cancels, None)]
    assert engine.cancel(ids[0]) and not engine.cancel(ids[0]) and not engine.cancel(77)
    engine.add_request(scripted.prompt(), config=config)
    answers = {a.id: a for a in engine.step()}
    assert list(answers) == [1] and engine.cancel(2)
    while engine.active:
        answers |= {a.id: a for a in engine.step()}
    assert {id: type(a.error) for id, a in answers.items()} == {
        1: Cancelled, 2: Cancelled, 3: Cancelled, 4: type(None), 5: Cancelled,
    }  # fmt: skip
    assert not differences(answers[4].result, Scripted([Script(9)]).answer(config))
    assert (engine.stats().answered, engine.stats().cancelled) == (1, 4)
    assert engine._loop._groups == [] and engine._loop.rows == []  # nothing is held


def test_streaming_by_step_and_by_block():
    scripted, steps, blocks = Scripted([Script(12)]), [], []
    engine, config = Engine(scripted.model), GenerationConfig(window=16, block=8, steps=8)
    engine.add_request(scripted.prompt(), config=config, callback=lambda row: steps.append(row.ids.tolist()))
    engine.add_request(
        scripted.prompt(),
        config=config,
        every="block",
        callback=lambda row: blocks.append((row.index, row.ids.tolist())),
    )
    while engine.active:
        engine.step()
    assert [sum(i != MASK for i in ids) for ids in steps] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert [(id, sum(i != MASK for i in ids)) for id, ids in blocks] == [(2, 8), (2, 16)]
    assert blocks[-1][1] == steps[-1] and steps[0][:2] == words(2)


def test_every_forward_keeps_to_the_limits():
    """Rows of 5 + 16 tokens, 50 tokens and 3 rows a forward; a window that grows to 64 splits the groups anew."""
    scripted = Scripted([Script(6, jump=8, later=60)] + [Script(12)] * 5)
    engine = Engine(scripted.model, limits=Limits(max_rows=3, max_tokens=69))
    prompts = [scripted.prompt(i) for i in range(6)]
    config = GenerationConfig(window=64, steps=16)
    answers = engine.generate([Request(p, config=config) for p in prompts], progress=False)
    assert all(sum(call.lengths) <= 69 and len(call.lengths) <= 3 for call in scripted.backbone.calls)
    assert answers[0].result.window_tokens == 64 and max(len(call.lengths) for call in scripted.backbone.calls) == 3


@pytest.mark.parametrize(("guided", "fits"), [(0.0, 59), (1.0, 27)])
def test_too_long_is_refused_with_what_would_fit(guided, fits):
    """64 tokens a forward behind a prompt of 5, and half of that where a twin runs along."""
    scripted = Scripted([Script(3)])
    engine = Engine(scripted.model, limits=Limits(max_tokens=64))
    configs = [GenerationConfig(window=n, cfg_scale=guided) for n in (fits + 1, fits)]
    answers = engine.generate([Request(scripted.prompt(), config=c) for c in configs], progress=False)
    assert f"max_tokens=64: a window of {fits} would, got 5 + {fits + 1}" in str(answers[0].error)
    assert answers[1].error is None
    (none,) = engine.generate([Request(scripted.prompt(0, 64), config=FOUR)], progress=False)
    assert "no window would, got 64 + 4" in str(none.error)


@pytest.fixture
def held_bytes(monkeypatch):
    """A function: bytes of all keys and values that are alive. `most` of it is the peak whenever a canvas was made."""
    alive, plain_kv, plain_canvas = weakref.WeakSet(), KeyValues.__init__, Canvas.__init__

    def counted() -> int:
        tensors = {t.data_ptr(): t.nbytes for kv in alive for pair in kv.layers for t in pair}
        return sum(tensors.values())

    def made(kv, *args, **more):
        plain_kv(kv, *args, **more)
        alive.add(kv)

    def laid(canvas, *args, **more):
        plain_canvas(canvas, *args, **more)
        counted.most = max(counted.most, counted())

    monkeypatch.setattr(KeyValues, "__init__", made)
    monkeypatch.setattr(Canvas, "__init__", laid)
    counted.most = 0
    return counted


@pytest.mark.parametrize("mode", ["varlen", "cost"])
@pytest.mark.parametrize("cache", ["prompt", "prefix", "dual"])
def test_memory_is_bounded(cache, mode, held_bytes):
    """Room for two of the requests: no more run at once, less is held than reserved, and all are answered.

    Reserved are two full sequences of 9 + 32 tokens, and with block caches, whose rows are in different steps, three.
    """
    model = tiny("llada")
    size = (2 if cache == "prompt" else 3) * (9 + 32) * model.backbone.config.n_layers * 2
    size *= model.backbone.config.n_kv_heads * model.backbone.config.head_dim * 4
    engine, running = Engine(model, memory=2 * size + 1, mode=mode, costs=COSTS), []
    for i in range(6):
        config = GenerationConfig(window=32, block=8, steps=8 if i % 2 else 12, cache=cache)
        engine.add_request(random_prompt(i, 9), config=config, truncation=Truncation(EAGER) if i < 4 else None)
    engine.add_request(random_prompt(9, 199), config=config)
    answers = []
    while engine.active:
        reserved = engine.stats().reserved_bytes
        held_bytes.most = 0
        answers += engine.step()
        stats = engine.stats()
        running.append(stats.running)
        assert held_bytes.most <= max(reserved, stats.reserved_bytes) <= 2 * size + 1
    assert max(running) == 2 and held_bytes() == 0
    answers.sort(key=lambda a: a.id)
    assert [a.error is None for a in answers] == [True] * 6 + [False]
    assert "a token: no window would, got 199 + 32" in str(answers[-1].error)


@pytest.mark.parametrize("step0", STEP0)
def test_p11_short_answers_cost_nothing(step0):
    """case P11: window 32, boundary 30: as much work as uncut, counted by the model itself."""
    config = GenerationConfig(window=32)
    work = []
    for truncation in (None, Truncation(step0=step0)):
        scripted = Scripted([Script(30)])
        (answer,) = Engine(scripted.model).generate([Request(scripted.prompt(), None, config, truncation)], False)
        work.append(scripted.backbone.token_layers)
        assert answer.result.ids == words(30) and not answer.result.truncated
    assert work[0] == work[1] == 32 * 37 * LAYERS


@pytest.mark.parametrize(("steps", "cut"), [(1, False), (8, True)])
def test_p11_truncation_is_skipped_where_it_cannot_pay(steps, cut):
    """case P11: one step of 37 tokens; the probe alone (layers 0 to 6 of 8) costs more than 13 tokens save.

    At 1 s a token: 7/8 * 37 = 32.4 s against 37 - 13 = 24 s; eight steps save more than 4 * 24 s.
    """
    each = PathCost(0, 1.0, 0)
    scripted = Scripted([Script(4)])
    engine = Engine(scripted.model, costs=CostModel(each, each, each, "made up"))
    config = GenerationConfig(window=32, steps=steps)
    (answer,) = engine.generate([Request(scripted.prompt(), None, config, Truncation(step0="restart"))], False)
    assert (answer.result.truncated, answer.result.ids) == (cut, words(4))
    reason = "predicted saving 24000.000 ms is no more than the cut's 32375.000 ms"
    assert answer.result.reason == (None if cut else reason)
    assert scripted.backbone.calls[0].stop == (7 if cut else LAYERS)


def test_generate_serves_who_was_there_before():
    scripted = Scripted([Script(2)])
    engine = Engine(scripted.model, max_batch=1)
    first = engine.add_request(scripted.prompt(), config=FOUR)
    (answer,) = engine.generate([Request(scripted.prompt(), config=FOUR)], progress=False)
    assert answer.id == 2 and engine.active
    assert [a.id for a in engine.step()] == [first] and not engine.active and engine.step() == []
    assert engine.generate([], progress=False) == []


def test_stats():
    """Two requests of 5 + 4 tokens, all of them written in two steps, and one that fails."""
    scripted = Scripted([Script(3)])
    engine, config = Engine(scripted.model, costs=COSTS, mode="static"), GenerationConfig(window=4, steps=2)
    assert engine.stats().useful_tokens_per_second == engine.stats().latency["p50"] == 0
    requests = [Request(scripted.prompt(), config=config), Request(scripted.prompt(0, 5000))] * 1
    engine.generate([*requests, requests[0]], progress=False)
    stats = engine.stats()
    assert (stats.answered, stats.failed, stats.useful_tokens, stats.real_tokens) == (2, 1, 6, 36)
    assert stats.path_shares == {"step 0": 0.5, "static": 0.5} and stats.padded_tokens == 0
    assert (stats.forwards, stats.plans, stats.host_reads, stats.misses, stats.hits) == (2, 2, 2, 0, 0)
    assert 0 < stats.latency["p50"] <= stats.latency["p90"] <= stats.latency["p99"]
    assert stats.useful_tokens_per_second == pytest.approx(6 / stats.seconds)
    assert stats.costs == "made up" and "scaled_dot_product" in stats.attention


@pytest.mark.parametrize("name", ["max_batch", "memory"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_limits_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive whole number"):
        Engine(tiny("llada"), **{name: value})


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_cancels_and_bad_ones(seed, held_bytes):
    """Nothing is lost: each ends once, answered as alone, or with the reason it was given."""
    draw, cases = random.Random(seed), scripted_cases(30, seed)
    model = cases[0].model
    engine = Engine(
        model,
        max_batch=draw.choice([1, 3, 8]),
        limits=Limits(max_rows=4, max_tokens=140),
        memory=draw.choice([None, 200_000]),
        mode=draw.choice(MODES),
        costs=COSTS,
        capturer=Recorder(),
    )
    want, answers = {}, []
    for case in cases:
        if draw.random() < 0.2:
            want[engine.add_request(case.prompt, config=case.config, draft=[99])] = ValueError
        else:
            want[engine.add_request(case.prompt, config=case.config, truncation=case.truncation)] = case
        for _ in range(draw.randint(0, 4)):
            answers += engine.step()
        victim = draw.randint(1, max(want))
        if draw.random() < 0.2 and engine.cancel(victim):
            want[victim] = Cancelled
    while engine.active:
        answers += engine.step()
    assert sorted(a.id for a in answers) == sorted(want)
    for answer in answers:
        if isinstance(want[answer.id], type):
            assert type(answer.error) is want[answer.id]
        else:
            assert answer.error is None and not differences(answer.result, want[answer.id].alone)
    engine._capturer._shapes.clear()
    gc.collect()  # a recording refers to its own buffers
    assert engine.stats().reserved_bytes == 0 and held_bytes() == 0
