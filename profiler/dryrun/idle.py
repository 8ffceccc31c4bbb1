"""A program's own audit in a dry run: it records nothing, for the dry run records the steps."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final

import torch
from torch import nn

from shardtoll.ledger import FabricInfo, Report, Run
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.profiler.live.session.schedule import SURVEY_EVERY, Schedule
from shardtoll.profiler.live.session.session import GATHER_LIMIT_S, Session

log = logging.getLogger("shardtoll")

NOTHING: Final = "A dry run measures nothing: the script's own audit recorded no step."


class IdleSession(Session):
    """Opens, steps and closes like a session; no folder is written and no report made."""

    def __init__(self) -> None:
        super().__init__(None, None, GATHER_LIMIT_S, 0, Schedule("watch", SURVEY_EVERY))

    def __enter__(self) -> Session:
        log.info("shardtoll: audit() records nothing in a dry run, which records the steps itself")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"

    def close(self) -> None:
        """Without effect."""

    def check_model(self, model: nn.Module, names: Sequence[str]) -> None:
        """Without effect: tensors of a dry run have no numbers to check."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Run the body: the optimizer's steps show where a dry step ends."""
        yield

    def begin_step(self) -> None:
        """Without effect."""

    def end_step(self, *, finished: bool = True) -> None:
        """Without effect."""

    def expect_steps(self) -> None:
        """Without effect."""

    def cancel_step(self) -> None:
        """Without effect."""

    def report(self) -> Report | None:
        """Return a report that holds nothing and says so, on rank 0 as ever: the dry run has its own.

        A script that shows or writes its report then does so, and goes on.
        """
        if int(os.environ.get("RANK", 0)):
            return None
        torch_version = str(torch.__version__)
        run = Run(
            world_size=1, backend=None, device=None, torch=torch_version, hosts=(), mesh={},
            source="live", ranks_seen=(0,),
        )  # fmt: skip
        fabric = FabricInfo("unknown", "a dry run measures nothing")
        return Report(run, fabric, (), empty_tables(), headline=NOTHING)
