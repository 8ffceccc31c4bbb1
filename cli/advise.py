"""`shardtoll advise`: which layout, which lever, how often a checkpoint, with the numbers that decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardtoll.cli.inputs.options import AsJson, Width, fabric_option, gpu_option, output_option


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|SCRIPT.py|PLAN.toml]",
            help="A recorded, traced or dry run; a training script, which runs dry; or a plan file.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENTS]", help="The script's own arguments.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="A published model, as llama3-8b.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", help="Number of GPUs.")] = None,
    gpu: Annotated[str | None, gpu_option("The GPU; default: the fabric's, else h100-sxm.")] = None,
    fabric: Annotated[
        str | None, fabric_option("The interconnect; without it, the usual one of machines with this GPU.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=1, metavar="TOKENS", help="Tokens of a sequence.")
    ] = None,
    batch_tokens: Annotated[
        str | None,
        typer.Option(
            "--batch-tokens",
            metavar="4M",
            help="Tokens of an optimizer step; default: the current batch, or 4M.",
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="90%",
            help="Share of the GPU's memory that the upper band may use; default: 100%.",
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="WORD", help="bf16 (default), fp16, fp32, tf32, fp8.")
    ] = None,
    price: Annotated[
        str | None, typer.Option("--price", metavar="2.5/gpu-hour", help="Price of one GPU for one hour.")
    ] = None,
    failures_per_day: Annotated[
        float | None,
        typer.Option(
            "--failures-per-day", metavar="N", help="Failures of the job; default: a published rate."
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option("--checkpoint-seconds", metavar="S", help="Measured time that one checkpoint blocks."),
    ] = None,
    recovery_seconds: Annotated[
        float | None,
        typer.Option(
            "--recovery-seconds",
            metavar="S",
            help="Time from a failure to the next step; default: 600 s and the load.",
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="LAYOUT",
            help="A layout to compare with the advised one, as dp=8,tp=8,micro_batch=2.",
        ),
    ] = None,
    confirm: Annotated[
        str | None,
        typer.Option(
            "--confirm",
            metavar="TEMPLATE",
            help="Run the best layouts dry. The text says how the script takes one: '--tp {tp}'.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None, output_option("Write x.html, x.json or x.md too (repeatable).")
    ] = None,
    as_json: AsJson = False,
    width: Width = None,
) -> None:
    """Advise on the layout of a training job: the best, those as good, what decided, what a lever buys.

    Layouts whose forecast peak memory does not fit are dropped. The others are priced by the forecast of
    their step. The simplest layout within 2 % of the fastest is advised. The effective batch stays as it is
    unless --batch-tokens changes it. A run or a script gives model, batch and layout.

    \b
    Examples:
      shardtoll advise --model llama3-8b --gpus 64 --gpu h100-sxm --batch-tokens 4M
      shardtoll advise plan.toml --max-memory 85% -o advice.html -o advice.json
      shardtoll advise runs/a --gpu h100-sxm
      shardtoll advise train.py --gpus 16 --confirm '--tp {tp} --batch {micro_batch}' -- --model 8b
      shardtoll advise --model llama3-8b --gpus 8 --explain dp=4,tp=2,sharding=fsdp,micro_batch=2
    """
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer
    from shardtoll.cli.inputs.price import price_per_gpu_hour

    check_targets(output or [], ANSWERS["advise"])
    per_hour = price_per_gpu_hour(price)
    options: dict[str, Any] = {
        "model": model, "gpus": gpus, "gpu": gpu, "fabric": fabric, "sequence": sequence,
        "batch_tokens": batch_tokens, "precision": precision, "price_per_gpu_hour": per_hour,
        "memory_share": _share(max_memory),
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    beside: dict[str, Any] = {
        "failures_per_day": failures_per_day, "checkpoint_blocked_s": checkpoint_seconds,
        "recovery_s": recovery_seconds,
    }  # fmt: skip
    _above_zero("--failures-per-day", failures_per_day)
    _above_zero("--checkpoint-seconds", checkpoint_seconds)
    _above_zero("--recovery-seconds", recovery_seconds)
    _above_zero("--price", per_hour)
    kind = _kind(path, arguments, confirm)
    from shardtoll.cli.jobs.advise_job import advised

    advice = advised(kind, path, arguments or [], given, beside, explain, confirm)
    show_answer("advise", advice, as_json=as_json, width=width)
    write_answer("advise", advice, output or [], as_json=as_json)


def _kind(path: str | None, arguments: list[str] | None, confirm: str | None) -> str:
    """Return what is asked about: options, plan, script or run. UsageError for what only a script takes."""
    from shardtoll.ledger import UsageError

    kind = "options" if path is None else {".toml": "plan", ".py": "script"}.get(Path(path).suffix, "run")
    if kind != "script" and arguments:
        raise UsageError(
            f"unexpected argument {arguments[0]!r:.40}", "only a script takes arguments, after --"
        )
    if kind != "script" and confirm is not None:
        raise UsageError(
            "--confirm needs a script, which runs dry", "name the script in place of the run or plan"
        )
    return kind


def _above_zero(option: str, value: float | None) -> None:
    from math import isfinite

    from shardtoll.ledger import UsageError

    if value is not None and not (value > 0 and isfinite(value)):
        raise UsageError(f"{option} {value:g} is no finite number above 0", "leave it out if it is unknown")


def _share(text: str | None) -> float | None:
    from shardtoll.ledger import UsageError

    if text is None:
        return None
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise UsageError(f"--max-memory {text!r:.40} is no share of memory", "give it as 90% or 0.9")
    return value
