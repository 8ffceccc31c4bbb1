"""State of a dry run's shim: which rank plays, on which machine, and which callbacks it has."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from shardtoll.ledger.answers.dry_step import DryMachine
from shardtoll.profiler.dryrun.device.devices import DeviceMode, Tensors
from shardtoll.profiler.dryrun.device.errors import user_line
from shardtoll.profiler.dryrun.device.stand_ins import Memory
from shardtoll.profiler.dryrun.device.timeline import Timeline
from shardtoll.profiler.dryrun.device.world import World
from shardtoll.profiler.dryrun.shims.reducer import DryReducer
from shardtoll.profiler.dryrun.shims.replaced import Replaced


class Playing:
    """The state that all replaced functions share."""

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
        """Files that were not saved or loaded, one line each."""
        self.guessed: Counter[tuple[str, str | None]] = Counter()
        """(what stood for that which another rank would have sent, line of the program) -> how often."""
        self.reducers: weakref.WeakSet[DryReducer] = weakref.WeakSet()
        """Reducers of DDP's gradients."""
        self._replaced = Replaced()

    def guess(self, what: str) -> None:
        """Count what stands for that which another rank would have sent, with the program's line."""
        self.guessed[what, user_line(sys._getframe(1))] += 1
