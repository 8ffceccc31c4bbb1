"""Audits a script that knows nothing of us: runs it as `__main__` and watches where its steps end.

A step ends when the optimizer has stepped: torch's own hooks report that, and for DeepSpeed its engine. The
session opens when the script makes its process group, as all ranks do at one point. It closes before the
group goes. Everything that was put in place is taken away again when the script ends.

torch's profiler must not stop while a named range (`record_function`) is open and start again before it ends.
This corrupts memory (torch 2.13). A step that would end there ends where the range does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardtoll.ledger import ShardtollError, UsageError
from shardtoll.profiler.live.cause.groups import initialized
from shardtoll.profiler.live.integrations.deepspeed import is_engine, on_update
from shardtoll.profiler.live.session.flying import HANG_AFTER_S
from shardtoll.profiler.live.session.schedule import Level
from shardtoll.profiler.live.session.session import Session, audit
from shardtoll.profiler.live.times.patches import Patches, patched
from shardtoll.profiler.live.times.settling import LEAVING_S, settle


class OpenRanges:
    """Counts this thread's named ranges of torch's profiler as they are entered and left, from a mark on."""

    def __init__(self) -> None:
        self._depth = 0
        self._least = 0

    def mark(self) -> None:
        """Forget of the ranges that are open now: they began before."""
        self._least = self._depth

    def entered(self) -> None:
        """A range was entered."""
        self._depth += 1

    def left(self) -> None:
        """A range was left, perhaps one that was entered before the counting began."""
        self._depth -= 1
        self._least = min(self._least, self._depth)

    @property
    def any_open(self) -> bool:
        """Whether a range begun since the mark is still open."""
        return self._depth > self._least


log = logging.getLogger(__name__)

_GROUP_MAKERS = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")
"""Modules through which a script, or torch for it, makes and ends the process group."""

_LAUNCHERS: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that launchers set in the environment, and that torch reads to make the process group."""


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """How to audit a script; `out`, `level`, `survey_every` and `trace` are those of `audit()`."""

    out: Path | None = None
    level: Level = "schedule"
    survey_every: int = 100
    trace: bool = False
    steps: int | None = None
    """Steps after which the audit ends; the script goes on."""
    step_on: str | None = None
    """`module:function` whose return ends a step, instead of the optimizer's."""
    checks: tuple[str, ...] = ()
    """As those of `audit()`, of the first module that is called in training."""
    hang_after_s: float | None = None
    """As that of `audit()`; None its default, 0 no stacks."""


def run_script(
    script: Path, arguments: Sequence[str], options: ScriptOptions, show: Callable[[Session], None]
) -> None:
    """Run the script under an audit; `show` is called with the closed session if there were steps.

    The script's SystemExit passes through; another exception is printed as Python prints it, without
    our frames, and leaves with exit code 1. Raises UsageError if the script cannot be read, or a function of
    `step_on` cannot be found. Also if the script makes a process group without a launcher's variables, or if
    it ended well without a step.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}", "name a Python file, then its own arguments")
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(script.resolve().parent)
    sys.argv = [str(script), *arguments]
    watch = _Watch(options)
    try:
        with watch:
            runpy.run_path(str(script), run_name="__main__")
    except ShardtollError:
        raise
    except Exception as error:
        # The script's own error, printed as Python would.
        _told(watch, show)
        if error is watch.unlaunched:
            unset = next((name for name in _LAUNCHERS if name not in os.environ), "RANK")
            raise UsageError(
                f"{script} makes a process group, and {unset} is not set",
                "start ranks with --nproc N or torchrun",
            ) from error
        shown = error.with_traceback(_without_ours(error.__traceback__, script))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        sys.exit(1)
    except SystemExit as leaving:
        if leaving.code not in (None, 0) or watch.steps:
            _told(watch, show)
            raise
    _told(watch, show)
    if not watch.steps:
        raise UsageError(
            f"no training step was seen in {script}",
            "a step ends when a torch optimizer steps; name another function with --step-on module:function",
        )


def _told(watch: _Watch, show: Callable[[Session], None]) -> None:
    if watch.session is not None and watch.steps:
        show(watch.session)


def _without_ours(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """Return the traceback from the script's own frame on; all of it if the script is not in it."""
    entry = trace
    while entry is not None and entry.tb_frame.f_code.co_filename != str(script):
        entry = entry.tb_next
    return entry or trace


class _Watch:
    """Holds the session of a running script and marks where its steps begin and end."""

    def __init__(self, options: ScriptOptions) -> None:
        self.session: Session | None = None
        self.steps = 0
        """Steps that have ended."""
        self.unlaunched: ValueError | None = None
        """torch's error for making the process group, if a launcher's variables were not set."""
        self._options = options
        self._open = False
        self._in_step = False
        self._thread = threading.get_ident()
        self._optimizer: Any = None
        self._due = False
        """The step has ended, except that a range of torch's profiler is still open."""
        self._ranges = OpenRanges()
        self._by_optimizer = options.step_on is None
        self._undo = contextlib.ExitStack()
        self._checked: nn.Module | None = None
        self._told_checks = False

    def __enter__(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(patched(self._install))
            self._first_forward = undo.enter_context(contextlib.ExitStack())
            self._first_forward.callback(
                patched(lambda patches: patches.around(nn.Module, "__call__", self._around_call))
            )
            undo.callback(register_optimizer_step_pre_hook(self._stepping).remove)
            undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
            if self._options.step_on is not None:
                undo.callback(_around_function(self._options.step_on, self._step_ended))
            self._undo = undo.pop_all()

    def _install(self, patches: Patches) -> None:
        patches.everywhere(_GROUP_MAKERS, "init_process_group", self._around_init)
        patches.everywhere(_GROUP_MAKERS, "destroy_process_group", self._around_destroy)
        patches.around(torch.autograd.profiler.record_function, "__enter__", self._around_enter)
        patches.around(torch.autograd.profiler.record_function, "__exit__", self._around_exit)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        well = kind is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        try:
            self._close(*((None, None, None) if well else (kind, error, trace)))
        finally:
            self._undo.close()
            self._optimizer = self._checked = None
            if self.session is not None:
                settle(LEAVING_S)

    def _is_here(self) -> bool:
        """Whether this is the script's own thread: no other begins or ends a step."""
        return threading.get_ident() == self._thread

    # -- opening and closing -------------------------------------------------------------------------

    def _around_init(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                result = init(*args, **kwargs)
            except ValueError as error:
                # A script may catch it and go on alone, so it stays what it is.
                if "environment variable" in str(error) and any(n not in os.environ for n in _LAUNCHERS):
                    self.unlaunched = error
                raise
            if initialized():
                self._ensure_open()
            return result

        return init_process_group

    def _around_destroy(self, destroy: Callable[..., Any]) -> Callable[..., Any]:
        def destroy_process_group(group: Any = None) -> Any:
            if group is None or group is dist.group.WORLD:
                self._close()
            return destroy(group)

        return destroy_process_group

    def _ensure_open(self) -> None:
        if self.session is None:
            chosen = self._options
            self.session = audit(
                None,
                chosen.out,
                level=chosen.level,
                survey_every=chosen.survey_every,
                trace=chosen.trace,
                hang_after_s=HANG_AFTER_S if chosen.hang_after_s is None else chosen.hang_after_s or None,
            )
            self.session.open()
            self.session.expect_steps()
            self._open = True

    def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self.session is None or not self._open:
            return
        self._open = False
        if self._in_step and kind is not None:
            self.session.end_step(finished=False)
        elif self._in_step:
            # Work after the last update, as validating or saving, is no step.
            self.session.cancel_step()
        self._in_step = False
        self.session.__exit__(kind, error, trace)

    # -- steps ---------------------------------------------------------------------------------------

    def _around_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._called(module)
            return call(module, *args, **kwargs)

        return __call__

    def _called(self, module: nn.Module) -> None:
        """Begin the first step at the first call of a module in training."""
        if not self._is_here() or not (module.training and torch.is_grad_enabled()):
            return
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        # Only once: to change a class at every step would cost every module its cached attributes.
        self._first_forward.close()
        self._ensure_open()
        if self._by_optimizer and is_engine(module):
            # The engine updates by parts, with optimizers inside it, and communicates after them.
            self._by_optimizer = False
            self._undo.callback(on_update(module, self._step_ended))
        if self._options.checks and self.session is not None:
            # A script makes its process group before its model: only now is there one to check.
            self._checked = module
            self.session.check_model(module, self._options.checks)
        self._begin()

    def _stepping(self, optimizer: Any, *_: Any) -> None:
        # Among nested optimizers the outer one comes here first, and there it is the last.
        if not self._is_here():
            return
        if self._options.checks and not self._told_checks:
            self._tell_checks(optimizer)
        if self._by_optimizer and self._optimizer is None:
            self._optimizer = optimizer

    def _tell_checks(self, optimizer: Any) -> None:
        """Say once, on rank 0, if the checks cannot see all parameters that the optimizer trains."""
        self._told_checks = True
        trained = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
        model = self._checked
        seen = set() if model is None else {id(parameter) for parameter in model.parameters()}
        if not trained - seen or (self.session is not None and self.session.rank != 0):
            return
        what = "no module was called in training" if model is None else f"only {type(model).__name__} was"
        log.warning(
            "shardtoll: --checks: %s before the first optimizer step, and it trains %d parameters that are "
            "not in it: give audit(model, checks=...) the model",
            what,
            len(trained - seen),
        )

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._by_optimizer and self._is_here():
            self._due = optimizer is self._optimizer

    def _around_enter(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(span: Any) -> Any:
            if self._is_here():
                self._ranges.entered()
            return enter(span)

        return __enter__

    def _around_exit(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        # torch's optimizer hooks run inside a range of its profiler, and the user may have put one around.
        def __exit__(span: Any, *args: Any) -> Any:
            result = leave(span, *args)
            if self._is_here():
                self._ranges.left()
                if self._due:
                    self._step_ended()
            return result

        return __exit__

    def _begin(self) -> None:
        if self._open and self.session is not None and not self._in_step:
            self._in_step = True
            self.session.begin_step()
            self._ranges.mark()

    def _step_ended(self) -> None:
        if not self._is_here():
            return
        self._due = self._ranges.any_open
        if self._due:
            return
        self._ensure_open()
        if self._in_step and self.session is not None:
            self._in_step = False
            self.session.end_step()
            self.steps += 1
            if self.steps == self._options.steps:
                self._close()
        # Without a module's forward, as in a script of bare tensors, the first update only begins the count.
        self._begin()


def _around_function(name: str, after: Callable[[], None]) -> Callable[[], None]:
    """Have `after` called whenever `module:function` returns; returns how to undo it."""
    module, _, function = name.partition(":")
    hint = "name an importable function as --step-on module:function or module:Class.method"
    if not module or not function or module == "__main__":
        raise UsageError(f"--step-on {name} names no function", hint)
    try:
        target = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--step-on {name} cannot be found ({error})", hint) from error
    if not callable(target):
        raise UsageError(f"--step-on {name} names no function", hint)
    owner, _, last = function.rpartition(".")

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            after()
            return result

        return called

    holder = f"{module}:{owner}" if owner else module
    return patched(lambda patches: patches.everywhere((holder,), last, around))
