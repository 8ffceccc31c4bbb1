"""A layout named by its user, for comparison with the advised one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.advice import Question
from shardtoll.ledger.answers.training_plan import Layout

_HINT = "write it as dp=8,tp=2,sharding=fsdp,micro_batch=2,checkpointing=full"


def layout_of(text: str, question: Question) -> Layout:
    """Return the layout of `name=value` pairs. Omitted names follow from GPUs and batch.

    Raises UsageError for an unknown name, or a layout that is not of the question's GPUs and batch.
    """
    known = {each.name: each.type for each in fields(Layout)}
    given: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        if name not in known:
            raise UsageError(f"--explain: unknown name {name!r:.40}", _HINT)
        given[name] = _value(name, value, str(known[name]))
    given.setdefault("sequence_parallel", given.get("tp", 1) > 1)
    ranks = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    given.setdefault("dp", max(1, question.gpus // ranks))
    replica = question.sequences // given["dp"]
    given.setdefault("micro_batch", 1)
    given.setdefault("accumulation", max(1, replica // given["micro_batch"]))
    try:
        layout = Layout(**given)
    except ValueError as error:
        raise UsageError(f"--explain: {error}", _HINT) from error
    if layout.world_size != question.gpus:
        raise UsageError(f"--explain: the layout has {layout.world_size} GPUs, not {question.gpus}", _HINT)
    if layout.sequences != question.sequences:
        raise UsageError(
            f"--explain: the layout has {layout.sequences:,} sequences per step, not {question.sequences:,}",
            "give micro_batch and accumulation that keep the batch, or change --batch-tokens",
        )
    return layout


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "bool":
        return text.lower() in ("1", "true", "yes")
    # No search for the word: `Checkpointing` has it too.
    if kind in ("int", "int | None"):
        if not text.isdecimal() or len(text) > 7 or int(text) < 1:
            raise UsageError(f"--explain: {name} {text!r:.40} is no number of 1 or more", _HINT)
        return int(text)
    return text
