"""Expert parallelism: tokens travel to their expert and back, and some experts are asked more than others.

Every rank has a batch of its own and one expert: a feed-forward part in place of the dense one. A router
sends each token to the expert it likes best. With T tokens on a rank, R of all ranks' tokens wanted here, and
n ranks, a layer issues, on the mesh dimension `ep`,

    forward    all_to_all of 8 n bytes          how many tokens go where: to be known before they are received
               all_to_all of 4 T dim bytes      tokens to their experts
               all_to_all of 4 R dim bytes      what the experts made of them, back
    backward   all_to_all of 4 T dim, then of 4 R dim bytes: the same two ways, gradients

and a step, for what is not an expert, one all_reduce of its gradients (DDP over the same ranks).

R is what differs between ranks. The largest R over the mean is the imbalance: every rank waits for the one
with the most tokens, in the expert's matmuls and in both exchanges. It can be read from the bill, as bytes of
the way back on each rank; the program prints it. `skewed` adds a bias to the router, so that the first expert
is asked far more.

The wire bytes of an uneven exchange are what a rank's own splits say: all but what it keeps for itself.
Reading the splits (`tolist`) stops the host until the counts are there: on a GPU, a sync in every layer.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.expert_parallel --variant skewed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from shardtoll.ledger import Report
from shardtoll.samples.ranks import leave, process_group
from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import FeedForward, Sizes, loss_of


class Experts(nn.Module):
    """A router and this rank's expert: a feed-forward part that only the tokens meant for it pass."""

    def __init__(self, sizes: Sizes, mesh: DeviceMesh, bias: float) -> None:
        super().__init__()
        self.mesh = mesh
        self.bias = bias
        """Added to the first expert's score."""
        self.router = nn.Linear(sizes.dim, mesh.size(), bias=False)
        self.expert = FeedForward(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, dim] for the same, each token by its expert's hand."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens)
        scores = scores + self.bias * (torch.arange(self.mesh.size(), device=x.device) == 0)
        weight, chosen = scores.softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        outgoing = torch.bincount(chosen, minlength=self.mesh.size())
        incoming = all_to_all_single(outgoing, None, None, self.mesh)
        sent, got = outgoing.tolist(), incoming.tolist()
        here = all_to_all_single_autograd(tokens[order], got, sent, self.mesh)
        back = all_to_all_single_autograd(self.expert(here), sent, got, self.mesh)
        out = torch.empty_like(tokens).index_copy(0, order, back)
        weighted: torch.Tensor = (out * weight.unsqueeze(-1)).view_as(x)
        return weighted


def expert_parallel(bias: float) -> common.Build:
    """Return what builds the job: one expert a rank, everything else the same on all ranks."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("ep",))
        model = options.model(device)
        with torch.random.fork_rng(devices=[]):
            for layer, block in enumerate(model.blocks.values()):
                torch.manual_seed(1 + layer)
                experts = Experts(options.sizes, mesh, bias).to(device)
                # Experts differ; routers are the same on all ranks.
                torch.manual_seed(1_000 * (1 + layer) + mesh.get_local_rank())
                for parameter in experts.expert.parameters():
                    nn.init.normal_(parameter, std=0.1)
                block.ffn = experts
        own = [name for name, _ in model.named_parameters() if ".expert." in name]
        # Positions are the same everywhere, and constant.
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, [*own, "positions"])
        shared = DistributedDataParallel(model, process_group=mesh.get_group("ep"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        experts_own = [parameter for name, parameter in model.named_parameters() if name in own]

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device)
            loss = loss_of(shared(batch.tokens), batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            for parameter in experts_own:
                # The loss is the mean over ranks: DDP sees to it for what is shared, nobody for an expert.
                if parameter.grad is not None:
                    parameter.grad /= mesh.size()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return common.Job(shared, step)

    return build


def imbalance(report: Report) -> dict[str, float]:
    """Return for each module the most tokens of a rank over the mean, from the bytes of the way back."""
    rows: Any = report.collectives
    rows = rows[
        (rows["op"] == "all_to_all") & (rows["phase"] == "forward") & (rows["step"] == rows["step"].max())
    ]
    # Of the three exchanges of a layer, the last one is the way back.
    last = rows.groupby(["module", "rank"])["message_bytes"].last()
    return {str(name): float(share.max() / share.mean()) for name, share in last.groupby("module")}


VARIANTS: Final[Mapping[str, common.Build]] = {
    "even": expert_parallel(0.0),
    "skewed": expert_parallel(0.5),
}


def main() -> None:
    """Train the chosen variant; rank 0 prints the bill and the imbalance of each layer."""
    build, options = common.arguments(__doc__, VARIANTS)
    with process_group(options.device) as device:
        session, losses = common.train(build(options, device), options)
        report = session.report()
        if report is not None:
            report.show()
            for module, share in imbalance(report).items():
                print(f"{module}: the busiest expert has {share:.2f} times the mean")
            print("losses of rank 0: " + " ".join(f"{float(loss):.4f}" for loss in losses))
    leave()


if __name__ == "__main__":
    main()
