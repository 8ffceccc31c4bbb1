"""The finding that says to programs what the verdict says to people, and its remedy."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.hang.judging.diagnosis import Diagnosis
from shardtoll.analyzers.hang.judging.later_steps import came_after, came_late, late_for
from shardtoll.analyzers.hang.verdict.fewer import fewer_than_others
from shardtoll.analyzers.hang.verdict.hang_sentence import both_sides, sentence
from shardtoll.analyzers.hang.verdict.unlisted import source_of, suspects, unlisted
from shardtoll.analyzers.hang.verdict.wording import (
    described,
    died_too,
    first_wait,
    lock_holders,
    numbers,
)
from shardtoll.ledger.records.finding import Confidence, Evidence, Figure, Finding, Remedy, Where

_REMEDIES: Final = {
    "skipped": "Issue this collective on every rank of the group, also if the data of a rank needs none.",
    "extra": "Issue this collective on every rank of the group, or on none.",
    "mismatch": "Give every rank of the group the same operation, size, dtype and root.",
    "order": "Issue the collectives of both groups in the same order on every rank.",
    "cycle": "Order collectives, sends and receives so that ranks do not wait for each other in a circle.",
    "failed": "Fix the exception of that rank; all else only waits for it.",
    "dead": "Look at what ended that process: the kernel's log for memory, its own output for a signal.",
    "closed": "Have every rank run the same number of steps.",
    "stopped": "Continue the process with SIGCONT, or detach the debugger that holds it.",
    "late": "Look at the stacks of {ranks}, for which others wait in a collective.",
    "no peer": "Issue the other side of this send or receive on that rank.",
    "no file": "Give the run folders of the other nodes too. If they are given, look at that rank's output.",
    "unknown": "Look at the network between these ranks, and compare the stacks of all threads.",
}

_CODES: Final = {
    "skipped": "value = value if used else torch.zeros_like(value)\ndist.all_reduce(value, group=group)",
    "extra": "value = value if used else torch.zeros_like(value)\ndist.all_reduce(value, group=group)",
    "mismatch": "dist.all_gather(sizes, torch.tensor([value.numel()]), group=group)",
    "order": "dist.all_reduce(first, group=tp)\ndist.all_reduce(second, group=dp)",
    "cycle": (
        "sends = dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)\n"
        "dist.batch_isend_irecv(list(sends))"
    ),
    "closed": "with Join([model]):\n    train(model, batches)",
    "no peer": "dist.recv(value, src=sender) if rank == receiver else dist.send(value, dst=receiver)",
}
"""Cause of a hang -> code that avoids it; the other causes have no such code."""


def _remedy(diagnosis: Diagnosis) -> str:
    wait = unlisted(diagnosis)
    if wait is None:
        holders = lock_holders(diagnosis) if diagnosis.why == "late" else ()
        if holders:
            process = diagnosis.job.ranks[holders[0]].flight.pid
            pid = "" if process is None else f" {process}"
            return (
                f"Run `py-spy dump --pid{pid}`: what holds Python's lock keeps rank {holders[0]} from "
                "writing stacks."
            )
        text = _told_more(diagnosis) or _REMEDIES[diagnosis.why]
        return text.format(ranks=numbers(diagnosis.culprits)) if diagnosis.culprits else text
    named = suspects(diagnosis)
    if source_of(diagnosis, wait) == "dump":
        first = f"Give the dump of {numbers(named)} too" if named else "Give the dumps of all ranks"
        return f"{first}: a rank that did not arrive has issued less than those that did."
    if named:
        return f"Look at the stacks of {numbers(named)}: a rank without a time-out of its own is the suspect."
    return "Look for a rank of the group without a time-out of its own: it is the suspect."


def _told_more(diagnosis: Diagnosis) -> str | None:
    """Return the remedy if the files say more than why it hangs; None if they do not."""
    if diagnosis.why == "closed" and fewer_than_others(diagnosis) is not None:
        return _REMEDIES["skipped"]
    if diagnosis.why == "late" and came_late(diagnosis.job, diagnosis.waits):
        return "Look at what that rank did before; if it needs so long, raise `timeout=` of the group."
    if diagnosis.why == "no peer" and both_sides(diagnosis) is not None:
        return "Give both sides of this send the same tag and group."
    return None


def finding_of(diagnosis: Diagnosis) -> Finding:
    """Return the finding of kind `hang` for a job that hangs."""
    first = first_wait(diagnosis)
    divergence = diagnosis.divergence
    call = divergence.call if divergence is not None else None
    if call is None and first is not None:
        call = first.call
    times = [diagnosis.job.ranks[rank].for_ns for rank in diagnosis.stuck]
    waited = [time for time in times if time is not None]
    evidence = [Evidence("ranks that wait", numbers(diagnosis.stuck) if diagnosis.stuck else "none")]
    if diagnosis.culprits:
        evidence.append(Evidence("ranks at fault", numbers(diagnosis.culprits)))
    if waited:
        evidence.append(Evidence("longest wait", max(waited), "ns"))
    late = _late_ranks(diagnosis)
    if late is not None:
        evidence.append(Evidence("ranks that came late", numbers(late[0])))
        evidence.append(Evidence("came later by", late[1], "ns"))
    parted = diagnosis.parted
    if parted is not None:
        evidence.append(Evidence(f"first divergence, rank {parted.rank}", described(parted.call)))
        evidence.append(
            Evidence(f"first divergence, {numbers(parted.others)}", described(parted.others_call))
        )
    sure: Confidence = "likely" if diagnosis.why in ("late", "unknown", "no file", "no peer") else "certain"
    if divergence is not None and not divergence.certain and diagnosis.why in ("skipped", "extra"):
        sure = "likely"
    if died_too(diagnosis) or (late is not None and diagnosis.why == "dead"):
        sure = "likely"
    if diagnosis.why in ("mismatch", "order") and not any(
        rank.flight.waits_block for rank in diagnosis.job.ranks.values()
    ):
        # On an accelerator it is what differs, not known to be what is not done.
        sure = "likely"
    return Finding(
        kind="hang",
        severity="error",
        title=sentence(diagnosis),
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None if call is None else call.message_bytes,
        count=1,
        ranks=tuple(sorted({*diagnosis.culprits, *diagnosis.stuck})),
        where=Where(
            phase=None if call is None else call.phase,
            module=None if call is None else call.module,
            op=None if call is None else call.op,
            source=None if call is None else call.source,
            group=None if call is None else call.group,
        ),
        evidence=tuple(evidence),
        remedy=Remedy(_remedy(diagnosis), _CODES.get(diagnosis.why)),
        confidence=sure,
        figures=(
            *((Figure("waited_ns", max(waited), "ns"),) if waited else ()),
            *((Figure("came_after_ns", late[1], "ns"),) if late is not None else ()),
        ),
    )


def _late_ranks(diagnosis: Diagnosis) -> tuple[tuple[int, ...], int] | None:
    """Return the ranks that came to a collective after another had ended in it, and by how many ns."""
    if diagnosis.why == "dead" and diagnosis.culprits:
        each = [late for rank in diagnosis.culprits if (late := late_for(diagnosis.job, rank)) is not None]
        came = tuple(sorted({rank for ranks, _ in each for rank in ranks}))
        return (came, max(after_ns for _, after_ns in each)) if each else None
    first = first_wait(diagnosis)
    if diagnosis.why != "late" or first is None or first.place is None:
        return None
    after = [came_after(diagnosis.job, first, rank) for rank in diagnosis.culprits]
    delays = [each for each in after if each is not None]
    return (diagnosis.culprits, max(delays)) if delays and len(delays) == len(after) else None
