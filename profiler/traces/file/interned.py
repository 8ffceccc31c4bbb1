"""Texts as numbers, and which runtime calls and operators are worth a row."""

from __future__ import annotations

import re
from typing import Any, Final

from shardtoll.ledger.records.errors import TraceError

LONGEST_NAME: Final = 16 << 10
NAMES_LIMIT_BYTES: Final = 256 << 20
"""Distinct names of one file, all together; a damaged or hostile file ends here."""

_IDLE_CALL: Final = re.compile(
    r"Get[A-Z]|Query|Is[A-Z]|Occupancy|Event(Record|Create|Destroy)|Set(Attr|Device|Cache|Last)"
    r"|FuncSet|Peek|CtxSet|CtxPush|CtxPop|ModuleLoad|StreamCreate|StreamDestroy"
)
"""Calls that neither launch device work nor wait for it, nor let work wait."""

_TELLING_OP: Final = re.compile(
    r"^record_param_comms$|^autograd::|^aten::item$|^aten::_local_scalar_dense$|^c10d::|^_c10d_functional::"
    r"|[Cc]heckpoint|^Optimizer|Dataloader|DataLoader|^nccl:|^gloo:|^DistributedDataParallel|^FSDP"
)
"""Operators that say something of cause or phase on a trace with a device."""


class Names(dict[str, int]):
    """Text -> number in order of first use; texts that are too long are cut."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._bytes = 0

    def __missing__(self, text: str) -> int:
        if len(text) > LONGEST_NAME:
            return self[text[:LONGEST_NAME]]
        self._bytes += len(text) + 64
        if self._bytes > NAMES_LIMIT_BYTES:
            raise TraceError(
                f"{self._where} holds more than {NAMES_LIMIT_BYTES >> 20} MiB of different names",
                "this is no trace of a training job; leave it out",
            )
        number = self[text] = len(self)
        return number


class Numbers(dict[Any, int]):
    """Anything that can be a key -> number in order of first use."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Picked(dict[str, bool]):
    """Text -> whether it matters; each distinct text is looked at once."""

    def __init__(self, pattern: re.Pattern[str], wanted: bool) -> None:
        super().__init__()
        self._pattern = pattern
        self._found = wanted

    def __missing__(self, text: str) -> bool:
        answer = (self._pattern.search(text) is not None) is self._found
        if len(self) < 1_000_000:
            self[text] = answer
        return answer


def telling_ops() -> Picked:
    """Return the choice of operators on traces with a device."""
    return Picked(_TELLING_OP, True)


def working_calls() -> Picked:
    """Return the choice of runtime calls that launch device work or wait for it."""
    return Picked(_IDLE_CALL, False)
