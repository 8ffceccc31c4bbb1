"""DistributedDataParallel: every rank holds the whole model, and gradients are averaged in backward.

A step of `plain` issues one broadcast of the buffers at the start of forward (here a constant table of
context * dim floats, sent again and again for nothing: `no_buffers` turns that off) and one all_reduce a
bucket in backward, together as many bytes as the model has parameters. In the second step DDP also
broadcasts its buckets anew, ordered as gradients became ready: two small broadcasts, once in a run.

What else can be seen here: smaller buckets start earlier and cost more latency (`buckets`);
`bucket_view` and `static_graph` change no byte; a bf16 hook halves the bytes (`bf16_hook`) and PowerSGD
leaves a few percent of them, in up to three all_reduces a bucket (`power_sgd`).

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.ddp --variant buckets
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from shardtoll.samples.strategies import common

SMALL_BUCKET_MB: Final = 0.1
POWER_SGD_RANK: Final = 2
POWER_SGD_FROM: Final = 2
"""PowerSGD reduces whole buckets before this step: it may not start before DDP has its final buckets."""


FORWARD_BUFFERS: Final = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)
"""What DDP calls the choice to broadcast buffers in every forward; it was renamed in torch 2.13."""


def wrapped(options: common.Options, device: torch.device, **choices: Any) -> DistributedDataParallel:
    """Return the transformer in DDP; constant buffers are not broadcast unless asked for."""
    return DistributedDataParallel(options.model(device), **{FORWARD_BUFFERS: False, **choices})


def _trained(options: common.Options, device: torch.device, model: DistributedDataParallel) -> common.Job:
    return common.plain_job(options, device, model, torch.optim.AdamW(model.parameters()))


def plain(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP as it comes."""
    return _trained(options, device, wrapped(options, device, **{FORWARD_BUFFERS: True}))


def no_buffers(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that trusts its ranks to keep equal buffers."""
    return _trained(options, device, wrapped(options, device))


def buckets(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP with buckets small enough for several."""
    return _trained(options, device, wrapped(options, device, bucket_cap_mb=SMALL_BUCKET_MB))


def bucket_view(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP whose gradients lie in the buckets: a copy less, the same collectives."""
    model = wrapped(options, device, bucket_cap_mb=SMALL_BUCKET_MB, gradient_as_bucket_view=True)
    return _trained(options, device, model)


def static_graph(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that was promised the same graph in every step."""
    model = wrapped(options, device, bucket_cap_mb=SMALL_BUCKET_MB, static_graph=True)
    return _trained(options, device, model)


def _as_bf16(state, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations that are text
    """Reduce a bucket in bfloat16."""
    return bf16_compress_hook(state, bucket)


def bf16_hook(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that sends its gradients as bfloat16."""
    model = wrapped(options, device, bucket_cap_mb=SMALL_BUCKET_MB)
    # Under its own name DDP refuses the hook on every backend but NCCL and XCCL, although gloo adds bf16 up.
    model.register_comm_hook(None, _as_bf16)
    return _trained(options, device, model)


def power_sgd(options: common.Options, device: torch.device) -> common.Job:
    """Return DDP that sends two thin factors of each gradient matrix."""
    model = wrapped(options, device)
    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=POWER_SGD_RANK,
        start_powerSGD_iter=POWER_SGD_FROM,
    )
    model.register_comm_hook(state, powerSGD_hook)
    return _trained(options, device, model)


VARIANTS: Final[dict[str, common.Build]] = {
    "plain": plain,
    "no_buffers": no_buffers,
    "buckets": buckets,
    "bucket_view": bucket_view,
    "static_graph": static_graph,
    "bf16_hook": bf16_hook,
    "power_sgd": power_sgd,
}

if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
