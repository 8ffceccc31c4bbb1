"""Readers of traces: files of torch.profiler and Nsight Systems become the ledger of live runs. No torch.

It is a door: it hands out what its rooms export, and holds no code of its own.
Start reading in `job.job`.
"""

from typing import TYPE_CHECKING

from shardtoll.ledger.lazy import exports

if TYPE_CHECKING:
    from shardtoll.profiler.traces.job.job import Job as Job
    from shardtoll.profiler.traces.job.job import read_traces as read_traces
else:
    __getattr__, __dir__ = exports(__name__, {"job.job": "Job read_traces"})
