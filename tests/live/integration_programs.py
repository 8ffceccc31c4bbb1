"""Training under the real trainer libraries, on real ranks; one process start checks many things."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader

from tests.live.launch import ROOT
from tests.live.programs import BATCH, D, blocks

BATCHES = 5
DOCS = ROOT / "docs" / "integrations.md"
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "devices": 2,
    "max_epochs": 1,
    "use_distributed_sampler": False,
}


def data(count: int = BATCHES) -> Any:
    """This rank's batches."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(BATCH, D, generator=generator) for _ in range(count)]
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def samples() -> Any:
    """The batches of all ranks, for libraries that deal them out themselves."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(D, generator=generator) for _ in range(BATCHES * BATCH * dist.get_world_size())]
    return DataLoader(made, batch_size=BATCH)  # type: ignore[arg-type]


def example(heading: str) -> str:
    """The code block of one section of the documentation."""
    section = DOCS.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def run_example(heading: str, **given: Any) -> dict[str, Any]:
    """Run a section's code as a user would paste it; return its names."""
    names: dict[str, Any] = {"__name__": "pasted", **given}
    exec(compile(example(heading), f"<{heading}>", "exec"), names)
    return names


def installed(*roots: nn.Module) -> dict[str, Any]:
    """Everything that an audit may replace or add to, by name."""
    found: dict[str, Any] = {"modes": len(_get_current_dispatch_mode_stack())}
    for owner in (dist.Work, dist.ProcessGroup, torch._C.Future, torch.profiler.profile, nn.Module):
        found |= {f"{owner.__name__}.{name}": value for name, value in vars(owner).items() if callable(value)}
    # torch and the libraries add hooks of their own (DDP, FSDP2): those of this project are looked for.
    ours = [
        hook
        for root in roots
        for module in root.modules()
        for name, hooks in vars(module).items()
        if "hooks" in name and isinstance(hooks, dict)
        for hook in hooks.values()
        if "shardtoll" in str(getattr(hook, "__module__", ""))
    ]
    found["hooks"] = len(ours)
    return found


@contextlib.contextmanager
def leaving_nothing(*roots: nn.Module) -> Iterator[None]:
    """Everything is afterwards as it was before, and no session is open."""
    from shardtoll.profiler.live.session.session import active_session

    before = installed(*roots)
    yield
    assert installed(*roots) == before
    assert active_session() is None


def rows(report: Any) -> dict[str, Any] | None:
    """What a test compares of a report; None on ranks that have none."""
    if report is None:
        return None
    return {
        "steps": json.loads(report.steps.to_json(orient="records")),
        "collectives": json.loads(report.collectives.to_json(orient="records")),
        "findings": [finding.kind for finding in report.findings],
        "ranks_seen": list(report.run.ranks_seen),
    }


def of_lightning(folder: str) -> dict[str, Any]:
    """Train under Lightning, with and without the callback; first as its older name imports it."""
    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # as torchrun does: Lightning then starts no processes
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["GROUP_WORLD_SIZE"] = str(dist.get_world_size())
    os.chdir(folder)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    if importlib.util.find_spec("pytorch_lightning"):
        older = importlib.import_module("pytorch_lightning")
        found["older"] = _under(older, folder, only_ddp=True)["ddp"]
    import lightning.pytorch as pl

    from shardtoll.profiler.live.integrations import lightning as adapter

    # A process imports the adapter once, under one of the names: here it chooses a second time.
    importlib.reload(adapter)
    return {**found, **_under(pl, folder)}


def _under(pl: Any, folder: str, *, only_ddp: bool = False) -> dict[str, Any]:
    from shardtoll.profiler.live.integrations.lightning import AuditCallback

    assert issubclass(AuditCallback, pl.Callback)

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = blocks()
            self.losses: list[float] = []
            self.fails_at: int | None = None
            self.stops_at: int | None = None
            self.skips_at: int | None = None

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == self.skips_at else None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.net(batch).square().mean()
            self.losses.append(float(loss.detach()))
            if batch_idx == self.fails_at:
                raise RuntimeError("no more")
            if batch_idx == self.stops_at:
                self.trainer.should_stop = True
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            dist.all_reduce(torch.ones(1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class ByHand(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(super().training_step(batch, batch_idx))
            if batch_idx % 2:
                optimizer.step()
                optimizer.zero_grad()

    class Sharded(Net):
        def configure_model(self) -> None:
            from torch.distributed.fsdp import fully_shard

            if not isinstance(self.net, torch.distributed.fsdp.FSDPModule):
                for block in self.net:
                    fully_shard(block, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def fit(model: Any, callbacks: list[Any], strategy: Any = "ddp", **options: Any) -> list[float]:
        trainer = pl.Trainer(callbacks=callbacks, strategy=strategy, **{**QUIET, **options})
        trainer.fit(model, data(), data(1) if options.get("limit_val_batches") else None)
        return list(model.losses)

    found: dict[str, Any] = {}

    def audited(key: str, make: Callable[[], Any], raises: str | None = None, **options: Any) -> None:
        model, callback = make(), AuditCallback(out=f"{folder}/{key}", level="survey")
        with leaving_nothing(model):
            try:
                losses = fit(model, [callback], **options)
                assert raises is None
            except RuntimeError as error:
                assert str(error) == raises  # noqa: PT017 - anything else is to be seen
                losses = list(model.losses)
        found[key] = {"rows": rows(callback.report), "losses": losses}

    def with_(kind: Callable[[], Any], **attributes: Any) -> Callable[[], Any]:
        def make() -> Any:
            model = kind()
            for key, value in attributes.items():
                setattr(model, key, value)
            return model

        return make

    found["bare_ddp"] = {"rows": None, "losses": fit(Net(), [])}
    audited("ddp", Net)
    if not only_ddp:
        losses = fit(Net(), [], accumulate_grad_batches=2)
        found["bare_accumulated"] = {"rows": None, "losses": losses}
        audited("accumulated", Net, accumulate_grad_batches=2)
        audited("validated", Net, limit_val_batches=1, num_sanity_val_steps=1)
        audited("by_hand", ByHand)
        audited("stopped", with_(Net, stops_at=1))
        audited("skipped", with_(Net, skips_at=2))
        audited("failed", with_(Net, fails_at=2), raises="no more")
        strategy = pl.strategies.ModelParallelStrategy
        sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1}
        losses = fit(Sharded(), [], strategy=strategy(**sizes))
        found["bare_fsdp2"] = {"rows": None, "losses": losses}
        audited("fsdp2", Sharded, strategy=strategy(**sizes))
        os.chdir(folder)
        model = Net()
        with leaving_nothing(model):
            names = run_example("Lightning", model=model, loader=data())
        found["example"] = {"rows": rows(names["callback"].report), "losses": model.losses}
    return found
