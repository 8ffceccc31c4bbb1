"""Which fabric a job ran on, as far as its own record tells, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN, Fabric
from shardtoll.analyzers.roofline.machines.gpu import Gpu, find_gpu, load_gpu, named
from shardtoll.analyzers.roofline.machines.load import fabric_names, fabrics_with, load_fabric
from shardtoll.analyzers.roofline.machines.network_words import network_words
from shardtoll.analyzers.roofline.machines.pick import Choice, Known, pick
from shardtoll.ledger import Run


def choose_fabric(run: Run) -> Fabric:
    """Return the fabric on record, as of dry runs, else the one that fits the device and network, or on CPUs
    the backend.

    Return `UNKNOWN` (every floor is None) if none fits and for fake process groups. The choice, how
    sure it is and what else would fit are written into the provenance.
    """
    run = with_device(run)
    device, backend = run.device, run.backend
    recorded = fabric_on_record(run)
    if recorded is not None:
        return _on_record(run, recorded)
    if backend is not None and "fake" in backend:
        return UNKNOWN
    if device is None or device == "cpu":
        return _by_backend(backend)
    # One host among those seen does not make one of a job with missing ranks.
    one_node = (len(run.hosts) == 1 and not run.ranks_missing) or run.world_size == 1 or _fits_one_host(run)
    words = run.machine or ""
    # A job on several hosts usually has all GPUs of each; one on a single host may have a few of many.
    size = None if one_node or run.ranks_missing else run.ranks_per_host
    used = run.ranks_per_host or (run.world_size if one_node else None)
    choice = pick(Known(device, words, one_node, size, used, network_words(words)))
    if choice.fabric is UNKNOWN:
        return UNKNOWN if run.world_size > 1 else _of_one(run)
    fabric = choice.fabric
    return replace(
        fabric,
        gpu=gpu_of_run(run) or fabric.gpu,
        library_version=run.nccl_version if fabric.library == "nccl" else None,
        provenance=f"{fabric.provenance} ({_sureness(run, choice)})",
    )


def fabric_on_record(run: Run) -> Fabric | None:
    """Return the fabric that a dry run was made for; None for other runs.

    None too for a run of an older version on a file, which kept the file's name only.
    """
    if run.fabric_toml is not None:
        return load_fabric(run.fabric_toml)
    return load_fabric(run.fabric) if run.fabric in fabric_names() else None


def _on_record(run: Run, fabric: Fabric) -> Fabric:
    """Return the fabric that the run itself names."""
    return replace(
        fabric, gpu=gpu_of_run(run) or fabric.gpu, provenance=f"{fabric.provenance} (named by the run)"
    )


def _of_one(run: Run) -> Fabric:
    """Return no fabric, with words that ask for none: a job of one rank has no links to wait for."""
    return replace(UNKNOWN, provenance=f"none is needed: the job's one rank uses no links ({run.device})")


def _fits_one_host(run: Run) -> bool:
    """Whether one host has a device for each rank: jobs that fit one host are seldom spread over several."""
    return len(run.hosts) < 2 and (run.devices_per_host or 0) >= run.world_size


def _sureness(run: Run, choice: Choice) -> str:
    """Return how sure the choice is; for a job of one rank the links do not matter."""
    return f"{run.device}; its one rank uses no links" if run.world_size == 1 else str(choice)


def gpu_of_run(run: Run) -> Gpu | None:
    """Return the accelerator whose figures the run keeps, else the one that its name or its driver's figures
    identify; None if unknown."""
    if run.gpu_toml is not None:
        return load_gpu(run.gpu_toml)
    return find_gpu(run.device, run.device_memory_bytes, run.device_sms, run.device_capability)


def with_device(run: Run) -> Run:
    """Return the run with a device name, if it has none and memory and chip tell the accelerator."""
    gpu = None if run.device else gpu_of_run(run)
    return run if gpu is None else replace(run, device=gpu.title)


def other_device_note(run: Run, fabric: Fabric) -> str:
    """Return a note if the fabric is of another accelerator than the job's; empty if not, or unknown.

    Its links are taken all the same, as they were asked for.
    """
    device = run.device
    if device is None or (fabric.gpu is None and not fabric.device_names):
        return ""
    if named(device, fabric.device_names, fabric.device_names_not):
        return ""
    gpu = gpu_of_run(run)
    if fabric.gpu is not None and gpu is not None and gpu.name == fabric.gpu.name:
        return ""
    of = fabric.title if fabric.gpu is None else fabric.gpu.title
    ran = "CPUs" if device == "cpu" else device
    return f"WARNING: the fabric is of {of}, the job ran on {ran}"


def describes(fabric: Fabric, run: Run) -> bool:
    """Return whether a fabric that somebody measured is of the machine that the run was on.

    An accelerator must be the one that the fabric names. CPUs have no name that tells machines apart: the run
    must have been on a host that was measured. A dry run is made for a fabric of its own.
    """
    run = with_device(run)
    if run.source == "dry" or run.device is None:
        return False
    of_accelerators = fabric.gpu is not None or bool(fabric.device_names)
    if run.device == "cpu":
        return not of_accelerators and not set(fabric.hosts).isdisjoint(run.hosts)
    return of_accelerators and not other_device_note(run, fabric)


def _by_backend(backend: str | None) -> Fabric:
    if backend is None:
        return UNKNOWN
    for fabric in fabrics_with("backends"):
        if any(part in backend for part in fabric.backends):
            why = f"assumed: backend {backend} on this machine"
            return replace(fabric, provenance=f"{fabric.provenance} ({why})")
    return UNKNOWN
