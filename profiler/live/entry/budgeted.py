"""`comm_budget`: a step of a test, recorded and checked against a budget."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.budget import OF_SECTION, Budget, budget_of, read_budget
from shardtoll.ledger.answers.overrun import BudgetCheck
from shardtoll.ledger.report.report import BUDGET_LINES, JUDGE
from shardtoll.profiler.live.cause.backends import backend_of
from shardtoll.profiler.live.cause.groups import initialized
from shardtoll.profiler.live.entry.stand_in import Shape, process_group
from shardtoll.profiler.live.session.session import Session, audit

_TIMES: Final = ("max_exposed_fraction", "max_step_ms")
_WHERE: Final = "comm_budget"


class Recorded:
    """The record of a `with comm_budget(...)`: figures of its busiest step, once the `with` is over."""

    def __init__(self, mesh: Any, session: Session) -> None:
        self.mesh = mesh
        """The DeviceMesh of `mesh=`; None if none was asked for."""
        self._session = session
        self._report: Report | None = None
        self._check: BudgetCheck | None = None

    def step(self) -> AbstractContextManager[None]:
        """Record the work inside as one step; work outside every step then counts for nothing."""
        return self._session.step()

    @property
    def report(self) -> Report:
        """The whole report, on rank 0; UsageError while the `with` runs, and on other ranks."""
        if self._report is None:
            raise UsageError("the figures are not there yet", "read them after the `with`, on rank 0")
        return self._report

    @property
    def check(self) -> BudgetCheck:
        """Result of judging the budget; UsageError as `report`."""
        if self._check is None:
            raise UsageError("the figures are not there yet", "read them after the `with`, on rank 0")
        return self._check

    @property
    def collectives(self) -> int:
        """Collectives of the step and rank that has most."""
        return sum(self._busiest().values())

    @property
    def by_op(self) -> dict[str, int]:
        """The same by op: `{"all_gather": 2}`."""
        return dict(self._busiest())

    @property
    def wire_bytes(self) -> int | None:
        """Bytes sent in the step and by the rank that sends most; None if one's size is unknown."""
        table = self._in_steps()
        sent: Counter[tuple[int, int]] = Counter()
        for step, rank, size in zip(*(table[name] for name in ("step", "rank", "wire_bytes")), strict=True):
            if size is None:
                return None
            sent[step, rank] += size
        return max(sent.values(), default=0)

    @property
    def implicit(self) -> list[str]:
        """Collectives that the framework inserted, a line each: what, for which operator, where."""
        judged = JUDGE.load()(self.report, budget_of({"no_implicit": ["*"]}, _WHERE))
        return [
            overrun.why + (f", at {overrun.source}" if overrun.source else "") for overrun in judged.overruns
        ]

    def _busiest(self) -> Counter[str]:
        table = self._in_steps()
        ops: dict[tuple[int, int], Counter[str]] = {}
        for step, rank, op in zip(*(table[name] for name in ("step", "rank", "op")), strict=True):
            ops.setdefault((step, rank), Counter())[op] += 1
        return max(ops.values(), key=lambda each: sum(each.values()), default=Counter())

    def _in_steps(self) -> dict[str, list[Any]]:
        table = self.report.tables["collectives"].select(["step", "rank", "op", "wire_bytes"])
        columns: dict[str, list[Any]] = table.filter(table.column("step").is_valid()).to_pydict()
        return columns


class CommBudget:
    """The fixture: call it with limits, or `record()` to look at the figures and fail for none."""

    def __init__(self, failed: type[BaseException]) -> None:
        self._failed = failed
        """Exception of a test that exceeds its budget."""

    def __call__(
        self,
        budget: str | Path | None = None,
        *,
        world_size: int | None = None,
        mesh: Any = None,
        rank: int = 0,
        model: nn.Module | None = None,
        allow_unknown: bool = False,
        **limits: Any,
    ) -> AbstractContextManager[Recorded]:
        """Return a context in which steps are recorded, and at whose end they are checked against the budget.

        `budget` is a budget.toml; `limits` are its keys (`max_collectives=4`, `max_wire_bytes="2 MB"`,
        `no_implicit=["layers.*"]`, `group={"tp": {"max_collectives": 2}}`); one of the two is given.
        `world_size` or `mesh`, as `(128, 8)` or `{"dp": 128, "tp": 8}`, makes a fake process group in which
        this process is `rank`. Build the model inside, on the `mesh` of the object that `with` gives. All
        that runs inside is one step, unless `step()` of it is called: then what that holds.

        Raises UsageError if there is no limit, or they cannot be judged.
        """
        __tracebackhide__ = True
        try:
            limited = _budget(budget, limits)
            if limited.is_empty():
                raise UsageError("comm_budget() limits nothing", "give max_collectives=..., or use record()")
            shape = Shape.of(world_size, mesh, rank)
        except UsageError as error:
            # In the traceback only the test's own line helps.
            raise UsageError(error.message, error.hint) from None
        return self._recorded(limited, str(budget or _WHERE), shape, model, allow_unknown)

    def record(
        self,
        *,
        world_size: int | None = None,
        mesh: Any = None,
        rank: int = 0,
        model: nn.Module | None = None,
    ) -> AbstractContextManager[Recorded]:
        """Return a context whose figures (`collectives`, `wire_bytes`, ...) can be read after it."""
        return self._recorded(Budget(), _WHERE, Shape.of(world_size, mesh, rank), model, True)

    @contextlib.contextmanager
    def _recorded(
        self, budget: Budget, name: str, shape: Shape, model: nn.Module | None, allow_unknown: bool
    ) -> Iterator[Recorded]:
        with process_group(shape) as mesh:
            if backend_of() == "fake" and not allow_unknown:
                _refuse_times(budget)
            with audit(model, level="survey") as session:
                recorded = Recorded(mesh, session)
                yield recorded
            report = session.report()
            lines: list[str] = []
            if report is not None:
                recorded._report = report
                check = JUDGE.load()(
                    report, budget, run="the step", budget_name=name, allow_unknown=allow_unknown
                )
                recorded._check = check
                lines = [] if check.passed else BUDGET_LINES.load()(check)
            lines = _to_all(lines)
        if lines:
            raise self._failed("\n".join(lines), pytrace=False)  # type: ignore[call-arg]


def _budget(path: str | Path | None, limits: dict[str, Any]) -> Budget:
    given = budget_of(limits, _WHERE)
    if path is None:
        return given
    read = read_budget(Path(path))
    if not limits:
        return read
    raise UsageError(
        f"comm_budget has {path} and {', '.join(limits)}", "give the budget's file, or limits, not both"
    )


def _refuse_times(budget: Budget) -> None:
    named = [name for name in _TIMES if getattr(budget.limits, name) is not None]
    named += [
        f"{name} of {section.label()}"
        for section in budget.sections
        for name in OF_SECTION
        if name in _TIMES and getattr(section.limits, name) is not None
    ]
    if named:
        raise UsageError(
            f"{named[0]} with a fake process group, which transfers nothing",
            "limit counts and bytes there, and times where ranks run: `shardtoll check` on a run; "
            "or allow_unknown=True",
        )


def _to_all(lines: list[str]) -> list[str]:
    """Return rank 0's lines on every rank, so that a test fails on all of them or on none."""
    if not initialized() or dist.get_world_size() == 1 or backend_of(None, "cpu") != "gloo":
        return lines
    data = torch.tensor(list("\n".join(lines).encode("utf-8", "replace")), dtype=torch.uint8)
    length = torch.tensor([len(data)])
    dist.broadcast(length, 0)
    if dist.get_rank() != 0:
        data = torch.zeros(int(length), dtype=torch.uint8)
    if int(length):
        dist.broadcast(data, 0)
    return bytes(data.tolist()).decode("utf-8").split("\n") if int(length) else []
