"""The embedded demo: a small trained diffusion MLLM that reads sheets of handwritten digits, and how it was made."""

from pathlib import Path


def model_folder() -> Path:
    """The embedded checkpoint, in the hub layout of LaViDa-LLaDA."""
    return Path(__file__).with_name("model")
