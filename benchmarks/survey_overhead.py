"""What surveying a step adds to its time, against CommDebugMode on the same step.

Four cases: a tensor-parallel block and an FSDP2 stack, both 64 wide, once on two real gloo ranks and
once on a fake process group, where nothing is transferred and the step is pure Python and small
kernels: the worst case for any tool that looks at operators.

Bare, surveyed and CommDebugMode steps take turns in every repeat. `added` is the paired difference to
the bare step of the same repeat, on the slower rank. A surveyed step is timed with all that
`session.step()` does when it begins and ends; opening and closing the session is not in it. `first` is
the first step of a session, `later` its second: places in the source are resolved once a session.
`inside` is the part of `first` that lies inside the step, without what begins and ends it.
CommDebugMode gets a context of its own each step, because it fails with two steps in one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from harness import Result, Spread, main
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shardtoll.profiler import audit

WIDTH: Final = 64
ROWS: Final = 32
BLOCKS: Final = 4
FAKE_RANKS: Final = 8
GLOO_RANKS: Final = 2
LIMIT_S: Final = 300
AIM: Final = 0.5
"""At most half of what CommDebugMode adds."""

Samples = dict[str, list[float]]
"""Name of what was timed -> seconds, one a repeat."""


class Block(nn.Module):
    """A transformer's MLP with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and its MLP's output, added."""
        out: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return out


def _tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def _fsdp2(mesh: DeviceMesh) -> nn.Module:
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


MODELS: Final[dict[str, tuple[str, Callable[[DeviceMesh], nn.Module]]]] = {
    "tp": ("tp", _tensor_parallel),
    "fsdp2": ("dp", _fsdp2),
}
CASES: Final = ("gloo-tp", "gloo-fsdp2", "fake-tp", "fake-fsdp2")


def _measure(model: nn.Module, repeats: int) -> Samples:
    """Time the three kinds of step in turn; two rounds before the first repeat are not counted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(work: Callable[[], None]) -> float:
        dist.barrier()
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    def commdebug() -> None:
        with CommDebugMode():  # type: ignore[no-untyped-call]
            step()

    samples: Samples = {"bare": [], "first": [], "inside": [], "later": [], "commdebug": []}

    def bare_turn() -> None:
        samples["bare"].append(timed(step))

    inside_s = 0.0

    def survey_turn() -> None:
        with audit(model) as session:

            def surveyed() -> None:
                nonlocal inside_s
                with session.step():
                    begun = time.perf_counter()
                    step()
                    inside_s = time.perf_counter() - begun

            samples["first"].append(timed(surveyed))
            samples["inside"].append(inside_s)
            samples["later"].append(timed(surveyed))

    def commdebug_turn() -> None:
        samples["commdebug"].append(timed(commdebug))

    turns = [bare_turn, survey_turn, commdebug_turn]
    for repeat in range(repeats + 2):
        for turn in turns[repeat % 3 :] + turns[: repeat % 3]:
            turn()
    return {name: times[2:] for name, times in samples.items()}


def _work(rank: int, case: str, repeats: int, port: int, out: str) -> None:
    """One rank of one case; writes its samples and leaves without interpreter shutdown."""
    backend, _, kind = case.partition("-")
    torch.set_num_threads(1)
    # Both come of CommDebugMode's hooks on modules; neither bare nor surveyed steps give them.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    torch.manual_seed(0)
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        ranks = FAKE_RANKS
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    else:
        ranks = GLOO_RANKS
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=GLOO_RANKS
        )
    dim, build = MODELS[kind]
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=(dim,))
    samples = _measure(build(mesh), repeats)
    Path(out, f"{rank}.json").write_text(json.dumps(samples), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo's threads can abort an interpreter that shuts down in the usual way.
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_case(case: str, repeats: int) -> Samples:
    """Run a case in processes of its own; each sample is the slower rank's."""
    ranks = GLOO_RANKS if case.startswith("gloo") else 1
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as out:
        port = _free_port()
        workers = [
            context.Process(target=_work, args=(rank, case, repeats, port, out)) for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        deadline_s = time.monotonic() + LIMIT_S
        for worker in workers:
            worker.join(max(0.0, deadline_s - time.monotonic()))
        for worker in workers:
            worker.kill()
            worker.join()
        found = sorted(Path(out).glob("*.json"))
        if len(found) != ranks:
            raise SystemExit(f"{case}: {ranks - len(found)} of {ranks} ranks died or were late")
        by_rank: list[Samples] = [json.loads(path.read_text(encoding="utf-8")) for path in found]
    return {
        name: [max(times) for times in zip(*(one[name] for one in by_rank), strict=True)]
        for name in by_rank[0]
    }


def _figures(case: str, samples: Samples) -> dict[str, float | None]:
    bare = samples["bare"]
    figures: dict[str, float | None] = {f"{case}.bare_ms": Spread.of(bare).median * 1e3}
    added: dict[str, float] = {}
    for name in ("first", "inside", "later", "commdebug"):
        spread = Spread.of(
            [with_tool - without for with_tool, without in zip(samples[name], bare, strict=True)]
        )
        added[name] = spread.median
        figures[f"{case}.{name}_added_ms"] = spread.median * 1e3
        figures[f"{case}.{name}_added_q1_ms"] = spread.low * 1e3
        figures[f"{case}.{name}_added_q3_ms"] = spread.high * 1e3
    for name in ("first", "later"):
        known = added["commdebug"] > 0
        figures[f"{case}.{name}_added_over_commdebug"] = added[name] / added["commdebug"] if known else None
    return figures


def _row(case: str, figures: dict[str, float | None]) -> str:
    def shown(name: str) -> str:
        value, low, high = (figures[f"{case}.{name}_added{part}_ms"] for part in ("", "_q1", "_q3"))
        return f"{value:+8.2f} ({low:+.2f} to {high:+.2f})"

    ratio = figures[f"{case}.first_added_over_commdebug"]
    cells = [f"{case:11}", f"{figures[f'{case}.bare_ms']:8.2f}"]
    cells += [f"{shown(name):28}" for name in ("first", "inside", "later", "commdebug")]
    return "  ".join([*cells, "unknown" if ratio is None else f"{ratio:5.2f}"])


def measure(arguments: argparse.Namespace) -> Result:
    """Run the chosen cases one after the other and print a row for each."""
    print(f"one step, ms: median and (quartiles) of {arguments.repeats} interleaved repeats")
    heads = [f"survey added, {which}" for which in ("first step", "inside it", "later step")]
    heads.append("CommDebugMode added")
    print("  ".join([f"{'case':11}", f"{'bare':>8}", *(f"{head:28}" for head in heads), "ratio (first)"]))
    figures: dict[str, float | None] = {}
    aims: dict[str, float] = {}
    for case in arguments.case or CASES:
        mine = _figures(case, _run_case(case, arguments.repeats))
        print(_row(case, mine), flush=True)
        figures |= mine
        aims[f"{case}.first_added_over_commdebug"] = AIM
        aims[f"{case}.later_added_over_commdebug"] = AIM
    return Result(figures, aims)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=21, help="at least 15 for figures worth quoting")
    parser.add_argument("--case", action="append", choices=CASES, help="one case (repeatable); default all")


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
