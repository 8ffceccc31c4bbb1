"""In which number format matrix products ran, by module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep

NARROW: Final = {"bf16": "bfloat16", "f16": "float16"}
"""As `Compute.shapes` writes a format -> as collectives' `dtype` does."""

MOSTLY: Final = 0.9
"""Share of the FLOPs that must run in one format for it to be the format of a place. A rotary table or a
head that is kept in fp32 on purpose does not change in what the model computes."""

_OPERAND: Final = re.compile(r"([a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")


class Formats(Struct, frozen=True):
    """FLOPs of each module and format, over all ranks and surveyed steps."""

    table: pd.DataFrame
    """Columns module (None if unknown), format (as in `NARROW`, None for others and mixtures), flops."""
    least_product: int | None
    """Elements of the smallest matrix product of backward; None if no size is known."""

    def of_modules(self, names: Iterable[str]) -> str | None:
        """Return the narrow format in which these modules computed, as `bfloat16`.

        None if they computed in another format, in several or not at all.
        """
        return _narrow(keep(self.table, self.table["module"].isin(set(names))))

    def below(self, module: str) -> str | None:
        """The same for a module and all inside it; the empty string is the whole model."""
        if not module:
            return _narrow(self.table)
        modules = self.table["module"]
        return _narrow(keep(self.table, (modules == module) | modules.str.startswith(f"{module}.")))


def _narrow(rows: pd.DataFrame) -> str | None:
    by_format = rows.groupby("format", dropna=False)["flops"].sum()
    whole = float(by_format.sum())
    for short, name in NARROW.items():
        if whole and float(by_format.get(short, 0)) >= MOSTLY * whole:
            return name
    return None


@once
def formats(context: Context) -> Formats:
    """Return in which formats the operators of the surveyed steps computed."""
    frame = context.computes_in_steps
    # Each text once: a run has millions of operators and some dozens of shapes.
    places, different = pd.factorize(frame["shapes"])
    operands = [_OPERAND.findall(str(text)) for text in different]
    format_of = np.array([_format(texts) for texts in operands], dtype=object)
    rows = pd.DataFrame(
        {
            "module": frame["module"].to_numpy(),
            "format": format_of[places] if len(format_of) else np.empty(0, dtype=object),
            "flops": frame["flops"].to_numpy(dtype=np.float64),
        }
    )
    table = rows.groupby(["module", "format"], dropna=False, sort=False)["flops"].sum().reset_index()
    backward = np.unique(places[(frame["phase"] == "backward").to_numpy(dtype=bool)])
    # An expert that no token was meant for multiplies nothing.
    sizes = [size for place in backward if (size := _product(operands[place]))]
    table["module"] = table["module"].astype("string")
    return Formats(table, min(sizes, default=None))


def _format(operands: list[tuple[str, str]]) -> str | None:
    """Return the format that all operands have, if it is a narrow one."""
    formats = {name for name, _ in operands}
    return next(iter(formats)) if len(formats) == 1 and formats <= NARROW.keys() else None


def _product(operands: list[tuple[str, str]]) -> int | None:
    """Return the elements of the product of the last two operands; None if they are not matrices."""
    if len(operands) < 2:
        return None
    left, right = ([int(part) for part in dims.split(",") if part] for _, dims in operands[-2:])
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
        return None
    elements = right[-1]
    for part in left[:-1]:
        elements *= part
    return elements


def result_elements(shapes: str) -> int | None:
    """Return the elements of an operator's result: a product's, or else as many as its first operand has."""
    operands = _OPERAND.findall(shapes)
    product = _product(operands)
    if product is not None or not operands:
        return product
    return math.prod(int(part) for part in operands[0][1].split(",") if part)
