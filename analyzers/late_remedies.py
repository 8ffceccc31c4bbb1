"""What to change when a rank is late, by what it did meanwhile."""

from __future__ import annotations

from typing import Final

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


def words(part: str, *, on_cpu: bool) -> str:
    """Return what the rank was doing, as it stands in a sentence."""
    return ON_CPU.get(part, WORDS[part]) if on_cpu else WORDS[part]


def remedy(part: str | None, phase: str | None, rank: int, *, on_cpu: bool) -> tuple[str, str | None]:
    """Return text and code for the part that is longer most; general advice if it is not known."""
    if part is None:
        return (
            f"What rank {rank} does meanwhile is not on record: trace it beside another rank and compare "
            "them between two collectives.",
            None,
        )
    if part == "began_ns":
        return (
            f"Rank {rank} begins its step late, and what held it before is not on record: survey the "
            "steps before as well. Where the recording itself began there, ranks may only have started to "
            "record at different moments.",
            None,
        )
    if part == "compute_ns":
        return (
            f"If rank {rank} has more work{f' in {phase}' if phase else ''} (longer sequences, more experts' "
            "tokens, more layers), balance it. If it has the same work, its device is slower: compare "
            "clocks, "
            "temperature and power limits with another rank's.",
            "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE,POWER",
        )
    if part == "data_ns":
        return (
            f"Give rank {rank} its batch earlier: more workers, prefetching, data as near as the other "
            f"ranks'.",
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
            f"Rank {rank} reads back from the device where others do not (logging, checks, checkpoints): "
            f"do it "
            "less often, or after the collective.",
            None,
        )
    if part == "comm_ns":
        return (
            f"Rank {rank} is held up by another group's collective: look at who is late to that one.",
            None,
        )
    if part == "between_ns":
        return (
            f"Rank {rank} does something between its steps that others do not: loading without a DataLoader, "
            "logging, saving. Do it less often, on all ranks in turn, or in a thread.",
            "if step % 100 == 0:  # not in every step\n    log(metrics)",
        )
    if on_cpu:
        return (
            f"The training thread of rank {rank} ran no operator meanwhile: look for sleeping, reading and "
            "writing files, loading data and other Python work that only this rank does.",
            "py-spy dump --pid PID  # on that rank, while the others wait",
        )
    return (
        f"The host of rank {rank} launches late: look for other processes on its cores, garbage "
        f"collection and "
        "work that only this rank does in Python.",
        "gc.disable()  # and gc.collect() every few hundred steps",
    )
