"""Training under Accelerate and transformers' Trainer, on real ranks, with and without an audit."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import torch
from torch import nn

from tests.live.integration_programs import leaving_nothing, rows, run_example, samples
from tests.live.programs import blocks


def of_hugging_face(folder: str) -> dict[str, Any]:
    """Train under Accelerate, then under transformers' Trainer, with and without an audit."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.chdir(folder)
    warnings.simplefilter("ignore")
    return {**_of_accelerate(folder), **_of_trainer(folder)}


def _of_accelerate(folder: str) -> dict[str, Any]:
    from accelerate import Accelerator

    from shardtoll.profiler.live.integrations.accelerate import audit_accelerate

    def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = blocks()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(every: int, key: str | None, fails_at: int | None = None) -> dict[str, Any]:
        accelerator = Accelerator(gradient_accumulation_steps=every)
        model, optimizer, loader = accelerator.prepare(*parts(), samples())
        losses: list[float] = []

        def batches(accumulator: Any) -> None:
            for number, batch in enumerate(loader):
                with accumulator.accumulate(model):
                    loss = model(batch).square().mean()
                    losses.append(float(loss.detach()))
                    if number == fails_at:
                        raise RuntimeError("no more")
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()

        if key is None:
            batches(accelerator)
            return {"rows": None, "losses": losses}
        with leaving_nothing(model):
            try:
                with audit_accelerate(accelerator, model, f"{folder}/{key}", level="survey") as audited:
                    batches(audited)
                assert fails_at is None
            except RuntimeError as error:
                assert str(error) == "no more"  # noqa: PT017 - anything else is to be seen
        return {"rows": rows(audited.report), "losses": losses}

    found: dict[str, Any] = {}
    for every, key in ((1, "accelerate"), (2, "accelerate_accumulated")):
        found[f"bare_{key}"] = train(every, None)
        found[key] = train(every, key)
    found["accelerate_failed"] = train(2, "accelerate_failed", fails_at=3)
    model, optimizer = parts()
    with leaving_nothing(model):
        names = run_example("Hugging Face Accelerate", model=model, optimizer=optimizer, loader=samples())
    found["accelerate_example"] = {
        "rows": rows(names["audited"].report),
        "losses": [float(names["loss"].detach())],
    }
    return found


def _of_trainer(folder: str) -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from shardtoll.profiler.live.integrations.trainer import AuditCallback

    class Watcher(TrainerCallback):  # type: ignore[misc]
        def __init__(self, stops_at: int | None, fails_at: int | None) -> None:
            self.stops_at, self.fails_at = stops_at, fails_at

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == self.stops_at

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.fails_at:
                raise RuntimeError("no more")

    def parts() -> dict[str, Any]:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, 32, (20, 8), generator=generator)
        return {
            "model": GPT2LMHeadModel(config),
            "dataset": [{"input_ids": row, "labels": row} for row in tokens],
        }

    def arguments(every: int) -> Any:
        return TrainingArguments(
            output_dir=f"{folder}/trainer", use_cpu=True, per_device_train_batch_size=2, num_train_epochs=1,
            gradient_accumulation_steps=every, report_to="none", save_strategy="no", logging_steps=1,
            disable_tqdm=True, ddp_backend="gloo", dataloader_pin_memory=False, learning_rate=0.01,
        )  # fmt: skip

    def train(every: int, key: str | None, **watched: int | None) -> dict[str, Any]:
        given = parts()
        callback = None if key is None else AuditCallback(f"{folder}/{key}", level="survey")
        watcher = Watcher(watched.get("stops_at"), watched.get("fails_at"))
        trainer = Trainer(
            model=given["model"],
            args=arguments(every),
            train_dataset=given["dataset"],
            callbacks=[watcher] if callback is None else [watcher, callback],
        )
        with leaving_nothing(given["model"]) if callback else contextlib.nullcontext():
            try:
                with callback or contextlib.nullcontext():
                    trainer.train()
            except RuntimeError as error:
                assert str(error) == "no more"  # noqa: PT017 - anything else is to be seen
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        weights = [float(parameter.detach().sum()) for parameter in given["model"].parameters()]
        report = None if callback is None else rows(callback.report)
        return {"rows": report, "losses": losses, "weights": weights}

    found: dict[str, Any] = {}
    for every, key in ((1, "trainer"), (2, "trainer_accumulated")):
        found[f"bare_{key}"] = train(every, None)
        found[key] = train(every, key)
    found["trainer_stopped"] = train(2, "trainer_stopped", stops_at=2)
    found["trainer_failed"] = train(1, "trainer_failed", fails_at=2)
    sizes = [parameter.numel() for parameter in parts()["model"].parameters()]
    found["trainer"]["parameters"] = sizes
    given = parts()
    with leaving_nothing(given["model"]):
        names = run_example("Hugging Face Trainer", args=arguments(2), **given)
    found["trainer_example"] = {"rows": rows(names["callback"].report)}
    return found
