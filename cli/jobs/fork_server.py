"""A process that has imported what ranks need and forks them: a rank starts in milliseconds.

It runs no operator, opens no group and starts no thread. Each rank is therefore a copy of an interpreter that
has only imported. Libraries may start threads as they are imported. Then a fork is not safe, and each rank
gets an interpreter of its own. This takes seconds: the limit begins once they have imported. Requests and
answers are lines of JSON on its standard input and output. Ranks die with it, and it dies when its input
ends, that is with the one who started it.

A request has `ranks`, each with its `task` (module, function, arguments), `environment` and `log`. It also
has `limit_s`, and `end_together`: whether the failure of one rank ends the others. The answer: their exit
codes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

PRELOADED: Final = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.profiler",
    "pyarrow.parquet",
    "shardtoll.analyzers",
    "shardtoll.profiler.live.session.session",
    "shardtoll.profiler.live.gradients.gradients",
)
LATE: Final = -256
"""In place of an exit code: the rank did not finish in time."""

START_LIMIT_S: Final = 120.0
"""Time limit for an interpreter to import the modules that ranks need."""

_ALONE: Final = "--alone"
"""In front of a rank's task, as JSON: this interpreter is that rank's own."""
_NO_FORK: Final = (
    "shardtoll: a library started a thread as it was imported, so ranks are not forked: "
    "each imports torch itself, which takes longer"
)
_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.01


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _rank(rank: Mapping[str, Any]) -> NoReturn:
    """Become a rank in the forked child: its environment, its log, its work."""
    try:
        log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(rank["environment"])
        import numpy as np

        # Python's own generator reseeds itself after a fork, numpy's does not.
        np.random.seed()
    except BaseException:  # noqa: BLE001 - a forked child must never return into the server's loop
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    _work(rank["task"])


def _work(task: Sequence[Any]) -> NoReturn:
    """Do a rank's work in its own process, and end that."""
    code = 1
    try:
        module, function, arguments = task
        getattr(importlib.import_module(module), function)(*arguments)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - a forked child must never return into the server's loop
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Gloo's threads sometimes abort an interpreter that shuts down.
        os._exit(code)


def _forked(rank: Mapping[str, Any], mine: int) -> int:
    """Return the process of a rank that is a copy of this one."""
    child = os.fork()
    if child == 0:
        _die_with_parent(mine)
        _rank(rank)
    return child


def _spawned(rank: Mapping[str, Any], mine: int, imports: Sequence[str], begun: int) -> int:
    """Return the process of a rank with an interpreter of its own, which closes `begun` once it has imported.

    Others may read a process's arguments: its environment, which may hold secrets, is none of them. The
    server's own input and output are for who asks.
    """
    word = json.dumps({"task": rank["task"], "parent": mine, "imports": imports, "begun": begun})
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "shardtoll.cli.jobs.fork_server", _ALONE, word],
        rank["environment"],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _all_spawned(ranks: Sequence[Mapping[str, Any]], mine: int, imports: Sequence[str]) -> list[int]:
    """Return the processes of ranks with interpreters of their own, once all have imported, or ended."""
    ready, begun = os.pipe()
    try:
        os.set_inheritable(begun, True)
        started = [_spawned(rank, mine, imports, begun) for rank in ranks]
        os.close(begun)
        # It ends when the last of them has closed it; the end of the input is for `_wait`.
        select.select([ready, 0], [], [], START_LIMIT_S)
    finally:
        os.close(ready)
    return started


def _alone(word: str) -> NoReturn:
    """Be a rank in an interpreter of its own."""
    asked = json.loads(word)
    _die_with_parent(asked["parent"])
    # Not for the processes that this one starts.
    os.set_inheritable(asked["begun"], False)
    for name in asked["imports"]:
        importlib.import_module(name)
    os.close(asked["begun"])
    _work(asked["task"])


def _wait(ranks: Sequence[int], limit_s: float, end_together: bool) -> list[int]:
    """Return the ranks' exit codes; the limit or the end of the input ends all, and so may one failure."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < len(ranks):
        # Nothing is sent before the answer: readable means that the other end is closed.
        gone = bool(select.select([0], [], [], _POLL_S)[0])
        late = time.monotonic() > deadline
        failed = end_together and any(code != 0 for code in codes.values())
        ended = gone or late or failed
        for rank in ranks:
            if rank in codes:
                continue
            if ended:
                os.kill(rank, signal.SIGKILL)
            done, status = os.waitpid(rank, 0 if ended else os.WNOHANG)
            if done:
                killed = ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                codes[rank] = LATE if killed and late else 0 if killed else os.waitstatus_to_exitcode(status)
    return [codes[rank] for rank in ranks]


def main() -> None:
    """Import, also the modules in the arguments, say so, then serve requests until the input ends."""
    if sys.argv[1:2] == [_ALONE]:
        _alone(sys.argv[2])
    imports = (*PRELOADED, *sys.argv[1:])
    for name in imports:
        importlib.import_module(name)
    # A collection in a child would touch every object and copy its page: a sixth of a second in mid-step.
    gc.collect()
    gc.freeze()
    mine, said = os.getpid(), False
    os.write(1, b"[]\n")
    for line in sys.stdin:
        request = json.loads(line)
        safe = sys.platform != "linux" or len(os.listdir("/proc/self/task")) == 1
        if not safe and not said:
            said = True
            sys.stderr.write(f"{_NO_FORK}\n")
            sys.stderr.flush()
        asked = request["ranks"]
        ranks = [_forked(rank, mine) for rank in asked] if safe else _all_spawned(asked, mine, imports)
        codes = _wait(ranks, request["limit_s"], request["end_together"])
        # Who asked may be gone: then the input has ended too, and so does the loop.
        with contextlib.suppress(BrokenPipeError):
            os.write(1, (json.dumps(codes) + "\n").encode())


if __name__ == "__main__":
    main()
