"""How the headline calls a step: a step, or in inference what the engine served in it."""

from __future__ import annotations

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.tally import text
from shardtoll.ledger.words.human import plural


def step_word(context: Context) -> str:
    """Return `step`; of inference `decode step`, `prefill step` or `mixed step` if all are, else `inference
    step`; `recording` if no rank marks steps."""
    unmarked = context.notices.loc[context.notices["kind"] == "no-steps", "rank"]
    if len(unmarked) and set(unmarked) >= set(context.ledger.run.ranks_seen):
        return "recording"
    if not context.serves:
        return "step"
    served = context.timed_rows["serves"]
    same = served.notna().all() and served.nunique() == 1
    return f"{text(served.iloc[0]) if same else 'inference'} step"


def lead(context: Context) -> str:
    """Return `Inference (12 decode steps of 32 requests): `, with what is known of it; empty for training."""
    if not context.serves:
        return ""
    word = step_word(context)
    if word == "recording":
        return "Inference: "
    rows = context.timed_rows.drop_duplicates("step")
    requests = rows["requests"].dropna()
    least, most = (int(requests.min()), int(requests.max())) if len(requests) else (0, 0)
    counted = (
        f" of {least:,} to {plural(most, 'request')}" if least != most else f" of {plural(most, 'request')}"
    )
    return f"Inference ({plural(len(rows), word)}{counted if len(requests) else ''}): "


def after(begins: str, sentence: str) -> str:
    """Return the sentence after its beginning, in small letters there unless a name comes first."""
    if not begins or sentence.startswith("DTensor"):
        return f"{begins}{sentence}"
    return f"{begins}{sentence[0].lower()}{sentence[1:]}"
