"""Where wire bytes go: the algorithms' closed forms, sums that add up, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtoll.dashboards.facts.calls import calls
from shardtoll.dashboards.facts.flows import NOWHERE, flows
from shardtoll.dashboards.facts.nodes import nodes
from shardtoll.dashboards.page.views import bytes, matrix
from shardtoll.ledger import Collective, Finding, Group, Report, Step, Where
from shardtoll.ledger.tables.tables import to_table
from tests import sample_reports
from tests.matched import matched
from tests.place_rows import with_rows
from tests.sample_reports import collective

WORLD = Group("world", (0, 2, 1, 3))
MIXED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
         "scatter", "send", "recv", "barrier", "mystery")  # fmt: skip


def of(*rows: Collective, world: int = 4, **run: object) -> Report:
    """A report of one step with these collectives, in groups `world` (0, 2, 1, 3) and the two of `tp`."""
    base = sample_reports.report()
    steps = [Step(0, rank, 0, 10, 10, 0, 0, 0, 0) for rank in range(world)]
    tables = {**base.tables, "collectives": to_table("collectives", rows), "steps": to_table("steps", steps)}
    changed = replace(base.run, **{"world_size": world, "ranks_seen": tuple(range(world)), **run})  # type: ignore[arg-type]
    tables = sample_reports.of_ranks(tables, changed.ranks_seen)
    return matched(replace(base, run=changed, groups=(*base.groups[:2], WORLD), tables=tables))


def call(op: str, rank: int, sent: int | None, /, **changes: object) -> Collective:
    given = {"op": op, "wire_bytes": sent, "group": "world", "group_size": 4, "mesh_dim": None} | changes
    return collective(0, rank, 0, 64, **given)


def sent_to(report: Report) -> dict[int, dict[int, int]]:
    """Rank -> target -> bytes."""
    rows = calls(report).rows
    found = flows(report, rows, np.arange(report.run.world_size))
    sums: dict[int, dict[int, int]] = {}
    for row, cell, amount in zip(found.row, found.cell, found.bytes, strict=True):
        to = sums.setdefault(int(rows["rank"].iloc[row]), {})
        to[int(cell)] = to.get(int(cell), 0) + int(amount)
    return sums


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_rings_and_chains_send_to_the_next_of_the_group(op: str):
    report = of(*(call(op, rank, 100 + rank) for rank in range(4)))
    assert sent_to(report) == {0: {2: 100}, 2: {1: 102}, 1: {3: 101}, 3: {0: 103}}


def test_all_to_all_and_scatter_send_equal_parts_to_the_others():
    assert sent_to(of(call("all_to_all", 2, 300))) == {2: {1: 100, 3: 100, 0: 100}}
    # What does not divide goes to the first after the rank, so that no byte is lost.
    assert sent_to(of(call("scatter", 2, 302, root=2))) == {2: {1: 101, 3: 101, 0: 100}}


def test_messages_go_to_the_peer_and_gathers_to_the_root():
    report = of(call("send", 0, 7, root=3), call("recv", 3, 0, root=0), call("gather", 1, 5, root=2))
    assert sent_to(report) == {0: {3: 7}, 1: {2: 5}}


def test_what_is_not_known_goes_nowhere():
    rows = [
        call("mystery", 0, 9),
        call("all_reduce", 1, 8, group="never described", group_size=3),
        call("send", 2, 7, root=None),
        call("send", 3, 6, root=77),
    ]
    assert sent_to(of(*rows)) == {0: {NOWHERE: 9}, 1: {NOWHERE: 8}, 2: {NOWHERE: 7}, 3: {NOWHERE: 6}}


def mixed() -> Report:
    """Every op on every rank, sizes all different, modules of two layers and none."""
    rows = []
    for at, op in enumerate(MIXED):
        for rank in range(4):
            sent = {"recv": 0, "barrier": 0}.get(op, 1000 * at + 37 * rank + 1)
            module = (f"blocks.{rank % 2}.mlp", None, "")[at % 3]
            rows.append(call(op, rank, sent, root=(rank + 1) % 4, module=module))
    return of(*rows, call("all_reduce", 0, None))


def test_rows_of_the_matrix_add_up_to_the_ranks_wire_bytes():
    report = mixed()
    (trace,) = matrix.figure(report).data
    frame = report.collectives
    known = frame["wire_bytes"].fillna(0).groupby(frame["rank"]).sum()
    assert trace["x"] == ["rank 0", "rank 1", "rank 2", "rank 3", "not known"]
    for rank, row in enumerate(trace["z"]):
        assert sum(_bytes(trace, cell) for cell in row) == pytest.approx(int(known[rank]), rel=1e-5)
    assert all(row[at] is None for at, row in enumerate(trace["z"]))


def _bytes(trace: dict[str, Any], cell: float | None) -> float:
    if cell is None:
        return 0
    # Colours go by the logarithm where cells differ much.
    return 10**cell if trace["zmin"] else cell


def test_both_sides_of_the_sankey_add_up_exactly():
    report = mixed()
    figure = bytes.figure(report)
    (trace,) = figure.data
    link, labels = trace["link"], trace["node"]["label"]
    total = int(report.collectives["wire_bytes"].fillna(0).sum())
    ends = [
        at for at, label in enumerate(labels) if label.split("  ")[0] in ("within a host", "between hosts")
    ]
    to_links = sum(value for to, value in zip(link["target"], link["value"], strict=True) if to in ends)
    assert to_links == total
    assert sum(link["value"]) - to_links == total
    assert f"{total:,} B in 1 step" in figure.notes[0]
    assert any(
        note.startswith("1 collective of 49 not counted: the size is unknown") for note in figure.notes
    )
    assert any(label.startswith("blocks.*.mlp ") for label in labels)
    assert any(label.startswith("no module on record, forward ") for label in labels)
    assert any(label.startswith("(root) ") for label in labels)


def test_links_are_told_by_hosts():
    rows = [call("all_reduce", rank, 100) for rank in range(4)]

    def links(**run: object) -> dict[str, int]:
        (trace,) = bytes.figure(of(*rows, **run)).data
        link, labels = trace["link"], trace["node"]["label"]
        return {
            labels[to].split("  ")[0]: value
            for source, to, value in zip(link["source"], link["target"], link["value"], strict=True)
            if labels[source].startswith("all_reduce")
        }

    # The ring 0, 2, 1, 3 crosses at every step where 0 and 1 share a host.
    two = ("a", "a", "b", "b")
    assert links(hosts=("a", "b"), rank_hosts=two) == {"between hosts": 400}
    assert links(hosts=("a", "b"), rank_hosts=("a", "b", "a", "b")) == {
        "within a host": 200,
        "between hosts": 200,
    }
    assert links(hosts=("a", "b"), ranks_per_host=2) == {"between hosts": 400}
    some = ("a", None, "b", "b")
    assert links(hosts=("a", "b"), rank_hosts=some) == {"between hosts": 200, "link unknown": 200}
    assert links(hosts=("a",)) == {"within a host": 400}
    assert links(hosts=()) == {"link unknown": 400}


def test_hosts_of_a_run_with_missing_ranks_are_not_guessed():
    run = replace(sample_reports.RUN, ranks_seen=(0, 1), ranks_per_host=2, hosts=("a",))
    assert not nodes(run).known


def test_bytes_are_of_a_mean_step():
    steps = [Step(at, rank, 0, 10, 10, 0, 0, 0, 0) for at in range(3) for rank in range(2)]
    rows = [collective(at, 0, at, 64, wire_bytes=10 + at) for at in range(3)] + [collective(7, 0, 9, 64)]
    base = of(*rows)
    report = replace(base, tables={**base.tables, "steps": to_table("steps", steps)})
    (trace,) = bytes.figure(report).data
    assert trace["link"]["value"] == [11, 11]
    assert "1 collective outside every finished step not counted." in bytes.figure(report).notes


def test_many_ranks_are_taken_together_by_node_or_block():
    ranks = 128
    rows = [call("all_reduce", rank, 10, group_size=ranks) for rank in range(ranks)]
    blocks = matrix.figure(of(*rows, world=ranks, hosts=()))
    (trace,) = blocks.data
    assert (len(trace["z"]), len(trace["z"][0])) == (64, 64)
    assert [trace["z"][5][at] for at in (5, 6)] == [10, 10]
    assert "in blocks of 2" in blocks.notes[0]
    nodes = matrix.figure(of(*rows, world=ranks, hosts=tuple("abcd"), ranks_per_host=32))
    (trace,) = nodes.data
    assert trace["y"][1] == "node 1 (ranks 32-63)"
    assert [round(_bytes(trace, cell)) for cell in trace["z"][1]] == [0, 310, 10, 0]
    assert "by node" in nodes.notes[0]


def test_ranks_without_records_are_grey_and_not_empty():
    figure = matrix.figure(of(call("all_reduce", 0, 100), call("all_reduce", 2, 100), ranks_seen=(0, 2)))
    _, unseen = figure.data
    assert [row[0] for row in unseen["z"]] == [None, 1, None, 1]
    assert any(note.startswith("Grey rows") for note in figure.notes)


def test_a_finding_marks_its_links_and_cells():
    rows = [call("all_reduce", rank, 100, module="a") for rank in range(4)]
    rows += [call("all_gather", rank, 50, module="b") for rank in range(4)]
    finding = Finding("wide-dtype", "info", "t", None, None, None, None, 1, (0, 1), Where(module="b"))
    report = with_rows(replace(of(*rows), findings=(finding,)))
    sankey = bytes.figure(report)
    (trace,) = sankey.data
    labels = trace["node"]["label"]
    lit = {
        (labels[trace["link"]["source"][at]].split(" ")[0], labels[trace["link"]["target"][at]].split(" ")[0])
        for at in sankey.marks[1][0]
    }
    assert lit == {("b", "all_gather"), ("all_gather", "within")}
    # Ranks 0 and 1 send to 2 and 3.
    assert matrix.figure(report).marks == {1: {0: [0 * 4 + 2, 1 * 4 + 3]}}


@pytest.mark.parametrize("module", [bytes, matrix])
def test_nothing_sent_nothing_drawn(module: Any):
    for report in (sample_reports.empty(), sample_reports.unknown()):
        assert module.figure(report).empty
    assert bytes.numbers(sample_reports.empty()) == ""


def test_many_modules_are_folded_and_no_byte_is_lost():
    rows = [call("all_reduce", 0, 10 + at, module=f"m{chr(97 + at)}") for at in range(26)]
    figure = bytes.figure(of(*rows))
    (trace,) = figure.data
    assert sum(trace["link"]["value"]) == 2 * sum(10 + at for at in range(26))
    assert any("7 other modules" in label for label in trace["node"]["label"])
    assert any(
        note.startswith("The 19 modules that move most are shown; the 7 others") for note in figure.notes
    )


def test_a_rank_that_the_job_does_not_have_is_refused():
    report = of(call("all_to_all", 0, 30))
    rows = to_table("collectives", [call("all_to_all", 9, 90)])
    with pytest.raises(ValueError, match="rank holds 9"):
        replace(report, tables={**report.tables, "collectives": rows})
