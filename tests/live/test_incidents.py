"""The scoreboard on real ranks: each incident found at its size, its twin silent, clean programs clean."""

from __future__ import annotations

import calendar
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtoll.cli.incidents import scoreboard
from shardtoll.cli.incidents.demo_incidents import chosen, verdict_of
from shardtoll.cli.incidents.verdict import Verdict, is_weighed, total
from shardtoll.cli.jobs.forked import Forked
from shardtoll.cli.jobs.ranks import JobError
from shardtoll.ledger import KINDS, UsageError
from shardtoll.samples.incidents import CLEAN, NAMES
from tests.live import warm

pytestmark = [pytest.mark.live, pytest.mark.timeout(280)]

TRIES = 3
"""For what is told by times: another program on this machine may take them."""

TIMED = ("latency-bound", "exposed-communication", "serialized-collectives", "straggler", "recompute")
"""Kinds, beside those of the schedule, that times decide."""

_ran: dict[str, Verdict] = {}


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    with Forked(tmp_path_factory.mktemp("server") / "ranks.log") as server:
        yield server


def by_time(verdict: Verdict) -> bool:
    """Whether what is wrong may be so because of times, which other programs on this machine change."""
    if verdict.failed is not None:
        return "in time" in verdict.failed
    kinds = {missing.expected.kind for missing in verdict.missing if missing.expected.toll_ns is None}
    kinds |= {expected.kind for expected, _ in verdict.still} | {
        alarm.finding.kind for alarm in verdict.alarms
    }
    return all(KINDS[kind] == "schedule" or kind in TIMED for kind in kinds)


def judged(name: str, forked: Forked, folder: Path) -> Verdict:
    """The verdict, for the first time it is asked for; what is wrong by time alone is run again."""
    if name not in _ran:
        for number in range(TRIES):
            verdict = verdict_of(name, forked, folder / str(number))
            if verdict.good or not by_time(verdict):
                break
        _ran[name] = verdict
    return _ran[name]


@pytest.mark.parametrize("name", NAMES)
def test_an_incident_is_found_at_its_place_and_size_and_its_twin_is_silent(
    name: str, forked: Forked, tmp_path: Path
) -> None:
    verdict = judged(name, forked, tmp_path)
    assert verdict.good, scoreboard.problems(verdict)
    assert verdict.wanted.name == name
    assert verdict.wanted.expected or verdict.wanted.proven or name == "dit_partial", "expects nothing"
    assert len(verdict.found) == len(verdict.wanted.expected)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_program_has_no_finding_that_says_something_is_wrong_or_avoidable(
    name: str, forked: Forked, tmp_path: Path
) -> None:
    verdict = judged(name, forked, tmp_path)
    assert verdict.good, scoreboard.problems(verdict)
    assert not verdict.wanted.expected
    assert not [proven for proven in verdict.wanted.proven if KINDS[proven.kind] == "correctness"]


def test_recall_and_precision_are_one_over_all_that_ran() -> None:
    # Runs last: tests of one file keep their order.
    score = total(list(_ran.values()))
    if score.expected == 0:
        pytest.skip("no incident was run in this session")
    assert (score.recall, score.precision) == (1.0, 1.0), scoreboard.summary(score)


def command(*arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-c", "from shardtoll.cli import main; main()", *arguments]


def test_the_example_of_the_help(tmp_path: Path) -> None:
    help_text = subprocess.run(command("demo", "--help"), capture_output=True, text=True, check=True).stdout
    (example,) = [line.strip() for line in help_text.splitlines() if "shardtoll demo --incidents" in line]
    ran = subprocess.run(
        command(*shlex.split(example)[1:], "--width", "160"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads((tmp_path / "scoreboard.json").read_text())
    assert (told["recall"], told["precision"], told["failed"]) == (1.0, 1.0, 0)
    for incident in told["incidents"]:
        assert incident["name"] in ran.stdout
        assert (tmp_path / "out" / "incidents" / incident["name"]).is_dir()
    assert "recall 1.000" in ran.stdout


def test_ctrl_c_prints_what_was_run_until_then(tmp_path: Path) -> None:
    names = "clean_ddp,clean_fsdp2,clean_tensor_parallel,clean_two_d"
    arguments = ("demo", "--incidents", "--only", names, "--out", str(tmp_path), "--width", "160")
    process = subprocess.Popen(
        command(*arguments, python=warm.python()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The second program has begun: the first is judged.
    deadline = time.monotonic() + 120
    while not (tmp_path / "clean_fsdp2").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "clean_ddp" in printed
    assert "clean_two_d" not in printed
    assert "incidents were not run" in errors.splitlines()[-1]


def test_a_rank_that_fails_is_told_in_one_line_with_the_place_of_its_output(
    forked: Forked, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(JobError) as failed:
        forked.run(("builtins", "int", ["no number"]), [{}, {}], limit_s=30, log=log)
    assert str(failed.value).count("\n") == 0
    # Both fail, and either may be the first.
    assert re.search("^rank [01] ended with exit code 1", failed.value.message)
    assert str(log) in (failed.value.hint or "")
    assert "invalid literal for int()" in log.read_text()


def test_a_rank_that_hangs_is_ended_and_the_next_job_runs(forked: Forked, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(JobError, match="rank 0 did not finish in time"):
        forked.run(("time", "sleep", [100]), [{}, {}], limit_s=0.5, log=tmp_path / "late.log")
    assert time.monotonic() - begun < 30
    forked.run(("time", "sleep", [0]), [{}, {}], limit_s=30, log=tmp_path / "next.log")


def test_a_module_runs_as_main_with_its_arguments(forked: Forked, tmp_path: Path) -> None:
    log = tmp_path / "module.log"
    forked.run_module("calendar", ["2026", "1"], ranks=2, limit_s=30, log=log)
    shown = calendar.TextCalendar().formatmonth(2026, 1).rstrip()
    assert log.read_text().rstrip() == f"--- rank 0\n{shown}\n--- rank 1\n{shown}"
    with pytest.raises(JobError, match="rank 0 ended with exit code 2"):
        forked.run_module("calendar", ["--no-such-option"], ranks=1, limit_s=30, log=log)
    assert "calendar.py: error" in log.read_text()


def test_ranks_get_their_own_variables(forked: Forked, tmp_path: Path) -> None:
    out = tmp_path / "variables"
    program = f"import os; open({str(out)!r} + os.environ['RANK'], 'w').write(os.environ['GROUP_RANK'])"
    forked.run(
        ("builtins", "exec", [program]),
        [{"GROUP_RANK": "5"}, {"GROUP_RANK": "6"}],
        limit_s=30,
        log=tmp_path / "log",
    )
    assert [(tmp_path / f"variables{rank}").read_text() for rank in (0, 1)] == ["5", "6"]


def test_an_incident_that_does_not_run_is_a_miss_that_says_where_to_look(
    forked: Forked, tmp_path: Path
) -> None:
    verdict = verdict_of("no_such_incident", forked, tmp_path)
    assert verdict.failed is not None
    assert "its output is in" in verdict.failed
    assert "ModuleNotFoundError" in (tmp_path / "no_such_incident" / "description.log").read_text()
    assert not total([verdict]).perfect


def test_names_may_be_given_with_commas_and_hyphens() -> None:
    assert chosen(["clean-ddp,fp32_reduce"]) == ["fp32_reduce", "clean_ddp"]
    assert chosen([]) == [*NAMES, *CLEAN]
    with pytest.raises(UsageError, match="there is no incident nothing"):
        chosen(["nothing"])


def test_every_kind_that_an_incident_expects_is_weighed_or_of_times() -> None:
    if not _ran:
        pytest.skip("no incident was run in this session")
    for verdict in _ran.values():
        for _, finding in verdict.found:
            assert is_weighed(finding) or KINDS[finding.kind] in ("schedule", "communication", "compute")
