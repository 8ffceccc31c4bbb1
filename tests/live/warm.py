"""A Python command that starts in milliseconds: its process is forked from one that has imported torch.

`python()` is the path of a program that takes what `python` takes: `-u`, then `-m module`, `-c program` or a
script, and their arguments. It hands its arguments, environment, folder and standard streams to the server,
which forks; what runs then is a whole interpreter, ended as any other. Signals are passed on, and the exit
code comes back. What it leaves behind in its own group of processes ends with it: the caller's `killpg` would
not reach that. `sys.executable` in there is that program again, so ranks of torch's launcher are forked too.

For tests of what a command does, not of how it starts: torch is imported already, with one thread for its
operators.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shardtoll.cli.jobs.fork_server import PRELOADED, _die_with_parent

ROOT = Path(__file__).resolve().parents[2]
MORE = (
    "numpy",
    "pandas",
    "shardtoll.dashboards.terminal",
    "shardtoll.profiler.live.entry.script",
    "tests.live.preloaded",
    "torch.distributed.run",
    "typer",
)
CLIENT = """#!{executable} -IS
import array, json, os, signal, socket, struct, sys

child, early = 0, []

def forward(number, frame):
    if not child:
        early.append(number)
        return
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass

for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), forward)
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
words = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
streams = array.array("i", [0, 1, 2])
link.sendmsg([struct.pack("!I", len(words))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
link.sendall(words)
answers = link.makefile("rb")
child = int(answers.readline())
for number in early:
    forward(number, None)
code = int(answers.readline() or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def python() -> str:
    """Return the program's path; the interpreter's own where the system lacks what it takes to fork it."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = tempfile.mkdtemp(prefix="warm")
    path, client = Path(folder, "socket"), Path(folder, "python")
    client.write_text(CLIENT.format(executable=sys.executable, path=str(path)))
    client.chmod(client.stat().st_mode | stat.S_IXUSR)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.live.warm", str(path), str(client)],
        # Else importing pyarrow starts a thread of its allocator.
        env={
            **os.environ,
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )

    def close() -> None:
        server.kill()
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(close)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the warm interpreter died; see standard error"
    return str(client)


def serve(path: str, client: str) -> Callable[[], None]:
    """Fork for each request; return, in a child alone, what it shall run."""
    for name in (*PRELOADED, *MORE):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    mine = os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    children: dict[int, tuple[int, socket.socket]] = {}
    """By the file that tells of its end: the child and its client."""
    while True:
        clients = {link: child for child, link in children.values()}
        readable = select.select([0, listener, *children, *clients], [], [])[0]
        if 0 in readable:
            # Who started this has ended; the children die with this process.
            os._exit(0)
        for file in readable:
            if file in children:
                child, link = children.pop(file)
                os.close(file)
                # Nobody else knows the group of what it has left behind. Before it is reaped: while it is in
                # the table of processes, its number is no other's.
                _kill_group(child)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with link, contextlib.suppress(OSError):
                    link.sendall(f"{code}\n".encode())
                clients.pop(link)
        for file in readable:
            if file in clients:
                # The client was killed: what the child has started goes with it.
                _kill_group(clients[file])
        if listener in readable:
            link, _ = listener.accept()
            request, streams = _received(link)
            assert len(os.listdir("/proc/self/task")) == 1, "a thread runs: forking is not safe any more"
            child = os.fork()
            if child == 0:
                # In both, as shells do: whichever runs first, what it starts is in no group of the server's.
                os.setpgid(0, 0)
                _die_with_parent(mine)
                for other in (listener, link, *clients):
                    other.close()
                for file in children:
                    os.close(file)
                return _become(request, streams, client)
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(child, child)
            for stream in streams:
                os.close(stream)
            children[os.pidfd_open(child)] = (child, link)
            with contextlib.suppress(OSError):
                link.sendall(f"{child}\n".encode())


def _kill_group(child: int) -> None:
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _received(link: socket.socket) -> tuple[Any, list[int]]:
    head, rights, _, _ = link.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i")
    for _, _, data in rights:
        streams.frombytes(data)
    (size,) = struct.unpack("!I", head)
    with link.makefile("rb") as file:
        return json.loads(file.read(size)), list(streams)


def _become(request: Any, streams: list[int], client: str) -> Callable[[], None]:
    """Take over what the client had; return what `python` would run with its arguments."""
    words, folder, environment = request
    for stream, target in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = client
    import numpy as np

    # Python's own generator reseeds itself after a fork, numpy's does not.
    np.random.seed()
    unbuffered = words[0] == "-u"
    _open_streams(environment.get("PYTHONIOENCODING") or sys.stdout.encoding, unbuffered)
    del words[: int(unbuffered)]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.path[1:1] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        return lambda: runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    if words[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        return lambda: exec(compile(words[1], "<string>", "exec"), main.__dict__)
    assert not words[0].startswith("-"), f"not made for {words[0]}"
    sys.path[0], sys.argv = str(Path(words[0]).resolve().parent), words
    main.__file__ = words[0]
    code = compile(Path(words[0]).read_bytes(), words[0], "exec")
    return lambda: exec(code, main.__dict__)


def _open_streams(encoding: str, unbuffered: bool) -> None:
    """Open the standard streams as Python does: those of the server are made for its own files."""
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):
        number = 1 if name == "stdout" else 2
        stream = open(number, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(write_through=unbuffered, line_buffering=number == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    serve(*sys.argv[1:])()
