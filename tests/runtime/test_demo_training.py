"""The demo's training: its batches, its loss against the runtime's own forward, its resumption."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from seer_dllm.backbone import KeyValues, Packing
from seer_dllm.chat import prompt_ids
from seer_dllm.demo import data, train, vocabulary
from seer_dllm.demo.batches import COPIES, WINDOWS, Batches, mask_copies
from seer_dllm.demo.questions import KINDS, question
from seer_dllm.vision import splice_image

IMAGE_TOKENS = 65


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary.build_tokenizer()


@pytest.fixture(scope="module")
def batches(tokenizer):
    return Batches(tokenizer, IMAGE_TOKENS, seed=3, budget=1500)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return train.DemoModel(*train.demo_config(tokenizer))


def draw(batches, blind):
    """A batch of the mode whose window is short, so that some answers do not fit."""
    return next(b for b in map(batches.draw, range(int(blind), 200, 2)) if b.answer.shape[1] == 16)


def test_masks_come_in_complementary_pairs_with_a_quarter_all_masked():
    t, masked = mask_copies(np.random.default_rng(0), rows=64, window=500, copies=4)
    groups = masked.reshape(16, 4, 500)
    assert groups[:, 0].all() and (t.reshape(16, 4)[:, 0] == 1).all()
    assert (groups[:, 2] ^ groups[:, 3]).all()
    assert np.allclose(t.reshape(16, 4)[:, 2] + t.reshape(16, 4)[:, 3], 1)
    assert np.allclose(masked.mean(1), t, atol=0.1)
    # Low-discrepancy: of the 32 drawn t, one lies in each 32nd.
    drawn = np.sort(t.reshape(16, 4)[:, 1:3].ravel())
    assert np.array_equal((drawn.clip(0.05, 0.95) * 32).astype(int), (np.arange(32) + 0.5).clip(1.6, 30.4).astype(int))


@pytest.mark.parametrize(("rows", "copies"), [(6, 2), (8, 3), (12, 8)])
def test_masks_refuse_pairs_that_would_not_share_an_answer(rows, copies):
    with pytest.raises(ValueError, match="multiple of 4 and of copies"):
        mask_copies(np.random.default_rng(0), rows, 8, copies)


@pytest.mark.parametrize("blind", [False, True])
def test_a_batch_holds_prompts_answers_and_cut_answers(batches, tokenizer, blind):
    batch = draw(batches, blind)
    assert batch.blind is blind and batch.masked.shape[1] == COPIES[blind]
    eot, eos = batches.eot, batches.eos
    known = {tuple(prompt_ids(batches.encode, "lavida_llada", question(kind), images=1, system=None)) for kind in KINDS}
    texts = set()
    cut = 0
    for ids, real, at, answer in zip(batch.prompt, batch.real, batch.image_from, batch.answer, strict=True):
        assert real.tolist() == sorted(real.tolist()), "padding is on the left"
        ids = ids[real].tolist()
        at -= int((~real).sum())
        texts.add((*ids[:at], -200, *ids[at + IMAGE_TOKENS :]))
        answer = answer.tolist()
        if eot in answer:
            assert set(answer[answer.index(eot) + 1 :]) <= {eos} and eos not in answer[: answer.index(eot)]
        else:
            cut += 1
            assert eos not in answer
    assert texts & known and all(text[:5] == next(iter(known))[:5] for text in texts)
    assert 0 < cut < len(batch.answer), "a window of 16 cuts some answers"


def test_batches_depend_on_seed_step_and_process_alone(batches, tokenizer):
    again = Batches(tokenizer, IMAGE_TOKENS, seed=3, budget=1500)
    batches.draw(4)
    a, b, other = batches.draw(7), again.draw(7), batches.draw(7, rank=1)
    assert torch.equal(a.pixels, b.pixels) and torch.equal(a.masked, b.masked) and torch.equal(a.prompt, b.prompt)
    assert a.masked.shape == other.masked.shape and not torch.equal(a.answer, other.answer)
    assert {batches.draw(step).answer.shape[1] for step in range(60)} == set(WINDOWS)


@pytest.mark.parametrize("blind", [False, True])
def test_training_computes_what_inference_computes(model, batches, blind):
    """Padded, masked and shared prompts against single rows of the runtime, in float32; case P12 for the padding."""
    batch = draw(batches, blind)
    backbone = model.backbone
    with torch.no_grad():
        early, states = train.window_states(model, batch, None, (2, 16))
        features = model.vision.encode_views(batch.pixels)
        for i in range(len(batch.prompt)):
            ids = batch.prompt[i][batch.real[i]]
            at = batch.image_from[i] - int((~batch.real[i]).sum())
            ids = torch.cat((ids[:at], torch.tensor([-200]), ids[at + IMAGE_TOKENS :]))
            prompt = splice_image(ids, features[i], backbone.embed)
            for k in range(batch.masked.shape[1]):
                window = torch.where(batch.masked[i, k], backbone.config.mask_id, batch.answer[i])
                if blind:
                    past = KeyValues(Packing([len(prompt)]))
                    backbone.run(prompt, past.packing, keep=past)
                    packing = Packing([len(window)], offsets=[len(prompt)])
                    first = backbone.run(backbone.embed(window), packing, 0, 2, past=past)
                    expected = backbone.run(first, packing, 2, past=past)
                else:
                    rows = torch.cat((prompt, backbone.embed(window)))
                    packing = Packing([len(rows)])
                    first = backbone.run(rows, packing, 0, 2)
                    expected = backbone.run(first, packing, 2)[len(prompt) :]
                torch.testing.assert_close(early[i, k], first[-len(window) :], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(states[i, k], expected, rtol=1e-4, atol=1e-4)


def test_the_loss_by_hand(model, batches):
    """Cross-entropy over t, summed over masked slots; the penalty is the mean activity of all layers."""
    batch = draw(batches, False)
    with torch.no_grad():
        loss, fully_masked, activity = train.diffusion_loss(model, batch, 2.0)
        (states,) = train.window_states(model, batch, None, (16,))
        log_p = model.backbone.logits(states.flatten(0, 2)).double().log_softmax(-1).view(*states.shape[:3], -1)
    total, slots = 0.0, []
    for i, k, j in batch.masked.nonzero().tolist():
        nll = -float(log_p[i, k, j, batch.answer[i, j]])
        total += nll / float(batch.t[i, k])
        if batch.t[i, k] == 1:
            slots.append(nll)
    expected = total / (train.TOKENS * batch.t.numel()) + 2.0 * float(activity)
    assert float(activity) > 0
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(fully_masked) == pytest.approx(np.mean(slots), rel=1e-5)


def test_the_early_loss_reads_states_among_the_probe_layers(model, batches):
    batch = draw(batches, True)
    with torch.no_grad():
        plain, early = (float(train.diffusion_loss(model, batch, 0.0, weight)[0]) for weight in (0.0, 0.5))
        (states,) = train.window_states(model, batch, None, (4,))
        log_p = model.backbone.logits(states[batch.masked]).double().log_softmax(-1)
    target, t = (x.expand(batch.masked.shape)[batch.masked] for x in (batch.answer[:, None], batch.t[:, :, None]))
    nll = -log_p.gather(1, target[:, None])[:, 0] / t
    assert early - plain == pytest.approx(0.5 * float(nll.sum()) / (train.TOKENS * batch.t.numel()), rel=1e-4)


def test_cell_targets_name_digit_row_and_column():
    """A read-out that is told the truth has no loss; one that mixes up rows and columns has."""

    class Tower(torch.nn.Module):
        swap = False

        def encode_views(self, pixels):
            made = data.make_sheets(np.random.default_rng(5), len(pixels), "train")
            out = torch.full((len(pixels), 65, 19), -50.0)
            for n, sheet in enumerate(made):
                for token in range(64):
                    row, column = token // 8 // 2, token % 8 // 2
                    out[n, token, int(sheet.cells[row, column]) + 1] = 50.0
                    out[n, token, 11 + (column if self.swap else row)] = 50.0
                    out[n, token, 15 + (row if self.swap else column)] = 50.0
            return out

    stand_in = type("Model", (), {"vision": Tower()})()
    head = torch.nn.Linear(19, 19)
    head.weight = torch.nn.Parameter(30 * torch.eye(19))  # the tokens' root mean square is made 1 before they are read
    torch.nn.init.zeros_(head.bias)
    head.requires_grad_(False)
    loss, right = train.cell_loss(stand_in, head, np.random.default_rng(5), 3)
    assert float(right) == 1 and float(loss) < 1e-6
    stand_in.vision.swap = True
    assert float(train.cell_loss(stand_in, head, np.random.default_rng(5), 3)[0]) > 10


def test_training_resumes_where_it_stopped(tmp_path, monkeypatch):
    """Four steps at once and two plus two end in the same weights; the checkpoint loads and is small."""
    monkeypatch.setattr(train.os, "sched_setaffinity", lambda *_: None)
    common = ["--tower-steps", "2", "--processes", "1", "--eager", "--steps", "4", "--penalty-until", "0.6"]
    once, twice = tmp_path / "once", tmp_path / "twice"
    threads = torch.get_num_threads()
    try:
        train.main([*common, "--out", str(once / "out"), "--work", str(once)])
        stop_after = train.Batches.draw
        calls = []

        def draw_two(self, step, rank=0):
            calls.append(step)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return stop_after(self, step, rank)

        again = [*common, "--save-every", "1", "--out", str(twice / "out"), "--work", str(twice)]
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(train.Batches, "draw", draw_two)
            train.main(again)
        train.main(again)
    finally:
        torch.set_num_threads(threads)
    a, b = (torch.load(folder / "state.pt", weights_only=True) for folder in (once, twice))
    assert a["step"] == b["step"] == 4
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert all(torch.equal(a["average"][name], b["average"][name]) for name in a["average"])
    model = train.load_parts(once / "out", torch.float32, "cpu")
    assert model[2].config.n_layers == 16
    assert (once / "out" / "model.safetensors").stat().st_size < 8_000_000
    assert json.loads((once / "out" / "config.json").read_text())["torch_dtype"] == "float16"
