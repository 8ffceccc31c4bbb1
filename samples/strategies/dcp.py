"""`torch.distributed.checkpoint`: what saving costs the step it happens in.

Each rank writes its own shards, so no parameter crosses the network. What does is the plan: every rank's is
gathered to rank 0, the agreed one scattered, the results gathered and a verdict broadcast, all as pickled
objects: 9 collectives, which grow with the number of parameters and not with their size. `async_save`
issues the same 9 from a thread of its own, where they compete with the step's. `full` first asks for the
whole state on rank 0: one all_gather a parameter, on every rank, although only one keeps the result.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.dcp --variant full
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from shardtoll.samples.strategies import common, fsdp2

KEEP: Final = "SHARDTOLL_KEEP_CHECKPOINTS"
"""While this variable is set, what was saved stays in the temporary folder."""
Save = Callable[[nn.Module, Path], object]


def _shared_folder() -> Path:
    """Return a temporary folder that rank 0 made and all ranks know; they share a host in this sample."""
    made: list[Any] = [tempfile.mkdtemp(prefix="shardtoll-dcp-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, src=0)
    return Path(made[0])


def _saving(options: common.Options, device: torch.device, write: Save) -> common.Job:
    """Return a job whose step trains FSDP2 and saves it."""
    trained = fsdp2.reshard_true(options, device)
    folder = _shared_folder()

    def step(number: int) -> torch.Tensor:
        loss = trained.step(number)
        write(trained.model, folder / str(number))
        if dist.get_rank() == 0 and KEEP not in os.environ:
            shutil.rmtree(folder / str(number - 1), ignore_errors=True)
        return loss

    return common.Job(trained.model, step)


def sharded(model: nn.Module, path: Path) -> None:
    """Save each rank's shards."""
    save({"model": get_model_state_dict(model)}, checkpoint_id=path)


def asynchronous(model: nn.Module, path: Path) -> None:
    """Save them from another thread, and wait for that before the step ends."""
    done = async_save({"model": get_model_state_dict(model)}, checkpoint_id=path)
    written: Any = getattr(done, "upload_completion", done)
    written.result()


def full(model: nn.Module, path: Path) -> None:
    """Gather the whole state, and let rank 0 write it."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        path.mkdir()
        torch.save(state, path / "model.pt")


VARIANTS: Final[dict[str, common.Build]] = {
    write.__name__: partial(_saving, write=write) for write in (sharded, asynchronous, full)
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
