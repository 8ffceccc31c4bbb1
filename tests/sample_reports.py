"""Hand-made reports for the tests of renderers and commands: every number is chosen, none measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from shardtoll.ledger import (
    Collective,
    Compute,
    Count,
    Evidence,
    FabricInfo,
    Finding,
    Group,
    Notice,
    Remedy,
    Report,
    Run,
    Step,
    Where,
)
from shardtoll.ledger.records.remedy_key import with_keys
from shardtoll.ledger.records.volume import busbw_factor, wire_bytes
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.tables import to_table
from tests.matched import matched
from tests.place_rows import with_rows

HOSTILE = {
    "script": "<script>alert('x')</script>",
    "close": '</script><img src=x onerror="alert(1)">',
    "quotes": "\"'`&amp;<b>bold</b>",
    "markup": "[red]not red[/red] [link=http://evil]x[/link]",
    "escape": "\x1b[31mred\x1b]0;title\x07",
    "rtl": "abc\u202edef\u2066ghi\u200f",
    "surrogate": "lone \ud800 half",
    "long": "module." + "x" * 10_000,
    "plotly": "%{x} <a href='javascript:alert(1)'>link</a> $\\alpha$",
    "tag": "<b>x</b><br>y",
    "lines": "two\nlines\r\nand\ta tab\u2028end",
}

RUN = Run(
    world_size=4,
    backend="gloo",
    device="cpu",
    torch="2.13.0",
    hosts=("node0",),
    mesh={"dp": 2, "tp": 2},
    source="live",
    ranks_seen=(0, 1, 2, 3),
)
FABRIC = FabricInfo("loopback-gloo", "measured on this machine by calibrate, 4 ranks")
GROUPS = (
    Group("tp", (0, 1), "tp", "gloo"),
    Group("tp", (2, 3), "tp", "gloo"),
    Group("world", (0, 1, 2, 3), None, "gloo"),
)
MS = 1_000_000


def step(number: int, rank: int, slow: int = 0) -> Step:
    parts = (30 * MS, 12 * MS + slow, 0, 5 * MS, 3 * MS)
    return Step(number, rank, number * 60 * MS, sum(parts), *parts, capture_ns=2 * MS)


def collective(number: int, rank: int, seq: int, message: int, /, **changes: object) -> Collective:
    took = 200_000 + message // 2
    base = Collective(
        step=number,
        rank=rank,
        group="tp",
        group_size=2,
        mesh_dim="tp",
        seq=seq,
        op="all_reduce",
        dtype="float32",
        message_bytes=message,
        wire_bytes=wire_bytes("all_reduce", message, 2),
        issue_ns=None,
        start_ns=number * 60 * MS + seq * 8 * MS,
        duration_ns=took + 100_000 * rank,
        exposed_ns=took // 2,
        phase="forward",
        implicit=True,
        placements_from="(Partial(sum),)",
        placements_to="(Replicate(),)",
        caused_by_op="aten.mm.default",
        module="blocks.0.mlp",
        source="train.py:42 (step)",
        wait_ns=100_000 * rank,
        transfer_ns=took,
        busbw_gbps=message / took,
        floor_ns=100_000 + message // 4,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def collectives() -> list[Collective]:
    rows = []
    for number in range(2):
        for rank in range(4):
            rows += [collective(number, rank, seq, 1 << (12 + 3 * seq)) for seq in range(4)]
            unknown = {"busbw_gbps": None, "transfer_ns": None, "floor_ns": None, "wait_ns": None}
            rows.append(
                collective(number, rank, 4, 1 << 20, op="all_gather", implicit=False, phase="backward",
                           group="world", group_size=4, mesh_dim=None, module="", source=None,
                           parameter="blocks.0.mlp.weight", caused_by_op="FSDP.unshard",
                           busbw_gbps=(1 << 20) / 700_000 * (busbw_factor("all_gather", 4) or 1))
            )  # fmt: skip
            rows.append(collective(number, rank, 5, 64, implicit=None, phase="other", module=None, **unknown))
    rows.append(collective(0, 0, 9, 8, start_ns=None, duration_ns=None, exposed_ns=None, message_bytes=None,
                           wire_bytes=None, busbw_gbps=None, seq=None, step=None, wait_ns=None))  # fmt: skip
    return rows


FINDINGS = (
    Finding(
        kind="implicit-redistribute",
        severity="warning",
        title="mm needs its input replicated: DTensor all_reduces 2.1 MB four times per step",
        toll_ns=9_400_000,
        floor_ns=1_200_000,
        saving_ns=8_200_000,
        bytes=2_097_152,
        count=4,
        ranks=(0, 1, 2, 3),
        where=Where(
            phase="forward",
            module="blocks.0.mlp",
            op="aten.mm.default",
            source="train.py:42 (step)",
            group="tp",
            mesh_dim="tp",
        ),
        evidence=(
            Evidence("placements", "(Partial(sum),) -> (Replicate(),)"),
            Evidence("message", 2_097_152, "bytes"),
            Evidence("exposed on the slowest rank", 9_400_000, "ns"),
            Evidence("bus bandwidth", 0.47, "GB/s"),
            Evidence("bandwidth at the floor", None, "GB/s"),
        ),
        remedy=Remedy(
            "reduce-scatter instead: keep the output sharded on the sequence",
            "parallelize_module(block, mesh, {\n    'mlp.out': RowwiseParallel(output_layouts=Shard(1)),\n})",
            "the same step without this all_reduce",
        ),
    ),
    Finding(
        kind="wrong-gradient",
        severity="error",
        title="gradient of blocks.0.mlp.weight holds a quarter of the batch: a reduction is missing",
        toll_ns=None,
        floor_ns=None,
        saving_ns=None,
        bytes=None,
        count=1,
        ranks=(0, 1, 2, 3),
        where=Where(phase="backward", parameter="blocks.0.mlp.weight"),
        evidence=(Evidence("scale", 0.25, "x"), Evidence("elements off", 4096)),
        remedy=Remedy("Reduce the gradient over the world group."),
    ),
    Finding(
        kind="latency-bound",
        severity="info",
        title="8 all_reduces of 64 B cost their latency only",
        toll_ns=820_000,
        floor_ns=100_000,
        saving_ns=None,
        bytes=512,
        count=8,
        ranks=(1,),
        where=Where(phase="optimizer", group="world"),
        confidence="likely",
    ),
)


def report(**changes: object) -> Report:
    """The ordinary case: four ranks, two steps, three findings, two notices."""
    return with_rows(replace(_report(), **changes))  # type: ignore[arg-type]


@cache
def _report() -> Report:
    tables = empty_tables() | {
        "steps": to_table("steps", [step(n, r, slow=3 * MS * (r == 2)) for n in range(2) for r in range(4)]),
        "collectives": to_table("collectives", collectives()),
        "computes": to_table(
            "computes",
            [Compute(0, r, 0, "aten.mm.default", 1 << 20, 0, None, "forward", "f32[8,8]") for r in range(4)],
        ),
        "counts": to_table("counts", [Count(0, r, "tp", 6, 6) for r in range(4)]),
        "notices": to_table(
            "notices",
            [Notice(r, "times-unknown", "no profiler: device times are unknown") for r in range(4)]
            + [Notice(3, "capture-stopped", "stopped after an error in a hook", step=1)],
        ),
    }
    return matched(Report(RUN, FABRIC, GROUPS, tables, tuple(with_keys(FINDINGS))))


def of_ranks(tables: Mapping[str, pa.Table], ranks: Iterable[int]) -> dict[str, pa.Table]:
    """Return the tables without rows of other ranks."""
    seen = pa.array(list(ranks), pa.int64())
    return {
        name: table.filter(pc.is_in(table.column("rank"), seen)) if "rank" in table.column_names else table
        for name, table in tables.items()
    }


def empty() -> Report:
    """No step, no collective, no finding, one rank missing, everything unknown."""
    run = Run(2, None, None, None, (), {}, "trace", (0,))
    return Report(run, FabricInfo("unknown", "no fabric named"), (), empty_tables())


def unknown() -> Report:
    """Collectives of which neither time nor size is known, and a step nobody could divide."""
    gone = dict.fromkeys(
        ("seq", "dtype", "message_bytes", "wire_bytes", "start_ns", "duration_ns", "exposed_ns", "implicit",
         "placements_from", "placements_to", "caused_by_op", "module", "source", "mesh_dim", "wait_ns",
         "transfer_ns", "busbw_gbps", "floor_ns")
    )  # fmt: skip
    rows = [collective(0, rank, 0, 8, **gone) for rank in range(2)]
    steps = [Step(0, rank, 0, 5 * MS, 0, 0, 0, 0, 5 * MS) for rank in range(2)]
    tables = empty_tables() | {
        "collectives": to_table("collectives", rows),
        "steps": to_table("steps", steps),
    }
    finding = Finding("unattributed-time", "info", "all of the step", None, None, None, None, 1, (0, 1))
    return report(tables=tables, findings=(finding,))


def hostile() -> Report:
    """Every string that a program or a file can choose is an attack."""

    def name(key: str) -> str:
        # Arrow holds no lone surrogates, so the tables cannot either.
        return HOSTILE[key].encode("utf-8", "replace").decode()

    names = list(HOSTILE)
    rows = [
        collective(0, at % 4, at, 1 << (8 + at), module=name(key), parameter=name(key), source=name(key),
                   caused_by_op=name(key), group=name(key), mesh_dim=name(key), dtype=name(key),
                   op=name(key) if at % 2 else "all_reduce",
                   placements_from=name(key), placements_to=name(key))
        for at, key in enumerate(names)
    ]  # fmt: skip
    severities = (["error", "warning", "info"] * len(HOSTILE))[: len(HOSTILE)]
    findings = tuple(
        Finding("implicit-redistribute", severity, text, 1000 * at, None, 10 * at, 10, 1, (0,),
                Where("forward", text, text, text, text, text, text),
                (Evidence(text, text, text), Evidence(text, 1.0, text)), Remedy(text, text, text))  # type: ignore[arg-type]
        for at, (text, severity) in enumerate(zip(HOSTILE.values(), severities, strict=True))
    )  # fmt: skip
    base = report()
    tables = dict(base.tables) | {
        "collectives": to_table("collectives", rows),
        "notices": to_table("notices", [Notice(0, name(key), name(key)) for key in names]),
    }
    run = replace(RUN, backend=HOSTILE["script"], device=HOSTILE["close"], torch=HOSTILE["escape"],
                  hosts=tuple(HOSTILE.values()), mesh={HOSTILE["markup"]: 4})  # fmt: skip
    fabric = FabricInfo(HOSTILE["script"], HOSTILE["close"])
    return with_rows(Report(run, fabric, GROUPS, tables, findings))


def many(ranks: int, calls: int) -> Report:
    """A large run: `calls` collectives on each of `ranks` ranks, in one step."""
    rows = [
        collective(0, rank, seq, 1 << (10 + seq % 12), start_ns=seq * 90_000, duration_ns=60_000,
                   exposed_ns=(seq * 7919) % 60_000, module=f"layers.{seq % 48}", wait_ns=None)
        for rank in range(ranks)
        for seq in range(calls)
    ]  # fmt: skip
    run = replace(RUN, world_size=ranks, ranks_seen=tuple(range(ranks)))
    steps = [step(0, rank, slow=rank * 10_000) for rank in range(ranks)]
    tables = dict(report().tables) | {
        "collectives": to_table("collectives", rows),
        "steps": to_table("steps", steps),
    }
    return with_rows(Report(run, FABRIC, GROUPS, tables, FINDINGS))
