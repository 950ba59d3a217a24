"""Prompts: the chat templates of the families, as pieces of text around the images, and their token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seer_dllm.vision import IMAGE_PLACEHOLDER

LAVIDA_SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user "
    "provides, and assist the user with a variety of tasks using natural language."
)


def _chat(text: str, system: str | None, gap: str) -> str:
    """One user message, up to and including the assistant's header; `gap` follows every header."""

    def message(role: str, content: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>{gap}{content.strip()}<|eot_id|>"

    head = message("system", system) if system else ""
    return f"<|startoftext|>{head}{message('user', text)}<|start_header_id|>assistant<|end_header_id|>{gap}"


def _pictures(images: int) -> str:
    """LaViDa's line of placeholders before the user's text, as its evaluation joins them."""
    return " ".join(["<image>"] * images) + "\n" * bool(images)


def llada_template(text: str, system: str | None, images: int) -> str:
    """LLaDA's chat template, with LaViDa's pictures."""
    return _chat(_pictures(images) + text.strip(), system, "\n\n")


def dream_template(text: str, system: str | None, images: int) -> str:
    """Dream's chat template, that of Qwen2, with LaViDa's pictures."""

    def message(role: str, content: str) -> str:
        return f"<|im_start|>{role}\n{content}<|im_end|>\n"

    head = message("system", system) if system else ""
    return f"{head}{message('user', _pictures(images) + text)}<|im_start|>assistant\n"


def mmada_template(text: str, system: str | None, images: int) -> str:
    """MMaDA's: pictures before the whole chat (inference_mmu.py), one newline after its headers (generate.py)."""
    return "<image>" * images + _chat(text, system, "\n")


# Template and default system message per `Family.chat`.
TEMPLATES: dict[str, tuple[Callable[[str, str | None, int], str], str | None]] = {
    "llada": (llada_template, None),
    "lavida_llada": (llada_template, LAVIDA_SYSTEM),
    "mmada": (mmada_template, None),
    "dream": (dream_template, "You are a helpful assistant."),
    "lavida_dream": (dream_template, LAVIDA_SYSTEM),
}


def prompt_ids(
    encode: Callable[[str], Sequence[int]], chat: str, text: str, images: int = 0, system: str | None = "default"
) -> list[int]:
    """Token ids of one user turn; each picture is one `IMAGE_PLACEHOLDER`, where the template puts it.

    Args:
        encode: text -> ids, without added special tokens.
        chat: a key of `TEMPLATES`.
        system: the system message; "default" takes the template's own, None or "" leaves it out.
    Raises:
        ValueError: `text` is empty or blank, or holds the literal `<image>`.
    """
    if not text or not text.strip():
        raise ValueError("prompt must hold some text, got an empty one")
    if "<image>" in text:
        raise ValueError("prompt must not hold the literal <image>; pass pictures as images")
    template, default_system = TEMPLATES[chat]
    rendered = template(text, default_system if system == "default" else system, images)
    # The references tokenize every piece between pictures alone, so no token spans a picture.
    pieces = rendered.split("<image>")
    ids = list(encode(pieces[0]))
    for piece in pieces[1:]:
        ids.append(IMAGE_PLACEHOLDER)
        ids.extend(encode(piece))
    return ids
