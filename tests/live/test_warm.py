"""What is forked from the warm interpreter ends as a command's processes do, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live import warm

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the interpreter's own is taken there"),
]

LIMIT_S = 30.0
WITH_A_CHILD = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, os.getpgrp() == os.getpid(), flush=True)
if sys.argv[1] == "stays":
    time.sleep(600)
os._exit(3)
"""


@contextmanager
def started(how: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the program, with its child's number."""
    command = [warm.python(), "-c", WITH_A_CHILD, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as client:
        assert client.stdout is not None
        child, leads = client.stdout.readline().split()
        try:
            assert leads == b"True"
            yield client, int(child)
        finally:
            with contextlib.suppress(ProcessLookupError):
                client.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


def all_have_ended(client: subprocess.Popen[bytes]) -> bool:
    """Whether nobody holds the program's output any more, soon."""
    assert client.stdout is not None
    return bool(select.select([client.stdout], [], [], LIMIT_S)[0]) and client.stdout.read() == b""


def test_what_a_program_leaves_behind_ends_with_it() -> None:
    with started("ends") as (client, _):
        assert client.wait(LIMIT_S) == 3
        assert all_have_ended(client)


def test_what_a_program_has_started_ends_with_its_killed_client() -> None:
    with started("stays") as (client, child):
        os.kill(child, 0)
        client.kill()
        assert all_have_ended(client)


def test_many_that_are_killed_at_once_harm_no_later_program() -> None:
    command = [warm.python(), "-c", "import time; time.sleep(600)"]
    for delay_s in (0.0, 0.001, 0.005, 0.02):
        clients = [subprocess.Popen(command) for _ in range(4)]
        time.sleep(delay_s)
        for client in clients:
            client.kill()
            client.wait()
    done = subprocess.run(
        [warm.python(), "-c", "import sys; print(sys.executable)"], stdout=subprocess.PIPE, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout.decode().strip()) == (0, warm.python())
    assert warm.python() != sys.executable
