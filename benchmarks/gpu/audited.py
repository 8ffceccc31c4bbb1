"""Audits of a real decoder on one card: NCCL with one rank, and two ranks of gloo that share the card.

Under DDP and under FSDP2 each run checks: losses bit-equal to bare steps; collectives counted as
CommDebugMode counts them; message bytes as the parameters' sizes give them; every collective with a source
line; each step's parts adding up; nothing left behind; exposed time and compute equal, to 1 %, to intervals
that this program takes from the recording of torch's profiler itself, and to HTA's breakdown if it is
installed.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from gpu import ranks
from gpu.decoder import TINY, Decoder, Size, batch, trainer
from gpu.oracle import breakdown, hta_compute
from gpu.place import Place, part
from gpu.sheet import Sheet
from shardtoll.profiler import audit

REAL: Final = Size(8, 1_024, 16, vocabulary=16_384, positions=1_024, batch=4)
STEPS: Final = 4
LIMIT_S: Final = 45.0
TOLERANCE: Final = 0.01
COUNTED: Final = {
    "all_gather": ("allgather", "all_gather"),
    "reduce_scatter": ("reduce_scatter",),
    "all_reduce": ("allreduce", "all_reduce"),
}
"""Our name of a collective -> parts of the names that CommDebugMode counts it under."""

_CommDebugMode: Any = CommDebugMode  # torch leaves its constructor untyped


def _made(device: str, strategy: str) -> tuple[nn.Module, Any, Size]:
    place = Place(device)
    size = TINY if place.rehearses else REAL
    # The backward of fused attention adds in any order, and no two runs of a program are bit-equal: on an
    # H200 plain attention's repeated itself, flash attention's and cuDNN's did not.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.manual_seed(0)
    model: Any = Decoder(size).to(device, place.dtype)
    if strategy == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    torch.manual_seed(dist.get_rank())
    step = trainer(model, batch(size, device))
    # What torch, the backend and the matrix library do only once is over after these.
    for _ in range(2):
        step()
    place.synchronize()
    return model, step, size


def audited(device: str, strategy: str, folder: str) -> dict[str, Any]:
    """Run on each rank: bare steps twice, counted and audited ones, a traced audit; return what each saw."""
    place = Place(device)
    with warnings.catch_warnings(record=True) as warned:
        _, step, _ = _made(device, strategy)
        again = [step() for _ in range(STEPS)]
    _, step, size = _made(device, strategy)
    bare = [step() for _ in range(STEPS)]
    counter = _CommDebugMode()
    with counter:
        step()
    counts = {str(op): count for op, count in counter.get_comm_counts().items()}
    model, step, _ = _made(device, strategy)
    # Its types are those of tests.
    leftovers: Any = importlib.import_module("tests.leftovers")
    with leftovers.none_expected():
        losses = []
        with audit(model, level="survey") as session:
            for _ in range(STEPS):
                with session.step():
                    losses.append(step())
        place.synchronize()
    with audit(model, folder, level="survey", trace=True, trace_steps=3) as traced:
        for _ in range(3):
            with traced.step():
                step()
    seen: dict[str, Any] = {
        "again": [float(loss).hex() for loss in again],
        "bare": [float(loss).hex() for loss in bare],
        "losses": [float(loss).hex() for loss in losses],
        "warned": sorted({str(each.message)[:300] for each in warned if "determinis" in str(each.message)}),
    }
    # The ledger of all ranks is rank 0's.
    if session.ledger is None or traced.ledger is None:
        return seen
    tables = session.ledger.tables
    own = [row for row in traced.ledger.tables["steps"].to_pylist() if row["rank"] == 0]
    return {
        **seen,
        "counts": counts,
        "steps": tables["steps"].to_pylist(),
        "collectives": tables["collectives"].to_pylist(),
        "notices": tables["notices"].to_pylist(),
        "traced": own,
        "parameter_bytes": size.parameters * place.dtype.itemsize,
    }


def _check(sheet: Sheet, name: str, strategy: str, found: list[dict[str, Any]]) -> None:
    first = found[0]
    for text in first["warned"]:
        sheet.note(f"{name}: {text}")
    for rank, one in enumerate(found):
        sheet.check(
            f"{name}: bare steps of rank {rank} repeat themselves, bit by bit", one["again"], one["bare"]
        )
        sheet.check(
            f"{name}: losses of rank {rank} equal those of bare steps, bit by bit", one["losses"], one["bare"]
        )
    rows = [row for row in first["collectives"] if row["rank"] == 0 and row["step"] is not None]
    seen = Counter(row["op"] for row in rows)
    for op, parts in COUNTED.items():
        counted = sum(count for key, count in first["counts"].items() if any(part in key for part in parts))
        if op in seen or counted:
            sheet.check(f"{name}: {op} in {STEPS} steps, as CommDebugMode counts", seen[op], STEPS * counted)
    total = sum(row["message_bytes"] or 0 for row in rows)
    # Both reduce each gradient once. FSDP2 issues nothing in a group of one rank.
    wanted = first["parameter_bytes"] * STEPS
    if strategy == "ddp":
        sheet.check(f"{name}: message bytes are the gradients'", total, wanted)
    elif len(found) > 1:
        reduced = sum(row["message_bytes"] or 0 for row in rows if row["op"] == "reduce_scatter")
        sheet.check(f"{name}: reduce_scatter's bytes are the gradients'", reduced, wanted)
    sheet.check(f"{name}: collectives without a source line", sum(row["source"] is None for row in rows), 0)
    kinds = {notice["kind"] for notice in first["notices"]}
    sheet.check(f"{name}: capture went on to the end", "capture-stopped" in kinds, False)
    parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "unattributed_ns")
    off = [sum(step[one] for one in parts) - step["duration_ns"] for step in first["steps"]]
    sheet.check(f"{name}: what parts of steps lack of their duration, ns", off, [0] * len(off))
    sheet.check(f"{name}: steps", len(first["steps"]), STEPS * len(found))


def _check_times(sheet: Sheet, name: str, folder: Path, found: list[dict[str, Any]]) -> None:
    """Hold the traced steps' compute and exposed communication to two readings that are not ours."""
    (trace,) = sorted(folder.rglob("trace.rank00000.json.gz"))[:1] or (None,)
    if trace is None:
        sheet.check(f"{name}: the traced audit left a recording", None, "trace.rank00000.json.gz")
        return
    spans = [(step["start_ns"], step["start_ns"] + step["duration_ns"]) for step in found[0]["traced"]]
    ours = {
        "compute": sum(step["compute_ns"] for step in found[0]["traced"]) / 1e6,
        "exposed": sum(step["exposed_comm_ns"] for step in found[0]["traced"]) / 1e6,
        "took": sum(end - begin for begin, end in spans) / 1e6,
    }
    sheet.figure(f"{name}: traced, ms", ours)
    theirs = breakdown(trace)
    if theirs is None:
        sheet.note(f"{name}: the recording has no device timeline, so there is nothing to compare times with")
        return
    sheet.figure(f"{name}: intervals of the recording, ms", theirs)
    for key in ("compute", "exposed"):
        near = abs(ours[key] - theirs[key]) <= TOLERANCE * theirs["took"]
        sheet.check(
            f"{name}: {key} within 1 % of the step of the recording's",
            round(ours[key], 3),
            round(theirs[key], 3),
            ok=near,
        )
    hta = hta_compute(trace)
    if hta is None:
        sheet.note(f"{name}: HTA is not installed, so it was not compared with")
        return
    sheet.figure(f"{name}: HTA, ms", hta)
    near = abs(hta["compute"] - hta["rounded"]) <= TOLERANCE * hta["exact"]
    sheet.check(
        f"{name}: HTA's compute within 1 % of these intervals, rounded as HTA does",
        round(hta["rounded"], 3),
        round(hta["compute"], 3),
        ok=near,
    )


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Run both strategies in both places."""
    limit_s = 4 * LIMIT_S if place.rehearses else LIMIT_S
    for backend, world_size in ((place.backend, 1), ("gloo", 2)):
        for strategy in ("ddp", "fsdp2"):
            name = f"{strategy}, {backend}, {world_size} ranks"
            folder = out / "audited" / f"{strategy}-{backend}-{world_size}"
            try:
                found = ranks.run(
                    audited, world_size, backend, place.device, strategy, str(folder), limit_s=limit_s
                )
            except ranks.RanksError as error:
                sheet.check(f"{name}: it ran", str(error), "results of all ranks")
                continue
            _check(sheet, name, strategy, found)
            _check_times(sheet, name, folder, found)


if __name__ == "__main__":
    # Ranks import this file as a module: their functions are named by it.
    from gpu.audited import measure as by_name

    part("audited", by_name, __doc__ or "")
