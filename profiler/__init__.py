"""Everything that makes records. `audit` is what a user imports; it needs torch and pyarrow only."""

from shardtoll.profiler.live.gradients import check_gradients
from shardtoll.profiler.live.session import Session, audit

__all__ = ["Session", "audit", "check_gradients"]
