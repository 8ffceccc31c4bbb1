"""The process group of a test: the one that is there, the launcher's, or a fake one of any size.

A fake process group (torch.testing._internal.distributed.fake_pg) has one process take one rank's part of a
job. Every collective returns at once and moves nothing. Counts and bytes are those of the job; results and
times are not.

DDP's reducer takes results from futures, and a fake group's have none. In torch 2.6 to 2.13 an internal
assertion stops the backward there. A comm hook that issues the same all_reduce of each bucket, and returns
the bucket as it is, takes the reducer's place.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import UsageError
from shardtoll.ledger.records.record import MOST_RANKS
from shardtoll.profiler.live.cause.backends import backend_of
from shardtoll.profiler.live.cause.groups import initialized
from shardtoll.profiler.live.times.patches import Patches, patched


def patch_ddp() -> Callable[[], None]:
    """Have each DDP model that has no hook of its own by its first forward reduce so; returns the undoing."""

    def make(original: Any) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(self, "_comm_hooks", True):
                # torch checks a hook's annotations, which are text here: a lambda has none.
                self.register_comm_hook(self.process_group, lambda group, bucket: _reduce(group, bucket))
            return original(self, *args, **kwargs)

        return wrapper

    def install(patches: Patches) -> None:
        patches.around(DistributedDataParallel, "forward", make)

    return patched(install)


def _reduce(group: Any, bucket: Any) -> Any:
    dist.all_reduce(bucket.buffer(), group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


_LAUNCHED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun and similar launchers set for each process."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a test's process group."""

    world_size: int | None
    """None: that of the group or launcher there is, else one."""
    rank: int
    """Which rank of a fake group this process is."""
    mesh_shape: tuple[int, ...] | None
    mesh_names: tuple[str, ...] | None

    @classmethod
    def of(cls, world_size: object, mesh: object, rank: object) -> Shape:
        """Return the shape that a test's arguments ask for; UsageError if it is impossible."""
        shape, names = _mesh(mesh)
        size = None if world_size is None else _whole("world_size", world_size, 1)
        if shape is not None:
            product = math.prod(shape)
            if size is not None and size != product:
                raise UsageError(
                    f"world_size={size} with a mesh of {' x '.join(map(str, shape))} = {product} ranks",
                    "leave out world_size",
                )
            size = product
        if size is not None and size > MOST_RANKS:
            raise UsageError(f"world_size={size}", f"at most {MOST_RANKS:,} ranks")
        number = _whole("rank", rank, 0)
        if number and (size is None or number >= size):
            raise UsageError(f"rank={number} in a job of {size or 1}", "ranks count from 0")
        return cls(size, number, shape, names)

    def words(self) -> str:
        """Return the size asked for, as messages say it."""
        return f"world_size={self.world_size}" if self.mesh_shape is None else f"mesh={self._mesh_words()}"

    def _mesh_words(self) -> str:
        if self.mesh_names is None or self.mesh_shape is None:
            return str(self.mesh_shape)
        return str(dict(zip(self.mesh_names, self.mesh_shape, strict=True)))


@contextlib.contextmanager
def process_group(shape: Shape) -> Iterator[Any]:
    """Have a process group of that shape inside, and the mesh asked for, or None; leave none behind.

    A group that exists already is used if its size is the one asked for and is left as it is. Else a
    launcher's variables make a gloo group of its processes. Without a launcher, a size of one is a gloo group
    of this process, and any other a fake group. Raises UsageError if the sizes do not agree.
    """
    made = False
    undo: Callable[[], None] = _nothing
    if initialized():
        _agree(shape, dist.get_world_size(), "the process group that exists already", shape.rank)
    else:
        _make(shape)
        made = True
    if backend_of() == "fake":
        undo = patch_ddp()
    try:
        yield _make_mesh(shape)
    finally:
        undo()
        if made:
            _forget_meshes()
            # The test itself may have ended it.
            if initialized():
                dist.destroy_process_group()


def _nothing() -> None:
    pass


def _make(shape: Shape) -> None:
    size = shape.world_size
    if all(name in os.environ for name in _LAUNCHED):
        rank, launched = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if size is None or size == launched:
            _agree(shape, launched, "the launched job", shape.rank)
            dist.init_process_group("gloo", rank=rank, world_size=launched, store=_next_store())
            return
        if launched > 1:
            _agree(shape, launched, "the launched job", shape.rank)
    if size in (None, 1):
        dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
        return
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise UsageError(
            f"torch {torch.__version__} has no fake process group", "use torch 2.6 or later, or torchrun"
        ) from error
    dist.init_process_group("fake", rank=shape.rank, world_size=size, store=FakeStore())


class _Launched:
    """The launcher's store: made once, as its address may not be free twice, and parted for each group."""

    store: Any = None
    groups = 0


def _next_store() -> Any:
    if _Launched.store is None:
        _Launched.store = next(rendezvous("env://"))[0]
    # Groups made one after the other would read what the last one left there.
    _Launched.groups += 1
    return PrefixStore(f"comm_budget/{_Launched.groups}", _Launched.store)


def _agree(shape: Shape, size: int, what: str, rank: int) -> None:
    if shape.world_size not in (None, size):
        raise UsageError(
            f"comm_budget({shape.words()}), and {what} has {size} ranks",
            "destroy that group first (dist.destroy_process_group()), or leave the size out",
        )
    if rank:
        raise UsageError(
            f"comm_budget(rank={rank}) in {what}", "each process has its rank there: leave it out"
        )


def _make_mesh(shape: Shape) -> Any:
    if shape.mesh_shape is None:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape.mesh_shape, mesh_dim_names=shape.mesh_names)


def _forget_meshes() -> None:
    """Have DTensor forget its plans for meshes whose groups are about to end.

    A later mesh of the same shape is equal to them, and a plan kept would use groups that are no more.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _mesh(mesh: object) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None]:
    if mesh is None:
        return None, None
    if isinstance(mesh, Mapping):
        names = tuple(mesh)
        if not all(isinstance(name, str) and name for name in names):
            raise UsageError(f"mesh={mesh!r:.200}", 'name its dimensions, as mesh={"dp": 128, "tp": 8}')
        sizes: Sequence[object] = tuple(mesh.values())
    elif isinstance(mesh, Sequence) and not isinstance(mesh, str):
        names, sizes = (), tuple(mesh)
    else:
        raise UsageError(f"mesh={mesh!r:.200}", 'give mesh=(128, 8) or mesh={"dp": 128, "tp": 8}')
    if not sizes:
        raise UsageError("mesh has no dimension", 'give mesh=(128, 8) or mesh={"dp": 128, "tp": 8}')
    return tuple(_whole("a size of the mesh", size, 1) for size in sizes), names or None


def _whole(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{what} is {value!r:.100}", f"give a whole number from {least}")
    return value
