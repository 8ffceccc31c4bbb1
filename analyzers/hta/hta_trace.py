"""HTA's `Trace` made from our events instead of from a file, and HTA kept quiet.

Events come as a table with a row for every event that has a duration. Columns: `index`, `cat`, `name`, `pid`,
`tid`, `ts_ns`, `dur_ns`, `stream`, `correlation`, `external_id`; -1 or null if unknown. `wait_on_stream` and
`wait_on_cuda_event_record_corr_id` are taken where they are there.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pandas as pd

_SYNC: Final = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_NOWHERE: Final = "/nonexistent"
"""HTA's trace folder: it has no files to look for."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep HTA from printing, logging and warning; what it does to the root logger is undone."""
    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            for kind in (FutureWarning, DeprecationWarning, RuntimeWarning, UserWarning, Warning):
                warnings.filterwarnings("ignore", category=kind, module=r"hta(\..*)?$|pandas(\..*)?$")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers


def trace_of(ranks: Mapping[int, pa.Table], unit_ns: int) -> Any:
    """Return HTA's `Trace` of each rank's events, times in units of `unit_ns` from the first of all.

    As HTA does when it reads a trace of nanoseconds, times are rounded inwards: starts up, ends down.
    """
    from hta.common.trace import Trace, transform_correlation_to_index

    trace = Trace(trace_files={}, trace_dir=_NOWHERE)
    for rank, events in ranks.items():
        frame = _frame(events, trace.symbol_table, unit_ns)
        frame = transform_correlation_to_index(frame, trace.symbol_table)
        frame["iteration"] = _iterations(frame, trace.symbol_table.sym_table)
        trace.traces[rank] = frame
        trace.meta_data[rank] = {}
    trace.min_ts = min(int(frame["ts"].min()) for frame in trace.traces.values())
    for frame in trace.traces.values():
        frame["ts"] -= trace.min_ts
        frame["end"] -= trace.min_ts
    trace.is_parsed = True
    return trace


def _frame(events: pa.Table, symbols: Any, unit_ns: int) -> pd.DataFrame:
    import pandas as pd

    # The device's copies of annotations are no work, but HTA would take them for kernels and steps.
    copies = pc.fill_null(pc.equal(events.column("cat").cast(pa.string()), "gpu_user_annotation"), False)
    events = events.filter(pc.invert(copies))
    if events.num_rows == 0:
        raise ValueError("the trace has no events")
    start_ns = _numbers(events, "ts_ns")
    end_ns = start_ns + _numbers(events, "dur_ns")
    start, end = -(-start_ns // unit_ns), end_ns // unit_ns
    # HTA takes a linked event's number 0 for none.
    index = np.arange(1, events.num_rows + 1)
    columns = {
        "index": index,
        "cat": _encoded(events, "cat", symbols),
        "name": _encoded(events, "name", symbols),
        # HTA puts them into expressions that it evaluates: only numbers get there.
        "pid": _numbered(events, "pid"),
        "tid": _numbered(events, "tid"),
        "ts": start,
        "dur": end - start,
        "end": end,
        "stream": _numbers(events, "stream"),
        "correlation": _numbers(events, "correlation"),
        "external_id": _numbers(events, "external_id"),
    }
    for name in _SYNC:
        present = name in events.column_names
        columns[name] = _numbers(events, name) if present else np.full(events.num_rows, -1)
    frame: pd.DataFrame = pd.DataFrame(columns, index=index)
    return frame


def _numbers(events: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = pc.fill_null(events.column(name).cast(pa.int64()), -1)
    return np.array(column.to_numpy(), dtype=np.int64)


def _encoded(events: pa.Table, name: str, symbols: Any) -> npt.NDArray[np.int64]:
    column = events.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    texts = ["" if text is None else text for text in column.dictionary.to_pylist()]
    symbols.add_symbols([*texts, ""])
    codes = np.array([symbols.sym_index[text] for text in texts] + [symbols.sym_index[""]], dtype=np.int64)
    places = pc.fill_null(column.indices.cast(pa.int64()), len(texts)).to_numpy()
    encoded: npt.NDArray[np.int64] = codes[places]
    return encoded


def _numbered(events: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A number for each process or thread: its own if all are numbers, else one of ours."""
    column = events.column(name)
    if pa.types.is_integer(column.type):
        return _numbers(events, name)
    _, codes = np.unique(np.array(column.cast(pa.string()).to_pylist(), dtype=str), return_inverse=True)
    return codes.astype(np.int64)


def _iterations(frame: pd.DataFrame, names: list[str]) -> npt.NDArray[np.int64]:
    """The step of each event: of the host's the one it began in, of the device's the one that launched it."""
    start = frame["ts"].to_numpy()
    on_device = frame["stream"].to_numpy() != -1
    iterations = np.full(len(frame), -1, dtype=np.int64)
    steps = {code: _STEP.match(text) for code, text in enumerate(names)}
    numbers = {code: int(match.group(1)) for code, match in steps.items() if match is not None}
    for row in frame.loc[frame["name"].isin(list(numbers))].itertuples():
        iterations[~on_device & (start >= row.ts) & (start < row.end)] = numbers[row.name]
    linked = frame["index_correlation"].to_numpy()
    launched = on_device & (linked > 0)
    iterations[on_device] = -1
    iterations[launched] = iterations[linked[launched] - 1]
    return iterations
