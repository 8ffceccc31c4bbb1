"""Meaning of each kind of finding, in a sentence or two: for readers without documentation at hand."""

from __future__ import annotations

from typing import Final

WORDS: Final[dict[str, str]] = {
    "implicit-redistribute": "DTensor inserted a collective to run an operator, because an input was sharded "
    "in a way the operator cannot use.",
    "redundant-collective": "A collective moved what need not be moved: sent before, needed in part only, or "
    "equal on all ranks.",
    "sync-every-microbatch": "Gradients were reduced on each of several micro-batches of one optimizer step.",
    "latency-bound": "Many small messages one after another, whose least time is latency.",
    "below-roofline": "Transfers take much longer than sound runs of their size on this fabric.",
    "exposed-communication": "Communication that no computation hid.",
    "serialized-collectives": "Collectives of different groups run one after another while nothing computes.",
    "cross-node-traffic": "A mesh dimension spans nodes; in another order of the mesh it lies inside one.",
    "wide-dtype": "Gradients or parameters travel in a wider number format than the matrices computed in.",
    "straggler": "A rank comes last to collectives and the others wait for it.",
    "needless-barrier": "A barrier in each step, though other collectives order the same ranks already.",
    "constant-buffers": "DDP broadcasts buffers at each forward that never change.",
    "unused-parameter-search": "DDP looks for unused parameters in each backward, and all are used.",
    "expert-imbalance": "One rank's experts get far more tokens than the others', which wait for it.",
    "gathered-logits": "The classes of the logits are gathered for a loss that could be made of parts.",
    "duplicated-compute": "Several ranks did the same work, or one rank did it twice.",
    "duplicated-data": "Data-parallel ranks train on the same batches.",
    "recompute": "Activations are computed again, which costs time and saves memory.",
    "wrong-gradient": "A parameter's gradient is not that of the global batch, or its replicas disagree.",
    "replica-drift": "Parameters that replicas must hold equal are not equal any more.",
    "unsynced-parameter": "A parameter takes part in no reduction, or never got a gradient.",
    "missing-zero-grad": "Gradients are not cleared between optimizer steps, so they add up over steps.",
    "non-finite": "A loss, gradient or parameter is NaN or infinite.",
    "identical-shards": "Ranks began with equal parts of sharded parameters.",
    "pipeline-bubble": "Stages of a pipeline stand idle for longer than its schedule must.",
    "pipeline-imbalance": "One stage of a pipeline computes longer than the others.",
    "data-stall": "Training waits for its batch.",
    "host-sync": "The device is idle because the host waited for it.",
    "launch-bound": "The device waits for kernels that the host launches too slowly.",
    "transfer-stall": "Memory copies that no compute hides.",
    "checkpoint-stall": "Training waits while a checkpoint is saved.",
    "unattributed-time": "Much of a step's time that no record explains.",
    "unmatched-collectives": "A group issued another number of collectives than was recorded, or its ranks "
    "did not do the same.",
    "incomplete-input": "Ranks, steps or times are missing from the record.",
    "clock-skew": "The hosts' clocks disagree by that much, so waiting and transfer are unknown to that "
    "extent.",
    "hang": "The job stands still: ranks wait for one that died, failed or left out a collective.",
}
"""Kind -> its meaning; every kind has its words (a test checks that)."""
