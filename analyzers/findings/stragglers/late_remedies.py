"""Remedies if a rank is late, by what it did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardtoll.analyzers.shared import serving_remedies
from shardtoll.analyzers.shared.gpu_maker import gpu_maker
from shardtoll.ledger import Figure

WORDS: Final = {
    "began_ns": "before its step began",
    "compute_ns": "computing",
    "comm_ns": "in other collectives",
    "copy_ns": "in memory copies",
    "data_ns": "idle while its batch is fetched",
    "sync_ns": "idle after its host waited for the device",
    "host_ns": "idle because its host had launched nothing",
    "between_ns": "between its steps",
}
"""Part of a lead-up -> what the rank was doing, as it stands in a sentence."""

ON_CPU: Final = {"host_ns": "outside operators (Python, sleeping, files)"}
"""The same where there is no device that could stand idle."""

_TRACE: Final = (
    'with audit(model, out="runs/late", trace=True) as session:  # on all ranks\n'
    "    for batch in loader:\n"
    "        with session.step():\n"
    "            train_step(batch)"
)


IDLE: Final = {"data_ns": "late_data_ns", "sync_ns": "late_sync_ns", "host_ns": "late_host_ns"}
"""Idle parts of a late rank's step -> the figure that says how much longer they are."""


ROCM_TOOL: Final = "rocm-smi"
_ROCM: Final = '["rocm-smi", "--showclocks", "--showtemp", "--showpower"]'
_NVIDIA: Final = '["nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE,TEMPERATURE,POWER"]'


def launch_figures(part: str | None, more_ns: float, *, on_cpu: bool) -> tuple[Figure, ...]:
    """Return how much longer the late rank's device waits for launches, if that is what makes it late."""
    if part != "host_ns" or on_cpu or more_ns <= 0:
        return ()
    return (Figure("late_launches_ns", round(more_ns), "ns"),)


def words(part: str, *, on_cpu: bool) -> str:
    """Return what the rank was doing, as it stands in a sentence."""
    return ON_CPU.get(part, WORDS[part]) if on_cpu else WORDS[part]


def idle_figures(more_ns: Mapping[str, float]) -> tuple[Figure, ...]:
    """Return how much longer per step the late rank is idle, by what it waits for."""
    return tuple(
        Figure(IDLE[part], round(more), "ns") for part, more in more_ns.items() if part in IDLE and more > 0
    )


def _tool(device: str | None) -> str:
    """Return the tool that shows the device's clocks; both if its maker is unknown."""
    tools = {"amd": ROCM_TOOL, "nvidia": "nvidia-smi -q", None: f"nvidia-smi -q (or {ROCM_TOOL})"}
    return tools[gpu_maker(device)]


def measures(part: str | None) -> bool:
    """Return whether `remedy` of that part only records more, which by itself saves nothing."""
    return part in (None, "began_ns")


# Longer than 80 lines: one text with its code for each part of a step, to be read side by side.
def remedy(
    part: str | None,
    phase: str | None,
    rank: int,
    *,
    on_cpu: bool,
    serves: bool = False,
    device: str | None = None,
    lines: str | None = None,
) -> tuple[str, str | None]:
    """Return text and code for the part that is longer most; general advice if it is not known.

    `serves`: the job is inference. `device`: the device's name, which decides by which tool clocks are read.
    `lines`: next to which lines the rank spends time outside operators, as `after t.py:4 and before t.py:5`.
    """
    served = serving_remedies.late(part, rank) if serves else None
    if served is not None:
        return served.text, served.code
    if part is None:
        return (
            f"Record again with trace=True, and compare rank {rank} with another rank between two "
            "collectives: its work meanwhile is not on record.",
            _TRACE,
        )
    if part == "began_ns":
        return (
            f"Record at least five steps: rank {rank} begins its step late, and its "
            "work before is not on record. If the recording itself began there, ranks may only have "
            "started to record at different moments.",
            'with audit(model, level="survey") as session:  # every step, from before the first late one\n'
            "    for batch in loader:\n"
            "        with session.step():\n"
            "            train_step(batch)",
        )
    if part == "compute_ns":
        return (
            f"Balance the work if rank {rank} has more{f' in {phase}' if phase else ''}, else compare "
            f"{'cores and load by top' if on_cpu else f'clocks by {_tool(device)}'}. More work "
            "is longer sequences, more tokens or more layers. "
            "Without it the device is slower: compare clocks, temperature and power.",
            f"if dist.get_rank() == {rank}:  # and of another rank, to compare\n"
            + (
                "    print([tuple(x.shape) for x in batch], os.sched_getaffinity(0), os.getloadavg())"
                if on_cpu
                else f"    subprocess.run({_ROCM if _tool(device) == ROCM_TOOL else _NVIDIA})"
            ),
        )
    if part == "data_ns":
        return (
            f"Give rank {rank} its batch earlier: more workers, prefetching, or storage as fast "
            "as its peers'.",
            "DataLoader(dataset, num_workers=8, pin_memory=True, prefetch_factor=4, persistent_workers=True)",
        )
    if part == "copy_ns":
        return (
            f"Take the copies on rank {rank} off the critical path: pinned memory and non_blocking "
            f"copies, or "
            "no copy at all.",
            "batch = batch.to(device, non_blocking=True)  # from pinned memory",
        )
    if part == "sync_ns":
        return (
            f"Read from the device less often on rank {rank}, or after the collective. Others do not read "
            "there (logging, checks, checkpoints).",
            f"if step % 100 == 0:  # not in every step of rank {rank}, and after the collective\n"
            "    print(loss.item())",
        )
    if part == "comm_ns":
        return (
            f"Print report.collectives of rank {rank} by wait_ns: a rank that is late to the other group's "
            "collective holds it up.",
            'late = report.collectives[["group", "seq", "op", "rank", "wait_ns"]].sort_values("wait_ns")\n'
            f'print(late[late["rank"] == {rank}].tail(20))  # then those of the same group and seq',
        )
    if part == "between_ns":
        return (
            f"Run py-spy record --pid PID for rank {rank}, and look at what runs between steps. Only this "
            "rank spends time there, as in loading without a DataLoader, logging, saving. Do it less often, "
            "on all ranks in turn, or in a thread.",
            "if step % 100 == 0:  # not in every step\n    log(metrics)",
        )
    if on_cpu:
        return (
            f"Run py-spy dump --pid PID for rank {rank}, whose thread runs no operator meanwhile. Only "
            "this rank sleeps, loads data, or reads and writes files."
            if lines is None
            else f"Look at the code {lines}: only rank {rank} sleeps, loads data, or reads and writes files "
            "there. While it runs, `py-spy dump --pid PID` shows where its thread is.",
            f"if dist.get_rank() == {rank}:\n"
            "    faulthandler.dump_traceback_later(0.05, repeat=True)  # where its thread is",
        )
    return (
        f"Run py-spy top --pid PID for rank {rank}, whose host launches late: garbage collection, or Python "
        "work of this rank only. See with `taskset -p` and `top` which other processes use the same cores.",
        "gc.disable()  # and gc.collect() every few hundred steps",
    )
