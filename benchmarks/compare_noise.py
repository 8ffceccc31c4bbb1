"""How often `shardtoll compare` says that nothing changed, of runs of the same program.

A small transformer-like program on two gloo ranks (DDP beside DTensor's tensor parallel) is run `--runs`
times, each time in fresh processes, `--steps` surveyed steps after the first. All pairs of runs are
compared; `no_change_share` is the share of pairs of which `compare` says "no change beyond noise". With
`--planted` each run is also compared with a run of the same program that has one all_gather more, and one
that sends bfloat16: `found_share` is the share in which the planted change is named. Other work on the
machine is part of what is measured: what it was is printed as the load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from harness import Result, main
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardtoll.cli.jobs.ranks import free_port
from shardtoll.profiler import audit

RANKS = 2
WIDTH = 256
ROWS = 256
LAYERS = 4
LIMIT_S = 300


class Block(nn.Module):
    """Two matmuls that tensor parallelism shards."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; ranks hold a part of the wide middle each."""
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


def train(folder: str, steps: int, planted: str) -> None:
    """Train under an audit; `planted`: `none`, `all_gather` or `bfloat16`."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    head = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-4)
    batch = torch.randn(ROWS, WIDTH)
    parts = [torch.empty(ROWS, WIDTH) for _ in range(RANKS)]
    with audit(model, folder, level="survey") as session:
        for _ in range(steps):
            with session.step():
                hidden = model(batch)
                if planted == "all_gather":
                    dist.all_gather(parts, hidden.detach())
                head(hidden).square().mean().backward()
                for parameter in head.parameters():
                    if parameter.grad is not None:
                        reduce_gradient(parameter.grad, narrow=planted == "bfloat16")
                optimizer.step()
                optimizer.zero_grad()


def reduce_gradient(gradient: torch.Tensor, *, narrow: bool) -> None:
    """Sum a gradient over all ranks, in bfloat16 where `narrow`."""
    sent = gradient.to(torch.bfloat16) if narrow else gradient
    dist.all_reduce(sent)
    if narrow:
        gradient.copy_(sent)


def _work(rank: int, port: int, folder: str, steps: int, planted: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    train(folder, steps, planted)
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads can abort an interpreter that shuts down in the usual way.
    os._exit(0)


def run(folder: Path, steps: int, planted: str = "none") -> Path:
    """Run the program once in processes of its own and return its run folder."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    workers = [
        context.Process(target=_work, args=(rank, port, str(folder), steps, planted)) for rank in range(RANKS)
    ]
    for worker in workers:
        worker.start()
    deadline_s = time.monotonic() + LIMIT_S
    for worker in workers:
        worker.join(max(0.0, deadline_s - time.monotonic()))
    late = [worker for worker in workers if worker.is_alive()]
    for worker in late:
        worker.kill()
        worker.join()
    if late or any(worker.exitcode for worker in workers):
        raise SystemExit(f"a rank of {folder.name} died or was late")
    return folder


def measure(arguments: argparse.Namespace) -> Result:
    """Run the program again and again, compare all pairs, and print what was said."""
    from shardtoll.analyzers.compare.compare import compare
    from shardtoll.ledger import Report, analyze, read_run

    reports: dict[str, Report] = {}
    figures: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = [(f"run {number}", "none") for number in range(arguments.runs)]
        names += [(f"planted {kind}", kind) for kind in ("all_gather", "bfloat16") if arguments.planted]
        for name, planted in names:
            reports[name] = analyze(read_run(run(Path(folder, name), arguments.steps + 2, planted)))
            print(f"{name}: load {os.getloadavg()[0]:.2f}", flush=True)
    same = [name for name, planted in names if planted == "none"]
    pairs = list(combinations(same, 2))
    said = {pair: compare(reports[pair[0]], reports[pair[1]], pair) for pair in pairs}
    steps_ms = [
        1e-6 * (compare(reports[name], reports[name], (name, name)).step.before or 0) for name in same
    ]
    figures["runs"], figures["pairs"] = len(same), len(pairs)
    figures["step_least_ms"], figures["step_most_ms"] = min(steps_ms), max(steps_ms)
    figures["step_median_ms"] = median(steps_ms)
    figures["no_change_share"] = sum(found.verdict == "no change" for found in said.values()) / len(pairs)
    seen = [found.step.least / found.step.before for found in said.values()
            if found.step.least is not None and found.step.before]  # fmt: skip
    figures["least_seen_of_step_median"] = median(seen) if seen else None
    for pair, found in said.items():
        if found.verdict != "no change":
            print(f"  {pair[0]} -> {pair[1]}: {found.headline}")
    for name, planted in names:
        if planted == "none":
            continue
        words = "added all_gather" if planted == "all_gather" else "float32 -> bfloat16 in all_reduce"
        told = [compare(reports[one], reports[name], (one, name)) for one in same]
        figures[f"{planted}.found_share"] = sum(words in found.headline for found in told) / len(told)
        print(f"{name}: {told[0].headline}")
    for name, value in figures.items():
        print(f"{name}: {value:.4g}" if value is not None else f"{name}: unknown")
    return Result(figures, {"no_change_share": 0.95})


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=15, help="15 make 105 pairs")
    parser.add_argument("--steps", type=int, default=26, help="compared steps of a run")
    parser.add_argument("--planted", action="store_true", help="also compare with programs that were changed")


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
