"""Everything of torch that a dry run replaces while it lasts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import torch

from shardtoll.profiler.dryrun.device.devices import is_gpu
from shardtoll.profiler.dryrun.shims.cuda import replace_accelerator, replace_cuda
from shardtoll.profiler.dryrun.shims.data_parallel import replace_scatter
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


def _replace_files(shim: Playing, replaced: Replaced) -> None:
    """Skip saving, and load onto the host."""

    def save(_: Any, f: Any, *__: Any, **___: Any) -> None:
        named = isinstance(f, (str, bytes)) or hasattr(f, "__fspath__")
        shim.skipped_files.append(f"not saved: {f if named else 'a stream'}")

    replaced.put(torch, "save", save)
    _checkpoints(shim, replaced)
    original: Any = torch.load

    @functools.wraps(original)
    def load(f: Any, *args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if map_location is not None and is_gpu(map_location):
            map_location = "cpu"
        return original(f, *args, map_location=map_location, **kwargs)

    replaced.put(torch, "load", load)


def _checkpoints(shim: Playing, replaced: Replaced) -> None:
    """Skip distributed checkpoints."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

    def skip(what: str) -> Callable[..., None]:
        def skipped(*_: Any, **__: Any) -> None:
            shim.skipped_files.append(f"{what}: a distributed checkpoint")

        return skipped

    def async_save(*_: Any, **__: Any) -> Future[None]:
        shim.skipped_files.append("not saved: a distributed checkpoint")
        # As torch's: programs add callbacks, and wait before they save again.
        done: Future[None] = Future()
        done.set_result(None)
        return done

    for owner in (dcp, state_dict_saver):
        replaced.put_where_it_is(owner, "async_save", async_save)
        for name in ("save", "_save_state_dict"):
            replaced.put_where_it_is(owner, name, skip("not saved"))
    for owner in (dcp, state_dict_loader):
        for name in ("load", "_load_state_dict"):
            replaced.put_where_it_is(owner, name, skip("not loaded"))


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
    _replace_files,
    replace_kernels,
)
