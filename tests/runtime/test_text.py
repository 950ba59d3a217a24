"""Tokenizers of checkpoint folders: which files make one, that they agree, and that no code of a folder runs."""

import json
import subprocess
import sys

import pytest
from folders import refused, tiny_llada
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import seer_dllm
from seer_dllm.demo import model_folder
from seer_dllm.text import TextTokenizer, load_tokenizer

TEXT = "How many digits?\n<|eot_id|> 3  Ünïcode 北"
EOT, MASK = "<|eot_id|>", "<|mdm_mask|>"


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    """A byte-level BPE as the hub's models have it, with two special tokens and one added word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["how many digits are in the row"] * 3,
        trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in (EOT, MASK)])
    tokenizer.add_tokens([AddedToken("digits", normalized=False)])
    return tokenizer


def settings(folder, **values) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def hub_files(folder, bpe) -> None:
    """vocab.json, merges.txt and a tokenizer_config.json with the added tokens; no tokenizer.json."""
    bpe.model.save(str(folder))
    added = {
        str(i): {"content": token.content, "special": token.special, "normalized": token.normalized}
        | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        for i, token in bpe.get_added_tokens_decoder().items()
    }
    settings(folder, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added)


def test_a_folder_without_tokenizer_files(tmp_path):
    assert load_tokenizer(tmp_path) is None


def test_encode_decode_and_lookup(tmp_path, bpe):
    bpe.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode(TEXT)
    assert ids.count(bpe.token_to_id(EOT)) == 1 and ids.count(bpe.token_to_id("digits")) == 1
    assert tokenizer.decode(ids) == TEXT.replace(EOT, "")
    assert tokenizer.decode([]) == "" and tokenizer.encode("") == []
    assert tokenizer.token_to_id(MASK) == bpe.token_to_id(MASK)
    assert tokenizer.token_to_id("<|no_such_token|>") is None


def test_vocabulary_and_merges_equal_the_whole_file(tmp_path, bpe):
    hub_files(tmp_path, bpe)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("how many") == bpe.encode("how many").ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT.replace(EOT, "")
    for token in (EOT, MASK, "digits", "h"):
        assert tokenizer.token_to_id(token) == bpe.token_to_id(token)
    assert tokenizer.token_to_id("<|no_such_token|>") is None


def test_settings_beside_a_whole_file_change_nothing(tmp_path):
    """Whichever way the demo's tokenizer is read, it is the same."""
    (tmp_path / "tokenizer.json").write_bytes((model_folder() / "tokenizer.json").read_bytes())
    direct = load_tokenizer(tmp_path)
    settings(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    assembled = load_tokenizer(tmp_path)
    text = "<|startoftext|>How many digits are there? 3 blank<|eot_id|>"
    assert assembled.encode(text) == direct.encode(text)
    assert assembled.decode(direct.encode(text)) == direct.decode(direct.encode(text))


def test_truncation_and_padding_of_a_file_are_ignored(tmp_path, bpe):
    copy = Tokenizer.from_str(bpe.to_str())
    copy.enable_truncation(2)
    copy.enable_padding(length=50)
    copy.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(TEXT) == bpe.encode(TEXT).ids


def test_a_model_uses_it(tmp_path, bpe):
    tiny_llada(tmp_path)
    hub_files(tmp_path, bpe)
    (tmp_path / "seer.json").write_text(json.dumps({"end_tokens": [EOT, "<|no_such_token|>"]}))
    model = seer_dllm.load(tmp_path)
    assert isinstance(model.tokenizer, TextTokenizer)
    assert model.encode("how many") == bpe.encode("how many").ids
    assert model.end_ids == (model.backbone.config.eos_id, bpe.token_to_id(EOT))


@pytest.mark.parametrize(
    "auto_map", [{"AutoTokenizer": ["tokenization_own.Own", None]}, ["tokenization_own.Own", None]]
)
@pytest.mark.parametrize("whole", [False, True])
def test_code_of_a_folder_is_refused_and_not_run(tmp_path, bpe, auto_map, whole):
    tiny_llada(tmp_path)
    hub_files(tmp_path, bpe)
    if whole:
        bpe.save(str(tmp_path / "tokenizer.json"))
    marker = tmp_path / "ran"
    (tmp_path / "tokenization_own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    settings(tmp_path, tokenizer_class="Own", auto_map=auto_map)
    refused(tmp_path, ValueError, str(tmp_path / "tokenizer_config.json"), "code of a checkpoint is never run")
    assert not marker.exists()


def test_code_for_other_things_does_not_matter(tmp_path, bpe):
    """The hub's config.json names model code; ours is used instead, and the tokenizer needs none."""
    hub_files(tmp_path, bpe)
    raw = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.Own", "AutoTokenizer": "x.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    marker = tmp_path / "ran"
    for name in ("configuration_own.py", "x.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    assert load_tokenizer(tmp_path).encode("how many") == bpe.encode("how many").ids
    assert not marker.exists()


@pytest.mark.parametrize("files", [(), ("vocab.json",), ("merges.txt",)])
def test_settings_without_a_vocabulary(tmp_path, bpe, files):
    hub_files(tmp_path, bpe)
    for name in {"vocab.json", "merges.txt"} - set(files):
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match="must hold tokenizer.json, or vocab.json and merges.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_damaged_files_are_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="tokenizer.json must be a tokenizer file"):
        load_tokenizer(tmp_path)
    settings(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ValueError, match=f"{tmp_path} must hold a tokenizer that transformers can read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config.json must be a JSON file"):
        load_tokenizer(tmp_path)


def test_the_demos_text_needs_no_transformers():
    script = (
        "import sys; from seer_dllm.text import load_tokenizer; from seer_dllm.demo import model_folder\n"
        "assert load_tokenizer(model_folder()).encode('3 blank')\n"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_text_model_is_loaded_without_transformers_or_compilers(tmp_path):
    """Either import takes seconds."""
    tiny_llada(tmp_path)
    script = (
        f"import sys, seer_dllm; before = set(sys.modules); seer_dllm.load({str(tmp_path)!r})\n"
        "sys.exit(bool({'transformers', 'sympy', 'torch._dynamo'} & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
