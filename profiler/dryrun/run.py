"""`dry_run()`: a program as one rank of a job of any size, in this process, without a GPU."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardtoll.ledger import Ledger, UsageError
from shardtoll.ledger.records.dry import ONLY_FIRST
from shardtoll.ledger.records.record import Notice
from shardtoll.ledger.words.human import plural
from shardtoll.profiler.dryrun.capture import DryMode
from shardtoll.profiler.dryrun.device.devices import DeviceMode, Tensors
from shardtoll.profiler.dryrun.device.errors import Endless, Enough, user_line
from shardtoll.profiler.dryrun.device.stand_ins import Memory
from shardtoll.profiler.dryrun.device.storages import Held, Storages
from shardtoll.profiler.dryrun.device.timeline import Timeline
from shardtoll.profiler.dryrun.device.values import Values
from shardtoll.profiler.dryrun.dry_options import DryOptions
from shardtoll.profiler.dryrun.idle import IdleSession
from shardtoll.profiler.dryrun.rows import ledger_of
from shardtoll.profiler.dryrun.shims.shim import Shim
from shardtoll.profiler.live.capture.mode import DRY
from shardtoll.profiler.live.cause.groups import initialized
from shardtoll.profiler.live.session.schedule import SURVEY_EVERY, Schedule
from shardtoll.profiler.live.session.session import GATHER_LIMIT_S, Session
from shardtoll.profiler.live.times.patches import Patches, patched


class DryRun:
    """One dry run while it lasts, and its ledger once it is over."""

    def __init__(self, options: DryOptions) -> None:
        self.options = options
        world = options.world
        self._timeline = Timeline()
        self._tensors = Tensors(world.local_rank)
        self.values = Values(options.policy, user_line)
        self.storages = Storages(self._timeline)
        self.storages.limit_bytes = options.machine.memory_bytes
        self._mode = DryMode(world.rank, self._tensors, self._timeline, self.storages)
        memory = Memory(options.machine.memory_bytes)
        memory.live_bytes = lambda: self.storages.live_bytes
        memory.peak_bytes = lambda: self.storages.peak_bytes
        self.shim = Shim(
            world,
            options.machine,
            self._tensors,
            DeviceMode(self._tensors, self.values),
            self._timeline,
            memory,
        )
        self.ledger: Ledger | None = None
        """The records, once the run is over and if a step was recorded."""
        self.steps = 0
        """Optimizer steps that have ended."""
        self._optimizers: dict[int, Any] = {}
        self._first: Any = None
        self._on_host: dict[int, bool] = {}
        """Id of a parameter that an optimizer updates -> whether it is on the host."""
        self._model: torch.nn.Module | None = None
        """The first module that was called in training."""
        self._depth = 0
        """Modules whose calls run: each is called by the one before."""
        self.alone = False
        """Whether the program trains without a process group."""
        self._due = False
        """Whether the optimizer has stepped and its range is about to end."""
        self._making_state = False
        self._session: Session | None = None
        self._parts: list[Any] = []
        self._first_step: tuple[Ledger, list[Any], list[Held]] | None = None
        """The first step, which counts only if no second one follows."""
        self._works: dict[int, tuple[Any, tuple[int, str]]] = {}
        """Id of a Work -> itself, and the collective that it stands for."""
        self._undo = contextlib.ExitStack()

    # -- opening and closing -------------------------------------------------------------------------

    def open(self) -> DryRun:
        """Replace torch's functions and record from now on; `close` must follow."""
        if initialized():
            raise UsageError(
                "a process group exists already",
                "open dry_run() before init_process_group(), in a process of its own",
            )
        with contextlib.ExitStack() as undo:
            undo.callback(self._clear)
            undo.callback(self.shim.remove)
            self.shim.install()
            self._connect()
            DRY.tensors_are_fake = True
            DRY.idle_session = IdleSession
            undo.callback(_no_longer_dry)
            undo.callback(register_optimizer_step_pre_hook(self._stepping).remove)
            undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
            # Hooks cannot be added or removed while they run: a step ends when the optimizer's range does.
            undo.callback(patched(self._install))
            self._undo = undo.pop_all()
        return self

    def _connect(self) -> None:
        mode, tensors, values = self._mode, self._tensors, self.values
        tensors.copied = mode.copied
        tensors.left_device = self.storages.discard
        values.synchronized = lambda: self._timeline.wait(None, "", self._timeline.order)
        values.recorded = lambda tensor, stream: self.storages.used_on(tensor, stream.name)
        mode.note_total, mode.total_of = values.note_total, values.total_of
        mode.region = lambda: self.shim.region
        mode.sent = lambda sent: setattr(self.shim, "last_sent", sent)
        mode.has_cudnn = self.options.machine.has_cudnn
        mode.assumed = self.shim.guess
        self.shim.work_waited = self._work_waited
        self.shim.work_handed = self._work_handed
        self.shim.resized = self.storages.resized
        mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Put torch back as it was."""
        try:
            if self._session is not None:
                self._drop_session()
        finally:
            with contextlib.suppress(AssertionError, RuntimeError, IndexError, ValueError):
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._undo.close()

    def _clear(self) -> None:
        if initialized():
            _forget_plans()
            dist.destroy_process_group()
        self.storages.close()
        self._tensors.close()
        self.values.close()
        self._optimizers.clear()
        self._first = self._model = None
        gc.collect()

    # -- steps ---------------------------------------------------------------------------------------

    def _stepping(self, optimizer: Any, *_: Any) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        self._first = self._first or optimizer
        self._mark(optimizer)

    def _mark(self, optimizer: Any) -> None:
        # Buckets first: if gradients are views of them, a bucket holds those of many parameters.
        for reducer in list(self.shim.reducers):
            for bucket in reducer.buckets:
                names = [name for each in bucket.parameters() for name in self._names(each)]
                self.storages.mark([bucket.data], "communication", names)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                names = self._names(parameter)
                self.storages.mark([parameter], "parameter", names)
                self._on_host.update({id(parameter): self._tensors.is_host(parameter)})
                if parameter.grad is not None:
                    self.storages.mark([parameter.grad], "gradient", names)

    def _names(self, parameter: Any) -> list[str]:
        """Return the parameter's name, if a module that was called has it."""
        name = None if self._session is None else self._session.capture.parameter_name(parameter)
        return [] if name is None else [name]

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self.values.stepped()
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
                self.storages.mark(tensors, "optimizer", self._names(parameter))
        self._due = optimizer is self._first and not self._making_state

    def _install(self, patches: Patches) -> None:
        patches.around(torch.autograd.profiler.record_function, "__exit__", self._around_exit)
        patches.around(torch.nn.Module, "__call__", self._around_call)
        patches.around(state_dict, "_init_optim_state", self._around_making_state)

    def _around_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._depth:
                self.values.forwarded()
            self._depth += 1
            try:
                return called(module, *args, **kwargs)
            finally:
                self._depth -= 1

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._model is None and torch.is_grad_enabled() and module.training:
                self._model = module
                self.storages.limit_bytes = None
                self.alone = not initialized()
                if self._session is None:
                    self._begin_step(0)
                else:
                    # An optimizer stepped before: the program made its state itself.
                    self._session.capture.name_model(module)
                # Once more: what the session patched just now is to see this call too.
                return module(*args, **kwargs)
            return call(module, *args, **kwargs)

        return __call__

    def _around_making_state(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """No step: torch has an optimizer make its state, by gradients of 0, to save or load a checkpoint."""

        @functools.wraps(make)
        def _init_optim_state(*args: Any, **kwargs: Any) -> Any:
            before, self._making_state = self._making_state, True
            try:
                return make(*args, **kwargs)
            finally:
                self._making_state = before

        return _init_optim_state

    def _around_exit(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(span: Any, *args: Any) -> Any:
            result = leave(span, *args)
            if self._due:
                self._due = False
                self._step_ended()
            return result

        return __exit__

    def _step_ended(self) -> None:
        # A future asks for it right after the call; held on, it would count as memory of the next step.
        self.shim.last_sent = None
        if self._session is not None:
            self._end_step()
        self.steps += 1
        if self.steps <= self.options.steps:
            self._begin_step(self.steps - 1)
        elif self.options.stop:
            raise Enough

    def _begin_step(self, number: int) -> None:
        if self._session is None:
            # Not by `audit()`, which is the program's own and idle here.
            schedule = Schedule("survey", SURVEY_EVERY)
            self._session = Session(None, None, GATHER_LIMIT_S, 0, schedule)
            self._session.open()
            if self._model is not None:
                self._session.capture.name_model(self._model)
        self._session.begin_step()
        recorder = self._session.capture.recorder
        self._mode.begin(number, recorder.attribution)

    def _end_step(self) -> None:
        session = self._session
        assert session is not None
        mode = self._mode
        end = self._timeline.order
        session.end_step()
        self._parts.append((mode.ops, mode.waits, mode.issued, end))
        mode.end()
        self._works.clear()
        if not self.steps:
            # The first step builds the optimizer's state: those after it are recorded from anew.
            self._first_step = self._finished()
            self.storages.begin_anew()
        elif self.steps == self.options.steps:
            self._keep(*self._finished())

    def _finished(self) -> tuple[Ledger, list[Any], list[Held]]:
        """Close the session; return its records."""
        session, self._session = self._session, None
        assert session is not None
        storages = [*self.storages.done, *(replace(held) for held in self.storages.alive())]
        session.close()
        assert session.ledger is not None
        parts, self._parts = self._parts, []
        return session.ledger, parts, storages

    def _keep(
        self, audited: Ledger, parts: list[Any], storages: list[Held], *, only_first: bool = False
    ) -> None:
        """`only_first`: the program made one step, which builds the optimizer's state."""
        self.alone = self.alone and not initialized()
        notices = [Notice(self.options.world.rank, "dry-run", line) for line in self.notices()]
        if only_first:
            notices.insert(0, Notice(self.options.world.rank, ONLY_FIRST, _ONLY_FIRST))
        self.ledger = ledger_of(audited, self.options, parts, storages, notices, self.shim.memory.settings)
        self._first_step = None

    def settle(self) -> None:
        """Keep what there is of a program that ended before all steps asked for were recorded."""
        if self.ledger is not None or not self.steps:
            return
        parts = self._parts
        if self._session is not None and not parts:
            self._drop_session()
        if parts:
            assert self._session is not None
            self._mode.end()
            self._session.end_step(finished=False)
            audited, parts, storages = self._finished()
            last = len(parts) - 1
            # Storages that the last step, which did not end, made and freed are left out.
            storages = [held for held in storages if held.step is None or held.step <= last]
            self._keep(audited, parts, storages)
        elif self._first_step is not None:
            self._keep(*self._first_step, only_first=True)

    def refuse_alone(self, program: str) -> None:
        """Raise UsageError if the job has more than one rank and the program made no process group."""
        ranks = self.options.world.size
        if self.alone and ranks > 1:
            raise UsageError(
                f"{program} made no process group: each of the {ranks:,} ranks would train alone",
                "have it call init_process_group, or ask for a world of 1",
            )

    def refuse_idle(self, program: str) -> None:
        """Raise UsageError if the GPU has nothing to do in the recorded steps."""
        if self.ledger is not None and not self.ledger.tables["dry_ops"].num_rows:
            raise UsageError(
                f"{program} does nothing on a GPU in the recorded step",
                'put the model and its batches on "cuda", as in model.to("cuda"). One file serves CPUs too '
                "if it asks torch.cuda.is_available(): a dry run answers yes",
            )

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._mode.end()
            session.end_step(finished=False)
            session.close()

    def notices(self) -> list[str]:
        """Return the dry run's assumptions, one line each."""
        lines = [
            f"{what} of a tensor without numbers was answered by the policy {plural(count, 'time')}"
            + (f", at {line}" if line else "")
            for (what, line), count in sorted(self.values.asked.items(), key=str)
        ]
        lines += [
            f"{what}, {plural(count, 'time')}" + (f", at {line}" if line else "")
            for (what, line), count in sorted(self.shim.guessed.items(), key=str)
        ]
        here = sum(self._on_host.values())
        if here:
            lines.append(
                f"{here:,} of {len(self._on_host):,} parameters that the optimizer updates are on the host: "
                "their work has no price"
            )
        if self.shim.fused_regions:
            lines.append("torch.compile: compiled functions ran eagerly; their operators are marked as fused")
        return lines + list(dict.fromkeys(self.shim.skipped_files))

    def _work_handed(self, work: Any) -> None:
        mode = self._mode
        if mode.step is not None and mode.issued:
            # Kept, so that no other Work gets its id.
            self._works[id(work)] = work, mode.issued[-1]

    def _work_waited(self, work: Any) -> None:
        handed = self._works.pop(id(work), None)
        if handed is not None and self._mode.step is not None:
            self._mode.waited_for(*handed[1])


_ONLY_FIRST: Final = (
    "the program makes one optimizer step, which builds the optimizer's state: the band reaches down to a "
    "step without that"
)


def _no_longer_dry() -> None:
    DRY.tensors_are_fake = False
    DRY.idle_session = None


def _forget_plans() -> None:
    """Have DTensor forget its plans for meshes whose groups are about to end."""
    with contextlib.suppress(ImportError, AttributeError):
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def dry(options: DryOptions) -> Iterator[DryRun]:
    """Run dry inside. Raises UsageError if the program waits for a value that no dry run has."""
    run = DryRun(options).open()
    try:
        yield run
        run.settle()
    except Endless as endless:
        raise UsageError(endless.message, endless.advice) from None
    finally:
        run.close()
