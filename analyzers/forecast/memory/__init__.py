"""Peak memory of a step: allocations replayed through a model of torch's caching allocator.

It may import `analyzers.shared`, `ledger`, `ledger.answers`, `ledger.foreign`.
The memory of dry runs is in `analyzers.forecast.dry.memory`.
Start reading in `peak`, which is for plans; `allocator` replays any list of allocations.
`memory_fits` has the band; `ledger.answers.plan_memory.fits_in` says whether it fits.
"""

from typing import TYPE_CHECKING

from shardtoll.ledger.lazy import exports

if TYPE_CHECKING:
    from shardtoll.analyzers.forecast.memory.allocator import Replayed as Replayed
    from shardtoll.analyzers.forecast.memory.allocator import replay as replay
    from shardtoll.analyzers.forecast.memory.peak import plan_memory as plan_memory
else:
    __getattr__, __dir__ = exports(__name__, {"allocator": "Replayed replay", "peak": "plan_memory"})
