"""`shardtoll serve`: it prints its link, answers, ends quietly, and says in one line why it cannot start."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shardtoll.cli.inputs import serve_source
from shardtoll.dashboards.app import server
from tests import small_traces
from tests.unit.cli.conftest import write_run
from tests.unit.cli.test_help import RUN, examples


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve on a free port of loopback, and get Ctrl-C at once."""
    listen = server.listen

    def interrupted(self: object, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "listen", lambda host, port: listen("127.0.0.1", 0))
    # A first look that is still under way ends the process at once, which here runs the tests.
    monkeypatch.setattr(serve_source, "CLOSE_S", 60.0)
    monkeypatch.setattr("werkzeug.serving.BaseWSGIServer.serve_forever", interrupted)


def test_every_example_of_the_help_runs(
    shardtoll, run_folder: Path, at_once, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run_folder.parent.parent)
    write_run(Path("runs/b"))
    small_traces.write_job(Path("traces"))
    found = examples("serve")
    assert len(found) >= 3
    for example in found:
        ran = shardtoll(*shlex.split(example)[1:])
        assert ran.code == 0, example
        link = re.search(r"http://\S+:\d+/(\?token=[\w-]{43})?", ran.out)
        assert link is not None
        guarded = "--host" in example or "--token" in example
        assert (link.group(1) is not None, "whoever has this link" in ran.err) == (guarded, guarded)


def test_a_port_in_use_is_told_in_one_line(shardtoll, run_folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = shardtoll("serve", run_folder, "--port", port)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ran.err
    assert "--port 0" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["runs/a", "--host", "no such host"], "cannot listen on no such host"),
        (["runs/a", "--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1"),
        (["runs/a", "--port", "70000"], "--port"),
        (["runs/a", "--fabric", "nonsense"], "nonsense"),
        ([], "PATH"),
    ],
)
def test_what_cannot_be_served_exits_2(
    shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
):
    monkeypatch.chdir(run_folder.parent.parent)
    ran = shardtoll("serve", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_file_that_cannot_be_read_ends_the_start_in_one_line(shardtoll, at_once, tmp_path: Path):
    (tmp_path / "half.json").write_text('{"schema_version": 1, "run"')
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "notes.json").write_text('{"a": 1')
    for served, name in ((tmp_path / "half.json", "half.json"), (tmp_path / "traces", "notes.json")):
        ran = shardtoll("serve", served, "--port", "0")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert name in ran.err


def test_of_a_folder_of_runs_other_json_files_are_left_out_with_a_notice(
    shardtoll, run_folder: Path, at_once
):
    (run_folder.parent / "notes.json").write_text("[1, 2")
    ran = shardtoll("serve", run_folder.parent)
    assert ran.code == 0
    folder = run_folder.parent
    assert ran.err == f"{folder}: 1 run and report; notes.json is left out, as no saved report\n"
    # What `shardtoll calibrate` and `demo` leave beside runs is ours, and no news.
    (folder / "notes.json").rename(folder / "calibration.json")
    assert shardtoll("serve", folder).err == ""


def test_without_dash_it_says_what_to_install(shardtoll, run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = shardtoll("serve", str(run_folder))
    assert (ran.code, ran.err) == (
        2,
        "shardtoll: shardtoll serve needs Dash, which is not installed: pip install 'shardtoll[serve]'\n",
    )


def test_it_answers_until_ctrl_c_and_ends_quietly(run_folder: Path):
    with subprocess.Popen(
        [sys.executable, "-c", f"{RUN}main()", "serve", str(run_folder), "--port", "0", "--token"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            link = line.split()[1]
            with urllib.request.urlopen(link, timeout=20) as answer:
                cookie = answer.headers["Set-Cookie"]
            address = link.partition("?")[0]
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, timeout=20)
            assert refused.value.code == 403
            refused.value.close()
            asked = urllib.request.Request(address, headers={"Cookie": cookie.partition(";")[0]})
            with urllib.request.urlopen(asked, timeout=20) as answer:
                assert b"_dash-config" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert (out, "Traceback" in err, err.count("\n")) == ("", False, 1)
