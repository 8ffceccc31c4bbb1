"""`dry_run()`: what a program in Python calls to run its own steps dry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shardtoll.ledger import Ledger, Report, UsageError, analyze
from shardtoll.ledger.answers.dry_step import DryStep
from shardtoll.ledger.report.dry_entries import MACHINE, PRICE
from shardtoll.profiler.dryrun.device.values import policy_of
from shardtoll.profiler.dryrun.device.world import World
from shardtoll.profiler.dryrun.dry_options import DryOptions
from shardtoll.profiler.dryrun.run import DryRun, dry


class DryResult:
    """Result of `with dry_run(...)`: forecast and records, once the `with` is over."""

    def __init__(self, run: DryRun) -> None:
        self._run = run
        self._priced: tuple[Ledger, DryStep] | None = None

    def _result(self) -> tuple[Ledger, DryStep]:
        if self._priced is None:
            if self._run.ledger is None:
                raise UsageError(
                    f"the program made {self._run.steps} optimizer steps",
                    f"let it make {self._run.options.steps + 1} inside the `with`, and read after it",
                )
            self._run.refuse_alone("the program")
            self._run.refuse_idle("the program")
            self._priced = PRICE.load()(self._run.ledger)
        return self._priced

    @property
    def ledger(self) -> Ledger:
        """The records of the recorded steps with their prices; UsageError if there were too few steps."""
        return self._result()[0]

    @property
    def forecast(self) -> DryStep:
        """Forecast of the last recorded step; UsageError if there were too few steps."""
        return self._result()[1]

    def report(self) -> Report:
        """Return the report of the recorded steps; its times are forecasts."""
        return analyze(self.ledger)


@contextlib.contextmanager
def dry_run(
    world: int = 1,
    rank: int = 0,
    gpu: str = "h100-sxm",
    fabric: str | None = None,
    *,
    steps: int = 1,
    item: str | None = None,
) -> Iterator[DryResult]:
    """Have the program inside run as one rank of a job of `world` GPUs that are not there.

    Everything on `cuda` inside holds no numbers. The process group must be made inside. After the optimizer's
    first step, `steps` more are recorded. `item` answers `.item()`: a number, or `balanced` (0, and counts
    shared out evenly).

    Raises UsageError for an unknown GPU, a rank outside the job, or a process group that exists already.
    Raises FabricError for an unknown fabric.
    """
    if not 0 <= rank < world:
        raise UsageError(f"rank={rank} in a job of {world}", "ranks count from 0")
    try:
        policy = policy_of(item)
    except ValueError:
        raise UsageError(f"item={item!r:.40}", "give a number, or balanced") from None
    machine = MACHINE.load()(gpu, fabric)
    options = DryOptions(World(world, rank, machine.per_host), machine, steps=steps, policy=policy)
    with dry(options) as run:
        yield DryResult(run)
