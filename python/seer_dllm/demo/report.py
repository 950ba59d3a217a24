"""What `seer eval-demo` says: tables in Markdown, computed from the records of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seer_dllm.comparison import CutCounts
from seer_dllm.demo import data
from seer_dllm.demo.evaluate import BASE, RUNS, WINDOWS, Record, Setting
from seer_dllm.demo.questions import KINDS
from seer_dllm.tables import decimal, markdown, mean, percent

CONTROL_SEED, CONTROL_ANSWERS = 77, 9000
ROUND = 8  # kept windows are multiples of it (`plan_keep`), so those of the controls are too


def report(records: Sequence[Record], encode) -> str:
    """The whole report. `encode`: text -> token ids, for the lengths that the controls are fitted on."""
    base = select(records, BASE)
    parts = [
        ("Exact answers", accuracy(records)),
        ("What the cut cost", safety(records)),
        (f"Kept slots against controls ({BASE}, carry)", controls(base["carry"], needs_by_kind(encode))),
        ("Boundary and true end within one wording", correlations(base["carry"])),
        ("The same answer whatever the window", same_answers(records)),
    ]
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts)


def select(records: Iterable[Record], setting: Setting) -> dict[str, list[Record]]:
    """The records of a setting by run, each in order of the questions."""
    chosen: dict[str, list[Record]] = {run: [] for run in RUNS}
    for record in records:
        if record.setting == setting:
            chosen[record.run].append(record)
    return {run: sorted(found, key=lambda r: r.index) for run, found in chosen.items()}


def settings(records: Iterable[Record]) -> list[Setting]:
    return list(dict.fromkeys(r.setting for r in records))


def accuracy(records: Sequence[Record]) -> str:
    """Share of exact answers by setting and run, overall and by kind."""
    rows = []
    for setting in settings(records):
        for run, found in select(records, setting).items():
            if found:
                by_kind = (mean(r.right for r in found if r.kind == kind) for kind in KINDS)
                rows.append([setting, run, len(found), percent(mean(r.right for r in found)), *map(percent, by_kind)])
    return markdown(["setting", "run", "questions", "all", *KINDS], rows)


def safety(records: Sequence[Record]) -> str:
    """Per setting and way to cut, against stock's answers to the same questions."""
    rows = []
    for setting in settings(records):
        runs = select(records, setting)
        stock = {r.index: r for r in runs["stock"]}
        for run in ("carry", "restart"):
            pairs = [(r, stock[r.index]) for r in runs[run] if r.index in stock]
            if not pairs:
                continue
            c = CutCounts.of(pairs)
            probed = [r for r, _ in pairs if r.quiet_padding is not None]
            quiet = [mean(getattr(r, name) for r in probed) for name in ("quiet_answer", "quiet_padding")]
            rows.append(
                [
                    setting, run, " / ".join(map(decimal, quiet)),
                    f"{c.cut}/{c.rows}", c.early, c.net_early, c.net_late, c.lost, c.shorter,
                    percent(c.same / c.rows),
                    f"{mean(r.window_tokens for r, _ in pairs):.1f}",
                    f"{mean(s.token_forwards for _, s in pairs) / mean(r.token_forwards for r, _ in pairs):.2f}x",
                ]
            )  # fmt: skip
    head = [
        "setting",
        "run",
        "quiet share, answer / padding",
        "rows cut",
        "boundary before stock's end",
        "net early",
        "net late",
        "cut and not caught",
    ]
    head += ["shorter though not cut", "same ids as stock", "kept slots", "fewer token-forwards"]
    return markdown(head, rows)


def needs_by_kind(encode) -> dict[str, np.ndarray]:
    """Tokens that right answers need, end included, by kind: a sample of its own, which costs no model."""
    _, _, answers, kinds = data.sample_batch(np.random.default_rng(CONTROL_SEED), CONTROL_ANSWERS, "heldout")
    needs = np.array([len(encode(answer)) + 1 for answer in answers])
    return {kind: needs[np.array(kinds) == kind] for kind in KINDS}


def round_up(slots, window: int):
    return np.minimum(window, -(-np.asarray(slots) // ROUND) * ROUND)


def controls(records: Sequence[Record], needs: dict[str, np.ndarray]) -> str:
    """Kept slots per question: Seer, a constant per kind, one constant, and the oracle.

    The constants are the smallest that cut no larger share of right answers short than Seer's windows do before the
    safety net has seen them; the oracle knows the length of the right answer.
    """
    if not records:
        return "no records"
    window = records[0].setting.window
    first = np.array([r.planned for r in records])
    need = np.array([r.needs for r in records])
    short = float(np.mean(first < need))
    kinds = [r.kind for r in records]
    per_kind = {kind: int(round_up(quantile(n, short), window)) for kind, n in needs.items()}
    everything = np.concatenate([needs[kind] for kind in KINDS])
    kept = {
        "Seer": first,
        "(i) a constant per kind": np.array([per_kind[kind] for kind in kinds]),
        "(ii) position only: one constant": np.full(len(records), int(round_up(quantile(everything, short), window))),
        "(iii) oracle": round_up(need, window),
    }
    seer = first.mean()
    rows = [
        [name, f"{slots.mean():.1f}", f"{slots.mean() / seer:.2f}x", percent(float(np.mean(slots < need)))]
        for name, slots in kept.items()
    ]
    constants = ", ".join(f"{kind} {slots}" for kind, slots in per_kind.items())
    table = markdown(["windows", "slots kept", "of Seer's", "windows shorter than the right answer"], rows)
    return f"{table}\n\nConstants: {constants}; {len(records)} questions, in windows of {window}."


def quantile(needs: np.ndarray, short: float) -> int:
    """The smallest constant with at most this share of needs above it."""
    return int(np.quantile(needs, 1 - short, method="higher"))


def correlations(records: Sequence[Record]) -> str:
    rows = []
    for kind in (*KINDS, "all"):
        found = [r for r in records if kind in (r.kind, "all") and r.boundary is not None]
        need, boundary = (np.array([getattr(r, name) for r in found], float) for name in ("needs", "boundary"))
        if len(found) < 3 or need.std() == 0:
            continue
        value = np.corrcoef(need, boundary)[0, 1] if boundary.std() else float("nan")
        span = f"{need.min():.0f}-{need.max():.0f}"
        off = np.quantile(boundary - need, [0.05, 0.5, 0.95])
        rows.append([kind, len(found), span, decimal(value), ", ".join(f"{v:+.0f}" for v in off)])
    return markdown(["wording", "questions", "tokens needed", "correlation", "boundary minus need, 5/50/95 %"], rows)


def same_answers(records: Sequence[Record]) -> str:
    """Answers of one question in windows of different lengths that all hold the right answer."""
    rows = []
    for run in RUNS:
        by_window = {s.window: {r.index: r for r in select(records, s)[run]} for s in WINDOWS}
        for windows in ((64, 128, 256), (128, 256)):
            shared = set.intersection(*(set(by_window[w]) for w in windows))
            fits = [i for i in sorted(shared) if by_window[windows[0]][i].needs <= windows[0]]
            same = sum(len({tuple(by_window[w][i].ids) for w in windows}) == 1 for i in fits)
            if fits:
                names = "/".join(map(str, windows))
                rows.append([run, names, f"{same}/{len(fits)}", percent(same / len(fits))])
    return markdown(["run", "windows", "answers equal, of those that fit", "share"], rows)
