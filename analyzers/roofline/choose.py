"""Which fabric a job ran on, as far as its own record tells."""

from __future__ import annotations

from dataclasses import replace

from shardtoll.analyzers.roofline.fabric import UNKNOWN, Fabric
from shardtoll.analyzers.roofline.load import known_fabrics
from shardtoll.ledger import Run


def _named(fabric: Fabric, device: str) -> bool:
    name = device.casefold()
    wanted = any(part.casefold() in name for part in fabric.device_names)
    return wanted and not any(part.casefold() in name for part in fabric.device_names_not)


def choose_fabric(run: Run) -> Fabric:
    """Return the shipped fabric that fits the run's device name, or its backend on CPUs.

    `UNKNOWN`, on which every floor is None, where none fits and for fake process groups. The
    choice is written into the provenance.
    """
    device, backend = run.device, run.backend
    if backend is not None and "fake" in backend:
        return UNKNOWN
    if device is not None and device != "cpu":
        for fabric in known_fabrics():
            if _named(fabric, device):
                # One host among those seen does not make one of a job with missing ranks.
                one = len(run.hosts) == 1 and not run.ranks_missing
                network = "" if one else "; the network between hosts is assumed"
                return replace(
                    fabric, provenance=f"{fabric.provenance} (chosen by device name {device}{network})"
                )
        return UNKNOWN
    for fabric in known_fabrics():
        if backend is not None and any(part in backend for part in fabric.backends):
            return replace(fabric, provenance=f"{fabric.provenance} (chosen by backend {backend})")
    return UNKNOWN
