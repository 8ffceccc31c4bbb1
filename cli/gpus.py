"""`shardtoll gpus`: the GPUs that steps can be priced on, and how far their numbers can be trusted."""

from __future__ import annotations

import typer

from shardtoll.cli.inputs.options import SourcedJson, Width


def command(
    as_json: SourcedJson = False,
    width: Width = None,
) -> None:
    """List the known GPUs: the names that --gpu takes, with memory and peaks.

    \b
    Examples:
      shardtoll gpus
      shardtoll gpus --json
    """
    from shardtoll.analyzers.roofline import known_gpus

    gpus = known_gpus()
    if as_json:
        import json

        from shardtoll.cli.subcommands.fabric_json import gpu_to_json

        typer.echo(json.dumps([gpu_to_json(gpu) for gpu in gpus]))
        return
    from shardtoll.dashboards.fabrics.list import GPU_HEADS, FabricLine, show
    from shardtoll.ledger.words import human

    lines = []
    for gpu in gpus:
        wide = next(name for name in ("bfloat16", "float16", "float32") if name in gpu.peak_tflops)
        figures = (
            f"{human.size(gpu.memory_bytes.value)} at {gpu.memory_gbps.value:,g} GB/s, "
            f"{gpu.peak_tflops[wide].value:,g} TFLOP/s in {wide}"
        )
        numbers = len([*gpu.quantities()])
        lines.append(FabricLine(gpu.name, gpu.title, figures, numbers, len(gpu.guesses)))
    show(lines, width, GPU_HEADS)
