"""Columns that reports of earlier versions do not have and that their other columns show."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def with_unsplit(steps: pa.Table) -> pa.Table:
    """Return the steps with `exposed_unsplit_ns`, which an earlier version did not write.

    It is the exposed communication less waiting and moving; unknown if these are.
    """
    index = steps.schema.get_field_index("exposed_unsplit_ns")
    if not steps.num_rows or steps.column(index).null_count < steps.num_rows:
        return steps
    split = pc.add(steps.column("exposed_wait_ns"), steps.column("exposed_move_ns"))
    rest = pc.max_element_wise(pc.subtract(steps.column("exposed_comm_ns"), split), 0, skip_nulls=False)
    return steps.set_column(index, steps.schema.field(index), rest.cast(steps.schema.field(index).type))
