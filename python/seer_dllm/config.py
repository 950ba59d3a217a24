"""Settings as frozen dataclasses: every value is checked when it is made, and unknown names are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

SCHEDULES = ("even", "linear", "shift", "cosine", "logit_normal", "dream")
COMMIT_RULES = ("low_confidence", "margin", "entropy", "random")
CACHES = ("none", "prompt", "prefix", "dual")
BLOCK_CACHES = ("prefix", "dual")  # renewed by a full forward at the start of every block
STEP0 = ("carry", "restart")
STEPS_POLICIES = ("rescale", "keep")
METHODS = ("seer", "eos_logit", "eos_density", "grow", "early_stop", "none")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. FileNotFoundError or ValueError name the file."""
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path.parent} must hold {path.name}, which is missing")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a JSON file: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(value).__name__}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}")


def check_number(name: str, value: object, low: float, high: float = float("inf")) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not low <= value <= high:
        bounds = f"of at least {low:g}" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise ValueError(f"{name} must be a number {bounds}, got {value!r}")


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def from_mapping(cls, values: dict[str, Any]):
    """Build a settings class from a mapping; a name it does not have is refused with the names it has."""
    known = [f.name for f in fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"{cls.__name__} has no setting {', '.join(map(repr, unknown))}; it has {', '.join(known)}")
    return cls(**values)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and special ids of a backbone, in one set of names; `families.py` reads them from a checkpoint.

    Args:
        rope_full_precision: rotate queries and keys in float32 (LLaDA) or in the model's dtype (Dream).
        shift: the logits of a position are those of the token behind it (Dream).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    mask_id: int
    eos_id: int
    qkv_bias: bool = False
    tie_embeddings: bool = False
    max_length: int = 4096
    rope_full_precision: bool = True
    shift: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "n_layers", "n_heads", "n_kv_heads", "head_dim"):
            check_positive(name, getattr(self, name))
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads must be a multiple of n_kv_heads={self.n_kv_heads}, got {self.n_heads}")
        for name in ("rope_theta", "norm_eps"):
            check_number(name, getattr(self, name), 0.0)
        for name in ("mask_id", "eos_id"):
            if not isinstance(getattr(self, name), int) or not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(f"{name} must be in [0, vocab_size={self.vocab_size}), got {getattr(self, name)}")


@dataclass(frozen=True)
class Profile:
    """Where and how a model shows the end of its answer. The paper gives no numbers; all defaults here are ours.

    Args:
        probe_layers: 0-based blocks whose MLP activity is averaged (the paper names the early layers 3-6).
        threshold: an activation below it counts as quiet.
        window, min_snr, plateau, min_jump: arguments of `seer_ext.ops.snr_boundary`.
        margin: slots kept beyond the boundary.
        slot_offset: 0 reads a slot's quiet share at its own position, 1 at the position before it (for models whose
            logits are shifted, quietness may go with the token that a position predicts).
    """

    probe_layers: tuple[int, ...] = (3, 4, 5, 6)
    threshold: float = 0.01
    window: int = 8
    min_snr: float = 1.0
    plateau: float = 0.9
    min_jump: float = 0.0
    margin: int = 16
    slot_offset: int = 0

    def __post_init__(self) -> None:
        layers = tuple(self.probe_layers) if isinstance(self.probe_layers, Iterable) else ()
        if not layers or any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in layers):
            raise ValueError(f"probe_layers must be whole numbers of at least 0, got {self.probe_layers!r}")
        object.__setattr__(self, "probe_layers", layers)
        check_number("threshold", self.threshold, 0.0)
        check_positive("window", self.window)
        for name in ("min_snr", "min_jump"):
            check_number(name, getattr(self, name), 0.0)
        check_number("plateau", self.plateau, 0.0, 1.0)
        if isinstance(self.margin, bool) or not isinstance(self.margin, int) or self.margin < 0:
            raise ValueError(f"margin must be a whole number of at least 0, got {self.margin!r}")
        if type(self.slot_offset) is not int or self.slot_offset not in (0, 1):
            raise ValueError(f"slot_offset must be 0 or 1, got {self.slot_offset!r}")


class Rival:
    """A method other than Seer's own with its numbers, as frozen settings; `seer_dllm.rivals` has them all.

    The loop calls it for each row that has it: `begin` before the row's first forward; `asks` whether the row wants to
    be shown what a forward predicts, and if so `waits`, which may change the window and says whether the row then lets
    a step pass without writing; `follow` after the row's step, which may change the window.
    """

    name: ClassVar[str]
    reads_ends: ClassVar[bool] = False  # nothing works that keeps the model from predicting ends
    moves_slots: ClassVar[bool] = False  # nothing works that remembers slots by their place

    def begin(self, row) -> None:
        pass

    def asks(self, row) -> bool:
        return False

    def waits(self, row, seen) -> bool:
        return False

    def follow(self, row, seen) -> None:
        pass


@dataclass(frozen=True)
class Truncation:
    """How the window is cut at step 0.

    Args:
        profile: the model's profile; None takes the one of the checkpoint, or the conservative default.
        step0: "carry" cuts the hidden states after the last probe layer and goes on with them (the paper); "restart"
            throws the probe away and runs step 0 on the short input. None takes "carry", but "restart" with the prefix
            and dual caches, whose first keys and values serve a whole block.
        steps_policy: "rescale" shrinks the steps with the window (ours), "keep" keeps them.
        safety_net: grow the window when the answer does not seem to end in it.
        method: "seer"; for comparison "eos_logit", "eos_density", "grow", "early_stop", or a `Rival` of
            `seer_dllm.rivals` with other numbers than theirs; "none" is stock. Profile and safety net are Seer's alone;
            step0 is Seer's and that of eos_logit.
    """

    profile: Profile | None = None
    step0: str | None = None
    steps_policy: str = "rescale"
    safety_net: bool = True
    method: str | Rival = "seer"

    def __post_init__(self) -> None:
        if self.step0 is not None:
            check_choice("step0", self.step0, STEP0)
        check_choice("steps_policy", self.steps_policy, STEPS_POLICIES)
        check_bool("safety_net", self.safety_net)
        if not isinstance(self.method, Rival):
            check_choice("method", self.method, METHODS)
        if self.profile is not None and not isinstance(self.profile, Profile):
            raise ValueError(f"profile must be a Profile or None, got {self.profile!r}")

    def step0_with(self, cache: str) -> str:
        """How a row with this cache is cut: as asked, or what suits the cache."""
        return self.step0 or ("restart" if cache in BLOCK_CACHES else "carry")

    def resolved(self, cache: str, profile: Profile) -> Truncation:
        """The same with nothing left open, for a model with this profile and a row with this cache."""
        return replace(self, profile=self.profile or profile, step0=self.step0_with(cache))


@dataclass(frozen=True)
class GenerationConfig:
    """One row's settings; the defaults that no reference gives are ours.

    Args:
        window: masked slots `G` to fill.
        steps: denoising steps over the whole window; None takes one slot a step (`steps = window`).
        block: slots of a block, filled left to right (semi-autoregressive); None takes the whole window.
        schedule: slots per step inside a block: "even" (LLaDA), LaViDa's "linear", "shift", "cosine",
            "logit_normal", or "dream": what is masked times `1 - s / t`, from time t to the next time s, all of it in
            the last step; steps may write nothing.
        shift: parameter of the "shift" schedule; above 1 starts slow (LaViDa's default 3).
        eps: where the times of the "dream" schedule end, having begun at 1 (Dream's default 1e-3).
        times: steps that the times of the "dream" schedule are laid out for; None: as many as `steps`. LaViDa-Dream's
            `step_ratio` walks only the first ones of them.
        commit: how slots are ranked: "low_confidence" (keep the most probable), "margin", "entropy", "random".
        threshold: commit every slot at or above this probability instead of a quota (Fast-dLLM); steps is ignored.
        hold_back: with a threshold, a step still commits its quota at most; what falls short is added to the next
            step's quota (Fast-dLLM's Dream without a cache).
        factor: commit by Fast-dLLM's factor rule instead of a quota; steps is ignored.
        temperature: 0 takes the most probable token, above 0 samples with Gumbel noise.
        top_p, top_k: leave only the most probable tokens, up to this mass or this many (Dream). Tokens and confidences
            then come from what is left of `logits / temperature`, at temperature 0 of the logits as they are.
        seed: names the row's random numbers; they do not depend on the batch.
        cfg_scale: classifier-free guidance; above 0 a second row with the prompt masked runs along.
        cache: "none" recomputes everything in every forward. "prompt" computes the prompt once, alone: exact for models
            trained so (LaViDa's prefix mode), an approximation elsewhere. "prefix" and "dual" are Fast-dLLM's: a full
            forward begins every block, then only the tokens from the block on ("prefix") or of the block ("dual") are
            computed; approximations for every model.
        suppress_eos: EOS is never predicted (LLaDA's `logits_eos_inf`).
        defer_end: ends are ranked last (LLaDA's `confidence_eos_eot_inf`).
        stop: strings at whose first occurrence the answer's text is cut.
    """

    window: int = 128
    steps: int | None = None
    block: int | None = None
    schedule: str = "even"
    shift: float = 3.0
    eps: float = 1e-3
    times: int | None = None
    commit: str = "low_confidence"
    threshold: float | None = None
    hold_back: bool = False
    factor: float | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    cfg_scale: float = 0.0
    cache: str = "none"
    suppress_eos: bool = False
    defer_end: bool = False
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_positive("window", self.window)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("commit", self.commit, COMMIT_RULES)
        check_choice("cache", self.cache, CACHES)
        object.__setattr__(self, "block", self.window if self.block is None else self.block)
        object.__setattr__(self, "steps", self.window if self.steps is None else self.steps)
        check_positive("block", self.block)
        check_positive("steps", self.steps)
        if self.window % self.block:
            raise ValueError(f"window must be a multiple of block={self.block}, got {self.window}")
        if self.steps % self.blocks and self.threshold is None and self.factor is None:
            raise ValueError(f"steps must be a multiple of the {self.blocks} blocks, got {self.steps}")
        if self.threshold is not None and self.factor is not None:
            raise ValueError(f"threshold must be None when factor is given, got {self.threshold}")
        for name, low, high in (("temperature", 0.0, float("inf")), ("cfg_scale", 0.0, float("inf"))):
            check_number(name, getattr(self, name), low, high)
        if (self.threshold is not None or self.factor is not None) and self.commit != "low_confidence":
            raise ValueError(f"commit must be low_confidence with threshold or factor, got {self.commit!r}")
        if self.threshold is not None:
            check_number("threshold", self.threshold, 0.0, 1.0)
        if self.factor is not None:
            check_number("factor", self.factor, 0.0)
        check_number("shift", self.shift, 0.0)
        if self.shift == 0:
            raise ValueError(f"shift must be above 0, got {self.shift!r}")
        check_number("eps", self.eps, 0.0, 1.0)
        if self.times is not None:
            check_positive("times", self.times)
            if self.times < self.steps:
                raise ValueError(f"times must be at least steps={self.steps}, got {self.times}")
        if self.top_p is not None:
            check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_k is not None:
            check_positive("top_k", self.top_k)
        check_bool("hold_back", self.hold_back)
        if self.hold_back and self.threshold is None:
            raise ValueError("hold_back must be False without a threshold, got True")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 63:
            raise ValueError(f"seed must be a whole number of at most 64 bits, got {self.seed!r}")
        check_bool("suppress_eos", self.suppress_eos)
        check_bool("defer_end", self.defer_end)
        if isinstance(self.stop, str):
            raise ValueError(f"stop must be a sequence of strings, got the string {self.stop!r}")
        object.__setattr__(self, "stop", tuple(self.stop))
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop must hold strings that are not empty, got {self.stop!r}")

    @property
    def blocks(self) -> int:
        return self.window // self.block
