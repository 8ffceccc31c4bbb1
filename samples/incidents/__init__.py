"""Mistakes that people made in public, each as a small program and its fixed twin.

Start reading in `job`, which all of them share; `expected` says what must be found in each.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "dit_chunk",
    "dit_scatter",
    "dit_partial",
    "dit_dtensor",
    "router_drift",
    "fsdp_ac_regather",
    "bmm_gather",
    "accum_sync",
    "accum_sync_ddp",
    "colwise_allreduce",
    "clip_many",
    "ddp_one_bucket",
    "ddp_no_sampler",
    "epoch_order",
    "late_param",
    "uneven_pipeline",
    "slow_loader",
    "item_sync",
    "one_late_rank",
    "fp32_reduce",
    "tp_across_nodes",
    "logging_gather",
    "sp_norm_adamw",
)
"""Modules of this folder that are incidents, in the order of the scoreboard."""

CLEAN: Final = ("clean_ddp", "clean_fsdp2", "clean_tensor_parallel", "clean_two_d")
"""Modules that train as PyTorch's documentation recommends: nothing may be found in them."""
