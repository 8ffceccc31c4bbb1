"""The bill for TensorBoard: numbers as scalars, the findings as text."""

from __future__ import annotations

import os
import time
from typing import Any

from shardtoll.dashboards.exports.markdown import markdown
from shardtoll.dashboards.exports.tracker import FOLDER, client, numbers
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.report.report import TENSORBOARD


@TENSORBOARD.entry
def log(report: Report, writer: Any, step: int = 0) -> None:
    """Log to a SummaryWriter (of torch or tensorboardX), or into a folder; UsageError if it cannot."""
    if isinstance(writer, str | os.PathLike):
        _into_folder(report, os.fspath(writer), step)
    elif callable(getattr(writer, "add_scalar", None)) and callable(getattr(writer, "add_text", None)):
        for name, value in numbers(report).items():
            writer.add_scalar(name, value, step)
        writer.add_text(f"{FOLDER}/bill", markdown(report), step)
    else:
        raise UsageError(
            f"report.to_tensorboard() was given {type(writer).__name__}", "give a SummaryWriter or a folder"
        )


def _into_folder(report: Report, folder: str, step: int) -> None:
    # torch's own writer would do, but nothing of a dashboard may import torch.
    asked = "report.to_tensorboard()"

    def of(name: str) -> Any:
        return client(f"tensorboard.{name}", asked, package="tensorboard")

    protos, events = of("compat.proto.summary_pb2"), of("compat.proto.event_pb2")
    text, tensors = of("plugins.text.metadata"), of("util.tensor_util")
    scalars = protos.Summary()
    for name, value in numbers(report).items():
        scalars.value.add(tag=name, simple_value=value)
    scalars.value.add(
        tag=f"{FOLDER}/bill/text_summary",
        metadata=text.create_summary_metadata(display_name=f"{FOLDER}/bill", description=""),
        tensor=tensors.make_tensor_proto([markdown(report).encode()]),
    )
    try:
        writer = of("summary.writer.event_file_writer").EventFileWriter(folder)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror or error})", "name another folder"
        ) from error
    writer.add_event(events.Event(wall_time=time.time(), step=step, summary=scalars))
    writer.close()
