"""What the host reads of tensors: of the step's own, not of what a loader makes of its samples."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from shardtoll.profiler import audit

STEPS = 4


class Augmented(Dataset[torch.Tensor]):
    """Samples whose transform draws numbers as torchvision's do: tensors of the host, read at once."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(8) * torch.empty(1).uniform_(0.1, 1.0).item()


def sources(*, reads: bool) -> list[str]:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(DataLoader(Augmented()))
    with audit(model, level="survey") as session:
        for _ in range(STEPS):
            with session.step():
                loss = model(next(batches)).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if reads:
                    assert loss.item() == loss.item()
    report = session.report()
    assert report is not None
    return [
        str(place.where.source)
        for finding in report.findings
        if finding.kind == "host-sync"
        for place in (finding.places or (finding,))
    ]


def test_what_a_transform_reads_is_no_wait_for_a_device() -> None:
    assert sources(reads=False) == []


def test_the_steps_own_reads_are_told_and_the_loaders_are_not_among_them() -> None:
    assert sources(reads=True)
    assert all("(sources)" in source for source in sources(reads=True))
