"""`shardtoll whatif`: the step after fixes and other changes, before anybody writes them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from shardtoll.cli.inputs.options import (
    AnswerFiles,
    AsJson,
    Jobs,
    NoCache,
    Width,
    fabric_option,
)


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
def command(
    path: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder, report.json or traces.", show_default=False)
    ],
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="N|KIND",
            help="Findings that are fixed, by their numbers on the bill or their kinds; several with commas, "
            "as 1,3, or given several times.",
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--first", min=1, metavar="N", help="The first N findings that can be replayed are fixed."
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="OP@LINE",
            help="Without these collectives, as all_gather@train.py:12; either part alone will do.",
        ),
    ] = None,
    fabric: Annotated[str | None, fabric_option("On another interconnect.")] = None,
    network: Annotated[
        str | None, typer.Option("--network", metavar="xF", help="F times the bandwidth, as x2.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="xF|NAME|FILE.toml",
            help="Compute F times as fast, as x1.3, or on another GPU, as b200-sxm.",
        ),
    ] = None,
    rank: Annotated[
        list[str] | None,
        typer.Option("--rank", metavar="R=median", help="Rank R as fast as the median of its peers."),
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option("--micro-batches", min=1, metavar="N", help="Micro-batches of a pipeline.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="TYPE", help="Wider messages in this type, as bf16.")
    ] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="SIZE", help="DDP's gradient buckets, as 25MB.")
    ] = None,
    batch_ready: Annotated[bool, typer.Option("--batch-ready", help="No rank waits for its batch.")] = False,
    async_copies: Annotated[
        bool, typer.Option("--async-copies", help="Copies overlap with compute.")
    ] = False,
    no_recompute: Annotated[
        bool, typer.Option("--no-recompute", help="Without activation checkpointing's second forward.")
    ] = False,
    output: AnswerFiles = None,
    as_json: AsJson = False,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    width: Width = None,
) -> None:
    """Replay the recorded steps with changes: the step's time before and after, with a band.

    Several changes are replayed together; what they save is not the sum of what each saves alone. The step
    after is analysed as the one before: the answer says which findings vanish and which appear.

    \b
    Examples:
      shardtoll whatif runs/a --fix 1
      shardtoll whatif runs/a --fix 1 --network x2
      shardtoll whatif runs/a --without all_reduce -o after.json -o after.md -o after.html
      shardtoll whatif traces --first 3
      shardtoll whatif traces --gpu x1.3 --rank 1=median
    """
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.cli.inputs.waiting import waiting
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.report.asked import asked

    check_targets(output or [], ANSWERS["whatif"])
    changes: dict[str, Any] = {
        "without": tuple(without or ()),
        "fabric": fabric,
        "network": None if network is None else _times("--network", network),
        "gpu": None if gpu is None else _gpu(gpu),
        "ranks": tuple(_rank(words) for words in rank or ()),
        "micro_batches": micro_batches,
        "dtype": dtype,
        "bucket_bytes": None if bucket is None else _bytes(bucket),
        "batch_ready": batch_ready,
        "async_copies": async_copies,
        "no_recompute": no_recompute,
    }
    if not fix and first is None and not any(changes.values()):
        raise UsageError(
            "whatif is given nothing to change",
            "give --fix 1, or another change; see shardtoll whatif --help",
        )
    report = one_report(path, None, TraceOptions(jobs=jobs, cache=not no_cache))
    fixes = asked(fix or (), report.findings)
    with waiting("replaying the steps with the changes"):
        answer = report.whatif(*fixes, first=first, name=path, **changes)
    show_answer("whatif", answer, as_json=as_json, width=width)
    write_answer("whatif", answer, output or [], as_json=as_json)


def _gpu(words: str) -> float | str:
    """Return a factor, or the name or file of a GPU."""
    begins = re.match(r"[x×]?-?\.?\d", words.strip())
    return words if begins is None or words.endswith(".toml") else _times("--gpu", words)


def _times(option: str, words: str) -> float:
    from shardtoll.ledger import UsageError

    match = re.fullmatch(r"[x×]?(\d{1,6}(?:\.\d{1,6})?)", words.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {words} is no factor", f"give how many times as fast, as {option} x2")
    return float(match[1])


def _rank(words: str) -> int:
    from shardtoll.ledger import UsageError

    match = re.fullmatch(r"(\d{1,7})=median", words.strip())
    if match is None:
        raise UsageError(f"--rank {words} is not understood", "give a rank, as --rank 3=median")
    return int(match[1])


def _bytes(words: str) -> int:
    from shardtoll.ledger import UsageError

    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?) ?([KMG]I?|)B?", words.strip().upper())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--bucket {words} is no size", "give a size, as --bucket 25MB or 64MiB")
    return max(1, round(float(match[1]) * units[match[2]]))
