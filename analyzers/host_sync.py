"""The device idle because the host waited for it, and then had to launch anew."""

from __future__ import annotations

from shardtoll.analyzers.context import Context
from shardtoll.analyzers.stalled import costs, finding, lost, often
from shardtoll.analyzers.words import place, ranks
from shardtoll.ledger import Finding, Remedy


def find(context: Context) -> list[Finding]:
    """Return one finding a call, phase, module and line. Toll: idle time per step, on the worst rank."""
    findings = []
    for one in lost(context, "host-sync", ("name", "phase", "module", "source")):
        line = one.line
        call, phase = line.text("name") or "a synchronisation", str(line.first["phase"])
        findings.append(
            finding(
                one,
                "host-sync",
                f"the device is idle for {costs(one)} around {call}, {often(line.figures['count'])}, in "
                f"{phase}"
                f"{place(line.text('module'), line.text('source'))}, on {ranks(line.ranks)}: the host waits "
                "for the device",
                Remedy(
                    "Keep values on the device and read them every so many steps: `.item()`, `.cpu()`, "
                    "printing "
                    "a tensor, a branch on a tensor's value, `nonzero` and boolean masks all wait for it.",
                    "losses.append(loss.detach())  # no .item() in the step\n"
                    "if step % 100 == 0:\n"
                    "    print(torch.stack(losses).mean().item())",
                    "the same step without this wait",
                ),
                where=line.where("phase", "module", "source"),
                saving_ns=one.lost_ns,
            )
        )
    return findings
