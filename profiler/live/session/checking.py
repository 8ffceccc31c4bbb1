"""Takes the values that `audit(checks=...)` asks for, while a session is open.

Gradients are taken as the first step of each optimizer begins (or has called its closure once). Those that no
optimizer takes are taken at the step's end. Before a total norm is taken of them they are taken too, as
clipping then scales them. Parameters and buffers are taken after the step, and parameters once before the
first one too. The values at the start show which are replicas. Inputs are taken as the model's forward
begins. Work that has to be done during a step is capture's own time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer, optimizer

from shardtoll.ledger.records.value import Parameter, Value
from shardtoll.profiler.live.capture.closures import has_closure
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.frames import in_backward
from shardtoll.profiler.live.cause.module_names import address_of, clean_name, local_of
from shardtoll.profiler.live.session.check_hooks import compiled, inputs_of, watch_inputs, watch_norms
from shardtoll.profiler.live.session.parameter_rows import parameter_row
from shardtoll.profiler.live.session.schedule import Checks
from shardtoll.profiler.live.session.wrapping import flat_starts, wrappers_of
from shardtoll.profiler.live.values.values import TakenValues, Values, settled, unseen

Seam = Callable[[Callable[[], None]], None]
"""Runs work of ours whose failure must cost the checks, not the training."""

_MOST_FORWARDS: Final = 4096
"""Forwards of one step whose inputs are taken: before the first step a whole validation may run."""


class Checking:
    """The checks of one session."""

    def __init__(
        self,
        checks: Checks,
        model: nn.Module,
        recorder: Recorder,
        is_training: Callable[[], bool],
        seam: Seam,
        device: torch.device,
    ) -> None:
        """`is_training`: whether the session records and the training's own thread asks."""
        self._checks = checks
        self._model = model
        self._recorder = recorder
        self._is_training = is_training
        self._seam = seam
        self._values = Values(recorder.rank)
        self._values.prepare(device)
        self._undo = ExitStack()
        self._step: int | None = None
        """The step that is looked at."""
        self._names: dict[int, str] = {}
        """Id of a parameter -> its first name."""
        self._parameters: list[tuple[str, nn.Parameter]] = []
        self._starts: dict[int, int] = {}
        """Id of a parameter that FSDP1 has cut -> where this rank's part begins in it, flattened."""
        self._owned: set[int] = set()
        """Ids of the parameters of all optimizers that have stepped."""
        self._stepped: set[int] = set()
        """Ids of the optimizers that have stepped in this step."""
        self._taken: set[int] = set()
        """Ids of the parameters whose gradients were taken in this step."""
        self._has_grad: dict[str, bool] = {}
        self._forwards = 0
        self._norms = 0
        self._ended = False
        """Whether a step was looked at to its end."""
        self._saw_forward = False
        self._first: int | None = None
        """The step before which the parameters were taken."""
        self._start: TakenValues | None = None
        self._held: deque[TakenValues] = deque()
        self._right: dict[str, bool] = {}
        """Name -> whether all exact checks of its gradient found it right."""

    def install(self) -> None:
        """Install what the checks need."""
        if "gradients" in self._checks.names:
            self._undo.callback(optimizer.register_optimizer_step_pre_hook(self._optimizer_steps).remove)
            self._recorder.closures.ended.append(self._closure_ended)
            self._undo.callback(watch_norms(self._model, self._norm_begins, self._norm_taken))
        if "data" in self._checks.names and not compiled(self._model):
            self._undo.callback(watch_inputs(self._model, self._forward_begins))

    def stop(self) -> None:
        """Look at nothing any more. Hooks stay installed: torch may be going through them now."""
        self._step = None
        self._values.drop()
        self._start = None
        self._held.clear()

    def remove(self) -> None:
        """Take out of the process whatever was installed; once more does no harm."""
        self._step = None
        self._undo.close()

    # -- steps -------------------------------------------------------------------------------------

    def begin(self, step: int | None) -> None:
        """Begin a step, or the time between steps; what the last one left is forgotten."""
        self._step = None
        self._values.drop()
        if step is None:
            return
        if self._first is None or step == self._first:
            # A session that begins anew had not begun: until then weights may still be loaded.
            self._take_start(step)
        if not self._checks.due(step):
            return
        self._learn_names()
        self._stepped.clear()
        self._taken.clear()
        self._forwards = self._norms = 0
        self._step = step

    def end(self) -> None:
        """End the step that has finished: outside of its time."""
        step, self._step = self._step, None
        if step is None:
            return
        self._ended = True
        self._saw_forward |= self._forwards > 0
        if "gradients" in self._checks.names:
            untaken = [item for item in self._parameters if id(item[1]) not in self._taken]
            # A scaler kept them from an optimizer, or it will when it has them all.
            scaled = self._recorder.scales_losses or None
            self._take_gradients(step, untaken, nth=1, may_leave_out=scaled)
        if "replicas" in self._checks.names:
            self._learn_names()
            self._take_replicas(step)
        with unseen():
            self._held.append(self._values.collect())

    def finished(self, *, wait: bool = False) -> list[Value]:
        """Return the rows whose numbers have come back from the device; with `wait` (after all steps) all."""
        rows: list[Value] = []
        if self._start is not None and (wait or self._ended):
            self._held.appendleft(self._start)
            self._start = None
        with unseen():
            while self._held and (wait or self._held[0].ready()):
                rows.extend(self._held.popleft().rows())
        return rows

    def _owners(self) -> dict[int, tuple[str, nn.Parameter]]:
        return {id(p.grad): (name, p) for name, p in self._parameters if p.grad is not None}

    def _learn_names(self) -> None:
        model = self._model
        self._parameters = [(clean_name(model, name), tensor) for name, tensor in model.named_parameters()]
        self._names = {id(parameter): name for name, parameter in self._parameters}
        self._starts = flat_starts(model)

    # -- what happens in a step --------------------------------------------------------------------

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Have what runs inside be capture's work."""
        recorder = self._recorder
        region, begun_ns = recorder.region, recorder.now_ns()
        try:
            with unseen():
                yield
        finally:
            if region is not None:
                region.capture.append((begun_ns, recorder.now_ns()))

    def _due(self) -> int | None:
        """Return the step to be looked at now."""
        return self._step if self._step is not None and self._is_training() else None

    def _optimizer_steps(self, stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or has_closure(args, kwargs):
            # A compiled optimizer must not contain this; and a closure has the gradients still to make.
            return
        self._closure_ended(stepping)

    def _closure_ended(self, stepping: Optimizer) -> None:
        """Look at the gradients that an optimizer is about to use."""
        step = self._due()
        if step is not None:
            self._seam(lambda: self._before_optimizer(step, stepping))

    def _before_optimizer(self, step: int, stepping: Optimizer) -> None:
        mine_ids = {id(parameter) for group in stepping.param_groups for parameter in group["params"]}
        self._owned |= mine_ids
        if not mine_ids <= self._names.keys():
            # FSDP2 shows other tensors while parameters are gathered, as evaluation leaves them.
            with self._own():
                self._learn_names()
        if id(stepping) in self._stepped:
            return
        self._stepped.add(id(stepping))
        # Gradients that another optimizer is to use, as a GAN's other half, need not be whole yet. If no
        # optimizer is known to have any of the model's, as with copies in float32, this one is taken to use
        # all.
        any_owned = any(id(parameter) in self._owned for _, parameter in self._parameters)
        mine = [
            (name, parameter)
            for name, parameter in self._parameters
            if id(parameter) in mine_ids or (not any_owned and id(parameter) not in self._taken)
        ]
        self._has_grad |= {name: parameter.grad is not None for name, parameter in mine}
        # A scaler may keep from their own optimizer what this one is only taken to use.
        guessed = self._recorder.scales_losses and not any_owned
        left_out = guessed or getattr(stepping, "found_inf", None) is not None
        self._take_gradients(step, mine, may_leave_out=left_out or None)
        self._taken |= {id(parameter) for _, parameter in mine if parameter.grad is not None}

    def _take_gradients(
        self,
        step: int,
        parameters: Sequence[tuple[str, nn.Parameter]],
        nth: int = 0,
        *,
        may_leave_out: bool | None = None,
    ) -> None:
        gradients = [(name, p, p.grad, settled(p.grad)) for name, p in parameters if p.grad is not None]
        with self._own():
            for name, parameter, gradient, local in gradients:
                starts = self._flat_start(parameter)
                self._values.take(
                    *(step, "gradient", name, nth, gradient, local, starts), may_leave_out=may_leave_out
                )

    def _flat_start(self, parameter: torch.Tensor) -> tuple[int] | None:
        start = self._starts.get(id(parameter))
        return None if start is None else (start,)

    def _norm_begins(self, gradients: Sequence[torch.Tensor]) -> int | None:
        step = self._due()
        if step is None:
            return None
        if any(id(gradient) not in self._owners() for gradient in gradients):
            # FSDP2 shows other tensors while parameters are gathered, as evaluation leaves them.
            self._seam(self._learn_anew)
        owners = self._owners()
        # A DTensor's local gradient is another object each time that it is asked for.
        places = {
            address_of(local_of(parameter.grad))
            for _, parameter in owners.values()
            if parameter.grad is not None
        }
        if not gradients or any(
            id(gradient) not in owners and address_of(gradient) not in places for gradient in gradients
        ):
            # Norm of activations or weights, to be logged: no gradient is scaled by it.
            return None
        nth, self._norms = self._norms, self._norms + 1
        self._seam(lambda: self._before_norm(step, nth, gradients))
        return nth

    def _before_norm(self, step: int, nth: int, gradients: Sequence[torch.Tensor]) -> None:
        owners = self._owners()
        normed = [(owners.get(id(gradient)), gradient, settled(gradient)) for gradient in gradients]
        with self._own():
            for index, (owner, gradient, local) in enumerate(normed):
                name = f"tensors[{index}]" if owner is None else owner[0]
                starts = None if owner is None else self._flat_start(owner[1])
                self._values.take(step, "normed", name, nth, gradient, local, starts)

    def _learn_anew(self) -> None:
        with self._own():
            self._learn_names()

    def _norm_taken(self, call: str, nth: int, norm: torch.Tensor) -> None:
        step = self._due()
        if step is not None:
            self._seam(lambda: self._after_norm(step, call, nth, norm))

    def _after_norm(self, step: int, call: str, nth: int, norm: torch.Tensor) -> None:
        local = settled(norm)
        with self._own():
            self._values.take(step, "norm", call, nth, norm, local)

    def _forward_begins(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        step = self._due()
        if not torch.is_grad_enabled():
            # Evaluation, or what is sampled from the model: nothing is trained on it.
            self._saw_forward |= step is not None
            return
        # In backward it is a forward that runs again, for its activations.
        if step is None or in_backward() or self._forwards == _MOST_FORWARDS:
            return
        nth, self._forwards = self._forwards, self._forwards + 1
        self._seam(lambda: self._take_inputs(step, nth, args, kwargs))

    def _take_inputs(self, step: int, nth: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        inputs = [(name, tensor, settled(tensor)) for name, tensor in inputs_of(args, kwargs)]
        with self._own():
            for name, tensor, local in inputs:
                self._values.take(step, "input", name, nth, tensor, local)

    def _take_start(self, step: int) -> None:
        """Take the parameters as they are before the first step, between steps."""
        if not {"gradients", "replicas"} & self._checks.names:
            return
        self._learn_names()
        with unseen():
            self._take_parameters(None)
            self._start = self._values.collect()
        self._first = step

    def _take_parameters(self, step: int | None) -> None:
        for name, parameter in self._parameters:
            if not is_lazy(parameter):
                starts = self._flat_start(parameter)
                self._values.take(step, "parameter", name, 0, parameter, settled(parameter), starts)

    def _take_replicas(self, step: int) -> None:
        buffers = [(clean_name(self._model, name), tensor) for name, tensor in self._model.named_buffers()]
        with unseen():
            self._take_parameters(step)
            for name, buffer in buffers:
                self._values.take(step, "buffer", name, 0, buffer, settled(buffer))

    def gradients_checked(self, right: Collection[str], wrong: Collection[str]) -> None:
        """Keep what an exact check of the gradients found."""
        self._right |= {name: self._right.get(name, True) for name in right}
        self._right |= dict.fromkeys(wrong, False)

    def unknown(self) -> str | None:
        """Return what was asked for and could not be looked at, and why."""
        if "data" not in self._checks.names or not self._ended or self._saw_forward:
            return None
        return (
            "the inputs of the model are unknown: its forward was not called, or is compiled. Give audit() "
            "the module that is called, as torch.compile() returns it"
        )

    # -- after the steps ---------------------------------------------------------------------------

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the table of parameters as they are now."""
        model, wrappers = self._model, wrappers_of(self._model)
        self._learn_names()
        rows = []
        for long, parameter in model.named_parameters(remove_duplicate=False):
            name = clean_name(model, long)
            first = self._names.get(id(parameter))
            rows.append(
                parameter_row(
                    self._recorder,
                    name,
                    parameter,
                    wrappers.get(id(parameter)),
                    checked=True,
                    has_grad=self._has_grad.get(first or name),
                    tied_to=None if first == name else first,
                    checked_right=self._right.get(name),
                )
            )
        return tuple(rows)
