"""Every reduction of a training step, one at a time left out, done twice, or done over the wrong ranks.

A step's reductions are counted in order as they pass two doors: the functional collectives that DTensor
issues (seen by a dispatch mode) and the ones FSDP2 calls in torch.distributed. A mutant is a position in
that order and a way to break it, the same on all ranks. What it did to the gradients is told by brute
force: all of them gathered whole and compared with one device's in float64.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardtoll.profiler import audit
from shardtoll.profiler.live.gradients.gradients import check_gradients
from tests.live import mutation_models as models
from tests.live.told_kinds import report_of

WRONG = 1e-3
"""Relative L2 error from which a gradient is wrong for the brute force; rounding stays below RIGHT."""
RIGHT = 1e-5
CORRECTNESS = {"wrong-gradient", "replica-drift", "unsynced-parameter"}
WAYS = ("drop", "double", "misgroup")
REDUCE_OPS = {
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.all_reduce_.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
UNSEEN = {"all_reduce_coalesced", "reduce_scatter_tensor_coalesced"}
"""Functional reductions with no mutant here: a step that issues one fails the test."""
BELOW = {"allreduce_", "_reduce_scatter_base_", "reduce_scatter_", "allreduce_coalesced_", "reduce_"}
"""What reductions are called where c10d dispatches them: none may come by another way than our doors."""


@dataclass
class Mutant:
    """Which reduction of a step to break, and how; position None only counts."""

    position: int | None = None
    way: str = ""
    other_group: Mapping[Any, Any] | None = None
    """By ranks of a group: the group of as many other ranks to take in its place."""


class Doors(TorchDispatchMode):
    """Passes every collective on but the mutant's."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__()
        self.mutant = mutant
        self.seen: list[str] = []
        self.below = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        if func.namespace == "c10d" and name in BELOW:
            self.below += 1
        if func.namespace == "_c10d_functional" and name in UNSEEN:
            raise AssertionError(f"no mutant of {name}")
        if func not in REDUCE_OPS:
            return func(*args, **(kwargs or {}))
        assert not kwargs
        *rest, group = args
        return self.functional(func, rest, group)

    def turn(self, text: str) -> bool:
        """Count a reduction; whether it is the mutant's."""
        self.seen.append(text)
        return len(self.seen) - 1 == self.mutant.position

    def functional(self, func: Any, rest: list[Any], group: Any) -> Any:
        peers = ranks_of(group)
        name = func._schema.name.partition("::")[2]
        if not self.turn(f"{name} {rest[1]} over {peers} of {tuple(rest[0].shape)}"):
            return func(*rest, group)
        source, wait = rest[0], torch.ops._c10d_functional.wait_tensor
        scatters = "scatter" in name
        if self.mutant.way == "drop":
            part = source.chunk(len(peers))[peers.index(dist.get_rank())] if scatters else source
            return part.clone() if not name.endswith("_") else part
        if self.mutant.way == "misgroup":
            return func(*rest, self.mutant.other_group[peers].group_name)
        once = torch.ops._c10d_functional.all_reduce(source, rest[1], group)
        return func(wait(once), *rest[1:], group)

    def scattered(self, real: Any) -> Any:
        """Return what stands in for a reduce_scatter of torch.distributed."""

        def call(output: Any, input: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **more: Any) -> Any:
            peers = ranks_of(group or dist.group.WORLD)
            if not self.turn(f"dist.reduce_scatter of {tuple(input.shape)} over {peers}"):
                return real(output, input, op, group, **more)
            if self.mutant.way == "drop":
                output.copy_(input.chunk(len(peers))[peers.index(dist.get_rank())])
                return None
            if self.mutant.way == "misgroup":
                return real(output, input, op, self.mutant.other_group[peers], **more)
            self.all_reduce(input, op, group)
            return real(output, input, op, group, **more)

        return call

    def reduced(self, real: Any) -> Any:
        """Return what stands in for torch.distributed's all_reduce."""

        def call(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **more: Any) -> Any:
            peers = ranks_of(group or dist.group.WORLD)
            if not self.turn(f"dist.all_reduce of {tuple(tensor.shape)} over {peers}"):
                return real(tensor, op, group, **more)
            if self.mutant.way == "drop":
                return None
            if self.mutant.way == "misgroup":
                return real(tensor, op, self.mutant.other_group[peers], **more)
            real(tensor, op, group)
            return real(tensor, op, group, **more)

        return call

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Count and break what passes in the block."""
        self.all_reduce = dist.all_reduce
        stands_in = dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single"), self.scattered)
        kept = {name: getattr(dist, name) for name in (*stands_in, "all_reduce") if hasattr(dist, name)}
        try:
            for name, real in kept.items():
                setattr(dist, name, stands_in.get(name, self.reduced)(real))
            with self:
                yield
        finally:
            for name, real in kept.items():
                setattr(dist, name, real)


def ranks_of(group: Any) -> tuple[int, ...]:
    if isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)
    return tuple(dist.get_process_group_ranks(group))


def truth(reference: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> dict[str, torch.Tensor]:
    """One device's gradients in float64, by nobody's code but torch's."""
    wide = copy.deepcopy(reference).double()
    wide.zero_grad()
    loss(wide).backward()
    return {name: parameter.grad for name, parameter in wide.named_parameters()}


def errors(model: nn.Module, true: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """By parameter: the largest relative error of any rank's whole gradient; infinity where it is None."""
    mine: dict[str, float] = {}
    for long, parameter in model.named_parameters():
        name = long.removeprefix("module.")  # of DDP
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        if gradient is None:
            mine[name] = math.inf
            continue
        error = float((gradient.double() - true[name]).norm() / true[name].norm())
        mine[name] = error if math.isfinite(error) else math.inf
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return {name: max(row[name] for row in told) for name in mine}


def mutants(family: str) -> dict[str, Any]:
    """Run the clean step of `family`, then every mutant of it; what each did and what the check said."""
    built = models.FAMILIES[family]()
    true = truth(built.reference, built.loss)

    def run(mutant: Mutant) -> dict[str, Any]:
        built.model.zero_grad()
        doors = Doors(mutant)
        with doors.open():
            built.step()
        found = check_gradients(built.model, built.reference, built.loss)
        return {
            "seen": doors.seen,
            "below": doors.below,
            "errors": errors(built.model, true),
            "flagged": sorted(_flagged(found)),
            "titles": [finding.title for finding in found],
        }

    built.step()  # DDP chooses its buckets in the first step and keeps to them from the second on
    clean = run(Mutant())
    return {"clean": clean, "mutants": _each(clean["seen"], built, run)}


def invariants(family: str) -> dict[str, Any]:
    """Audit the clean step and every mutant without a baseline; what the reports say is wrong."""
    built = models.FAMILIES[family]()
    true = truth(built.reference, built.loss)
    weights = [parameter.detach().clone() for parameter in built.model.parameters()]
    optimizer = torch.optim.SGD(built.model.parameters(), lr=0.1)

    def run(mutant: Mutant) -> dict[str, Any]:
        with torch.no_grad():
            for parameter, weight in zip(built.model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        optimizer.zero_grad()
        doors = Doors(mutant)
        with audit(built.model, level="survey", checks=("gradients", "replicas")) as session:
            with session.step():
                with doors.open():
                    built.step()
                optimizer.step()
        apart = spreads(built.model)
        report = report_of(session, *CORRECTNESS)
        findings = [] if report is None else report.findings
        said = sorted((finding.kind, finding.where.parameter or "") for finding in findings)
        return {"apart": apart, "errors": errors(built.model, true), "said": said, "seen": doors.seen}

    built.step()
    clean = run(Mutant())
    return {"clean": clean, "mutants": _each(clean["seen"], built, run)}


def spreads(model: nn.Module) -> dict[str, float]:
    """By parameter: how far any rank's whole gradient is from rank 0's, relatively."""
    found: dict[str, float] = {}
    for long, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        by_rank = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, whole.contiguous())
        apart = max(float((one - by_rank[0]).norm()) for one in by_rank)
        found[long.removeprefix("module.")] = apart / float(by_rank[0].norm())
    return found


def _each(
    seen: Sequence[str], built: models.Trained, run: Callable[[Mutant], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run every mutant of the step whose reductions are `seen`."""
    ways = WAYS if built.other_group else WAYS[:2]
    return [
        {"position": position, "way": way, "reduction": text, **run(Mutant(position, way, built.other_group))}
        for position, text in enumerate(seen)
        for way in ways
    ]


def _flagged(found: Sequence[Any]) -> set[str]:
    """All parameters that findings name; one of many says the rest in its evidence."""
    names: set[str] = set()
    for finding in found:
        facts = {fact.label: str(fact.value) for fact in finding.evidence}
        names |= set(facts["parameters"].split(", ")) if "parameters" in facts else {finding.where.parameter}
    return names
