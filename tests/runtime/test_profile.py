"""The profile's file: which one `load` takes, and what it refuses; slots whose share is read one position before."""

import json
import re

import pytest
import torch
from folders import tiny_llada
from scripted import EOS, Script, Scripted, words
from toy import EOS as TOY_EOS
from toy import MASK as TOY_MASK
from toy import Toy

import seer_dllm
from seer_dllm import GenerationConfig, Profile, Truncation
from seer_dllm.profile import read_profile, write_profile

pytestmark = pytest.mark.filterwarnings("ignore:the prompt cache is an approximation")
OWN = Profile(probe_layers=(1, 2), threshold=0.5, margin=3, slot_offset=1)


@pytest.fixture
def folder(tmp_path):
    return tiny_llada(tmp_path / "model")


def test_load_takes_what_is_given_then_the_folders_then_the_default(folder, tmp_path):
    assert seer_dllm.load(folder).profile == Profile()
    write_profile(folder / "seer_profile.json", OWN, {"tested_on": 3})
    assert seer_dllm.load(folder).profile == OWN
    other = tmp_path / "other.json"
    write_profile(other, Profile(margin=7), {})
    assert seer_dllm.load(folder, profile=other).profile == Profile(margin=7)
    assert seer_dllm.load(folder, profile=str(other)).profile == Profile(margin=7)
    assert seer_dllm.load(folder, profile=Profile(margin=8)).profile == Profile(margin=8)


def test_the_file_is_plain_and_written_in_one_move(tmp_path):
    file = tmp_path / "p.json"
    file.write_text("old")
    write_profile(file, OWN, {"bound": 0.5})
    assert json.loads(file.read_text()) == {
        "version": 1,
        "profile": {
            "probe_layers": [1, 2], "threshold": 0.5, "window": 8, "min_snr": 1.0, "plateau": 0.9, "min_jump": 0.0,
            "margin": 3, "slot_offset": 1,
        },
        "evidence": {"bound": 0.5},
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == [file]
    file.write_text('{"version": 1, "profile": {"margin": 2}}')
    assert read_profile(file) == Profile(margin=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"version": 2, "profile": {}}', "version must be 1, got 2"),
        ('{"profile": {}}', "version must be 1, got None"),
        ('{"version": 1, "prof', "must be a JSON file"),
        ("[1]", "must hold a JSON object, got a list"),
        ('{"version": 1}', "must hold version, profile (an object) and, if any, evidence, got 'version'"),
        ('{"version": 1, "profile": 3}', "must hold version, profile (an object)"),
        ('{"version": 1, "profile": {}, "margin": 3}', "must hold version, profile (an object)"),
        ('{"version": 1, "profile": {"marge": 3}}', "Profile has no setting 'marge'"),
        ('{"version": 1, "profile": {"margin": -1}}', "margin must be a whole number of at least 0, got -1"),
        ('{"version": 1, "profile": {"probe_layers": 3}}', "probe_layers must be whole numbers of at least 0, got 3"),
        ('{"version": 1, "profile": {"slot_offset": 2}}', "slot_offset must be 0 or 1, got 2"),
        ('{"version": 1, "profile": {"slot_offset": 1.0}}', "slot_offset must be 0 or 1, got 1.0"),
        ('{"version": 1, "profile": {"slot_offset": true}}', "slot_offset must be 0 or 1, got True"),
    ],
)
def test_a_broken_file_is_refused_by_name(folder, content, message):
    (folder / "seer_profile.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        seer_dllm.load(folder)
    assert "seer_profile.json" in str(caught.value)


def test_other_refusals(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="profile must be a file, got .*none.json"):
        seer_dllm.load(folder, profile=tmp_path / "none.json")
    with pytest.raises(ValueError, match=re.escape("profile must be a Profile, a file or None, got {'margin': 3}")):
        seer_dllm.load(folder, profile={"margin": 3})
    with pytest.raises(ValueError, match=re.escape("probe_layers must be below the model's 8 layers, got (7, 8)")):
        seer_dllm.load(folder, profile=Profile(probe_layers=(7, 8)))


# ---- slot_offset -------------------------------------------------------------------------------------------


def asked(scripts, config, *, step0="carry", lengths=None, offset=1):
    """Answers of a scripted model. In its prompts the share is 0."""
    profile = Profile(margin=0, slot_offset=offset)
    return Scripted(scripts).answers(
        config, Truncation(profile, step0=step0, safety_net=False), prompt_lengths=lengths or [5] * len(scripts)
    )


@pytest.mark.parametrize("step0", ["carry", "restart"])
@pytest.mark.parametrize("cache", ["none", "prompt", "prefix", "dual"])
def test_the_share_is_read_one_position_before(step0, cache):
    """Positions go quiet one before the slots whose tokens end: all ends are found, and the cut keeps the answers."""
    lengths = (20, 33, 9)
    scripts = [Script(n, jump=n - 1) for n in lengths]
    results = asked(scripts, GenerationConfig(window=64, cache=cache), step0=step0, lengths=[5, 3, 7])
    plain = asked(scripts, GenerationConfig(window=64, cache=cache), step0=step0, lengths=[5, 3, 7], offset=0)
    for n, result, other in zip(lengths, results, plain, strict=True):
        assert (result.boundary, other.boundary) == (n, n - 1)
        assert result.window_tokens == -(-n // 8) * 8
        assert result.window_ids == words(n) + [EOS] * (result.window_tokens - n)
        # Slot 0 stands for the prompt's last position, or repeats its own where that one is not fed.
        first = 0.3 if cache == "prompt" else 0.0
        assert result.sparsity == pytest.approx([first] + [0.3] * (n - 1) + [0.8] * (64 - n))


@pytest.mark.parametrize(("cache", "lengths"), [("prompt", [5, 5]), ("none", [0, 0]), ("none", [5, 0])])
def test_a_slot_without_a_position_before_it_is_not_looked_at(cache, lengths):
    """Hand-worked: left are slots 1..3 with 0.3, 0.5, 0.4, right eight with 0.8: signal 0.4, variance 0.02 / 11.

    With slot 0, whatever stands there, the left side has four values.
    """
    curve = (0.3, 0.5, 0.4, *[0.8] * 61)
    other, result = asked([Script(4, curve=curve)] * 2, GenerationConfig(window=64, cache=cache), lengths=lengths)
    assert result.boundary == 4 and result.snr == pytest.approx(0.4 / (0.02 / 11) ** 0.5)
    assert result.sparsity == pytest.approx([0.3, *curve[:-1]])
    if lengths[0] and cache == "none":  # slot 0 stands for the prompt, which has 0
        assert other.boundary == 4 and other.snr == pytest.approx(0.5 / (0.14 / 12) ** 0.5)


def test_an_answer_of_one_slot_shows_against_the_prompt():
    """Its jump lies between the prompt's last position and the window's first."""
    (result,) = asked([Script(1, jump=0)], GenerationConfig(window=64))
    assert (result.boundary, result.window_tokens) == (1, 8)
    (blind,) = asked([Script(1, jump=0)], GenerationConfig(window=64), offset=0)
    assert blind.reason == "no jump found"


def test_find_boundary_of_a_wrapped_model():
    """Loud up to position 10, the last that slots 11 and 7 are read at, with windows from 0 and from 4 on."""
    with torch.no_grad():
        model = seer_dllm.wrap(Toy(), mask_id=TOY_MASK, eos_id=TOY_EOS, profile=Profile(threshold=0.01, slot_offset=1))
    loud = (torch.arange(40) <= 10).float().expand(2, 40)
    ids = torch.full((2, 40), TOY_MASK)
    found = model.find_boundary(ids, window_start=[0, 4], window=[36, 36], loud=loud)
    assert found.boundary == [12, 8]
    assert found.sparsity == [[0.5] * 12 + [1.0] * 24, [0.5] * 8 + [1.0] * 28]
    ids, loud = ids[:1], torch.zeros(1, 40)
    loud[0, 3] = 1  # a position before the window's first slot
    assert model.find_boundary(ids, window_start=4, window=36, loud=loud).boundary == [1]


def test_a_wrapped_models_first_slot_without_a_position_is_not_looked_at():
    """Hand-worked: position 0 is quiet, 1..10 are loud. Left are slots 1..11: one of 1.0 and ten of 0.5, mean 6/11.

    Right are sixteen of 1.0: signal 5/11, squared deviations (5/11)^2 + 10 * (1/22)^2 = 110/484 over 27 values.
    """
    profile = Profile(threshold=0.01, slot_offset=1, window=16)
    with torch.no_grad():
        model = seer_dllm.wrap(Toy(), mask_id=TOY_MASK, eos_id=TOY_EOS, profile=profile)
    loud = ((torch.arange(40) >= 1) & (torch.arange(40) <= 10)).float()[None]
    found = model.find_boundary(torch.full((1, 40), TOY_MASK), window_start=0, window=40, loud=loud)
    assert found.boundary == [12] and found.snr == pytest.approx([5 / 11 / (110 / 484 / 27) ** 0.5])
