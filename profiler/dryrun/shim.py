"""Everything of torch that a dry run replaces while it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from shardtoll.ledger.answers.dry_step import DryMachine
from shardtoll.profiler.dryrun.cuda_shim import replace_accelerator, replace_cuda
from shardtoll.profiler.dryrun.devices import DeviceMode, Tensors
from shardtoll.profiler.dryrun.file_shim import replace_files
from shardtoll.profiler.dryrun.group_shim import replace_groups
from shardtoll.profiler.dryrun.memory_shim import Memory, replace_memory, replace_random
from shardtoll.profiler.dryrun.module_shim import replace_compiler, replace_loader, replace_modules
from shardtoll.profiler.dryrun.replaced import Replaced
from shardtoll.profiler.dryrun.timeline import Timeline
from shardtoll.profiler.dryrun.torch_shim import replace_torch
from shardtoll.profiler.dryrun.world import World


class Shim:
    """Replaces all of it on `install`, and puts it back on `remove`."""

    def __init__(
        self,
        world: World,
        machine: DryMachine,
        tensors: Tensors,
        mode: DeviceMode,
        timeline: Timeline,
        memory: Memory,
    ) -> None:
        self.world = world
        self.machine = machine
        self.tensors = tensors
        self.mode = mode
        self.timeline = timeline
        self.memory = memory
        self.last_sent: Any = None
        """Tensors of the last collective, which its future holds."""
        self.work_waited: Callable[[Any], None] = lambda _: None
        self.work_handed: Callable[[Any], None] = lambda _: None
        self.resized: Callable[[Any, int], None] = lambda *_: None
        self.fused_regions = 0
        self.region: int | None = None
        """Number of the region that torch.compile would fuse and that runs now; None outside all."""
        self.skipped_files: list[str] = []
        """What was not saved or loaded, one line each."""
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace everything; `remove` must follow, also where this raises."""
        replaced = self._replaced
        replaced.environment(self.world.variables())
        for replace in _ALL:
            replace(self, replaced)
        self.mode.__enter__()

    def remove(self) -> None:
        """Put everything back."""
        with contextlib.suppress(AssertionError, RuntimeError, IndexError):
            self.mode.__exit__(None, None, None)
        self._replaced.restore()


_ALL: Final[tuple[Callable[[Shim, Replaced], None], ...]] = (
    replace_cuda,
    replace_accelerator,
    replace_memory,
    replace_random,
    replace_torch,
    replace_groups,
    replace_modules,
    replace_compiler,
    replace_loader,
    replace_files,
)
