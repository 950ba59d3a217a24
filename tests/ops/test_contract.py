"""What every op promises beside its result: tracing, fakes, errors of one class, no silent gradients."""

import inspect

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import CORNER, CORRECTNESS, OPS, inputs
from seer_ext import ops, reference

REFUSING = [op for op in OPS if op != "silu_mul_sparsity"]


def raw(op):
    return getattr(torch.ops.seer, op).default


def _three_cases():
    """Per op: two ordinary shapes, the odd one among them, and an empty one."""
    for op in OPS:
        odd = next(case for case in CORRECTNESS[op] if case.name == "odd")
        for case in (CORRECTNESS[op][0], odd, CORNER[op][0]):
            yield pytest.param(op, case, id=f"{op}-{case}")


THREE_CASES = tuple(_three_cases())


def optional_tensors(op, args, kwargs, device):
    """Fills in what inputs() leaves to its default, so that those paths are traced as well."""
    if op == "token_confidence":
        n = args[0].shape[0]
        kwargs["temperature"] = torch.ones(n, device=device)
        kwargs["key"] = torch.arange(n, device=device)
    if op == "commit_tokens":
        kwargs["threshold"] = torch.full((args[5].shape[0],), 0.5, dtype=torch.float64, device=device)
    return args, kwargs


@pytest.mark.parametrize("full", [False, True], ids=["defaults", "all_arguments"])
@pytest.mark.parametrize("op, case", THREE_CASES)
def test_opcheck(op, case, full, device):
    """case P22"""
    args, kwargs = inputs(op, case, device)
    if full:
        args, kwargs = optional_tensors(op, args, kwargs, device)
    torch.library.opcheck(raw(op), args, kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck_with_gradient(device, dtype):
    """case P22: tracing of the backward, too."""
    gate, up = (torch.randn(3, 17, device=device).to(dtype).requires_grad_() for _ in range(2))
    torch.library.opcheck(raw("silu_mul_sparsity"), (gate, up, 0.25))


def as_tuple(result):
    return result if isinstance(result, tuple) else () if result is None else (result,)


@pytest.mark.parametrize("op, case", THREE_CASES)
def test_fake_describes_the_real_result(op, case, device):
    """Shape, dtype, stride and device; opcheck compares no strides of CPU tensors."""
    args, kwargs = inputs(op, case, device)
    with FakeTensorMode() as mode:
        fake_args, fake_kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        fakes = as_tuple(raw(op)(*fake_args, **fake_kwargs))
    reals = as_tuple(raw(op)(*args, **kwargs))
    assert len(fakes) == len(reals)
    for fake, real in zip(fakes, reals, strict=True):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride() and real.is_contiguous()


def test_fakes_of_strided_inputs(device):
    """Outputs are contiguous whatever comes in, which a fake by empty_like would miss."""
    x = torch.randn(4, 6, 8, device=device).transpose(0, 1)
    index = torch.tensor([0, 2], device=device)
    calls = [
        ("mlp_sparsity", (x, 0.5)),
        ("silu_mul_sparsity", (x, x, 0.5)),
        ("varlen_repack", (x, index[:1], index, 3)),
        ("varlen_unpack", (x, index[:1], index, 3)),
        ("truncate_repack", (x[:, 0], torch.arange(6, device=device), index[:1], index[1:], 3)),
        ("token_confidence", (x[:, 0],)),
        ("snr_boundary", (x[:, 0],)),
    ]
    for op, args in calls:
        with FakeTensorMode() as mode:
            fakes = as_tuple(raw(op)(*torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)))
        for fake, real in zip(fakes, as_tuple(raw(op)(*args)), strict=True):
            assert (fake.shape, fake.stride()) == (real.shape, real.stride()), op


# ---- torch.compile -----------------------------------------------------------------------------------------


def probe(gate, up, lengths):
    act, sparsity = ops.silu_mul_sparsity(gate, up, 0.25)
    mean = (sparsity + ops.mlp_sparsity(act, 0.25)) / 2
    boundary, snr = ops.snr_boundary(mean, lengths, min_snr=0.5)
    return act, boundary, snr


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_probe(device, dynamic):
    """case P22: sparsity -> boundary in one graph, equal to eager."""
    compiled = torch.compile(probe, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch, window in ((2, 24), (3, 40), (5, 17)):
        gate, up = torch.randn(2, batch, window, 96, device=device)
        lengths = torch.full((batch,), window, device=device)
        for got, want in zip(compiled(gate, up, lengths), probe(gate, up, lengths), strict=True):
            assert torch.equal(got, want)


def test_compiled_gradient(device):
    def loss(gate, up):
        return ops.silu_mul_sparsity(gate, up, 0.25)[0].square().sum()

    gate, up = (torch.randn(4, 33, device=device, requires_grad=True) for _ in range(2))
    want = torch.autograd.grad(loss(gate, up), (gate, up))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(gate, up), (gate, up))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def step(logits, hidden, ids, starts, lengths, capacity, cu_slots, quota):
    """Everything else in one graph, the in-place ops included."""
    packed, packed_ids, positions, rows, cu = ops.truncate_repack(hidden, ids, starts, lengths, capacity)
    again = ops.varlen_repack(packed, cu[:-1], cu, capacity)
    token, confidence = ops.token_confidence(logits)
    written, remaining = ops.commit_tokens(
        packed_ids,
        torch.arange(logits.shape[0], device=ids.device),
        token,
        confidence,
        cu_slots,
        quota,
        mask_id=0,
    )
    window = packed_ids.shape[0] // lengths.shape[0]
    padded = ops.varlen_unpack(packed_ids, torch.zeros_like(lengths), cu, window, fill=-1)
    mask = padded >= 0
    ops.mask_rewrite(mask, torch.zeros_like(lengths), lengths - 1)
    return packed_ids, again, positions, rows, written, remaining, padded, mask


def step_inputs(device, batch, length):
    n = batch * length
    return (
        torch.randn(n, 50, device=device),
        torch.randn(n, 8, device=device),
        torch.zeros(n, dtype=torch.int64, device=device),
        torch.arange(batch, device=device) * length,
        torch.full((batch,), length - 1, device=device),
        n,
        torch.arange(batch + 1, device=device) * (length - 1),
        torch.full((batch,), 2, device=device),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_step(device, dynamic):
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch, length in ((2, 6), (3, 9)):
        args = step_inputs(device, batch, length)
        for got, want in zip(compiled(*args), step(*args), strict=True):
            assert torch.equal(got, want)


def test_sizes_do_not_specialise(device):
    """One graph serves every batch, length and capacity: SymInt arguments, and fakes without branches."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for batch, length in ((2, 6), (3, 9), (4, 7), (7, 13)):
        compiled(*step_inputs(device, batch, length))
    assert counter.frame_count == 1

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(probe, backend=counter, fullgraph=True, dynamic=True)
    for batch, window in ((2, 24), (3, 40), (5, 17)):
        gate, up = torch.randn(2, batch, window, 96, device=device)
        compiled(gate, up, torch.full((batch,), window, device=device))
    assert counter.frame_count == 1


def test_compiled_padded_repack(device):
    def pack(x, starts, cu, capacity):
        return ops.varlen_repack(x, starts, cu, capacity, padded=True)

    compiled = torch.compile(pack, backend="aot_eager", fullgraph=True, dynamic=True)
    x = torch.randn(3, 9, 4, device=device)
    starts, cu = torch.tensor([0, 2, 1], device=device), torch.tensor([0, 5, 5, 8], device=device)
    for view in (x, x[:, :6]):
        assert torch.equal(compiled(view, starts, cu, 8), pack(view, starts, cu, 8))


# ---- gradients ---------------------------------------------------------------------------------------------


def with_grad(op, device):
    """Per float tensor of the op: its name, and a call where just that one requires grad."""
    args, kwargs = optional_tensors(op, *inputs(op, CORRECTNESS[op][0], device), device)
    names = list(inspect.signature(getattr(reference, op)).parameters)
    named = dict(zip(names, args, strict=False)) | kwargs
    for name, value in named.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield name, named | {name: value.clone().requires_grad_()}


@pytest.mark.parametrize("op", REFUSING)
def test_inputs_that_require_grad_are_refused(op, device):
    """Without this their gradient would silently be zero."""
    refused = 0
    for name, kwargs in with_grad(op, device):
        text = f"^seer::{op}: {name} must not require grad, got requires_grad=True$"
        with pytest.raises(ValueError, match=text):
            getattr(ops, op)(**kwargs)
        with pytest.raises(RuntimeError, match=text):
            raw(op)(**kwargs)
        refused += 1
    assert refused


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("op", REFUSING)
def test_without_grad_mode_nothing_is_refused(op, mode, device):
    for _, kwargs in with_grad(op, device):
        with mode():
            results = as_tuple(getattr(ops, op)(**kwargs))
        assert not any(result.requires_grad for result in results)


@pytest.mark.parametrize("op", OPS)
def test_inference_tensors_work_anywhere(op, device):
    """Made in inference mode they have no version to raise; used in it, after it, and mixed with others."""
    fresh, kwargs = inputs(op, CORRECTNESS[op][0], device)

    def born_there(keep=lambda i: False):
        with torch.inference_mode():
            cloned = [a.clone() if isinstance(a, torch.Tensor) else a for a in fresh]
        return [a if keep(i) else c for i, (a, c) in enumerate(zip(fresh, cloned, strict=True))]

    def results_of(args):
        return *as_tuple(raw(op)(*args, **kwargs)), args[0]  # the first argument, as some ops change it

    with torch.inference_mode():
        inside = results_of(born_there())
    outside = results_of(born_there())
    mixed = results_of(born_there(keep=lambda i: i > 0))
    want = results_of(fresh)
    for results in (inside, outside, mixed):
        for result, expected in zip(results, want, strict=True):
            assert torch.equal(result, expected)


def test_rewriting_raises_the_version_of_the_mask(device):
    scores = torch.randn(2, 1, 3, 4, device=device, requires_grad=True)
    mask = torch.zeros(2, 1, 3, 4, device=device)
    loss = (scores * mask).sum()
    ops.mask_rewrite(mask, torch.tensor([0, 1], device=device), torch.tensor([2, 2], device=device))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_commit_raises_the_version_of_ids(device):
    """A backward that saved ids must notice that they changed."""
    (ids, *rest), kwargs = inputs("commit_tokens", CORRECTNESS["commit_tokens"][0], device)
    table = torch.randn(256, 4, device=device, requires_grad=True)
    loss = torch.nn.functional.embedding(ids, table).sum()
    ops.commit_tokens(ids, *rest, **kwargs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_threads_change_no_bit(op):
    """Rows shared among threads, and one row among several where an op does that."""
    case = next(case for case in CORRECTNESS[op] if case.name == "threads")
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            args, kwargs = inputs(op, case)
            results.append((*as_tuple(raw(op)(*args, **kwargs)), args[0]))
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*results, strict=True):
        assert torch.equal(one, several)


# ---- errors ------------------------------------------------------------------------------------------------


def test_errors_by_layer():
    """The raw op raises RuntimeError; the wrapper the same text, as TypeError for a dtype and ValueError
    otherwise."""
    for value, kind in ((torch.zeros(3, dtype=torch.int64), TypeError), (torch.tensor(1.0), ValueError)):
        with pytest.raises(RuntimeError, match="seer::mlp_sparsity: act must ") as theirs:
            torch.ops.seer.mlp_sparsity(value, 0.5)
        with pytest.raises(kind, match="^seer::mlp_sparsity: act must ") as ours:
            ops.mlp_sparsity(value, 0.5)
        assert str(ours.value) in str(theirs.value)


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda x: ops.mlp_sparsity([1.0], 0.5), TypeError, "mlp_sparsity: act must be a Tensor, got [1.0]"),
        (lambda x: ops.mlp_sparsity(None, 0.5), TypeError, "mlp_sparsity: act must be a Tensor, got None"),
        (lambda x: ops.mlp_sparsity(x, "0.5"), TypeError, "mlp_sparsity: threshold must be a number, got '0.5'"),
        (
            lambda x: ops.silu_mul_sparsity(x, None, 1),
            TypeError,
            "silu_mul_sparsity: up must be a Tensor, got None",
        ),
        (lambda x: ops.mask_rewrite(None, x, x), TypeError, "mask_rewrite: mask must be a Tensor, got None"),
        (lambda x: ops.token_confidence(x, 3), TypeError, "token_confidence: kind must be a string, got 3"),
        (
            lambda x: ops.snr_boundary(x, window=2.5),
            TypeError,
            "snr_boundary: window must be an integer, got 2.5",
        ),
        (
            lambda x: ops.snr_boundary(x, window=2**63),
            ValueError,
            "snr_boundary: window must fit in 64 bits, got 9223372036854775808",
        ),
    ],
    ids=range(8),
)
def test_errors_about_python_types(call, kind, text):
    """torch would blame no argument, another one, or the compiler."""
    with pytest.raises(kind) as raised:
        call(torch.zeros(2, 3))
    assert str(raised.value) == f"seer::{text}"


@pytest.mark.parametrize("op", [op for op in OPS if op != "mlp_sparsity"])
def test_other_devices_are_refused(op):
    """With one tensor on "meta" torch runs the fake, which would return memory that nobody wrote."""
    args, kwargs = inputs(op, CORRECTNESS[op][0])
    for i, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            mixed = [*args[:i], value.to("meta"), *args[i + 1 :]]
            with pytest.raises(ValueError, match=rf"^seer::{op}: \w+ must be on \w+ like \w+, got (meta|cpu)$"):
                getattr(ops, op)(*mixed, **kwargs)


def test_errors_of_others_pass_unchanged(monkeypatch):
    """Out of memory, or torch's own complaints, aren't ours to rename."""

    def fails(*args, **kwargs):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        ops._call(fails)


@pytest.mark.parametrize("op", OPS)
def test_wrappers_have_the_schema_of_the_op(op):
    """Names, order and defaults; varlen_repack adds `padded`."""
    parameters = inspect.signature(getattr(ops, op)).parameters
    for argument in raw(op)._schema.arguments:
        parameter = parameters[argument.name]
        assert (parameter.kind == parameter.KEYWORD_ONLY) == argument.kwarg_only
        default = argument.default_value if argument.has_default_value() else parameter.empty
        assert parameter.default == default
    extra = set(parameters) - {argument.name for argument in raw(op)._schema.arguments}
    assert extra == ({"padded"} if op == "varlen_repack" else set())
