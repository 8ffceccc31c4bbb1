"""Collectives slower than the fabric allows: on programs that have the fault and on sound twins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.findings.slow.transfers import limit
from shardtoll.analyzers.roofline import Placement, collective_cost, load_fabric, one_node
from shardtoll.ledger import Group
from tests.unit.analyzers.fabrics import ROUND, predicted_ns, timed
from tests.unit.analyzers.findings.faulty_rows import PAIR, evidence, found, slow, small
from tests.unit.analyzers.ledgers import MS, US, collective, ledger, on_ranks, run_of

GPU = {"device": "NVIDIA H100 80GB HBM3", "backend": "nccl"}


GLOO = load_fabric("loopback-gloo")


def between(ranks, fabric, factor, message_bytes=1 << 24):
    """Four all_reduces of so many ranks that take `factor` times what the fabric predicts."""
    span = int(factor * predicted_ns(fabric, "all_reduce", message_bytes, one_node(ranks)))
    given = {"message_bytes": message_bytes, "duration_ns": span, "exposed_ns": span, "group_size": ranks}
    return [row for seq in range(4) for row in on_ranks(range(ranks), seq=seq, **given)]


TIMED = timed(ROUND, "all_reduce", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)


class TestBelowRoofline:
    def test_says_the_factor(self):
        (finding,) = found("below-roofline", slow(4, 5.0), TIMED, run=run_of(**GPU))
        assert "takes 5.0 times what is expected on round" in finding.title
        assert evidence(finding)["median transfer over prediction"] == pytest.approx(5.0, abs=0.01)
        assert finding.confidence == "likely"
        expected_ns = evidence(finding)["expected"]
        assert (
            evidence(finding)["floor (one of twenty sound runs is faster)"]
            <= expected_ns
            <= finding.toll_ns / 4 / 5
        )
        assert finding.saving_ns == pytest.approx(finding.toll_ns - 4 * expected_ns, abs=8)
        assert (
            finding.remedy.counterfactual == "the same collectives at their expected times, not their floors"
        )

    def test_one_that_took_no_time_beside_slow_ones_is_no_error(self):
        rows = [*slow(6, 5.0), *on_ranks((0, 1), seq=90, duration_ns=0, exposed_ns=0)]
        (finding,) = found("below-roofline", rows, TIMED, run=run_of(**GPU))
        limit_told = evidence(finding)["limit for this finding"]
        assert (
            limit_told
            == evidence(found("below-roofline", slow(6, 5.0), TIMED, run=run_of(**GPU))[0])[
                "limit for this finding"
            ]
        )

    def test_a_sound_fabric_is_no_finding(self):
        assert found("below-roofline", slow(4, 1.15), TIMED, run=run_of(**GPU)) == []
        beside_compute = [replace(row, exposed_ns=row.duration_ns // 2) for row in slow(4, 1.45)]
        assert found("below-roofline", beside_compute, TIMED, run=run_of(**GPU)) == []

    def test_shipped_figures_need_a_larger_factor(self):
        above = limit(collective_cost(ROUND, "all_reduce", 1 << 24, PAIR), on_cpu=False)
        assert above > 2
        assert found("below-roofline", slow(4, 0.97 * above), ROUND, run=run_of(**GPU)) == []
        (finding,) = found("below-roofline", slow(4, 1.03 * above), ROUND, run=run_of(**GPU))
        assert finding.confidence == "possible"
        assert "calibrate" in finding.remedy.text

    def test_ranks_that_share_cores_need_a_factor_no_time_slice_explains(self):
        assert found("below-roofline", slow(4, 8.0), TIMED) == []
        (finding,) = found("below-roofline", slow(4, 12.0), TIMED)
        assert finding.severity == "warning"

    def test_where_cores_move_data_at_figures_nobody_measured_no_interface_is_blamed(self):
        (finding,) = found("below-roofline", slow(4, 60.0), ROUND)
        assert finding.severity == "info"
        assert "SOCKET_IFNAME" not in (finding.remedy.code or "")
        assert "interface" not in finding.remedy.text
        (of_two,) = found("below-roofline", slow(4, 60.0), ROUND, run=run_of(hosts=("a", "b")))
        assert of_two.severity == "warning"

    def test_a_price_carried_over_from_other_group_sizes_makes_nothing_likely(self):
        of_four = timed(ROUND, "all_reduce", Placement(4, 1, 4), 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 40.0), of_four, run=run_of(**GPU))
        assert finding.confidence == "possible"
        facts = evidence(finding)
        assert facts["prediction by"].startswith("extrapolated from measured groups of 4 ranks")
        assert "floors of groups of 2 ranks are extrapolated" in facts["fabric"]
        assert "`shardtoll calibrate --nproc 2`" in finding.remedy.text
        # Another op, timed in groups of two, says what these links do.
        of_two = timed(ROUND, "all_gather", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 40.0), of_two, run=run_of(**GPU))
        assert finding.confidence == "likely"
        assert evidence(finding)["prediction by"].startswith("other collectives of this group size")
        assert "extrapolated" not in evidence(finding)["fabric"]

    def test_a_finding_warns_of_no_group_sizes_but_its_own(self):
        of_four = timed(ROUND, "all_reduce", Placement(4, 1, 4), 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        three = [
            row
            for seq in range(4)
            for row in on_ranks(
                (0, 1, 2), seq=seq, group="three", group_size=3, step=0, duration_ns=MS, exposed_ns=MS
            )
        ]
        groups = [Group("pg", (0, 1)), Group("three", (0, 1, 2))]
        rows = [*slow(4, 40.0), *three]
        report = run(ledger(rows, groups=groups, run=run_of(3, **GPU)), of_four)
        (finding,) = [each for each in report.findings if each.kind == "below-roofline"]
        assert finding.where.group == "pg"
        assert "floors of groups of 2 ranks are" in evidence(finding)["fabric"]
        # The report's fabric warns of all that the job has.
        assert "floors of groups of 2 and 3 ranks are" in report.fabric.provenance

    def test_among_cores_an_extrapolated_price_is_no_warning(self):
        of_four = timed(ROUND, "all_reduce", Placement(4, 1, 4), 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", slow(4, 400.0), of_four)
        assert (finding.severity, finding.confidence) == ("info", "possible")
        assert "nobody has measured groups of 2 ranks" in finding.remedy.text
        assert '"--nproc", "2"' in (finding.remedy.code or "")

    @pytest.mark.parametrize(("ranks", "factor"), [(4, 16.0), (8, 30.0), (32, 30.0)])
    def test_a_band_too_wide_to_judge_by_says_what_to_measure(self, ranks, factor):
        of_two = timed(GLOO, "all_reduce", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", between(ranks, of_two, factor), of_two, run=run_of(ranks))
        assert (finding.severity, finding.confidence) == ("info", "possible")
        assert f"which may be sound: nobody measured groups of {ranks} ranks" in finding.title
        assert f"`shardtoll calibrate --nproc {ranks}`" in finding.remedy.text
        assert finding.remedy.measures
        facts = evidence(finding)
        most = facts["too wide to judge: a sound run may take, of the prediction"]
        assert facts["limit for this finding"] <= facts["median transfer over prediction"] < 2.1 * most

    def test_beyond_a_wide_band_nothing_may_be_sound_and_below_all_limits_nothing_is_slow(self):
        of_two = timed(GLOO, "all_reduce", PAIR, 256, 4096, 1 << 16, 1 << 20, 1 << 24)
        (finding,) = found("below-roofline", between(4, of_two, 40.0), of_two, run=run_of(4))
        assert "may be sound" not in finding.title
        assert found("below-roofline", between(4, of_two, 9.0), of_two, run=run_of(4)) == []
        # Of groups that were measured the band is their own.
        (of_pair,) = found("below-roofline", between(2, of_two, 16.0), of_two, run=run_of(2))
        assert "may be sound" not in of_pair.title

    def test_a_few_slow_ones_are_an_accident(self):
        assert found("below-roofline", slow(2, 9.0), TIMED, run=run_of(**GPU)) == []
        mixed = slow(5, 1.0) + [
            row
            for seq in (10, 11)
            for row in on_ranks((0, 1), seq=seq, duration_ns=90 * MS, exposed_ns=90 * MS)
        ]
        assert found("below-roofline", mixed, TIMED, run=run_of(**GPU)) == []

    def test_small_messages_are_judged_only_against_measured_floors(self):
        # 256 bytes: floor 146 ns, of it 120 ns latency.
        rows = small(40)
        assert found("below-roofline", rows, ROUND, run=run_of(**GPU)) == []
        assert len(found("below-roofline", rows, TIMED, run=run_of(**GPU))) == 1
        assert found("below-roofline", rows, TIMED) == []

    def test_waiting_is_not_held_against_the_fabric(self):
        rows = [
            row
            for seq in range(4)
            for row in (
                collective(rank=0, seq=seq, start_ns=0, duration_ns=10 * MS, exposed_ns=10 * MS),
                collective(rank=1, seq=seq, start_ns=10 * MS - 110 * US, duration_ns=110 * US),
            )
        ]
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_waiting_is_not_in_the_toll(self):
        rows = [
            replace(
                row, start_ns=0, duration_ns=row.duration_ns + row.start_ns, exposed_ns=MS + row.duration_ns
            )
            if row.rank
            else row
            for row in slow(4, 5.0)
        ]
        (finding,) = found("below-roofline", rows, TIMED, run=run_of(**GPU))
        assert finding.toll_ns == 4 * rows[0].duration_ns
        expected_ns = evidence(finding)["expected"]
        assert (
            evidence(finding)["floor (one of twenty sound runs is faster)"]
            <= expected_ns
            <= finding.toll_ns / 4 / 5
        )
        assert finding.saving_ns == pytest.approx(finding.toll_ns - 4 * expected_ns, abs=8)

    def test_what_ranks_send_unevenly_is_not_judged(self):
        even = [replace(row, op="all_to_all") for row in slow(4, 20.0)]
        assert len(found("below-roofline", even, TIMED, run=run_of(**GPU))) == 1
        uneven = [replace(row, message_bytes=row.message_bytes >> row.rank) for row in even]
        assert found("below-roofline", uneven, TIMED, run=run_of(**GPU)) == []

    def test_a_device_without_a_name_is_no_cpu(self):
        rows = slow(4, 5.0)
        assert len(found("below-roofline", rows, TIMED, run=run_of(device=None, backend="nccl"))) == 1
        assert found("below-roofline", rows, TIMED, run=run_of(device="cpu", backend=None)) == []

    def test_the_fastest_rank_shows_what_the_fabric_did(self):
        # Rank 1 was held up on its way out; rank 0 shows that the data came at 1.1 times the floor.
        rows = [replace(row, duration_ns=row.duration_ns * 9) if row.rank else row for row in slow(4, 1.1)]
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_a_small_gain_is_not_worth_a_finding(self):
        rows = slow(4, 5.0, message_bytes=100_000)
        assert found("below-roofline", rows, TIMED, run=run_of(**GPU)) == []

    def test_unmatched_and_unknown_are_not_judged(self):
        assert found("below-roofline", slow(4, 9.0, start_ns=None), TIMED, run=run_of(**GPU)) == []
        assert found("below-roofline", slow(4, 9.0), run=run_of(device="V100", backend="nccl")) == []
