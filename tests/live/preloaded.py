"""This imports what a report takes: what is forked from a process that has it starts with it."""

from __future__ import annotations

from importlib import import_module

from shardtoll.analyzers.analyses import ANALYSES

for _analysis in ANALYSES:
    import_module(f"shardtoll.analyzers.findings.{_analysis.module}")
