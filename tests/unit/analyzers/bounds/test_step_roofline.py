"""The roofline of a step: closed forms, bounds that stay bounds, and what refutes them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shardtoll.analyzers.bounds.operator_rows import matrix_formats
from shardtoll.analyzers.bounds.step_roofline import step_roofline
from shardtoll.analyzers.context.context import make_context
from shardtoll.analyzers.roofline import UNKNOWN, find_gpu
from shardtoll.ledger import DeviceOp, Group
from shardtoll.ledger.answers.step_roofline import RankRoofline, StepRoofline
from tests.unit.analyzers.ledgers import MS, collective, compute, ledger, run_of, step

H100 = "NVIDIA H100 80GB HBM3"
MM = "bf16[4096,4096] bf16[4096,4096]"
MM_FLOPS = 2 * 4096**3
MM_BYTES = 3 * 4096**2 * 2


def gpu() -> Any:
    found = find_gpu(H100)
    assert found is not None
    return found


def peak(dtype: str = "bfloat16") -> float:
    """FLOPs a second."""
    return float(gpu().peak_tflops[dtype].value) * 1e12


def rate() -> float:
    """Bytes a second."""
    return float(gpu().memory_gbps.value) * 1e9


def roofline(**given: Any) -> StepRoofline:
    run = given.pop("run", None) or run_of(1, backend="nccl", device=H100)
    made = step_roofline(make_context(ledger(run=run, **given), UNKNOWN))
    assert made is not None
    return made


def only(made: StepRoofline) -> RankRoofline:
    (rank,) = made.ranks
    return rank


def mm(index: int = 0, **given: Any) -> Any:
    return compute(
        **{"index": index, "flops": MM_FLOPS, "shapes": MM, "moved_bytes": MM_BYTES, "duration_ns": None}
        | given
    )


def done(op: str | None = "aten::mm", **given: Any) -> DeviceOp:
    values: dict[str, Any] = {
        "step": 0,
        "rank": 0,
        "op": op,
        "phase": "forward",
        "shapes": MM,
        "count": 1,
        "device_ns": 1 * MS,
        "flops": MM_FLOPS,
        "moved_bytes": MM_BYTES,
    } | given
    return DeviceOp(**values)


def test_a_large_matmul_takes_its_flops_at_the_peak():
    rank = only(roofline(computes=[mm(), mm(1)]))
    assert rank.compute_light_ns == round(2 * MM_FLOPS / peak() * 1e9)
    assert rank.compute_floor_ns == round(2 * MM_FLOPS / (gpu().reached_matmul_tflops.value * 1e12) * 1e9)
    assert rank.light_ns == rank.compute_light_ns
    assert rank.flops == 2 * MM_FLOPS
    assert rank.mfu == rank.hfu == pytest.approx(2 * MM_FLOPS / peak() / 0.1)


def test_an_operator_with_few_flops_takes_its_bytes_at_the_memorys_rate():
    norm = mm(op="aten.native_layer_norm.default", flops=1000, shapes="bf16[4096,4096]", moved_bytes=1 << 26)
    made = roofline(computes=[norm])
    assert only(made).compute_light_ns == round((1 << 26) / rate() * 1e9)
    assert (only(made).mfu, only(made).hfu) == (None, None), "its FLOPs are none of a model's"
    assert made.ops[0].bound == "memory"


def test_operators_are_bound_by_what_takes_longer():
    ridge = peak() / rate()
    for factor, bound in ((1.01, "compute"), (0.99, "memory")):
        made = roofline(computes=[mm(flops=int(MM_BYTES * ridge * factor))])
        assert made.ops[0].bound == bound
        assert made.ops[0].intensity == pytest.approx(ridge * factor)


@pytest.mark.parametrize(
    ("shapes", "formats"),
    [
        ("f32[10] f32[4,8] f32[8,10]", ("float32",)),
        ("float8_e4m3fn[4,8] float8_e4m3fn[8,4] f32[] f32[]", ("float8",)),
        ("bf16[4,8] f32[8]", ("bfloat16",)),
        ("i64[4,8]", ()),
        ("f32[7]", ("float32",)),
        ("", ()),
    ],
)
def test_the_format_is_that_of_the_matrices(shapes, formats):
    assert matrix_formats(shapes) == formats


def test_float32_may_run_as_tensorfloat32():
    rank = only(roofline(computes=[mm(shapes=MM.replace("bf16", "f32"))]))
    assert rank.compute_light_ns == round(MM_FLOPS / peak("tf32") * 1e9)


def test_half_of_attention_may_be_masked_but_utilisation_counts_it_all():
    op = "aten._scaled_dot_product_flash_attention.default"
    rank = only(roofline(computes=[mm(op=op, moved_bytes=0)]))
    assert rank.compute_light_ns == round(MM_FLOPS / 2 / peak() * 1e9)
    assert rank.hfu == pytest.approx(MM_FLOPS / peak() / 0.1)


def test_what_is_computed_again_is_the_hardwares_and_not_the_models():
    rank = only(roofline(computes=[mm(), mm(1, phase="backward"), mm(2, phase="recompute")]))
    assert rank.hfu == pytest.approx(3 * MM_FLOPS / peak() / 0.1)
    assert rank.mfu == pytest.approx(2 * MM_FLOPS / peak() / 0.1)


def test_unknown_bytes_leave_the_flops():
    rank = only(roofline(computes=[mm(moved_bytes=None)]))
    assert rank.compute_light_ns == round(MM_FLOPS / peak() * 1e9)


def test_a_format_without_a_peak_leaves_the_bytes():
    rank = only(roofline(computes=[mm(shapes=MM.replace("bf16", "f64"))]))
    assert rank.compute_light_ns == round(MM_BYTES / rate() * 1e9)
    assert rank.mfu is None


def test_figures_are_of_a_mean_step():
    rows = [mm(), mm(1), mm(step=1)]
    rank = only(roofline(computes=rows, steps=[step(0), step(1, duration_ns=300 * MS, idle_ns=210 * MS)]))
    assert (rank.steps, rank.took_ns) == (2, 200 * MS)
    assert rank.flops == 1.5 * MM_FLOPS
    assert rank.mfu == pytest.approx(1.5 * MM_FLOPS / peak() / 0.2)


def test_on_cpus_and_unknown_accelerators_no_peak_is_invented():
    for run, words in (
        (run_of(1), "CPUs"),
        (run_of(1, backend="nccl", device="Frobnicator 9"), "Frobnicator 9"),
        (run_of(1, backend="nccl", device=None), "does not name"),
        (run_of(1, backend="fake", device=H100), "fake"),
    ):
        made = roofline(run=run, computes=[mm()])
        rank = only(made)
        assert words in (made.why_unknown or "")
        assert (made.gpu, dict(made.peak_tflops), made.memory_gbps) == (None, {}, None)
        assert (rank.compute_light_ns, rank.light_ns, rank.best_overlap_ns, rank.mfu) == (None,) * 4
        assert rank.took_ns == 100 * MS
        assert rank.flops == MM_FLOPS


def test_no_step_no_section():
    assert step_roofline(make_context(ledger(steps=[]), UNKNOWN)) is None


class TestTraces:
    def test_operators_of_unknown_work_count_in_the_floor_as_long_as_they_took(self):
        rows = [done(), done("custom::op", shapes=None, flops=None, moved_bytes=None, device_ns=3 * MS)]
        made = roofline(device_ops=rows)
        rank = only(made)
        light = MM_FLOPS / peak() * 1e9
        assert rank.compute_light_ns == round(light)
        reached = MM_FLOPS / (gpu().reached_matmul_tflops.value * 1e12) * 1e9
        assert rank.compute_floor_ns == round(reached + 3 * MS)
        assert rank.known_share == 0.25
        assert any("25 %" in text for text in made.assumptions)

    def test_without_recorded_shapes_compute_stands_as_it_ran(self):
        made = roofline(device_ops=[done(shapes=None, flops=None, moved_bytes=None)])
        rank = only(made)
        assert (rank.compute_light_ns, rank.light_ns, rank.mfu, rank.known_share) == (None, None, None, 0)
        assert rank.best_overlap_ns == rank.compute_floor_ns == 1 * MS
        assert any("record_shapes=True" in text for text in made.assumptions)

    def test_an_operator_faster_than_memory_read_a_cache(self):
        quick = done("aten::add_", flops=None, moved_bytes=1 << 30, device_ns=100_000)  # 10 TB/s
        made = roofline(device_ops=[quick, done()])
        assert only(made).compute_light_ns == round(MM_FLOPS / peak() * 1e9)
        assert made.refuted == ()

    def test_an_operator_faster_than_the_peak_refutes_it(self):
        made = roofline(device_ops=[done(device_ns=int(MM_FLOPS / peak() * 1e9 / 2))])
        assert len(made.refuted) == 1
        assert "aten::mm" in made.refuted[0]
        assert made.ops[0].bound == "memory"

    def test_many_refuted_peaks_are_counted(self):
        rows = [done(shapes=f"bf16[{at},8] bf16[8,8]", device_ns=1000 + at) for at in range(1, 10)]
        made = roofline(device_ops=rows)
        assert "bf16[1,8]" in made.refuted[0], "the worst first"
        assert made.refuted[5] == "and 4 more kinds of operators were faster than the peak"

    def test_kernels_side_by_side_share_the_device(self):
        """A compute-bound and a memory-bound one at once need the longer of the two, not both."""
        light = MM_FLOPS / peak() * 1e9
        copied = int(light / 1e9 * rate())
        beside = done("aten::copy_", shapes="bf16[9,9]", flops=None, moved_bytes=copied)
        rows = [done(device_ns=30 * MS), beside]
        rank = only(roofline(device_ops=rows, steps=[step(compute_ns=30 * MS, idle_ns=30 * MS)]))
        assert rank.compute_light_ns == round((copied + MM_BYTES) / rate() * 1e9)

    def test_a_step_without_a_trace_does_not_count(self):
        made = roofline(device_ops=[done()], steps=[step(0), step(1, duration_ns=300 * MS, idle_ns=210 * MS)])
        assert (only(made).took_ns, only(made).steps) == (100 * MS, 1)


class TestCommunication:
    GROUPS = (Group("a", (0, 1)), Group("b", (0, 1)))
    RUN = run_of(2, backend="nccl", device=H100)

    def of(self, *rows: Any, **given: Any) -> RankRoofline:
        made = roofline(run=self.RUN, groups=self.GROUPS, collectives=list(rows), computes=[mm()], **given)
        return made.ranks[0]

    def row(self, group: str, floor_ms: float, **given: Any) -> Any:
        values = {"floor_ns": int(floor_ms * MS), "light_ns": int(floor_ms * MS / 2), "duration_ns": 20 * MS}
        return collective(**{"group": group, "exposed_ns": 10 * MS, "seq": None} | values | given)

    def test_one_group_works_off_a_queue(self):
        rank = self.of(self.row("a", 3), self.row("a", 4, start_ns=30 * MS))
        assert (rank.comm_light_ns, rank.comm_floor_ns, rank.comm_serial_ns) == (3.5 * MS, 7 * MS, 7 * MS)

    def test_groups_may_run_at_once(self):
        rank = self.of(self.row("a", 3), self.row("b", 4))
        assert (rank.comm_light_ns, rank.comm_floor_ns, rank.comm_serial_ns) == (2 * MS, 4 * MS, 7 * MS)
        assert rank.best_overlap_ns == max(4 * MS, rank.compute_floor_ns or 0)
        assert rank.serial_ns == (rank.compute_floor_ns or 0) + 7 * MS

    def test_directions_and_peers_may_run_at_once(self):
        rows = [self.row("a", 3, op=op, root=1) for op in ("send", "recv")]
        assert self.of(*rows).comm_floor_ns == 3 * MS
        assert self.of(rows[0], rows[0]).comm_floor_ns == 6 * MS

    def test_a_collective_of_unknown_floor_is_said(self):
        rank = self.of(self.row("a", 3), self.row("a", 4, floor_ns=None, light_ns=None))
        assert rank.comm_known_share == 0.5
        assert (rank.comm_count, rank.comm_light_count, rank.comm_floor_count) == (2, 1, 1)
        assert rank.comm_floor_ns == 3 * MS

    def test_a_rank_without_collectives_needs_none(self):
        rank = self.of()
        assert (rank.comm_light_ns, rank.comm_floor_ns, rank.comm_known_share) == (0, 0, None)
        assert rank.best_overlap_ns == rank.serial_ns == rank.compute_floor_ns

    def test_all_unknown_is_unknown(self):
        rank = self.of(self.row("a", 3, floor_ns=None, light_ns=None))
        assert (rank.comm_light_ns, rank.comm_floor_ns, rank.best_overlap_ns) == (None, None, None)
        assert rank.light_ns == rank.compute_light_ns, "a lower bound all the same"

    def test_no_floor_is_longer_than_its_transfer(self):
        assert self.of(self.row("a", 19.9, transfer_ns=19 * MS)).comm_floor_ns == 19 * MS

    def test_a_floor_of_the_record_has_no_cost_to_be_held_against(self):
        rows = [self.row("a", 3, rank=rank, seq=1, duration_ns=1 * MS, exposed_ns=0) for rank in (0, 1)]
        assert self.of(*rows).comm_floor_ns == 1 * MS

    def test_what_ran_at_once_needs_no_longer_than_it_ran(self):
        # Messages launched as one share a span, and gloo works off two at a time.
        rows = [self.row("a", 15, start_ns=at) for at in (0, 0, 10 * MS)]
        rank = self.of(*rows, self.row("a", 3, start_ns=60 * MS))
        assert (rank.comm_light_ns, rank.comm_floor_ns) == (24 * MS, 48 * MS)
        assert self.of(*rows).comm_floor_ns == 30 * MS
        assert self.of(*rows).comm_light_ns == 22.5 * MS

    def test_what_overlap_could_hide_is_what_compute_does_not_hide_yet(self):
        # 40 ms exposed, 50 ms computed; of the collectives' 60 ms 20 are hidden already.
        rows = [self.row("a", 1, duration_ns=60 * MS, exposed_ns=40 * MS)]
        assert self.of(*rows).hideable_ns == 30 * MS
        assert self.of(self.row("a", 1, duration_ns=40 * MS, exposed_ns=40 * MS)).hideable_ns == 40 * MS

    def test_untold_exposed_time_is_no_zero(self):
        watch = {"level": "watch", "compute_ns": 0, "idle_ns": 0}
        steps = [
            step(0, exposed_comm_ns=0, unattributed_ns=100 * MS, **watch),
            step(1, unattributed_ns=60 * MS, **watch),
        ]
        unknown = collective(step=0, group_size=1, exposed_ns=None)
        made = roofline(steps=steps, collectives=[unknown])
        assert (only(made).exposed_comm_ns, only(made).hideable_ns) == (40 * MS, 40 * MS)
        silent = roofline(steps=steps[:1], collectives=[unknown])
        assert (only(silent).exposed_comm_ns, only(silent).hideable_ns) == (None, None)
        assert "exposed communication is unknown, as no step records it" in silent.assumptions

    def test_a_lower_bound_of_exposed_time_is_said_and_bounds_nothing_from_above(self):
        watch = {"level": "watch", "compute_ns": 0, "idle_ns": 0}
        for exposed_ms, hideable in ((40, None), (70, 30 * MS)):
            steps = [step(exposed_comm_ns=exposed_ms * MS, unattributed_ns=(100 - exposed_ms) * MS, **watch)]
            made = roofline(steps=steps, collectives=[collective(group_size=1, exposed_ns=None)])
            assert (only(made).exposed_comm_ns, only(made).hideable_ns) == (exposed_ms * MS, hideable)
            (said,) = [text for text in made.assumptions if "at least" in text and "exposed" in text]
            assert said.startswith("of rank 0 exposed time is not known of all collectives")

    def test_collectives_that_share_a_span_hide_in_it_once(self):
        # Four launched as one in 40 ms, of which 20 are exposed, 5 for each: the other 20 ms are hidden, not
        # 4 x 35; compute of 50 ms has 30 left.
        four = [self.row("a", 1, duration_ns=40 * MS, exposed_ns=5 * MS) for _ in range(4)]
        rest = self.row("b", 1, duration_ns=20 * MS, exposed_ns=20 * MS, start_ns=60 * MS)
        assert self.of(*four, rest).hideable_ns == 30 * MS
        # Without times they can only be added up, which leaves less to hide.
        untimed = [self.row("a", 1, duration_ns=40 * MS, exposed_ns=5 * MS, start_ns=None) for _ in range(4)]
        assert self.of(*untimed, rest).hideable_ns == 0

    def test_a_step_faster_than_its_bounds_refutes_them(self):
        many = [self.row("a", 15, start_ns=None) for _ in range(10)]
        made = roofline(run=self.RUN, groups=self.GROUPS, collectives=many, computes=[mm()])
        rank = made.ranks[0]
        assert (rank.comm_floor_ns, rank.best_overlap_ns) == (None, None)
        assert any("floor of its collectives" in text for text in made.refuted)


@pytest.mark.parametrize("seed", range(25))
def test_bounds_are_in_order_on_every_sound_run(seed):
    """Operators and collectives no faster than hardware allows: light <= floor <= took, overlap <= serial."""
    dice = random.Random(seed)
    rows, computed = [], 0
    for number in range(dice.randrange(1, 12)):
        flops, moved = dice.randrange(1, 10**12), dice.randrange(1, 10**9)
        least = max(flops / peak(), moved / rate()) * 1e9
        took = int(least * dice.uniform(1.0, 5.0)) + 1
        known = dice.random() < 0.8
        shapes = f"bf16[{number + 1},7] bf16[7,7]"
        rows.append(
            done(
                shapes=shapes,
                flops=flops if known else None,
                moved_bytes=moved if known else None,
                device_ns=took,
            )
        )
        computed += took
    comms, exposed = [], 0
    for _ in range(dice.randrange(8)):
        took = dice.randrange(1000, 5 * MS)
        floor = int(took * dice.random())
        shown = int(took * dice.random())
        comms.append(
            collective(
                group=dice.choice("ab"),
                seq=None,
                duration_ns=took,
                exposed_ns=shown,
                floor_ns=floor,
                light_ns=int(floor * dice.random()),
            )
        )
        exposed += shown
    own = sum(each.duration_ns or 0 for each in comms)
    lasted = computed + own
    took_step = step(
        duration_ns=lasted,
        compute_ns=computed,
        exposed_comm_ns=min(exposed, own),
        idle_ns=lasted - computed - min(exposed, own),
    )
    made = roofline(
        run=run_of(2, backend="nccl", device=H100, ranks_seen=(0,)),
        groups=TestCommunication.GROUPS,
        steps=[took_step],
        collectives=comms,
        device_ops=rows,
    )
    rank = only(made)
    assert made.refuted == ()
    assert rank.comm_floor_ns is not None
    assert rank.best_overlap_ns is not None or not any(row.flops for row in rows)
    if rank.best_overlap_ns is None:
        return
    assert rank.compute_light_ns <= rank.compute_floor_ns <= computed
    assert rank.comm_light_ns <= rank.comm_floor_ns <= rank.comm_serial_ns
    assert rank.light_ns <= rank.best_overlap_ns <= rank.took_ns
    assert rank.best_overlap_ns <= rank.serial_ns
    assert 0 <= rank.mfu <= rank.hfu <= 1
    assert rank.hideable_ns <= rank.exposed_comm_ns


def test_more_work_never_lowers_a_bound():
    before = 0
    for count in range(1, 6):
        now = only(roofline(computes=[mm(at) for at in range(count)])).light_ns
        assert now is not None
        assert now > before
        before = now
