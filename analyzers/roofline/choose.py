"""Which fabric a job ran on, as far as its own record tells, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline.fabric import UNKNOWN, Fabric
from shardtoll.analyzers.roofline.gpu import named
from shardtoll.analyzers.roofline.gpus import find_gpu
from shardtoll.analyzers.roofline.load import known_fabrics
from shardtoll.analyzers.roofline.network_words import network_words
from shardtoll.analyzers.roofline.pick import Known, pick
from shardtoll.ledger import Run


def choose_fabric(run: Run) -> Fabric:
    """Return the shipped fabric that fits the run's device and network, or its backend on CPUs.

    `UNKNOWN`, on which every floor is None, where none fits and for fake process groups. The
    choice, how sure it is and what else would fit are written into the provenance.
    """
    device, backend = run.device, run.backend
    if backend is not None and "fake" in backend:
        return UNKNOWN
    if device is None or device == "cpu":
        return _by_backend(backend)
    # One host among those seen does not make one of a job with missing ranks.
    one_node = len(run.hosts) == 1 and not run.ranks_missing
    words = run.machine or ""
    # A job on several hosts has most often all GPUs of each; one on a single host may have a few of many.
    size = None if one_node or run.ranks_missing else run.ranks_per_host
    used = run.ranks_per_host or (run.world_size if one_node else None)
    choice = pick(Known(device, words, one_node, size, used, network_words(words)))
    if choice.fabric is UNKNOWN:
        return UNKNOWN
    fabric = choice.fabric
    return replace(
        fabric,
        gpu=find_gpu(device) or fabric.gpu,
        library_version=run.nccl_version if fabric.library == "nccl" else None,
        provenance=f"{fabric.provenance} ({choice})",
    )


def other_device_note(run: Run, fabric: Fabric) -> str:
    """Return that the fabric is of another accelerator than the job's; empty where not, or not known.

    Its links are taken all the same, as they were asked for.
    """
    device = run.device
    if device is None or (fabric.gpu is None and not fabric.device_names):
        return ""
    if named(device, fabric.device_names, fabric.device_names_not):
        return ""
    own = find_gpu(device)
    if fabric.gpu is not None and own is not None and own.name == fabric.gpu.name:
        return ""
    of = fabric.title if fabric.gpu is None else fabric.gpu.title
    ran = "CPUs" if device == "cpu" else device
    return f"WARNING: the fabric is of {of}, the job ran on {ran}"


def _by_backend(backend: str | None) -> Fabric:
    for fabric in known_fabrics():
        if backend is not None and any(part in backend for part in fabric.backends):
            why = f"assumed: backend {backend} on this machine"
            return replace(fabric, provenance=f"{fabric.provenance} ({why})")
    return UNKNOWN
