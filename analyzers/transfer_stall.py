"""Memory copies that no compute hides."""

from __future__ import annotations

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import costs, finding, lost, often
from shardtoll.analyzers.words import place, ranks, size
from shardtoll.ledger import Finding, Remedy


def find(context: Context) -> list[Finding]:
    """Return one finding a kind of copy, phase, module and line.

    Toll: exposed copy time per step on the worst rank. The counterfactual is full overlap.
    """
    findings = []
    for one in lost(context, "copy", ("name", "phase", "module", "source")):
        line = one.line
        copy, phase = line.text("name") or "copies", str(line.first["phase"])
        size_bytes = line.figures["bytes"]
        moved = "" if size_bytes is None else f"{size(size_bytes)} in all, "
        pageable = "pageable" in copy.lower()
        findings.append(
            finding(
                one,
                "transfer-stall",
                f"{copy} costs {costs(one)} that no compute hides, {often(line.figures['count'])}, "
                f"{moved}in {phase}"
                f"{place(line.text('module'), line.text('source'))}, on {ranks(line.ranks)}",
                Remedy(
                    ("Pageable memory makes the copy slow and the host wait: pin it. " if pageable else "")
                    + "Copy on a stream of its own ahead of use, with non_blocking=True, or make the "
                    "tensor on "
                    "the device in the first place.",
                    "x = x.pin_memory()  # once, at loading\nx = x.to(device, non_blocking=True)",
                    "the same copies behind compute",
                ),
                where=line.where("phase", "module", "source"),
                saving_ns=one.lost_ns,
            )
        )
    return findings
