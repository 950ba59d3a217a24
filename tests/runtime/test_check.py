"""`seer check`: a sound checkpoint passes, and each way to be wrong is found and named."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from folders import configure, hub_folder, rewrite
from scripted import GOLDEN
from test_wrap_generate import wrapped

import seer_dllm
from seer_dllm import check
from seer_dllm.cli import main
from seer_dllm.demo import model_folder
from seer_dllm.samples import MASKED_MOST, Sample, masked_rows, text_samples

MASK, EOS, EOT, UNKNOWN, BOS = 5, 1, 4, 6, 0  # of the demo
NAN_AT = "model.transformer.blocks.2.up_proj.weight"


@pytest.fixture
def demo():
    return seer_dllm.load(model_folder())


@pytest.fixture
def random_folder(tmp_path):
    """A tiny LLaDA with random weights, for what does not take a trained model. Mask 500, EOS 481, end of turn 490."""
    return hub_folder(tmp_path / "random", "llada")


@pytest.fixture
def random(random_folder):
    return seer_dllm.load(random_folder)


def change(model, **settings):
    model.backbone.config = replace(model.backbone.config, **settings)
    return model


def states(report):
    return {f.name: f.state for f in report.findings}


class Moved(torch.nn.Module):
    """A backbone whose outputs stand `by` positions earlier, as those of a model trained to predict so."""

    def __init__(self, backbone, by):
        super().__init__()
        self.inner, self.by = backbone, by
        for name in ("config", "embed", "head", "logits", "device", "dtype"):
            setattr(self, name, getattr(backbone, name))

    def named_parameters(self, *args, **kwargs):
        return self.inner.named_parameters(*args, **kwargs)

    def run(self, hidden, packing, **kwargs):
        rows = self.inner.run(hidden, packing, **kwargs).split(packing.lengths)
        return torch.cat([row.roll(-self.by, 0) for row in rows])


@pytest.fixture(scope="module")
def sound():
    return check(seer_dllm.load(model_folder()))


def test_the_demo_passes(sound):
    assert not sound.failed
    assert set(states(sound).values()) == {"ok"}
    assert list(states(sound)) == [
        "ids", "weights", "head", "embeddings", "recovery", "shift", "mask", "directions", "end",
    ]  # fmt: skip
    # Answers about sheets are certain: the model was trained on nothing else.
    assert sound["recovery"].measured["best"] > 0.9 and sound["recovery"].measured["masked_tokens"] >= MASKED_MOST
    assert sound["shift"].measured["recovered"]["0"] > 0.9 > 0.3 > sound["shift"].measured["recovered"]["1"]
    assert sound["mask"].measured["configured"] == MASK and len(sound["mask"].measured["recovered"]) == 4
    assert sound["end"].measured["ended"] == sound["end"].measured["answers"] == 18
    json.dumps(sound.as_dict(), allow_nan=False)


def test_a_flipped_shift_is_named(demo):
    report = check(change(demo, shift=True))
    assert [name for name, state in states(report).items() if state == "FAILED"] == ["shift"]
    assert "this checkpoint needs shift=False, as in the LLaDA families" in report["shift"].message
    assert report["shift"].measured["configured"] == 1


def test_a_missing_shift_is_named(demo):
    demo.backbone = Moved(demo.backbone, 1)
    report = check(demo)
    assert [name for name, state in states(report).items() if state == "FAILED"] == ["shift"]
    assert "logits look shifted by one: this checkpoint needs shift=True, as in the Dream" in report["shift"].message
    demo.backbone.config = replace(demo.backbone.config, shift=True)
    assert not check(demo).failed


def test_a_shift_that_no_family_has(demo):
    demo.backbone = Moved(demo.backbone, -1)
    assert "to the other side" in check(demo)["shift"].message


def test_a_wrong_mask_is_found(demo):
    report = check(change(demo, mask_id=UNKNOWN))
    assert [name for name, state in states(report).items() if state == "FAILED"] == ["mask"]
    assert "5 (<|mdm_mask|>) works as the mask, 6 ([UNK]) does not: set mask_token_id to 5" in report["mask"].message
    assert report["mask"].measured["recovered"]["5"] > report["mask"].measured["recovered"]["6"] + 0.5


@pytest.mark.parametrize("mask_id", [BOS, 40], ids=["template", "word"])
def test_a_mask_that_prompts_hold(demo, mask_id):
    report = check(change(demo, mask_id=mask_id))
    assert report.failed and report["recovery"].state == "warning"
    assert f"must not hold the mask id {mask_id}" in report["prompts"].message
    assert "mask_token_id in config.json may have to be 5 (<|mdm_mask|>)" in report["prompts"].message
    assert report["ids"].state == ("ok" if mask_id == BOS else "warning")


def test_ids_that_can_not_be(random):
    report = check(change(random, mask_id=481))
    assert "the mask id 481 (<|endoftext|>) also ends an answer" in report["ids"].message
    assert "mask_token_id in config.json may have to be 500 (<|mdm_mask|>)" in report["ids"].message
    assert states(report)["recovery"] == "warning" and "without sound ids" in report["recovery"].message
    change(random, mask_id=500).end_ids = (481, 512)
    assert "512 (unused) has no row among the embedding's 512" in check(random)["ids"].message
    random.end_ids = (481, 40)
    report = check(random)
    assert report["ids"].state == "warning" and "the end id 40 (() is an ordinary word" in report["ids"].message
    random.tokenizer.add_missing(["<|one_more|>"])
    assert "the tokenizer has 513 words, the embedding 512 rows" in check(random)["ids"].message


def test_an_end_that_is_never_predicted(demo):
    demo.end_ids = (2, 3)
    report = check(demo)
    assert report["end"].state == "warning" and not report.failed
    assert f"behind 0 of 18 finished answers, mostly {EOT} (<|eot_id|>)" in report["end"].message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_planted_value_is_found_and_its_tensor_named(tmp_path, value):
    folder = tmp_path / "demo"
    shutil.copytree(model_folder(), folder)
    rewrite(folder, lambda tensors: tensors[NAN_AT].view(-1).__setitem__(-1, value))
    report = check(seer_dllm.load(folder))
    assert report["weights"].measured["not_finite"] == [NAN_AT] and NAN_AT in report["weights"].message
    assert states(report)["weights"] == "FAILED" and states(report)["recovery"] == "warning"


def test_a_picture_tower_with_nan(demo):
    name, weight = next(iter(demo.vision.named_parameters()))
    weight.data.view(-1)[0] = float("nan")
    (bad,) = check(demo)["weights"].measured["not_finite"]
    assert bad.endswith(name.split(".")[-1]) and bad != name  # as the checkpoint calls it


def test_logits_that_overflow(random):
    random.backbone.norm.weight.fill_(3e38)
    report = check(random)
    assert report["weights"].state == "ok" and "infinite logits" in report["recovery"].message and report.failed


def test_a_mask_without_an_embedding(random):
    assert check(random)["embeddings"].state == "ok"
    random.backbone.embed.weight[500] = 0
    report = check(random)
    assert report["embeddings"].state == "FAILED"
    assert "the embedding of 500 (<|mdm_mask|>) holds zeros" in report["embeddings"].message
    random.backbone.embed.weight[500, 0] = 1e-5
    assert check(random)["embeddings"].state == "warning"


def test_heads(random, random_folder):
    assert check(random)["head"].state == "ok"
    random.backbone.head.weight.copy_(random.backbone.embed.weight)
    assert check(random)["head"].state == "warning"
    random.backbone.head.weight.zero_()
    assert "model.transformer.ff_out.weight holds zeros only" in check(random)["head"].message
    # The folder still holds the head that its config says is tied; the model itself does not show it.
    configure(random_folder, weight_tying=True)
    tied = seer_dllm.load(random_folder)
    assert check(tied)["head"].state == "ok"
    report = check(tied, folder=random_folder)
    assert report["head"].state == "FAILED" and "model.transformer.ff_out.weight" in report["head"].message


def test_a_causal_model(demo, monkeypatch):
    attend = torch.nn.functional.scaled_dot_product_attention
    backbone = seer_dllm.backbone
    monkeypatch.setattr(
        backbone.F, "scaled_dot_product_attention", lambda *a, **k: attend(*a, **k | {"is_causal": True})
    )
    report = check(demo)
    assert report["directions"].state == "FAILED" and "causal" in report["directions"].message
    assert report["directions"].measured["logits_changed"] == 0


@pytest.mark.parametrize("family", ["llada", "dream", "mmada", "lavida_llada"])
def test_random_weights_are_told_apart(tmp_path, family):
    report = check(seer_dllm.load(hub_folder(tmp_path / family, family)))
    assert report["recovery"].state == "FAILED" and report.failed
    assert "nothing recovered, weights look untrained" in report["recovery"].message
    assert "shift" not in states(report)  # nothing to be said about it
    assert report["weights"].state == "ok"


# ---- the texts ---------------------------------------------------------------------------------------------


def test_every_sixth_token_is_masked_in_turns():
    (first, second, third) = masked_rows([Sample(torch.empty(0, 4), tuple(range(62)), 1, 61)])
    assert first.masked == tuple(range(1, 61, 6)) and second.masked == tuple(range(3, 61, 6))
    assert third.masked == tuple(range(5, 61, 6))
    assert len({*first.masked, *second.masked, *third.masked}) == 30


def test_long_and_short_texts(demo):
    rows = masked_rows(text_samples(demo, ["read row 1 . " * 500] * 50))
    total = sum(len(row.masked) for row in rows)
    assert MASKED_MOST <= total < MASKED_MOST + 50 and max(len(row.ids) for row in rows) == 256
    for texts in ([], ["a"], ["read row 1 ."] * 3):
        with pytest.raises(ValueError, match="text must be long enough to mask 20 of its tokens, got"):
            check(demo, texts)


def test_models_that_can_not_be_checked(demo):
    demo.tokenizer = None
    with pytest.raises(ValueError, match="checkpoint must hold tokenizer.json"):
        check(demo)
    with pytest.raises(TypeError, match="model must be one that load has read, got a Wrapped"):
        check(wrapped())


# ---- the command -------------------------------------------------------------------------------------------


def test_command_passes(capsys, sound):
    assert main(["check", "--model", "demo", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps({"model": "demo", **sound.as_dict()}))
    assert printed["version"] == 1 and printed["failed"] is False


def test_command_fails_on_its_own_texts(capsys, tmp_path):
    """The demo knows its answers; a text of words that it never saw in this order it can't fill in."""
    text = tmp_path / "text"
    text.write_text("\n\n" + "frame at columns largest mark total nowhere yellow cells which 7 list above\n" * 9)
    assert main(["check", "--model", "demo", "--text", str(text)]) == 1
    out = capsys.readouterr().out
    assert "FAILED   recovery       nothing recovered" in out and out.startswith("ok       ids")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text must be a file, got"),
        (b"\xff\xfe\xfd", "text must be UTF-8, but"),
        (b"", "text must be long enough to mask 20 of its tokens, got 0"),
    ],
)
def test_command_refuses(capsys, tmp_path, content, message):
    file = tmp_path / "text"
    if content is not None:
        file.write_bytes(content)
    assert main(["check", "--model", "demo", "--text", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_command_refuses_a_folder_without_a_tokenizer(capsys):
    assert main(["check", "--model", str(GOLDEN / "llada")]) == 2
    assert "checkpoint must hold tokenizer.json" in capsys.readouterr().err
