"""This imports what a report takes: what is forked from a process that has it starts with it."""

from __future__ import annotations

import sys
from importlib import import_module

from shardtoll.analyzers.analyses import ANALYSES
from shardtoll.profiler.live.capture import compiler
from tests import leftovers

for _analysis in ANALYSES:
    import_module(f"shardtoll.analyzers.findings.{_analysis.module}")

# Every rank looks for our functions as its first session opens: half of what marking them takes.
for _name, _module in list(sys.modules.items()):
    if _name.startswith(compiler._OURS):
        compiler._known_codes(_name, _module)

# Every rank is held to what it finds as it begins.
leftovers.look_ahead()
