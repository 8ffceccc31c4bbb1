"""Nothing to find: DistributedDataParallel as its tutorial writes it, AdamW, one batch for each rank.

    torchrun --nproc-per-node 2 -m shardtoll.samples.incidents.clean_ddp

See https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from shardtoll.samples.incidents import clean
from shardtoll.samples.incidents.common import Incident, Program, main


def build(fixed: bool) -> Program:  # noqa: ARG001 - there is nothing to mend
    """Return the program."""
    model = DistributedDataParallel(clean.transformer())
    return clean.program(model, torch.optim.AdamW(model.parameters()))


INCIDENT = Incident(
    name="clean_ddp",
    source="https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",
    ranks=2,
    build=build,
    expected=(),
    checks=clean.CHECKS,
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
