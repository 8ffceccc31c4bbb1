"""Everything of torch that a dry run replaces while it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from shardtoll.profiler.dryrun.shims.cuda import replace_accelerator, replace_cuda
from shardtoll.profiler.dryrun.shims.data_parallel import replace_scatter
from shardtoll.profiler.dryrun.shims.files import replace_files
from shardtoll.profiler.dryrun.shims.groups import replace_groups
from shardtoll.profiler.dryrun.shims.kernels import replace_kernels
from shardtoll.profiler.dryrun.shims.memory import replace_memory, replace_random
from shardtoll.profiler.dryrun.shims.modules import replace_compiler, replace_loader, replace_modules
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced
from shardtoll.profiler.dryrun.shims.sharding import replace_sharding
from shardtoll.profiler.dryrun.shims.torch_calls import replace_torch


class Shim(Playing):
    """Replaces all of it on `install`, and puts it back on `remove`."""

    def install(self) -> None:
        """Replace everything; `remove` must follow, also if this raises."""
        replaced = self._replaced
        replaced.environment(self.world.variables())
        for replace in _ALL:
            replace(self, replaced)
        self.mode.__enter__()  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Put everything back."""
        with contextlib.suppress(AssertionError, RuntimeError, IndexError):
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._replaced.restore()


_ALL: Final[tuple[Callable[[Playing, Replaced], None], ...]] = (
    replace_cuda,
    replace_accelerator,
    replace_memory,
    replace_random,
    replace_torch,
    replace_groups,
    replace_modules,
    replace_scatter,
    replace_sharding,
    replace_compiler,
    replace_loader,
    replace_files,
    replace_kernels,
)
