"""Sentences on what the roofline of a step rests on, and why it is unknown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardtoll.analyzers.bounds.operator_rows import OperatorRows
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.roofline import Gpu
from shardtoll.ledger.answers.step_roofline import (
    BEST_OVERLAP,
    SPEED_OF_LIGHT,
    UTILISATION,
    RankRoofline,
)
from shardtoll.ledger.words.human import percent
from shardtoll.ledger.words.human import ranks as ranks_words


def why_unknown(context: Context) -> str:
    """Return why the accelerator's peaks are not known, in one line."""
    run = context.ledger.run
    if "fake" in (run.backend or ""):
        return "a job on a fake process group runs on no accelerator"
    if context.on_cpu:
        return "the job computed on CPUs, whose peaks are not on record"
    if run.device is None:
        return "the job does not name its accelerator; name its machine with --fabric"
    if run.device.startswith("MTIA"):
        return f"the peaks of {run.device} are not published"
    return f"no accelerator on record is called {run.device}; `shardtoll fabrics` lists those that are"


def assumptions(
    rows: OperatorRows, gpu: Gpu | None, ranks: Sequence[RankRoofline], in_part: Collection[int] = ()
) -> tuple[str, ...]:
    """Return what the figures rest on, one sentence each.

    `in_part`: the ranks of which a lower bound of exposed communication is known.
    """
    if gpu is None:
        return ()
    notes = [SPEED_OF_LIGHT, BEST_OVERLAP]
    if gpu.reached_matmul_tflops is None:
        notes.append(f"what matmuls reach on {gpu.title} is not on record: its peak stands for it")
    share = min((each.known_share for each in ranks if each.known_share is not None), default=None)
    if not rows.of_trace:
        notes.append(
            "live capture records operators with FLOPs. The others, and those inside compiled code, count "
            "as nothing, so utilisation is a lower bound. Operands count as read from memory, not from a "
            "cache"
        )
    elif share == 0:
        notes.append(
            "no operator's FLOPs or bytes are known, so compute counts in the floor as long as it ran; "
            "record traces with `record_shapes=True`"
        )
    elif share is not None and share < 0.995:
        notes.append(
            f"FLOPs or bytes are known of {percent(share)} of the compute time. The rest counts in the "
            "floor only, as long as it ran. Utilisation is a lower bound"
        )
    if any(each.comm_known_share is not None and each.comm_light_ns is None for each in ranks):
        notes.append("the links' speed of light is not known here: the collectives count as nothing in it")
    if any((each.comm_known_share or 1.0) < 1.0 for each in ranks):
        notes.append("collectives whose least time is not known count as nothing")
    if any(each.exposed_comm_ns is None for each in ranks):
        notes.append("exposed communication is unknown, as no step records it")
    if in_part:
        notes.append(
            f"of {ranks_words(sorted(in_part))} exposed time is not known of all collectives: "
            "exposed communication is at least what is said"
        )
    if any(each.mfu is not None for each in ranks):
        notes.append(UTILISATION)
    return tuple(notes)
