"""How much communication compute hides: our accounting and HTA's, on the same real traces.

Both say the same of the same kernels. By default HTA's figure differs, for three reasons that these
tests pin down: it leaves out the last ProfilerStep, it rounds to microseconds, and it takes for
communication only what is named `nccl...Kernel`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.analyzers.hta.hta_trace import quiet, trace_of
from shardtoll.profiler.live.cause.accounting import total_ns, union
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file.events import read_events
from shardtoll.profiler.traces.file.read import read_trace
from shardtoll.profiler.traces.file.sources import find
from shardtoll.profiler.traces.rank.rank import rank_ledger
from tests.unit.analyzers.hta.test_hta import AMD, NVIDIA, parsed_by_hta

NCCL_DATA = "hta_nccl_data_rank0of2.json.gz"
B200 = "tracelens_b200_eager_rank0of8.json.gz"


def ours(path: Path) -> tuple[int, int]:
    """Communication in flight and the part of it that no compute hid, ns, by our own reader."""
    (file,) = find([str(path)])
    rows = rank_ledger(read_trace(file), load_table(None)).tables["collectives"].to_pylist()
    flying = union([(row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in rows])
    return total_ns(flying), sum(row["exposed_ns"] for row in rows)


def theirs(path: Path, unit_ns: int = 1, *, default: bool = False) -> float:
    """HTA's overlap in per cent, rounded to two digits by it; fed by our reader."""
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    (file,) = find([str(path)])
    with quiet():
        trace = trace_of({0: read_events(file)}, unit_ns)
        if default:
            trace.align_and_filter_trace(False)
        table = CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)
    return float(table["comp_comm_overlap_pctg"][0])


@pytest.mark.parametrize("name", [*NVIDIA, AMD])
def test_the_overlap_is_the_same_to_the_last_digit_hta_gives(real_traces: Path, name: str) -> None:
    flying_ns, exposed_ns = ours(real_traces / name)
    assert round(100 * (1 - exposed_ns / flying_ns), 2) == pytest.approx(
        theirs(real_traces / name), abs=0.0051
    )


def test_every_rank_of_a_job_agrees(real_traces: Path) -> None:
    found = sorted((real_traces / "param_dlrm_v100_8ranks").iterdir())
    assert len(found) == 8
    for path in found:
        flying_ns, exposed_ns = ours(path)
        assert 100 * (1 - exposed_ns / flying_ns) == pytest.approx(theirs(path), abs=0.0051)


def test_htas_default_leaves_out_the_last_step(real_traces: Path) -> None:
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    path = real_traces / NCCL_DATA
    with quiet():
        table = CommunicationAnalysis.get_comm_comp_overlap(
            parsed_by_hta(path, last_step=False), visualize=False
        )
    default = float(table["comp_comm_overlap_pctg"][0])
    assert theirs(path, 1000, default=True) == default
    # The last step hides more than the ones before it.
    assert theirs(path, 1000) > default + 0.5


def test_rounding_to_microseconds_moves_the_figure_a_little(real_traces: Path) -> None:
    path = real_traces / NCCL_DATA
    assert 0 < abs(theirs(path, 1000) - theirs(path)) < 0.5


def test_symmetric_memory_kernels_are_communication_to_us_only(real_traces: Path) -> None:
    from hta.utils.utils import is_comm_kernel

    (file,) = find([str(real_traces / B200)])
    rows = rank_ledger(read_trace(file), load_table(None)).tables["collectives"].to_pylist()
    kernels = {row["kernel"] for row in rows}
    unknown_to_hta = {name for name in kernels if not is_comm_kernel(name)}
    assert unknown_to_hta
    assert kernels - unknown_to_hta
    assert sum(row["duration_ns"] for row in rows if row["kernel"] in unknown_to_hta) > 0
