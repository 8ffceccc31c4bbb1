"""Memory copies that no compute hides."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.stalls.stalled import costs, finding, lost
from shardtoll.ledger import Finding, Remedy
from shardtoll.ledger.words.human import place, ranks, size

SAME_DEVICE: Final = ("dtod", "device -> device")
"""Words of a copy that stays on the device: no host memory takes part."""


def find(context: Context) -> list[Finding]:
    """Return one finding a kind of copy, phase, module and line.

    Toll: exposed copy time per step on the worst rank. The counterfactual is full overlap.
    """
    findings = []
    for stall in lost(context, "copy", ("name", "phase", "module", "source")):
        line = stall.line
        copy, phase = line.text("name") or "copies", str(line.first["phase"])
        size_bytes = line.figures["bytes"]
        moved = "" if size_bytes is None else f"{size(size_bytes)} in all, "
        findings.append(
            finding(
                stall,
                "transfer-stall",
                f"{copy} costs {costs(stall)} that no compute hides, {stall.often}, "
                f"{moved}in {phase}"
                f"{place(line.text('module'), line.text('source'))}, on {ranks(line.ranks)}",
                _remedy(copy),
                where=line.where("phase", "module", "source"),
                saving_ns=stall.lost_ns,
            )
        )
    return findings


def _remedy(copy: str) -> Remedy:
    words, against = copy.lower(), "the same copies behind compute"
    if any(each in words for each in SAME_DEVICE):
        return Remedy(
            "Write results where they are used, without `cat`, `clone` and `contiguous` of large tensors: "
            "each copies on the device. Flatten parameters and gradients once, not in each step.",
            "torch.mm(a, b, out=bucket[i])  # instead of bucket[i].copy_(torch.mm(a, b))",
            against,
        )
    pin = (
        "Pin the memory with pin_memory=True: pageable memory makes the copy slow and the host wait. "
        if "pageable" in words
        else ""
    )
    return Remedy(
        f"{pin}Copy on a stream of its own ahead of use, with non_blocking=True, or make the tensor on the "
        "device in the first place.",
        "x = x.pin_memory()  # once, at loading\nx = x.to(device, non_blocking=True)",
        against,
    )
