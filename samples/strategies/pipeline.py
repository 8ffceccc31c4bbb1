"""Pipelines: how long a rank waits for work, under four schedules of torch.distributed.pipelining.

The blocks are cut into stages, the batch into micro-batches. A stage sends its activations on and, later,
their gradients back: nothing else is communicated, whatever the schedule. With s sequences a micro-batch,
every boundary between stages of different ranks costs, for each micro-batch,

    forward    send on the earlier stage's rank, recv on the later one's: 4 x s x tokens x dim bytes
    backward   the same bytes the other way

so the bytes say little about a schedule. What does is the bubble: the time in which a rank has nothing to
do. With p ranks, m micro-batches, v stages a rank, a backward twice as long as a forward and messages that
take no time, the share of a step that is bubble is at best

    gpipe        (p - 1) / (m + p - 1)     all forwards, then all backwards: m activations kept
    1f1b         (p - 1) / (m + p - 1)     the same bubble, but at most p activations kept
    interleaved  (p - 1) / (v m + p - 1)   v stages a rank: less bubble, more messages
    zero_bubble  (p - 1) / (6 m + p - 1)   from 2 p micro-batches on: the gradients of weights, which nobody
                                           waits for, fill the holes. Two stages a rank, laid as a V: the
                                           first rank also has the last stage

The program prints these, computed from the schedule's own order, beside what was measured: the exposed sends
and receives of each rank. Where the two are far apart, stages are uneven or messages slow.

Two limits of torch 2.13. In its first step a schedule votes and exchanges shapes, with messages of its own;
like all samples, this one does not audit its first step. And the order that `Schedule1F1B` tells of numbers
the forwards of the last rank from 1; what it runs is right.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.pipeline --variant 1f1b --sequences 8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from shardtoll.samples.ranks import leave, process_group
from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.bubble import Schedule, actions_of, ideal_bubble, measured_bubble
from shardtoll.samples.strategies.transformer import Batch, Transformer, loss_of


def cut(model: Transformer, stage: int, stages: int) -> Transformer:
    """Keep what the stage holds, in place: its share of the blocks, at the ends the embedding or the head."""
    layers = len(model.blocks)
    held = range(stage * layers // stages, (stage + 1) * layers // stages)
    for name in list(model.blocks):
        if int(name) not in held:
            del model.blocks[name]
    if stage > 0:
        model.embed = None
    if stage < stages - 1:
        model.norm = model.head = None
    return model


def run_schedule(schedule: Schedule, batch: Batch, *, first: bool, last: bool) -> torch.Tensor:
    """Run a step of the schedule; the mean loss where the last stage is, elsewhere nothing."""
    losses: list[torch.Tensor] = []
    inputs = (batch.tokens,) if first else ()
    if last:
        schedule.step(*inputs, target=batch.targets, losses=losses)
    else:
        schedule.step(*inputs)
    return torch.stack(losses).mean().detach() if losses else torch.empty(0)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Builds the job of one schedule, all ranks in one pipeline."""

    kind: Any
    """The schedule's class."""
    per_rank: int = 1
    """Stages of a rank."""
    as_v: bool = False
    """Stages lie down one arm of a V and up the other, not in turn."""

    def held(self, rank: int, ranks: int) -> list[int]:
        """Return the stages of a rank."""
        if self.as_v:
            return [rank, 2 * ranks - 1 - rank]
        return [rank + turn * ranks for turn in range(self.per_rank)]

    def make(self, options: common.Options, device: torch.device) -> tuple[common.Job, Schedule]:
        """Return the job, and the schedule that it runs."""
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("pp",))
        stages, group = mesh.size() * self.per_rank, mesh.get_group("pp")
        held = self.held(mesh.get_local_rank(), mesh.size())
        modules = [cut(options.model(device), stage, stages) for stage in held]
        placed = [
            PipelineStage(module, stage, stages, device, group=group)
            for module, stage in zip(modules, held, strict=True)
        ]
        # One sequence a micro-batch: as many as can be.
        schedule: Schedule = self.kind(
            placed[0] if self.per_rank == 1 else placed, n_microbatches=options.sequences, loss_fn=loss_of
        )
        model = nn.ModuleDict({f"stage{stage}": module for stage, module in zip(held, modules, strict=True)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device, rank=0)
            mine = self.held(mesh.get_local_rank(), mesh.size())
            loss = run_schedule(schedule, batch, first=0 in mine, last=stages - 1 in mine)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return common.Job(model, step), schedule

    def __call__(self, options: common.Options, device: torch.device) -> common.Job:
        """Return the job alone."""
        return self.make(options, device)[0]


PIPELINES: Final[Mapping[str, Pipeline]] = {
    "gpipe": Pipeline(ScheduleGPipe),
    "1f1b": Pipeline(Schedule1F1B),
    "interleaved": Pipeline(ScheduleInterleaved1F1B, per_rank=2),
    "zero_bubble": Pipeline(ScheduleZBVZeroBubble, per_rank=2, as_v=True),
}
VARIANTS: Final[Mapping[str, common.Build]] = PIPELINES


def main() -> None:
    """Run the chosen schedule; rank 0 prints the bill, and the bubble beside the ideal one."""
    build, options = common.arguments(__doc__, VARIANTS)
    assert isinstance(build, Pipeline)
    with process_group(options.device) as device:
        # A block for every stage.
        layers = max(options.sizes.layers, dist.get_world_size() * build.per_rank)
        options = replace(options, sizes=replace(options.sizes, layers=layers))
        job, schedule = build.make(options, device)
        session, losses = common.train(job, options)
        report = session.report()
        if report is not None:
            report.show()
            print(f"bubble at best: {ideal_bubble(actions_of(schedule)):.0%} of the step of every rank")
            for rank, share in measured_bubble(report).items():
                print(f"bubble of rank {rank}: {share:.0%}")
        if losses[-1].numel():
            print("losses: " + " ".join(f"{float(loss):.4f}" for loss in losses))
    leave()


if __name__ == "__main__":
    main()
