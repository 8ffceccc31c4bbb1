"""Each rank multiplies its own rows, and the weight's gradient is summed by hand: the right program.

Nothing is wrong and no matmul is done twice; that is what has to come out. What remains is the price of
its collectives: an all_gather of the outputs and, after backward, one all_reduce of H H elements that
nothing hides, 4 H H bytes per step: exposed communication, with its floor beside it, and no more.

    torchrun --nproc-per-node 4 -m shardtoll.samples.incidents.dit_partial
"""

from __future__ import annotations

from shardtoll.samples.dit_modulation import partial as by_hand
from shardtoll.samples.incidents import dit
from shardtoll.samples.incidents.common import Incident, Program, main

GRADIENT_BYTES = dit.FLOAT * dit.HIDDEN * dit.HIDDEN
"""What the all_reduce moves, per step and rank."""


def build(fixed: bool) -> Program:  # noqa: ARG001 - there is nothing to mend
    """Return the program."""
    return dit.program(by_hand.Partial(dit.OPTIONS, dit.CPU), by_hand.forward_backward)


INCIDENT = Incident(name="dit_partial", source=dit.STORY, ranks=dit.RANKS, build=build, expected=())

if __name__ == "__main__":
    main(INCIDENT, __doc__)
