"""Seer's runtime: diffusion multimodal language models whose window is cut where the answer ends."""

from seer_dllm.api import Model, Result, generate, load
from seer_dllm.check import check
from seer_dllm.config import GenerationConfig, Profile, Truncation
from seer_dllm.engine import Answer, Engine, Request
from seer_dllm.probe import probe
from seer_dllm.wrap import wrap

__all__ = [
    "Answer", "Engine", "GenerationConfig", "Model", "Profile", "Request", "Result", "Truncation", "check", "generate",
    "load", "probe", "wrap",
]  # fmt: skip
