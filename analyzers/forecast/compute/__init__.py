"""The cost of one operator on a GPU: matmuls and attention by measured grids, other operators by their bytes.

It may import `analyzers.roofline`, `ledger`.
Start reading in `operator`; `work` has the kinds of operators, `grid` the tables.
"""

from shardtoll.analyzers.forecast.compute.operator import Price, price_operator
from shardtoll.analyzers.forecast.compute.work import Attention, GroupedMatmul, Matmul, Streamed, Work

__all__ = ["Attention", "GroupedMatmul", "Matmul", "Price", "Streamed", "Work", "price_operator"]
