"""Runs the data-parallel samples on real ranks and returns what the audit wrote of them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.ledger.records.work import kind_of_work
from shardtoll.samples.strategies import common
from tests.live.told_kinds import kinds_of


@contextmanager
def _object_sizes(into: list[int]) -> Iterator[None]:
    """Note how many bytes torch makes of each object it sends, in order: what the closed forms start from."""
    c10d: Any = dist.distributed_c10d
    original = c10d._object_to_tensor

    def noting(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        into.append(int(made[0].numel()))
        return made

    c10d._object_to_tensor = noting
    try:
        yield
    finally:
        c10d._object_to_tensor = original


def rows_of(names: list[str], compiled: bool = False) -> dict[str, Any]:
    """Run each `module.variant` under an audit; rank 0 returns all ranks' rows of it."""
    found: dict[str, Any] = {}
    options = common.Options(device="cpu")
    for name in names:
        module, variant = name.split(".")
        variants = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS
        job = variants[variant](options, torch.device("cpu"))
        if compiled:
            job.model.compile(backend="aot_eager")
        sizes: list[int] = []
        with _object_sizes(sizes):
            session, losses = common.train(job, options)
        # Those of the last of the three steps.
        found[name] = {"sizes": sizes[-(len(sizes) // (options.steps + 1)) :] if sizes else []}
        found[name]["losses"] = [float(loss) for loss in losses]
        ledger = session.ledger
        if ledger is not None:
            tables = {key: ledger.tables[key].to_pylist() for key in ("steps", "collectives", "counts")}
            rows = ledger.tables["computes"].select(["step", "rank", "phase", "flops", "op"]).to_pylist()
            phases = [row for row in rows if kind_of_work(row["op"]) == "matmul"]
            found[name] |= tables
            found[name]["computes"] = phases
            found[name]["groups"] = [[group.name, list(group.ranks)] for group in ledger.groups]
            found[name]["kinds"] = kinds_of(ledger)
        dist.barrier()
    return found


def bare_losses(names: list[str]) -> dict[str, list[float]]:
    """Run each for as many steps as `rows_of` does, without an audit; every step's loss on this rank."""
    found: dict[str, list[float]] = {}
    options = common.Options(device="cpu")
    for name in names:
        module, variant = name.split(".")
        variants = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS
        job = variants[variant](options, torch.device("cpu"))
        found[name] = [float(job.step(number)) for number in range(options.steps + 1)]
    return found


def compiled_frames(names: list[str]) -> dict[str, Any]:
    """Run them compiled, with the number of graphs that were compiled."""
    from torch._dynamo.utils import counters

    found: dict[str, Any] = {}
    for name in names:
        torch._dynamo.reset()
        counters.clear()
        found |= rows_of([name], compiled=True)
        found[name]["graphs"] = counters["stats"]["unique_graphs"]
    found["names"] = _names_of_compiled_ddp()
    return found


def _names_of_compiled_ddp() -> dict[str, list[Any]]:
    """Who set off DDP's reduction, by what the audit was given of `torch.compile(DDP(model))`."""
    from torch.nn.parallel import DistributedDataParallel

    from shardtoll.profiler import audit

    options, device = common.Options(device="cpu"), torch.device("cpu")
    torch._dynamo.reset()
    inner = options.model(device)
    wrapped = DistributedDataParallel(inner)
    outer = torch.compile(wrapped, backend="aot_eager")
    job = common.plain_job(options, device, outer, torch.optim.AdamW(outer.parameters()))
    for step in range(3):
        job.step(step)
    found: dict[str, list[Any]] = {}
    for name, given in {"nothing": None, "model": inner, "DDP": wrapped, "compiled": outer}.items():
        with audit(given, level="survey") as session, session.step():
            job.step(3)
        if session.ledger is not None:
            rows = session.ledger.tables["collectives"].to_pylist()
            (row,) = [c for c in rows if c["rank"] == 0 and c["op"] == "all_reduce"]
            found[name] = [row["module"], row["parameter"]]
    return found


def refusals() -> dict[str, str]:
    """What torch says to some things that one might expect to work on the CPU."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.distributed.fsdp import FullyShardedDataParallel

    from shardtoll.samples.strategies import ddp

    options, device = common.Options(device="cpu"), torch.device("cpu")

    def bf16() -> None:
        ddp.wrapped(options, device).register_comm_hook(None, bf16_compress_hook)

    def fsdp1() -> None:
        FullyShardedDataParallel(options.model(device))

    def small_buckets() -> None:
        job = ddp.buckets(options, device)
        job.model.compile(backend="aot_eager")
        job.step(0)

    found: dict[str, str] = {}
    for name, attempt in (
        ("bf16 hook on gloo", bf16),
        ("FSDP1 without a named device", fsdp1),
        ("compiled, buckets below 1 MiB", small_buckets),
    ):
        try:
            attempt()
        except (TypeError, RuntimeError, AssertionError) as error:
            found[name] = str(error)
    return found


def collectives_of_a_thread() -> dict[str, Any]:
    """The user's own thread reduces while the training thread works; after the session another one does."""
    import threading

    from shardtoll.profiler import audit

    group = dist.new_group(group_desc="metrics")

    def reduce_metrics() -> None:
        dist.all_reduce(torch.ones(6), group=group)

    def in_thread() -> None:
        thread = threading.Thread(target=reduce_metrics)
        thread.start()
        thread.join()

    methods = dict(vars(dist.ProcessGroup))
    with audit(level="survey") as session:
        with session.step():
            in_thread()
            dist.all_reduce(torch.ones(3))
    in_thread()
    report = session.report()
    return {
        "restored": dict(vars(dist.ProcessGroup)) == methods,
        "collectives": report.tables["collectives"].to_pylist() if report else None,
        "counts": report.tables["counts"].to_pylist() if report else None,
    }


def thread_across_steps(level: str) -> dict[str, Any] | None:
    """A thread reduces all the time, whatever step the training thread is in, as a checkpoint's may."""
    import threading

    from shardtoll.profiler import audit

    group = dist.new_group(group_desc="checkpoint")

    def reduce_often() -> None:
        for _ in range(1500):
            dist.all_reduce(torch.ones(5), group=group)

    thread = threading.Thread(target=reduce_often)
    with audit(level=level) as session:
        thread.start()
        for _ in range(60):
            with session.step():
                time.sleep(0.002)
        thread.join()
    report = session.report()
    if report is None:
        return None
    counts = report.tables["counts"].to_pylist()
    return {
        "kinds": [[finding.kind, finding.severity] for finding in report.findings],
        "marked": {count["group"]: count["other_thread"] for count in counts},
        "apart": sum(count["issued"] != count["recorded"] for count in counts),
    }
