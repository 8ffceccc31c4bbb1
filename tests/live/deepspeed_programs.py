"""A model of 280 parameters trained by DeepSpeed's engine, plain and audited, at each ZeRO stage."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STAGES = (0, 1, 2, 3)
STEPS = 3
MICRO_BATCHES = 2
BUCKET_ELEMENTS = 150
"""Holds either layer's parameters (144 and 136), and none of the other's beside them."""

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "steps_per_print": 1_000_000,
    "zero_allow_untested_optimizer": True,
}


def every_stage(example: str, folder: str) -> dict[str, Any]:
    """Train at every stage with and without an audit; return by stage what both gave.

    `example` is the documentation's; it is run in `folder`.
    """
    # DeepSpeed uses what torch has deprecated, and says much at start.
    warnings.simplefilter("ignore")
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Or DeepSpeed would compile an operator that only inference uses, at its first start on a machine.
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None:
        deepspeed.ops.__compatible_ops__[builder.NAME] = False
    deepspeed.init_distributed("gloo", verbose=False)
    return {
        **{str(stage): _both(stage) for stage in STAGES},
        "script": _script(),
        "example": _example(example, folder),
    }


def _script() -> dict[str, Any]:
    """Run tests/live/deepspeed_script.py as `shardtoll run` would."""
    from shardtoll.profiler.live.entry.script import ScriptOptions, run_script
    from shardtoll.profiler.live.session.session import Session

    told: dict[str, Any] = {}

    def show(session: Session) -> None:
        if session.ledger is not None:
            told["rows"] = _rows(session)

    script = Path(__file__).with_name("deepspeed_script.py")
    run_script(script, [], ScriptOptions(level="survey"), show)
    return told


def _example(code: str, folder: str) -> int | None:
    """Run the documentation's example; return how many steps its report has on rank 0."""
    os.chdir(folder)
    config = {
        **CONFIG,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    loader = [torch.randn(2, 8) for _ in range(STEPS * MICRO_BATCHES)]
    found: dict[str, Any] = {"model": nn.Linear(8, 8), "config": config, "loader": loader}
    exec(code, found)
    return None if found["report"] is None else len(set(found["report"].steps["step"]))


def _rows(session: Any) -> dict[str, Any]:
    names = ("steps", "collectives", "counts", "notices")
    return {name: session.ledger.tables[name].to_pylist() for name in names}


def _both(stage: int) -> dict[str, Any]:
    bare = train(make_engine(stage), None)
    engine = make_engine(stage)
    told: dict[str, Any] = {}
    audited = train(engine, told)
    left = ["step"] * ("step" in vars(engine)) + [str(hook) for hook in engine._forward_pre_hooks.values()]
    return {"bare": bare, "audited": audited, "left": left, **told}


def make_engine(stage: int) -> Any:
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        model_parameters=model.parameters(),
        config={
            **CONFIG,
            "zero_optimization": {
                "stage": stage,
                "overlap_comm": False,
                "reduce_bucket_size": BUCKET_ELEMENTS,
                # Every layer is gathered when it is needed and given up at once, as a large model's would be.
                "stage3_param_persistence_threshold": 0,
                "stage3_prefetch_bucket_size": 0,
                "stage3_max_reuse_distance": 0,
                "stage3_max_live_parameters": 0,
            },
        },
    )
    return engine


def train(engine: Any, told: dict[str, Any] | None) -> list[str]:
    """Return the exact losses; with `told`, audit and put rank 0's rows there."""
    from shardtoll.profiler.live.integrations.deepspeed import audit_engine

    torch.manual_seed(1 + dist.get_rank())
    losses = []
    with contextlib.nullcontext() if told is None else audit_engine(engine, level="survey") as session:
        for _ in range(STEPS * MICRO_BATCHES):
            loss = engine(torch.randn(2, 8)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach().numpy().tobytes().hex())
        if told is not None:
            # Neither a micro-batch that no update follows is a step, nor validation.
            engine.backward(engine(torch.randn(2, 8)).square().mean())
            engine.eval()
            engine(torch.randn(2, 8))
    if told is not None and session is not None and session.ledger is not None:
        told["rows"] = _rows(session)
    return losses
