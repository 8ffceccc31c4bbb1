"""Each rank trains on its own tokens, and nobody adds the gradients up.

Of a batch of S samples each rank takes its own, scales their tokens and gathers the results of all with
the plain collective, of which autograd knows nothing. The loss is right on every rank. `weight.grad` is
not: on each rank it holds the part of its own tokens only, so the replicas of the weight drift apart
from the first step on. The gradient of one device is the sum of these parts: one all_reduce is missing.

The same program also multiplies all samples on every rank where it needs its own only. The mended twin
takes its rows before it multiplies, and reduces the gradient.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.dit_chunk
"""

from __future__ import annotations

from functools import partial

from shardtoll.profiler import check_gradients
from shardtoll.samples.dit_modulation import chunk, common
from shardtoll.samples.dit_modulation import partial as by_hand
from shardtoll.samples.incidents import dit
from shardtoll.samples.incidents.common import Expected, Incident, Program, Proven, main


def build(fixed: bool) -> Program:
    """Return the program; mended, it is the one that sums the parts."""
    model = by_hand.Partial(dit.OPTIONS, dit.CPU) if fixed else chunk.Chunk(dit.OPTIONS, dit.CPU)
    reference = common.Modulation(dit.OPTIONS, dit.CPU)

    def check(batch: common.Batch) -> None:
        check_gradients(model, reference, partial(common.global_loss, batch=batch))

    return dit.program(model, (by_hand if fixed else chunk).forward_backward, check=check)


INCIDENT = Incident(
    name="dit_chunk",
    source=dit.STORY,
    ranks=dit.RANKS,
    build=build,
    expected=(
        Expected(
            "wrong-gradient",
            "weight",
            says=(
                "a reduction is missing",
                f"The sum of the gradients over all {dit.RANKS} ranks would be right",
                "relative error",
                "all_reduce",
            ),
        ),
    ),
    proven=(
        Proven(
            "duplicated-compute",
            "chunk.py",
            "cond @ weight is multiplied for all samples on every rank, which then uses its own rows only",
        ),
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
