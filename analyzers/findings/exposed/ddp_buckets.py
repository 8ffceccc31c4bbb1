"""DDP whose one bucket holds all gradients: its reduction cannot begin before backward has ended."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.findings.exposed.exposed_remedies import LEAST_BUCKET_BYTES
from shardtoll.analyzers.shared.tally import Line, keep
from shardtoll.ledger import Evidence, Remedy
from shardtoll.ledger.records.ddp_causes import REDUCER
from shardtoll.ledger.words.human import duration

BUCKETS: Final = 8
"""Into so many a model is cut, if none is smaller than DDP's first one and none larger than its default."""

MOST_BUCKET_BYTES: Final = 25 << 20
"""DDP's own `bucket_cap_mb`."""


class OneBucket(Struct, frozen=True):
    """A model reduced as a whole, and what smaller buckets would hide. Per step."""

    message_bytes: int
    bucket_bytes: int
    """Size of the proposed buckets."""
    backward_ns: int
    """Compute of backward, on the rank that has most of it."""

    def saving_ns(self, moving_ns: int) -> int:
        """Return how much of the reduction smaller buckets could hide.

        All but the last bucket can be reduced while backward goes on, and no longer than it does after the
        first of them is full.
        """
        rest = 1 - self.bucket_bytes / self.message_bytes
        return round(min(moving_ns, self.backward_ns) * rest)

    @property
    def remedy(self) -> Remedy:
        """Remedy with the proposed bucket size."""
        size = self.bucket_bytes / (1 << 20)
        return Remedy(
            text=f"Use buckets of {size:.3g} MiB: one of {self.message_bytes / 1e6:.3g} MB holds all "
            "gradients now, so nothing is reduced before backward is over. Smaller ones are reduced while it "
            "goes on; only the last has nothing left to hide behind.",
            code=f"DistributedDataParallel(model, bucket_cap_mb={size:.3g})",
            counterfactual=f"buckets of {size:.3g} MiB, all but the last hidden behind backward's compute",
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Facts that the saving rests on."""
        return (
            Evidence("buckets of a backward", 1),
            Evidence("backward computes, per step", self.backward_ns, "ns"),
            Evidence("proposed bucket", self.bucket_bytes, "bytes"),
        )


def one_bucket(context: Context, line: Line, message_bytes: int | None) -> OneBucket | None:
    """Return the one bucket behind a place of exposed communication; None if there is no such bucket.

    `message_bytes` is the usual size of its message.
    """
    if (
        line.text("caused_by_op") != REDUCER
        or message_bytes is None
        or message_bytes < 2 * LEAST_BUCKET_BYTES
    ):
        return None
    frame = context.in_alike
    buckets = keep(frame, (frame["caused_by_op"] == REDUCER) & (frame["group"] == line.first["group"]))
    # Each bucket is named by its parameters; with accumulation the same one comes several times.
    each = buckets.groupby(["rank", "step"])["parameter"].nunique(dropna=False)
    if each.empty or int(each.max()) != 1:
        return None
    computes = context.computes_in_steps
    backward = keep(computes, computes["phase"] == "backward").groupby(["rank", "step"])["duration_ns"].sum()
    if backward.empty:
        return None
    wanted = max(LEAST_BUCKET_BYTES, min(MOST_BUCKET_BYTES, message_bytes // BUCKETS))
    return OneBucket(message_bytes, wanted, round(float(backward.groupby("rank").mean().max())))


def clause(bucket: OneBucket, moving_ns: int) -> str:
    """Return what follows in the title."""
    return (
        f"; nothing overlaps, as one bucket holds all gradients: smaller ones hide "
        f"{duration(bucket.saving_ns(moving_ns))}"
    )
