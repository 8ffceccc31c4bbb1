"""What compare says of made-up runs, where everything is known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from shardtoll.analyzers.compare.compare import Options, compare
from shardtoll.analyzers.compare.compare_words import finding_words
from shardtoll.analyzers.two_runs.pair import SLOWEST
from shardtoll.dashboards.compare.rows import sections
from shardtoll.ledger import DeviceOp, Finding, Report, Value, Where
from shardtoll.ledger.answers.comparison import Comparison, FindingChange, comparison_to_json, leading
from shardtoll.ledger.records.stall import Stall
from shardtoll.ledger.tables.tables import to_table
from tests.unit.analyzers.compare_runs import CALLS, MODULES, made, with_run
from tests.unit.analyzers.ledgers import MS
from tests.unit.analyzers.of_kinds import WHOLE

BEFORE = made(0)


def compared(after: Report, before: Report = BEFORE, **given: Any) -> Comparison:
    return compare(before, after, ("a", "b"), Options(**given))


def adds_up(found: Comparison) -> None:
    """The step is its parts, and its change is the causes and the rest."""
    for side in ("before", "after"):
        assert sum(getattr(part, side) for part in found.parts) == pytest.approx(getattr(found.step, side))
    assert found.step.difference is not None
    assert found.unexplained_ns is not None
    total = sum(cause.change_ns for cause in found.causes) + found.unexplained_ns
    assert total == pytest.approx(found.step.difference, abs=1e-3)


def test_the_same_program_twice_is_no_change_in_95_of_100_pairs():
    # Series with slow stretches, drift and spikes; two lengths, and one program on a noisier machine.
    said = []
    for spread, steps in ((0.015, 32), (0.06, 20)):
        runs = [made(100 + seed, spread=spread, steps=steps) for seed in range(11 if WHOLE else 5)]
        said += [compared(after, before).verdict for before, after in combinations(runs, 2)]
    assert len(said) == (110 if WHOLE else 20)
    assert set(said) <= {"no change", "changed"}
    assert said.count("no change") >= 0.95 * len(said)


def test_no_change_says_what_would_have_been_seen():
    found = compared(made(1))
    assert found.headline.startswith("no change beyond noise: a step takes ")
    assert found.step.least is not None
    assert found.step.least > max(abs(found.step.low or 0), abs(found.step.high or 0)) / 2
    assert "would have been seen" in found.headline
    adds_up(found)


@pytest.mark.parametrize("seed", range(1, 6))
def test_one_module_that_is_5_percent_slower_is_named(seed: int):
    after = made(seed, modules={**MODULES, "layers.1.mlp": 10.5})
    found = compared(after)
    assert found.verdict == "changed"
    assert [one.name for one in found.modules if one.time.changed] == ["layers.1.mlp"]
    (cause,) = found.causes
    assert cause.text.startswith("layers.1.mlp computes ")
    assert "% slower with the same work: +" in cause.text
    assert cause.change_ns == pytest.approx(0.5 * MS, rel=0.5)
    assert "layers.1.mlp computes" in found.headline
    adds_up(found)


def test_an_added_all_gather_is_named_with_its_line_calls_and_bytes():
    gather = {"op": "all_gather", "caused_by_op": None, "module": "head", "phase": "forward",
              "message_bytes": 1 << 21, "source": "train.py:42 (step)", "exposed_ns": 20 * MS}  # fmt: skip
    found = compared(made(2, calls=(*CALLS, gather, gather)))
    (site,) = [one for one in found.sites if one.what != "none"]
    assert (site.what, site.calls.difference, site.bytes.difference) == ("added", 2, 2 << 21)
    assert (
        "added all_gather in head at train.py:42 (step) (forward, world): +2 calls, +4.19 MB per step"
        in found.headline
    )
    (cause,) = found.causes
    assert cause.share == pytest.approx(1, abs=0.2)
    assert f"Together {100 * (cause.share or 0):.3g} % of the mean's change" in found.headline
    assert found.step.verdict == "more"
    adds_up(found)
    back = compared(BEFORE, made(2, calls=(*CALLS, gather, gather)))
    assert [one.what for one in back.sites if one.what != "none"] == ["removed"]
    assert back.step.verdict == "less"


def test_a_changed_dtype_is_named_though_its_line_moved():
    narrow = {**CALLS[2], "dtype": "bfloat16", "message_bytes": 1 << 21, "source": "train.py:34 (step)"}
    found = compared(made(3, calls=(*CALLS[:2], narrow)))
    (site,) = [one for one in found.sites if one.what != "none"]
    assert (site.what, site.dtypes) == ("dtype", ("float32", "bfloat16"))
    assert "float32 -> bfloat16 in reduce_scatter by FSDP.reduce" in found.headline
    assert site.calls.verdict == "no change"
    # A copy in another format may no longer tell whose it is.
    lost = {**narrow, "module": None, "caused_by_op": None}
    assert [one.what for one in compared(made(3, calls=(*CALLS[:2], lost))).sites].count("dtype") == 1


def test_another_size_and_another_number_of_calls():
    larger = tuple({**call, "message_bytes": 1 << 23} for call in CALLS[:2])
    found = compared(made(4, calls=(*larger, CALLS[2], CALLS[2])))
    assert [one.what for one in found.sites] == ["size", "count"]
    assert [one.calls.difference for one in found.sites] == [0, 1]
    assert "other size of all_reduce" in found.headline
    assert "more reduce_scatter" in found.headline


def test_computing_in_another_format_is_named():
    found = compared(made(5, shapes="bf16[64,32] bf16[32,32]"))
    assert found.verdict == "changed"
    assert all(one.formats == ("f32", "bf16") for one in found.modules)
    assert "embed computes in bf16, not in f32" in " ".join(cause.text for cause in found.causes)


def test_a_run_with_itself_is_no_change_and_the_same_bytes_twice():
    one, other = (json.dumps(comparison_to_json(compared(BEFORE))) for _ in range(2))
    assert one == other
    assert json.loads(one)["verdict"] == "no change"
    assert "both are the same recording" in compared(BEFORE).warnings


def test_a_busier_machine_is_no_change_of_the_program_on_a_cpu():
    found = compared(made(6, speed=1.3))
    assert found.verdict == "no change"
    assert found.machine is not None
    assert (found.machine.apart, found.machine.shared) == (True, True)
    assert found.machine.factor == pytest.approx(1.3, rel=0.05)
    assert "but the same operators took 1." in found.headline
    slower = compared(made(6, speed=1.3, modules={**MODULES, "head": 9}))
    assert [one.name for one in slower.modules if one.time.changed] == ["head"]
    adds_up(slower)


def test_the_same_of_a_device_of_its_own_is_a_change_with_one_cause():
    gpu = {"device": "NVIDIA H100 80GB HBM3"}
    found = compared(made(6, speed=1.3, **gpu), made(0, **gpu))
    assert found.verdict == "changed"
    assert "times as long in all modules: slower (clock, power" in found.headline
    assert [one.name for one in found.modules if one.time.changed] == []
    adds_up(found)


def test_too_few_steps_is_no_claim_but_what_is_exact_is_told():
    few = made(1, steps=6)
    assert compared(few).headline.startswith(
        "too few steps to tell times from noise (30 before, 5 after, 8 are"
    )
    assert {compared(few).step.verdict, *(part.verdict for part in compared(few).parts)} == {"too few steps"}
    found = compared(made(1, steps=6, calls=CALLS[:2]))
    assert found.verdict == "changed"
    assert "its step's time is within noise: removed reduce_scatter" in found.headline


def test_first_steps_are_left_out_and_said():
    found = compared(made(1))
    assert (found.before.left_out, found.before.timed_steps) == ((0, 1), 30)
    assert "steps 0 to 1 left out, to warm up" in found.notes[0]
    assert compared(made(1), warm_up=5).before.left_out == (0, 1, 2, 3, 4)
    assert compared(made(1), warm_up=0).before.timed_steps == 32


def test_watched_steps_are_compared_with_watched_ones_only():
    watched = [made(seed, level="watch") for seed in (1, 2)]
    found = compared(watched[1], watched[0])
    assert (found.verdict, found.before.level) == ("no change", "watched")
    assert [part.name for part in found.parts] == ["moving", "waiting", "computing and all else"]
    mixed = compared(watched[0])
    assert mixed.step.low is None
    assert any(
        "steps were surveyed before, watched after: their times are not" in words for words in mixed.warnings
    )


def test_quantities_that_vary_from_step_to_step_have_intervals():
    def every_third(report: Report) -> Report:
        frame = report.collectives
        kept = frame[(frame["seq"] < 3) | (frame["step"] % 3 == 0)]
        table = report.tables["collectives"].take(kept.index.to_numpy())
        return Report(report.run, report.fabric, report.groups, {**report.tables, "collectives": table})

    found = compared(made(1, change=every_third), made(0, change=every_third))
    assert found.verdict == "no change"
    told = compared(made(1, change=every_third))
    (site,) = [one for one in told.sites if one.what != "none"]
    assert (site.op, site.what, site.calls.low is None) == ("reduce_scatter", "count", False)


def data(report: Report, rows: int) -> Report:
    values = [
        Value(
            number,
            rank,
            "input",
            "args[0]",
            0,
            "float32",
            f"[{rows}, 8]",
            None,
            None,
            rows * 8,
            rank,
            False,
            1.0,
        )
        for number in range(32)
        for rank in range(report.run.world_size)
    ]
    return Report(
        report.run, report.fabric, report.groups, {**report.tables, "values": to_table("values", values)}
    )


def test_another_batch_is_told_and_equal_work_compared_where_given():
    before, after = data(made(0), 8), data(made(1, speed=2.0), 16)
    found = compared(after, before)
    assert found.before.batch.effective(2) == 16
    assert any(words.startswith("effective batch 16 (8 rows x 2 ranks") for words in found.warnings)
    # Twice the work in twice the time, in messages of the same size.
    equal = compared(after, before, work=(16, 32), unit="samples")
    assert equal.unit == "16 samples"
    assert (equal.step.after or 0) * 2 == pytest.approx(found.step.after or 0)
    assert equal.verdict == "no change"


def test_the_batch_is_what_loaders_gave_and_never_the_rows_of_a_product():
    loaded = made(0, fetched={"samples": 16, "count": 2, "tokens": 16 * 128, "data_ranks": 1})
    found = compared(
        made(1, fetched={"samples": 32, "count": 4, "tokens": 32 * 128, "data_ranks": 1}), loaded
    )
    (said,) = (words for words in found.warnings if "effective batch" in words)
    assert said.startswith(
        "effective batch 16 (8 rows x 1 rank with data of its own x 2 micro-batches, 2,048 tokens) before, "
        "32 (8 rows x 1 rank with data of its own x 4 micro-batches, 4,096 tokens) after, by the DataLoader"
    )
    longer = compared(
        made(1, fetched={"samples": 16, "count": 2, "tokens": 16 * 256, "data_ranks": 1}), loaded
    )
    assert any(
        "2,048 tokens) before" in words and "4,096 tokens) after" in words for words in longer.warnings
    )
    # The products of the layers have other numbers of rows, the batch is unknown: nothing is called changed.
    other = compared(made(1, shapes="f32[128,32] f32[32,32]"))
    assert other.before.batch.rows is other.after.batch.rows is None
    assert not any("effective batch" in words for words in other.warnings)
    assert "effective batch unknown (no DataLoader gave a batch" in " ".join(other.notes)
    assert not any("effective batch" in words for words in compared(made(1), loaded).warnings)


def test_other_steps_do_not_blur_the_batch():
    # Validation fetches with gradients off: its row has no samples; the last batch of an epoch is smaller.
    loaded = made(0, fetched={"samples": 8})
    stalls = loaded.tables["stalls"].to_pylist()
    rows = []
    for row in stalls:
        if row["step"] == 10:
            rows.append(Stall(**{**row, "count": 5, "samples": None, "source": "val.py:3 (validate)"}))
        rows.append(Stall(**{**row, "samples": 3 if row["step"] == 20 else 8}))
    blurred = replace(loaded, tables={**loaded.tables, "stalls": to_table("stalls", rows)})
    assert compared(blurred, loaded).after.batch == compared(loaded, loaded).after.batch
    assert compared(blurred, loaded).after.batch.effective(2) == 16


@pytest.mark.parametrize(("given", "words"), [
    ({"torch": "2.6.0"}, "torch 2.13.0 before, 2.6.0 after"),
    ({"device": "NVIDIA H100"}, "device cpu before, NVIDIA H100 after"),
    ({"mesh": {"tp": 2}}, None),
    ({"backend": "nccl"}, "backend gloo before, nccl after"),
])  # fmt: skip
def test_runs_that_are_not_alike_are_told(given: dict[str, Any], words: str | None):
    said = compared(with_run(made(1), **given)).warnings
    assert (words in said) if words else not said
    both = compared(with_run(made(1), mesh={"tp": 2}), with_run(made(0), mesh={"dp": 2})).warnings
    assert "mesh dp=2 before, tp=2 after" in both


def test_findings_that_come_and_go_by_times_are_no_change():
    late = Finding("straggler", "warning", "a rank is late", 5 * MS, None, None, None, 1, (0,))
    wrong = Finding("wrong-gradient", "error", "a gradient is wrong", None, None, None, None, 1, (0,))
    found = compared(made(1, findings=(late,)))
    assert found.verdict == "no change"
    assert [(one.kind, one.before, one.after, one.firm) for one in found.findings] == [
        ("straggler", None, 1, False)
    ]
    broken = compared(made(1, findings=(late, wrong)))
    assert broken.verdict == "changed"
    assert [one.after for one in broken.findings] == [1, 2]
    assert broken.findings[0].kind == "wrong-gradient", "errors are first on the bill, and here too"


def traced(seed: int, factor: float = 1.0) -> Report:
    """A trace: operators with kernels, and no modules."""
    base = made(seed, source="trace", device="NVIDIA H100 80GB HBM3")
    kinds = {f"aten::op{at}": "f32[8,8]" for at in range(6)}
    rows = [
        DeviceOp(int(row["step"]), int(row["rank"]), op, "forward", shapes, 1,
                 round(int(row["compute_ns"]) / 6 * (factor if at == 2 else 1)), 1000)
        for row in base.steps.to_dict("records")
        for at, (op, shapes) in enumerate(kinds.items())
    ]  # fmt: skip
    tables = {
        **base.tables,
        "device_ops": to_table("device_ops", rows),
        "computes": base.tables["computes"].slice(0, 0),
    }
    return Report(base.run, base.fabric, base.groups, tables)


def test_traces_tell_operators():
    found = compared(traced(1, 1.05), traced(0))
    assert [one.name for one in found.modules if one.time.changed] == ["aten::op2 in forward"]


def test_runs_swapped_say_the_same_the_other_way_round():
    one = made(20, spread=0.01, level="watch")
    other = made(21, spread=0.01, level="watch", modules={**MODULES, "head": 10.0})
    there, back = compared(other, one), compared(one, other)
    assert there.verdict == back.verdict == "changed"
    assert there.step.low is not None
    assert back.step.high is not None
    for part, mirrored in zip((there.step, *there.parts), (back.step, *back.parts), strict=True):
        assert part.least == pytest.approx(mirrored.least)
        assert part.low == pytest.approx(-(mirrored.high or 0))


def test_modules_that_changed_are_not_told_as_all_of_them():
    # Half of them: the middle one is neither. An accelerator's are each judged by themselves.
    slower = {**MODULES, "layers.0.mlp": 10.5, "layers.1.mlp": 10.5, "layers.2.mlp": 10.5}
    gpu = compared(made(3, device="cuda", spread=0.003, modules=slower), made(4, device="cuda", spread=0.003))
    assert sorted(one.name for one in gpu.modules if one.time.changed) == [
        "layers.0.mlp",
        "layers.1.mlp",
        "layers.2.mlp",
    ]
    assert "all modules" not in gpu.headline
    cpu = compared(made(3, spread=0.003, modules=slower), made(4, spread=0.003))
    assert "all alike" not in cpu.headline.replace("not all alike", "")
    assert cpu.machine is not None
    assert not cpu.machine.alike
    adds_up(gpu)


def test_other_work_a_step_is_no_other_machine():
    # Weak scaling: each rank computes what it did, for twice the work.
    twice = compared(made(5, ranks=4, device="cuda"), made(6, ranks=2, device="cuda"), work=(8, 16))
    assert twice.machine is not None
    assert twice.machine.factor == pytest.approx(1, abs=0.02)
    assert "clock, power or settings" not in " ".join(cause.text for cause in twice.causes)
    (more,) = [cause for cause in twice.causes if "the same operators serve 2 times the work" in cause.text]
    assert more.change_ns == pytest.approx(-21 * MS, rel=0.05)
    adds_up(twice)


def test_other_shapes_are_not_the_same_work():
    larger = {name: 2 * took for name, took in MODULES.items()}
    found = compared(made(7, shapes="f32[128,32] f32[32,32]", modules=larger))
    assert "head computes " in " ".join(cause.text for cause in found.causes)
    assert "with the same work" not in " ".join(cause.text for cause in found.causes)


def test_watched_steps_name_what_is_no_collective():
    found = compared(made(8, level="watch", speed=1.1), made(9, level="watch"))
    assert found.verdict == "changed"
    assert found.causes[0].text.startswith("computing and all else: +")
    assert "100 % of the mean's change, 0 % unexplained" in found.headline


def billed(kind: str, toll_ms: int, *, ranks: tuple[int, ...] = (0, 1), severity: str = "info") -> Finding:
    where = Where(parameter=kind, phase="backward")
    return Finding(kind, severity, "t", toll_ms * MS, None, None, None, 1, ranks, where)  # type: ignore[arg-type]


def test_noise_is_explained_by_no_finding():
    """The step is no longer beyond noise: what came onto the bill by times did not make it so."""
    quiet = compared(made(1))
    moved = next(each.difference for each in quiet.totals if each.name == SLOWEST)
    assert moved
    assert quiet.verdict == "no change"
    late = replace(billed("straggler", 1, ranks=(1,)), toll_ns=round(abs(moved)))
    runs = (made(1, findings=(late,)), BEFORE) if moved > 0 else (made(1), made(0, findings=(late,)))
    noisy = compared(*runs)
    assert noisy.headline.startswith("no change beyond noise")
    assert leading(noisy, moved) is not None, "it is as large as the difference, and of its sign"
    assert "straggler" not in noisy.headline


def test_a_place_that_reads_like_a_rank_is_no_rank():
    change = FindingChange(
        "host-sync", "warning", "rank 7 · a.py:3", "t", 1, None, (8 * MS, None), firm=False
    )
    assert finding_words(change) == "host-sync at rank 7 · a.py:3 (8.00 ms before, gone)"
    assert finding_words(replace(change, rank=1)) == "host-sync at rank 1 (8.00 ms before, gone)"


def test_the_finding_that_explains_most_of_the_difference_leads():
    """A rank was late by 8 ms, and other findings stand above it on the bill."""
    late = billed("straggler", 8, ranks=(1,), severity="warning")
    others = (billed("latency-bound", 3), billed("exposed-communication", 2), billed("duplicated-compute", 4))
    slow = {**MODULES, "layers.1.mlp": 18.0}
    before = made(0, modules=slow, findings=(*others, late))
    found = compared(made(1, findings=(*others[:2], billed("duplicated-compute", 5))), before)
    assert [each.kind for each in found.findings[:2]] == ["straggler", "duplicated-compute"]
    assert found.findings[0].difference_ns == -8 * MS
    assert [each.rank for each in found.findings[:2]] == [1, None]
    assert found.step.changed
    said = "straggler at rank 1 (8.00 ms before, gone)"
    assert said in found.headline
    assert found.headline.index(said) < found.headline.index("layers.1.mlp computes")
    assert sections(found)[1].title == "Findings, by how much they differ"
    assert sections(found)[1].rows[0][0] == "warning straggler"
    # One that explains too little, or changed the other way, leads nothing.
    small = compared(made(1), made(0, modules=slow, findings=(billed("straggler", 2, ranks=(1,)),)))
    worse = compared(made(1, findings=(late,)), made(0, modules=slow))
    for other in (small, worse):
        assert "straggler at rank 1" not in other.headline
    wrong = replace(billed("wrong-gradient", 1, severity="error"), toll_ns=None)
    assert compared(made(1), made(0, findings=(late, wrong))).findings[0].kind == "wrong-gradient"


def forecast(speed: float, **given: Any) -> Report:
    return with_run(made(3, steps=1, spread=0.0, speed=speed, **given), source="dry", backend="fake")


def test_one_step_of_each_of_two_forecasts_is_enough():
    found = compared(forecast(1.1), forecast(1.0))
    assert found.verdict == "changed"
    assert found.step.verdict == "more"
    assert found.step.difference == found.step.low == found.step.high
    assert found.headline.startswith("the slowest rank's step takes ")
    assert "longer (+10 %), and the mean of the ranks as much: " in found.headline
    assert not any("surer" in words for words in found.warnings)
    assert found.notes[0].startswith("before: 1 surveyed step timed, 1 with operators on record;")
    adds_up(found)


def test_two_equal_forecasts_do_not_differ():
    assert compared(forecast(1.0), forecast(1.0)).verdict == "no change"
    assert compared(forecast(1.0005), forecast(1.0)).step.verdict == "no change"


def test_a_finding_of_one_forecast_only_is_no_noise():
    new = Finding("exposed-communication", "info", "t", MS, None, None, None, 1, (0,))
    after = forecast(1.1, findings=(new,))
    assert [each.firm for each in compared(after, forecast(1.0)).findings] == [True]
    measured = with_run(after, source="live")
    assert [each.firm for each in compared(measured, forecast(1.0)).findings] == [False]


def test_a_forecast_and_a_measured_step_are_not_judged_as_two_forecasts():
    found = compared(with_run(forecast(1.1), source="live"), forecast(1.0))
    assert found.step.verdict == "too few steps"
