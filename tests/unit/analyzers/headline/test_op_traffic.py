"""What a step sends by operation and group, and which checks ran and found nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from shardtoll.analyzers import run
from shardtoll.ledger import Count, Group, Notice, Report, Value
from shardtoll.ledger.answers.traffic import SoundCheck
from tests.unit.analyzers.ledgers import MS, collective, ledger, run_of, step

STEPS = [step(number, rank) for number in (0, 1) for rank in (0, 1)]


def sent(number: int | None, rank: int, **given: Any) -> Any:
    return collective(step=number, rank=rank, **given)


def test_each_operation_and_group_has_its_calls_bytes_and_times_per_step() -> None:
    rows = [
        sent(number, rank, seq=10 * number + seq, message_bytes=1000 * (seq + 1), exposed_ns=(rank + 1) * MS)
        for number in (0, 1)
        for rank in (0, 1)
        for seq in range(3)
    ]
    rows += [sent(0, rank, op="all_gather", group="tp", mesh_dim="tp", exposed_ns=0) for rank in (0, 1)]
    rows += [sent(None, 0, seq=99, op="broadcast")]
    reduces, gathers = run(ledger(rows, steps=STEPS)).traffic
    assert (reduces.op, reduces.group, reduces.mesh_dim, reduces.group_size) == ("all_reduce", "pg", None, 2)
    assert (reduces.calls, reduces.message_bytes) == (3.0, 6000)
    assert reduces.exposed_ns == 6 * MS, "on rank 1"
    assert reduces.wire_bytes == 6000, "of two ranks a ring sends each byte once"
    assert (gathers.op, gathers.mesh_dim, gathers.calls) == ("all_gather", "tp", 0.5)
    assert gathers.message_bytes == (1 << 20) // 2


def test_exposed_time_is_that_of_watched_steps_where_they_know_it() -> None:
    levels = ["survey", "watch", "watch"]
    steps = [step(number, rank, level=levels[number]) for number in range(3) for rank in (0, 1)]
    rows = [
        sent(number, rank, seq=number, message_bytes=1000, exposed_ns=(9 if number == 0 else 1) * MS)
        for number in range(3)
        for rank in (0, 1)
    ]
    (row,) = run(ledger(rows, steps=steps)).traffic
    assert (row.calls, row.message_bytes, row.exposed_ns) == (1.0, 1000, 1 * MS)
    untold = [replace(each, exposed_ns=None) if each.step else each for each in rows]
    assert run(ledger(untold, steps=steps)).traffic[0].exposed_ns == 9 * MS
    # What watched steps do not issue is exposed for no time there.
    once = [replace(each, op="broadcast", seq=9) for each in rows if each.step == 0]
    assert {each.op: each.exposed_ns for each in run(ledger([*rows, *once], steps=steps)).traffic} == {
        "all_reduce": 1 * MS, "broadcast": 0
    }  # fmt: skip


def test_groups_of_one_mesh_dimension_are_one_row_without_a_name() -> None:
    groups = (Group("a", (0, 1), "tp"), Group("b", (2, 3), "tp"))
    rows = [sent(0, rank, group=group.name, mesh_dim="tp") for group in groups for rank in group.ranks]
    steps = [step(0, rank) for rank in range(4)]
    (row,) = run(ledger(rows, steps=steps, groups=groups, run=run_of(4))).traffic
    assert (row.group, row.mesh_dim, row.calls) == (None, "tp", 1.0)


def test_what_is_unknown_stays_unknown_and_a_report_reads_back() -> None:
    rows = [sent(0, rank, message_bytes=None, wire_bytes=None, exposed_ns=None) for rank in (0, 1)]
    report = run(ledger(rows, steps=STEPS))
    (row,) = report.traffic
    assert (row.message_bytes, row.wire_bytes, row.exposed_ns) == (None, None, None)
    again = Report.from_json(report.to_json())
    assert (again.traffic, again.sound_checks) == (report.traffic, report.sound_checks)
    assert run(ledger([], steps=STEPS)).traffic == ()


def counts(recorded: int) -> list[Count]:
    return [
        Count(step=0, rank=rank, group=group, issued=4, recorded=recorded if group == "b" else 4)
        for rank in (0, 1)
        for group in ("a", "b")
    ]


def test_groups_whose_own_count_agrees_are_a_check_that_found_nothing() -> None:
    assert run(ledger(steps=STEPS, counts=counts(4))).sound_checks == (SoundCheck("completeness", groups=2),)
    assert run(ledger(steps=STEPS, counts=counts(3))).sound_checks == ()
    assert run(ledger(steps=STEPS)).sound_checks == ()


def gradient(number: int, rank: int, fingerprint: int, size: float = 4.0) -> Value:
    sketch = {f"sketch_{place}": size**0.5 for place in range(8)}
    return Value(
        step=number,
        rank=rank,
        kind="gradient",
        name="w",
        nth=0,
        dtype="float32",
        shape="[64, 64]",
        placements="(Replicate(),)",
        mesh_dims="dp",
        numel=4096,
        hash=fingerprint,
        constant=False,
        square=size,
        **sketch,
    )


def test_gradients_that_were_compared_and_are_equal_are_told_with_their_steps() -> None:
    groups, about = (Group("dp", (0, 1), "dp"),), run_of(2, mesh={"dp": 2})
    given: dict[str, Any] = {"steps": STEPS, "groups": groups, "run": about}
    equal = [gradient(number, rank, 5) for number in (0, 1) for rank in (0, 1)]
    assert run(ledger(values=equal, **given)).sound_checks == (SoundCheck("gradients", (0, 1)),)
    one_rank = [gradient(number, 0, 5) for number in (0, 1)]
    assert run(ledger(values=one_rank, **given)).sound_checks == (), "nothing to compare it with"
    apart = [gradient(number, rank, 5 + rank, 4.0 + 90 * rank) for number in (0, 1) for rank in (0, 1)]
    wrong = run(ledger(values=apart, **given))
    assert "wrong-gradient" in {finding.kind for finding in wrong.findings}
    assert wrong.sound_checks == ()


def shard(name: str, rank: int, fingerprint: int) -> Value:
    made = gradient(0, rank, fingerprint)
    return replace(made, kind="shard", step=None, name=name, placements="(Shard(dim=0),)", mesh_dims="tp")


def test_shards_that_began_identical_speak_against_no_check() -> None:
    groups = (Group("dp", (0, 1), "dp"), Group("tp", (0, 1), "tp"))
    given: dict[str, Any] = {"steps": STEPS, "groups": groups, "run": run_of(2, mesh={"dp": 2, "tp": 2})}
    equal = [gradient(number, rank, 5) for number in (0, 1) for rank in (0, 1)]
    notices = [Notice(0, "gradients-checked", "gradients checked: all right")]
    shards = [shard("w", rank, 7) for rank in (0, 1)]
    report = run(ledger(values=[*equal, *shards], notices=notices, **given))
    assert "identical-shards" in {finding.kind for finding in report.findings}
    assert report.sound_checks == (SoundCheck("reference"), SoundCheck("gradients", (0, 1)))


@pytest.mark.parametrize("kind", ["shard", "loss"])
def test_what_is_taken_without_a_check_is_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shardtoll.analyzers.headline.value_checks", None)
    values = [replace(shard("w", rank, 7 + rank), kind=kind) for rank in (0, 1)]
    assert run(ledger(values=values, steps=STEPS)).sound_checks == ()


def test_a_check_against_a_reference_is_told() -> None:
    notices = [Notice(0, "gradients-checked", "gradients checked: all right")]
    assert run(ledger(steps=STEPS, notices=notices)).sound_checks == (SoundCheck("reference"),)
