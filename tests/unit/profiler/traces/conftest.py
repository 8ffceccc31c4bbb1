"""Real traces, where this machine has them, and small ones written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardtoll.profiler.traces.file.sources import TraceFile, find
from tests.shared_inputs import shared

ROOT = Path(__file__).resolve().parents[4]
REAL = (
    "hta_nccl_data_rank0of2.json.gz",
    "hta_negative_queue_rank0of16.json.gz",
    "hta_sampled_rank0of128.json.gz",
    "hta_sampled_rank1of128.json.gz",
    "tracelens_b200_eager_rank0of8.json.gz",
    "tracelens_mi300_resnet_rank0of8.json.gz",
    "param_dlrm_v100_8ranks/worker3_step_12.1694128201557.pt.trace.json.gz",
)


def real_traces() -> Path:
    """Return the folder of real traces; skips the test where there is none."""
    return shared("traces")


@pytest.fixture
def traces() -> Path:
    """The folder of real traces."""
    return real_traces()


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> Path:
    """Each real trace in turn."""
    return real_traces() / str(request.param)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., TraceFile]:
    """Write bytes or text as a trace file and find it."""

    def write(content: bytes | str, name: str = "rank0.json") -> TraceFile:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return find([str(path)])[0]

    return write
