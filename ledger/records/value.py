"""Records of values: what tensors held, small enough to keep, and which parameters a rank trains.

Most are made only if `audit(checks=...)` asks for them; the parameters of several ranks always are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardtoll.ledger.records.record import HASH_RANGE, require_finite

ValueKind = Literal["input", "gradient", "parameter", "buffer", "norm", "normed", "loss", "shard"]
VALUE_KINDS: Final[tuple[str, ...]] = get_args(ValueKind)
UNASKED: Final = ("loss", "shard")
"""Kinds that are taken without a check: a run may have them although nobody asked for one."""

SKETCH: Final = 8
"""Numbers in a sketch."""
SKETCH_COLUMNS: Final = tuple(f"sketch_{number}" for number in range(SKETCH))


@dataclass(frozen=True, slots=True)
class Value:
    """Content of one tensor on one rank at one moment.

    `input`: an argument of the audited model's forward. `gradient`: of a parameter, as the optimizer was
    about to use it. `parameter`, `buffer`: after the step; a `parameter` without a step:
    before the first one. `norm`: a total gradient norm as the program
    took it to be; its square is in `square`. `normed`: a gradient as such a norm found it, before it was
    clipped; it has the number of its norm. `loss`: one number that a backward began with, not finite.
    `shard`: this rank's part of a sharded parameter before the first step. `UNASKED` names those two: they
    need no check.

    The sketch is linear and counts by *global* position. The sketches of a tensor's shards add up to that of
    the whole. Those of parts of a sum add up to that of the sum. The difference of two sketches is that of
    the difference. The mean square of a sketch's numbers estimates the tensor's sum of squares.
    """

    step: int | None
    rank: int
    kind: str
    name: str
    """Parameter or buffer by FQN; an input as `args[0]` or `kwargs.mask`, with keys and numbers into it."""
    nth: int
    """Number among those of its name in the step. It is the micro-batch of an input, or the call of a norm,
    also for the gradients of that norm. It is 1 for a gradient that no optimizer was about to use as the step
    ended, else 0."""
    dtype: str
    shape: str
    """Shape of the part this rank holds, as `[64, 32]`."""
    placements: str | None
    """DTensor placements; None of a plain tensor."""
    mesh_dims: str | None
    """Names of the mesh dimensions in the placements, comma separated."""
    numel: int
    """Elements on this rank."""
    hash: int | None
    """Fingerprint of this rank's part; equal values of equal shape have equal ones."""
    constant: bool
    """It holds one value throughout: equality then proves little. For a shard also: it holds a few values
    only, or NaN."""
    square: float | None
    """Sum of squares of this rank's part; None if not finite or not of numbers."""
    may_leave_out: bool | None = None
    """For a gradient: a gradient scaler made the optimizer skip the step if one is not finite. Or a scaler
    was at work while no optimizer was about to use the gradient. For a loss: a scaler was at work."""
    sketch_0: float | None = None
    sketch_1: float | None = None
    sketch_2: float | None = None
    sketch_3: float | None = None
    sketch_4: float | None = None
    sketch_5: float | None = None
    sketch_6: float | None = None
    sketch_7: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in VALUE_KINDS:
            raise ValueError(f"unknown kind of value {self.kind!r}")
        for name in ("nth", "numel"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} < 0")
        if self.hash is not None and self.hash not in HASH_RANGE:
            raise ValueError(f"hash {self.hash} does not fit 64 signed bits")
        for name in ("square", *SKETCH_COLUMNS):
            require_finite(name, getattr(self, name))
        if self.square is not None and self.square < 0:
            raise ValueError(f"square {self.square} < 0")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the audited model as one rank holds it, after its last step."""

    rank: int
    name: str
    """FQN, without what wrappers add to it."""
    shape: str
    """Shape of the whole parameter, as `[64, 32]`."""
    local_shape: str
    """Shape of the part this rank holds."""
    dtype: str
    numel: int
    """Elements on this rank."""
    requires_grad: bool
    has_grad: bool | None
    """Whether it had a gradient when the optimizer last stepped; None if no optimizer did."""
    placements: str | None = None
    mesh_dims: str | None = None
    wrapper: str | None = None
    """The wrapper that reduces its gradient by itself: `DDP`, `FSDP1`, `FSDP2`; None if there is none."""
    group: str | None = None
    """Process group over which the wrapper reduces it."""
    reduced_by_wrapper: bool | None = None
    """Whether the wrapper knows it: False of a parameter that was added after wrapping."""
    tied_to: str | None = None
    """First name of the same parameter."""
    checked_right: bool | None = None
    """Whether each `check_gradients` in the audit found its gradient right; None if none compared it."""
    used_in: int | None = None
    """The last surveyed step in which an optimizer used a gradient of it; None if none did, or not known."""
    carried: bool | None = None
    """Whether a collective of many tensors, which names only the first, was seen to hold its gradient or its
    values."""
    checked: bool | None = None
    """Whether a check was to look at it; False of a run without checks, None of older records, which have
    parameters only if a check was."""
    ignored: bool | None = None
    """Whether the program had the wrapper ignore it, by a list; None if nothing wraps it, or not known."""

    def __post_init__(self) -> None:
        if self.numel < 0:
            raise ValueError(f"numel {self.numel} < 0")
