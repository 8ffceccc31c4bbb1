"""`shardtoll forecast eval`: prices of a table of training steps, next to their measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shardtoll.cli.inputs.options import (
    TablesAsJson,
    Width,
    fabric_option,
    gpu_option,
    output_option,
)

if TYPE_CHECKING:
    from shardtoll.ledger.answers.forecast import PricedRow, RowsForecast

_MOST_BYTES: Final = 64_000_000
_NEEDED: Final = ("model", "gpus")


def command(
    table: Annotated[Path, typer.Argument(metavar="ROWS.csv", help="Training steps, one a line.")],
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibrate",
            metavar="ROWS.csv",
            help="Measured rows to scale prices by (repeatable): each price by the most similar row of "
            "the same GPU and framework.",
        ),
    ] = None,
    gpu: Annotated[str | None, gpu_option("Price every row on this GPU, in place of its own.")] = None,
    fabric: Annotated[str | None, fabric_option("Price every row on this interconnect.")] = None,
    output: Annotated[list[Path] | None, output_option("Write x.json or x.md (repeatable).")] = None,
    as_json: TablesAsJson = False,
    width: Width = None,
) -> None:
    """Price each training step of a table: step time, tokens/s/GPU and memory, each with an 80 % band.

    Columns: model, gpus, gpu, framework, precision, seq, mbs, ga, gbs, tp, pp, vpp, cp, ep, shard, ac,
    compile, schedule, net, layers, hidden, heads, kv_heads, ffn, vocab, experts, topk; hardware and config
    in words. The gpu may be a TOML file, and net a fabric or its TOML file. A shape that is missing is
    taken from the model's name. A row that states too little has a reason and no price. Measured columns
    (tok_s_gpu, step_s, mem_gib) are only compared. Exit code 2 if no row has a price.

    \b
    Examples:
      shardtoll forecast eval rows.csv
      shardtoll forecast eval rows.csv -o out.json
      shardtoll forecast eval rows.csv --calibrate rows.csv --json
      shardtoll forecast eval rows.csv --gpu b200-sxm --fabric b200x8-ib400
    """
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer

    check_targets(output or [], ANSWERS["forecast eval"])
    answer = evaluate(table, calibrate or [], gpu, fabric)
    show_answer("forecast eval", answer, as_json=as_json, width=width)
    write_answer("forecast eval", answer, output or [], as_json=as_json)
    _refuse_nothing(answer)


def _refuse_nothing(answer: RowsForecast) -> None:
    from shardtoll.ledger import UsageError

    if not any(row.reason is None for row in answer.rows):
        reason = answer.rows[0].reason if answer.rows else "the file has no row"
        raise UsageError(f"no row has a price: {reason}", "see the reason of each with --json")


def evaluate(
    table: Path, calibrate: Sequence[Path], gpu: str | None = None, fabric: str | None = None
) -> RowsForecast:
    """Return every row priced and scored, on a machine of the caller's or its own.

    Raises UsageError and FabricError in one line for files that cannot be read and unknown machines.
    """
    from rich.console import Console
    from rich.progress import track

    from shardtoll.analyzers.forecast.rows.calibrate import anchors_of
    from shardtoll.analyzers.forecast.rows.columns import unknown_columns
    from shardtoll.analyzers.forecast.rows.row_prices import priced_row
    from shardtoll.analyzers.forecast.rows.row_scores import scores_of, weak_scaling
    from shardtoll.ledger.answers.forecast import RowsForecast

    rows = _on_machine(read_rows(table), gpu, fabric)
    anchors = [each for path in calibrate for each in anchors_of(read_rows(path))]
    console = Console(stderr=True)
    # A file or a pipe would get an empty line.
    numbered = track(
        list(enumerate(rows, start=1)), "pricing rows", console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    priced = tuple(priced_row(place, row, anchors) for place, row in numbered)
    names = ", ".join(str(path) for path in calibrate) or None
    note = unknown_columns(list(rows[0]) if rows else [])
    notes = (() if note is None else (note,)) + _replaced(priced)
    return RowsForecast(priced, scores_of(priced), weak_scaling(rows), names, notes)


_MOST_NOTES: Final = 5


def _replaced(priced: Sequence[PricedRow]) -> tuple[str, ...]:
    """Return a note for each row that is priced with another degree than it states, the first few by name."""
    notes = [f"row {row.number}: {each}" for row in priced for each in row.replaced]
    more = len(notes) - _MOST_NOTES
    if more > 0:
        notes[_MOST_NOTES:] = [f"{more} more like these: `replaced` in the JSON has all of them"]
    return tuple(notes)


def _on_machine(rows: list[dict[str, str]], gpu: str | None, fabric: str | None) -> list[dict[str, str]]:
    """Return the rows as of another machine. Figures measured on the rows' own machine do not hold for
    another one."""
    from shardtoll.analyzers.forecast.compute.cards import card_of
    from shardtoll.analyzers.forecast.rows.columns import MEASURED
    from shardtoll.analyzers.roofline import load_fabric

    # Wrong names are reported before a large table is priced.
    if gpu is not None:
        card_of(gpu)
    if fabric is not None:
        load_fabric(fabric)
    if gpu is None and fabric is None:
        return rows
    # With another GPU alone, the network is that GPU's usual one.
    other = {"net": fabric or ""} if gpu is None else {"net": fabric or "", "gpu": gpu, "hardware": ""}
    return [{**row, **other, **dict.fromkeys(MEASURED & row.keys(), "")} for row in rows]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file. Raises UsageError if it cannot be read, or if a column that every row
    needs is missing."""
    import csv
    import io

    from shardtoll.ledger import UsageError

    try:
        # Not a pipe or a device, which may never end.
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}", "name a CSV file of training steps")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{path} is too large", f"give at most {_MOST_BYTES:,} bytes")
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), restval="")
        rows = [{str(key): str(value or "") for key, value in row.items() if key} for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not CSV in UTF-8"
        raise UsageError(f"{path} cannot be read ({reason})", "name a CSV file of training steps") from error
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(
            f"{path} has no column {missing[0]!r}",
            "give model and gpus at least; see `shardtoll forecast eval --help`",
        )
    return rows
