"""A training script that knows nothing of shardtoll; tests/live/test_run_script.py runs copies of it."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def main() -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        # Set-up is no step, however much it communicates.
        dist.all_reduce(torch.ones(1000))
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    for _ in range(4):
        loss = train_step(model, optimizer)
        if options.fail:
            raise ValueError("the data ran out")
        print(f"loss {loss:.9g}", flush=True)
    with torch.no_grad():
        model.eval()
        print(f"held out {float(model(torch.ones(4, 8)).square().mean()):.9g}", flush=True)
    if dist.is_initialized():
        dist.all_reduce(torch.ones(2000))
        dist.destroy_process_group()
    sys.exit(options.exit)


if __name__ == "__main__":
    main()
