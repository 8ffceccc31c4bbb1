"""The dependency graph of a step over all ranks, and its replay with other times.

It may import `analyzers.context`, `analyzers.shared`.
Start reading in `graph`.
"""
