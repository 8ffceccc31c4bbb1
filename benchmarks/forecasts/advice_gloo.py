"""Advice against layouts that ran: three small models on four gloo ranks of this machine.

    python benchmarks/forecasts/advice_gloo.py -o benchmarks/results/advice-gloo.json

It measures the machine first: gloo by `shardtoll calibrate`, matmuls and copies of four processes at once,
and what a collective takes longer between computations than alone: ranks that share cores come to it late.
Then it trains each model under each layout, in turn, and compares the order of the forecast with the measured
one. The effective batch is the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from shardtoll.ledger.answers.training_plan import Layout, ModelShape, TrainingPlan

RANKS: Final = 4
SEQUENCES: Final = 8
Forecasts: TypeAlias = dict[str, dict[str, float]]
MODELS: Final = {
    "wide": {"layers": 4, "dim": 512, "heads": 8, "hidden": 2048, "vocab": 512, "context": 64},
    "deep": {"layers": 12, "dim": 192, "heads": 8, "hidden": 768, "vocab": 512, "context": 128},
    "long": {"layers": 4, "dim": 256, "heads": 8, "hidden": 512, "vocab": 2048, "context": 512},
}
LAYOUTS: Final = {
    "DDP": Layout(dp=4, micro_batch=2),
    "FSDP2": Layout(dp=4, sharding="fsdp", micro_batch=2),
    "FSDP2, kept (ZeRO-2)": Layout(dp=4, sharding="fsdp", micro_batch=2),
    "HSDP 2x2": Layout(dp=4, sharding="fsdp", shard_size=2, micro_batch=2),
    "TP 4": Layout(tp=4, micro_batch=8),
    "FSDP2 2 x TP 2": Layout(dp=2, sharding="fsdp", tp=2, micro_batch=4),
    "PP 4": Layout(pp=4, micro_batch=1, accumulation=8),
    "DP 2 x PP 2": Layout(dp=2, pp=2, micro_batch=1, accumulation=4),
}


KEPT: Final = "FSDP2, kept (ZeRO-2)"
"""Gathers and scatters block by block as FSDP2 does, but gathers once a step."""


def worker(out: Path, rounds: int) -> None:
    """One rank: what a process computes and copies, then the step of each layout, in turn."""
    import torch
    import torch.distributed as dist

    from shardtoll.samples.ranks import leave, process_group
    from shardtoll.samples.strategies import common
    from shardtoll.samples.strategies.transformer import Sizes

    torch.set_num_threads(1)
    with process_group("cpu") as device:
        told: dict[str, Any] = {"machine": _rates(), "steps": {}}
        for name, sizes in MODELS.items():
            jobs = {}
            for label, layout in LAYOUTS.items():
                options = common.Options(sizes=Sizes(**sizes), sequences=_batch(layout), device="cpu")
                jobs[label] = _builder(label)(options, device)
            spent: dict[str, list[float]] = {label: [] for label in jobs}
            for number in range(rounds + 1):
                for label, job in jobs.items():
                    dist.barrier()
                    began = time.perf_counter()
                    job.step(number)
                    dist.barrier()
                    if number:
                        spent[label].append(time.perf_counter() - began)
            told["steps"][name] = spent
            del jobs
        if dist.get_rank() == 0:
            out.write_text(json.dumps(told), encoding="utf-8")
        dist.barrier()
    leave()


def _batch(layout: Layout) -> int:
    """Sequences of a data-parallel rank."""
    return layout.micro_batch * layout.accumulation


def _builder(label: str) -> Callable[..., Any]:
    from shardtoll.samples.strategies import ddp, fsdp2, pipeline, tensor_parallel, two_d

    if label == "DP 2 x PP 2":
        return _replicated_pipeline
    return {
        "DDP": next(iter(ddp.VARIANTS.values())),
        "FSDP2": fsdp2.VARIANTS["reshard_true"],
        KEPT: fsdp2.VARIANTS["reshard_false"],
        "HSDP 2x2": fsdp2.VARIANTS["hsdp"],
        "TP 4": tensor_parallel.VARIANTS["tensor"],
        "FSDP2 2 x TP 2": two_d.VARIANTS["prepared"],
        "PP 4": pipeline.VARIANTS["1f1b"],
    }[label]


def _replicated_pipeline(options: Any, device: Any) -> Any:
    """Two pipelines of two stages; gradients are averaged after the schedule."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from shardtoll.samples.strategies import common
    from shardtoll.samples.strategies.pipeline import cut, run_schedule
    from shardtoll.samples.strategies.transformer import loss_of

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "pp"))
    stage = mesh.get_local_rank("pp")
    module = cut(options.model(device), stage, 2)
    placed = PipelineStage(module, stage, 2, device, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(placed, n_microbatches=options.sequences, loss_fn=loss_of)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        batch = options.batch(number, device, rank=mesh.get_local_rank("dp"))
        loss = run_schedule(schedule, batch, first=stage == 0, last=stage == 1)
        for parameter in module.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
            parameter.grad.div_(2)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return common.Job(module, step)


def _rates() -> dict[str, float]:
    """TFLOP/s of large fp32 matmuls and GB/s of copies, of one of four processes that all work, and alone."""
    import torch
    import torch.distributed as dist

    one, two = torch.randn(512, 512), torch.randn(512, 2048)
    large = torch.randn(8_000_000)
    made = {}
    works: tuple[tuple[str, Callable[[], torch.Tensor], float], ...] = (
        ("float32_tflops", lambda: one @ two, 2 * 512 * 512 * 2048 / 1e12),
        ("memory_gbps", lambda: large.clone(), 2 * 4 * 8_000_000 / 1e9),
    )
    for name, work, amount in works:
        for kind, works_here in (("", True), ("alone_", dist.get_rank() == 0)):
            dist.barrier()
            began, count = time.perf_counter(), 0
            while works_here and time.perf_counter() - began < 2.0:
                work()
                count += 1
            made[kind + name] = amount * count / (time.perf_counter() - began)
    dist.barrier()
    made["wait_us"] = 1e6 * _wait_s(lambda: one @ two)
    return made


def _wait_s(compute: Callable[[], Any], count: int = 60) -> float:
    """Return how much longer one small all_reduce takes between computations than one after the other.

    The fabric's model holds what it takes alone.
    """
    import torch
    import torch.distributed as dist

    small = torch.zeros(64)
    spent = []
    for computes, reduces in ((True, False), (False, True), (True, True)):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(count):
            if computes:
                compute()
            if reduces:
                dist.all_reduce(small)
        dist.barrier()
        spent.append(time.perf_counter() - began)
    computed, alone, both = spent
    return max(0.0, both - computed - alone) / count


@dataclass(frozen=True)
class SharedCores:
    """A network between ranks that share cores: a collective waits for who has not had its turn.

    A stage that waits for what another sends gives it the core.
    """

    fabric: Any
    wait_ns: float

    @property
    def name(self) -> str:
        """The fabric's."""
        return str(self.fabric.name)

    @property
    def ranks_per_node(self) -> int | None:
        """The fabric's."""
        ranks: int | None = self.fabric.ranks_per_node
        return ranks

    def time(self, op: str, message_bytes: float, placement: Any) -> Any:
        """Return the fabric's time and the wait."""
        timed = self.fabric.time(op, message_bytes, placement)
        if timed is None or op == "send" or placement.ranks == 1 or message_bytes <= 0:
            return timed
        return type(timed)(*(each + self.wait_ns for each in astuple(timed)))


def describe(rate: float, memory: float, path: Path) -> None:
    """Write the machine as a GPU file."""
    source = 'source = "measured by the processes of this benchmark", confidence = "verified"'
    path.write_text(
        f'[this-cpu]\ntitle = "one of four processes of this machine"\ndevice_names = ["this-cpu"]\n'
        f"memory_bytes = {{ value = 4000000000, {source} }}\n"
        f"memory_gbps = {{ value = {memory:.4g}, {source} }}\n"
        f"reached_matmul_tflops = {{ value = {rate:.4g}, {source} }}\n"
        f"[this-cpu.peak_tflops]\nfloat32 = {{ value = {rate:.4g}, {source} }}\n",
        encoding="utf-8",
    )


def forecasts(machine: dict[str, float], folder: Path, fabric: Path, *, shared: bool) -> Forecasts:
    """Seconds of each model's step under each layout. `shared`: what ranks on the same cores do is priced.

    Ranks that wait leave their cores to others. So a step takes what its longest chain takes of ranks that
    compute alone, or what all its work takes of ranks that compute at once, without the gaps of a pipeline:
    the longer of both.
    """
    from shardtoll.analyzers.forecast.plan import FabricNetwork
    from shardtoll.analyzers.roofline import load_fabric

    network = FabricNetwork(load_fabric(str(fabric)))
    busy, alone = folder / "busy.toml", folder / "alone.toml"
    describe(machine["float32_tflops"], machine["memory_gbps"], busy)
    describe(machine["alone_float32_tflops"], machine["alone_memory_gbps"], alone)
    waiting = SharedCores(network, 1000 * machine["wait_us"])
    made: Forecasts = {}
    for name, sizes in MODELS.items():
        made[name] = {}
        for label in LAYOUTS:
            if not shared:
                made[name][label] = _priced(sizes, label, busy, network).step_ns.expected / 1e9
                continue
            work = _priced(sizes, label, busy, waiting)
            chain = _priced(sizes, label, alone, network).step_ns.expected
            made[name][label] = max(chain, work.step_ns.expected - work.bubble_ns) / 1e9
    return made


def _priced(sizes: dict[str, int], label: str, gpu: Path, network: Any) -> Any:
    from shardtoll.analyzers.forecast.plan import price_plan
    from shardtoll.analyzers.forecast.plan.constants import fitted

    shape = ModelShape(
        sizes["layers"], sizes["dim"], sizes["heads"], sizes["heads"], sizes["hidden"], sizes["vocab"]
    )
    plan = TrainingPlan(
        shape, LAYOUTS[label], sizes["context"], str(gpu), gpus_per_node=RANKS, precision="fp32",
        notes={"sharding": "shard_grad_op"} if label == KEPT else {},
    )  # fmt: skip
    # Gloo moves and adds on the cores that compute: what overlaps takes as long as one after the other.
    return price_plan(plan, network, fitted().with_({"contention": 1.0}))


def _halves(spent: dict[str, list[float]]) -> tuple[list[float], list[float]]:
    """Median seconds by layout of every other round, and of the rounds between: the order repeats so well."""
    odd, even = ([statistics.median(each[start::2]) for each in spent.values()] for start in (0, 1))
    return odd, even


def main() -> None:
    """Measure, forecast, compare, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20.0, help="for calibrating gloo")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        worker(arguments.out, arguments.rounds)
        return
    from advice_orders import spearman

    with tempfile.TemporaryDirectory() as folder:
        fabric, told = (Path(folder) / name for name in ("fabric.toml", "told.json"))
        subprocess.run(
            [sys.executable, "-m", "shardtoll.cli", "calibrate", "--nproc", str(RANKS), "--mesh", "dp=2,tp=2",
             "--seconds", str(arguments.seconds), "-o", str(fabric)],
            check=True, timeout=600,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
             __file__, "-o", str(told), "--rounds", str(arguments.rounds)],
            check=True, timeout=1500,
        )  # fmt: skip
        measured = json.loads(told.read_text(encoding="utf-8"))
        priced, apart = (
            forecasts(measured["machine"], Path(folder), fabric, shared=shared) for shared in (True, False)
        )
    report: dict[str, Any] = {"machine": measured["machine"], "load": os.getloadavg(), "models": {}}
    for name, spent in measured["steps"].items():
        took = {label: statistics.median(seconds) for label, seconds in spent.items()}
        best, first = min(took, key=took.__getitem__), min(priced[name], key=priced[name].__getitem__)
        by_price = min(apart[name], key=apart[name].__getitem__)
        report["models"][name] = {
            "layouts": {
                label: {
                    "measured_s": round(took[label], 4),
                    "least_s": round(min(spent[label]), 4),
                    "most_s": round(max(spent[label]), 4),
                    "forecast_s": round(priced[name][label], 4),
                    "own_cores_s": round(apart[name][label], 4),
                }
                for label in sorted(took, key=took.__getitem__)
            },
            "fastest": best,
            "advised": first,
            "regret_pct": round(100 * (took[first] / took[best] - 1), 1),
            "spearman": spearman([took[label] for label in took], [priced[name][label] for label in took]),
            "rounds_spearman": spearman(*_halves(spent)),
            "own_cores_advised": by_price,
            "own_cores_regret_pct": round(100 * (took[by_price] / took[best] - 1), 1),
            "own_cores_spearman": spearman(list(took.values()), [apart[name][label] for label in took]),
        }
    print(json.dumps(report, indent=1))
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
