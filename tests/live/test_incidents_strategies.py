"""All checks over the strategies' samples: nothing is called wrong or avoidable but what is proven."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardtoll.samples import strategies as samples
from tests.live import incident_programs as programs
from tests.live.launch import run_ranks

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(290)]

TOGETHER = (
    (4, ("ddp", "zero", "clipping", "dcp")),
    (4, ("fsdp2", "fsdp1")),
    (4, ("accumulation", "checkpointing")),
    (4, ("tensor_parallel", "two_d")),
    # Each rank compiles for itself.
    (2, ("compiled",)),
    (4, ("expert_parallel", "context_parallel", "pipeline", "point_to_point", "groups")),
    (8, ("three_d",)),
)
"""Ranks, and the samples that they train one after the other."""

NOT_HERE = ("context_parallel.ring",)
"""torch has no kernel for it on the CPU."""


@dataclass(frozen=True)
class Proven:
    variant: str
    kind: str
    place: str
    """Part of the finding's parameter, module, line, operator or mesh dimension."""
    why: str


PROVEN = (
    Proven(
        "accumulation.ddp_every",
        "sync-every-microbatch",
        "DistributedDataParallel.reducer",
        "the variant reduces on every micro-batch, for the sake of ddp_last beside it",
    ),
    Proven(
        "accumulation.fsdp2_every",
        "sync-every-microbatch",
        "FSDP.post_backward",
        "the variant reduces on every micro-batch, for the sake of fsdp2_last beside it",
    ),
    Proven(
        "point_to_point.neighbours",
        "wrong-gradient",
        "weight",
        "gossip: each rank averages with the one before it only, so no gradient is that of the global batch",
    ),
    Proven(
        "point_to_point.neighbours",
        "replica-drift",
        "weight",
        "gossip: each rank updates by another average, so replicas part ways",
    ),
    Proven(
        "fsdp2.mixed_precision",
        "wide-dtype",
        "FSDP.post_backward",
        "its policy is param_dtype=bfloat16 and reduce_dtype=float32: what the finding says",
    ),
    Proven(
        "tensor_parallel.sequence",
        "implicit-redistribute",
        "norm",
        "SequenceParallel leaves the norms' gradients Partial and SGD has DTensor reduce each: sp_norm_adamw",
    ),
)


def variants(module: str) -> list[str]:
    known = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS
    return [name for variant in known if (name := f"{module}.{variant}") not in NOT_HERE]


def explains(proven: Proven, name: str, finding: dict[str, Any]) -> bool:
    places = [place for place in finding["where"] if place is not None]
    at_place = any(proven.place in place for place in places)
    return (proven.variant, proven.kind) == (name, finding["kind"]) and at_place


@pytest.mark.parametrize(("ranks", "modules"), TOGETHER, ids=[modules[0] for _, modules in TOGETHER])
def test_strategies_have_no_finding_that_is_not_proven(ranks: int, modules: tuple[str, ...]) -> None:
    names = [name for module in modules for name in variants(module)]
    found = run_ranks(programs.weighed_findings, ranks, names, limit_s=280)[0]
    assert list(found) == names
    unproven = [
        (name, finding)
        for name, findings in found.items()
        for finding in findings
        if not any(explains(proven, name, finding) for proven in PROVEN)
    ]
    assert not unproven
    # A proof without its finding is out of date.
    for proven in PROVEN:
        if proven.variant in found:
            assert any(explains(proven, proven.variant, finding) for finding in found[proven.variant]), proven


def test_every_sample_is_looked_at() -> None:
    (folder,) = samples.__path__
    files = Path(folder).glob("*.py")
    with_variants = {path.stem for path in files if "\nVARIANTS" in path.read_text(encoding="utf-8")}
    assert with_variants == {module for _, modules in TOGETHER for module in modules}
