"""What the installed torch can do, asked of torch itself: programs leave out what an older one cannot."""

from __future__ import annotations

from typing import Final

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

STAGES_NEXT_TO_EACH_OTHER: Final = hasattr(PipelineScheduleMulti, "_initialize_pp_stages")
"""Whether one rank may hold neighbouring stages on gloo, as zero-bubble schedules have it.

torch 2.11 sets a schedule up by a message to every neighbour, this rank included, which gloo refuses.
"""

BATCHED_FUNCTIONAL_MESSAGES: Final = hasattr(torch.ops._c10d_functional, "batch_p2p_ops")
"""Whether there is an operator that sends and receives a batch of messages."""
