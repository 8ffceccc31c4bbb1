"""Waits that no collective of the program shows: autograd's engine, DDP's own calls, and `new_group`."""

from __future__ import annotations

from typing import Final

from shardtoll.ledger.records.flight import RankFlight

_ENGINE: Final = (
    "_engine_run_backward",
    "_distributed_broadcast_coalesced",
    "_verify_param_shape_across_processes",
)
"""Functions of torch in which C++ issues collectives and waits for them."""
_MAKES: Final = ("(new_group)", "(_new_group_with_tag)", "(_new_process_group_helper)", "(new_subgroups)")
"""Ends of frames of torch that stand in `new_group`."""
_MAKES_IN: Final = "torch/distributed/distributed_c10d.py:"
"""The file in which torch has these functions: a user's may have the same names."""


def in_engine(flight: RankFlight) -> bool:
    """Whether a rank stands in autograd's engine, or a call of DDP's, where C++ waits unseen."""
    return any(name in frame for frame in flight.frames[:3] for name in _ENGINE)


def makes_group(flight: RankFlight) -> bool:
    """Whether a rank stands in `new_group`."""
    return any(frame.endswith(_MAKES) and _MAKES_IN in frame for frame in flight.frames)
