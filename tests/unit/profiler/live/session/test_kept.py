"""What gradient checks found step by step is told once for each parameter and cause."""

from __future__ import annotations

from shardtoll.ledger import Finding, Remedy, Where
from shardtoll.profiler.live.session.kept import GradientFindings


def wrong(name: str, off: str) -> Finding:
    return Finding(
        kind="wrong-gradient",
        severity="error",
        title=f"gradient of {name} is wrong: a reduction is missing (off by {off} % on rank 1)",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=(0, 1),
        where=Where(parameter=name),
        evidence=(),
        remedy=Remedy("reduce it"),
    )


def test_steps_of_one_parameter_and_cause_are_one_finding() -> None:
    found = GradientFindings()
    found.add([wrong("a", "50"), wrong("b", "5")], 0)
    found.add([wrong("a", "61.5")], 3)
    steps = [(one.where.parameter, one.evidence[-1].value) for one in found.findings()]
    assert steps == [("a", "0, 3"), ("b", "0")]
