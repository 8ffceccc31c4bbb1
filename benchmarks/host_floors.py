"""What the host needs for an operator of an eager program, in floors: calls that do the least there is.

    python benchmarks/host_floors.py -o benchmarks/results/host-floors.json

A floor is `x.add_(1)` of one element without a gradient: what a launch takes where nothing is waited for
(`make gpu` measures it on a card). A block of a decoder is so small here that its kernels take next to
nothing, so that its time is the host's: Python, modules, autograd, views, and if it is checkpointed the hooks
of saved tensors. Models of two depths are compared, in rounds, as the pace of a shared machine drifts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from gpu.decoder import Decoder, Size, batch

FORWARD: Final = 11
BACKWARD: Final = 22
RECOMPUTED: Final = 8
"""Operators of a block that launch a kernel on a card: forward, backward, and of the forward again before
torch's checkpoint has all that is saved."""
DEPTHS: Final = (2, 10)
ROUNDS: Final = 15
CALLS: Final = 4


def loss_of(layers: int, *, recompute: bool) -> Callable[[], Any]:
    """Return what makes the loss of a tiny decoder."""
    size = Size(layers, 32, 2, vocabulary=64, positions=8, batch=1)
    model, tokens = Decoder(size, recompute=recompute), batch(size, "cpu")

    def loss() -> Any:
        logits = model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return loss


def both_s(loss: Callable[[], Any]) -> tuple[float, float]:
    """Return the times of a forward and of its backward, each the least of some calls."""
    forwards, backwards = [], []
    for _ in range(CALLS):
        began = time.perf_counter()
        made = loss()
        between = time.perf_counter()
        made.backward()
        forwards.append(between - began)
        backwards.append(time.perf_counter() - between)
    return min(forwards), min(backwards)


def floor_s(count: int = 2000) -> float:
    """Return the time of one floor, the least of some series."""
    one = torch.zeros(1)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        for _ in range(count):
            one.add_(1.0)
        times.append((time.perf_counter() - began) / count)
    return min(times)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    losses = {
        (kind, depth): loss_of(depth, recompute=kind) for kind in (False, True) for depth in DEPTHS
    }  # fmt: skip
    for loss in losses.values():
        both_s(loss)
    rows: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        floor = floor_s()
        times = {key: both_s(loss) for key, loss in losses.items()}
        few, many = DEPTHS

        def block(kind: bool, at: int, times: Any = times, few: int = few, many: int = many) -> float:
            return float(times[kind, many][at] - times[kind, few][at]) / (many - few)

        rows.append(
            {
                "floor_us": 1e6 * floor,
                "forward": block(False, 0) / floor / FORWARD,
                "backward": block(False, 1) / floor / BACKWARD,
                "checkpointed_forward": block(True, 0) / floor / FORWARD,
                "recompute": (block(True, 1) - block(False, 1)) / floor / RECOMPUTED,
            }
        )
    answer: dict[str, Any] = {}
    for name in rows[0]:
        values = sorted(row[name] for row in rows)
        answer[name] = {
            "median": round(statistics.median(values), 2),
            "quartiles": [round(values[len(values) // 4], 2), round(values[-1 - len(values) // 4], 2)],
        }
    answer["torch"] = torch.__version__
    print(json.dumps(answer, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
