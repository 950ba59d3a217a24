"""The demo's tokenizer: one token per word of the task, and LLaDA's special tokens for its chat template."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from seer_dllm.demo.questions import words

BOS = "<|startoftext|>"
EOS = "<|endoftext|>"  # also the padding
START_HEADER = "<|start_header_id|>"
END_HEADER = "<|end_header_id|>"
EOT = "<|eot_id|>"
MASK = "<|mdm_mask|>"
UNKNOWN = "[UNK]"
SPECIALS = (BOS, EOS, START_HEADER, END_HEADER, EOT, MASK, UNKNOWN)
ROLES = ("system", "user", "assistant")
BREAKS = ("\n\n", "\n")


def build_tokenizer() -> Tokenizer:
    """The tokenizer. Decoding joins words by single spaces, which is how the task's texts are written.

    Line breaks are tokens of their own, whatever touches them, so that the template's pieces tokenize alike
    together and alone. Case and missing spaces before punctuation are forgiven, as in "How many are there?".
    """
    vocabulary = [*SPECIALS, *BREAKS, *ROLES, *words()]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in BREAKS])
    return tokenizer


def save(folder: str | Path) -> Path:
    """Write ``tokenizer.json`` into the folder and return its path."""
    path = Path(folder) / "tokenizer.json"
    build_tokenizer().save(str(path))
    return path
