"""The gradient is made whole by a scatter of one's own, and computed whole on every rank.

The scales of all samples are multiplied on every rank; a custom autograd function hands each rank its
own rows, and its backward gathers the rows' gradients from all. Now every rank sees the gradient of
every scale, and `weight.grad` is right. It is also n times computed: the forward's and the backward's
matmul, 2 S H H FLOPs each, have the same inputs on all n ranks. No gradient check shows that; comparing
what the ranks computed does.

The mended twin takes its rows of the conditioning first, which leaves a part of the gradient on each
rank, and sums the parts with one all_reduce.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.dit_scatter
"""

from __future__ import annotations

from shardtoll.samples.dit_modulation import partial as by_hand
from shardtoll.samples.dit_modulation import scatter
from shardtoll.samples.incidents import dit
from shardtoll.samples.incidents.common import Expected, Incident, Program, main

TOO_MANY = (dit.RANKS - 1) * dit.MATMUL
"""FLOPs of all ranks in a step that one matmul takes and does not need."""


def build(fixed: bool) -> Program:
    """Return the program; mended, each rank multiplies its own rows."""
    if fixed:
        return dit.program(by_hand.Partial(dit.OPTIONS, dit.CPU), by_hand.forward_backward)
    return dit.program(scatter.Scatter(dit.OPTIONS, dit.CPU), scatter.forward_backward)


INCIDENT = Incident(
    name="dit_scatter",
    source=dit.STORY,
    ranks=dit.RANKS,
    build=build,
    expected=tuple(
        Expected(
            "duplicated-compute",
            "dit_modulation/scatter.py",
            flops=TOO_MANY,
            says=(
                "aten.mm.default",
                f"the same work {dit.RANKS} times in {phase}",
                "ranks 0-3",
                "all_reduce",
            ),
        )
        for phase in ("forward", "backward")
    ),
)

if __name__ == "__main__":
    main(INCIDENT, __doc__)
