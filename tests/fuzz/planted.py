"""A seam that is broken on purpose: each of its inputs fails in another way, and the engine must count it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from shardtoll.ledger.records.errors import UsageError
from tests.fuzz.child import Place
from tests.fuzz.seams import Attack


def planted() -> Attack:
    """Inputs 0 to 7: read, refused, a traceback, two lines, a crash, a hang, too much memory, read."""

    def attack(chance: random.Random, folder: Path) -> None:
        index, _ = Place(folder.parent / "place").read()
        if index == 1:
            raise UsageError("a mistake", "mend it")
        if index == 2:
            raise KeyError("nobody thought of it")
        if index == 3:
            error = UsageError("short", "enough")
            error.message = "two\nlines"
            raise error
        if index == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index == 5:
            time.sleep(600)
        if index == 6:
            bytearray(1200 << 20)

    return attack
