"""Text to token ids and back, by the tokenizer files of a checkpoint folder. No code of the folder is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from seer_dllm.config import read_json


class TextTokenizer:
    """What prompts and answers need of a tokenizer. Its length counts all words, added ones too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()  # files may carry both as settings of their training
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def add_missing(self, tokens: Sequence[str]) -> None:
        """Append those of these special tokens that the vocabulary lacks, in this order."""
        self._tokenizer.add_special_tokens([token for token in tokens if self.token_to_id(token) is None])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, special tokens spelled out in it included; none are added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def token_to_id(self, token: str) -> int | None:
        """The id of one token, spelled as in the vocabulary; None if there is no such token."""
        return self._tokenizer.token_to_id(token)

    def spelling(self, id: int) -> str | None:
        """A token as the vocabulary spells it; None if there is no such id."""
        return self._tokenizer.id_to_token(id)

    def special_ids(self) -> list[int]:
        """Ids of the special tokens, ascending."""
        return sorted(i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)


def load_tokenizer(folder: Path) -> TextTokenizer | None:
    """The tokenizer of a checkpoint folder; None if it has no tokenizer files.

    With a tokenizer_config.json transformers puts the files together (vocabulary, merges, added tokens). A
    tokenizer.json alone says everything and is read directly, which spares the slow import.

    Raises:
        FileNotFoundError: a tokenizer_config.json without its vocabulary.
        ValueError: the files are damaged, or the tokenizer is code of the folder.
    """
    whole, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if settings.is_file():
        return TextTokenizer(_assembled(folder, settings, whole))
    if not whole.is_file():
        return None
    try:
        return TextTokenizer(Tokenizer.from_file(str(whole)))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ValueError(f"{whole} must be a tokenizer file: {error}") from error


# Tokenizers whose code lies in their folders, and the class of transformers that does the same: Dream's is Qwen2's.
SAME_AS = {"DreamTokenizer": "Qwen2TokenizerFast"}


def _assembled(folder: Path, settings: Path, whole: Path) -> Tokenizer:
    """What transformers makes of the files. It is asked for no code, and folders that name some are refused before."""
    given = read_json(settings)
    known = SAME_AS.get(given.get("tokenizer_class"))
    code = None if known else given.get("auto_map")
    if code.get("AutoTokenizer") if isinstance(code, dict) else code:
        raise ValueError(
            f"{settings} must not name a tokenizer's code in auto_map, because code of a checkpoint is never run; "
            "if it has a tokenizer.json that does without, remove auto_map"
        )
    # From the settings alone, transformers would make a tokenizer without words.
    if not whole.is_file() and not all((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        raise FileNotFoundError(f"checkpoint {folder} must hold tokenizer.json, or vocab.json and merges.txt")
    import transformers  # slow: only where it is needed

    try:
        # An empty config keeps it from looking for the model's class, which it does not know.
        loader = getattr(transformers, known or "AutoTokenizer")
        tokenizer = loader.from_pretrained(
            str(folder), config=transformers.PretrainedConfig(), local_files_only=True, trust_remote_code=False
        )
        return tokenizer.backend_tokenizer
    except Exception as error:  # of many kinds, bare Exceptions of tokenizers among them
        raise ValueError(f"checkpoint {folder} must hold a tokenizer that transformers can read: {error}") from error
