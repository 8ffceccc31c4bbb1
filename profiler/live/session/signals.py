"""Signal handlers of the user's that raise while our code runs: Python calls them between two instructions.

Code that must not be cut in two is `Deferred`, as the end of a step with its writing: handlers run after it.
In the hooks inside a step that would cost too much: there the frames of an exception show whose it is.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

_NUMBERS: Final = tuple(map(int, signal.valid_signals()))
_handler: Final[Callable[[int], Any]] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
"""Without what makes its result an enumeration member: that takes most of a millisecond for all signals."""
_set: Final[Callable[[int, Any], Any]] = getattr(sys.modules.get("_signal"), "signal", signal.signal)
_ACTION_BYTES: Final = 512
"""More than the structure of any system takes."""


def _found() -> Any:
    """Return the system's function; None on a system without it."""
    try:
        return ctypes.CDLL(None).sigaction
    except (OSError, AttributeError, TypeError):
        return None


_sigaction: Final = _found()


class Deferred:
    """A context in which signals wait. At its end all handlers run, then the first exception is raised."""

    _active = False

    def __init__(self) -> None:
        self._kept: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._actions: dict[int, Any] = {}
        """The system's action at a signal: not Python's own handler if the user's faulthandler stands."""
        self._came: list[int] = []

    def __enter__(self) -> None:
        if Deferred._active or threading.current_thread() is not threading.main_thread():
            # Handlers run on the main thread alone.
            return
        try:
            for number in _NUMBERS:
                handler = _handler(number)
                if callable(handler):
                    self._actions[number] = _action(number)
                    self._kept[number] = handler
                    _set(number, self._note)
                    _act(number, self._actions[number])
            Deferred._active = bool(self._kept)
        except BaseException:
            self._restore()
            raise

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def _restore(self) -> BaseException | None:
        """Put the handlers back, all of them; return what one raised meanwhile."""
        raised: BaseException | None = None
        Deferred._active = Deferred._active and not self._kept
        for number, handler in self._kept.items():
            while _handler(number) is not handler:
                try:
                    _set(number, handler)
                    _act(number, self._actions[number])
                except BaseException as error:  # noqa: BLE001 - of a handler that is back already
                    raised = raised if raised is not None else error
        return raised

    def __exit__(self, *_: object) -> None:
        raised = self._restore()
        came = list(dict.fromkeys(self._came))
        # A program that both saves and stops by signals gets both, whichever handler raises.
        while came:
            try:
                while came:
                    number = came.pop(0)
                    self._kept[number](number, sys._getframe())
            except BaseException as error:  # noqa: BLE001 - the first one is raised when all have run
                raised = raised if raised is not None else error
        if raised is not None:
            raise raised


def _action(number: int) -> Any:
    """Return the action of a signal, as the system's library has it; None if that cannot be asked for.

    `signal.signal` sets the action too, and takes a signal from what C installed: `faulthandler.register`, or
    a change by `signal.siginterrupt`.
    """
    if _sigaction is None:
        return None
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    return action if _sigaction(number, None, action) == 0 else None


def _act(number: int, action: Any) -> None:
    if _sigaction is not None and action is not None:
        _sigaction(number, action, None)


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised the error: it then belongs to the program, wherever it came up.

    Python runs a handler between two instructions of any code and gives it the frame that it interrupted. So
    the frame of a handler holds the frame before it. A handler that has let go of that frame is known by its
    code.
    """
    trace: TracebackType | None = error.__traceback__
    codes: frozenset[CodeType] | None = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if _was_given(frame, frame.f_back):
            return True
        if codes is None:
            codes = _installed()
        if frame.f_code in codes:
            return True
    return False


def _was_given(frame: FrameType, before: FrameType | None) -> bool:
    """Return whether an argument of the frame's function is the frame before it."""
    code = frame.f_code
    count = code.co_argcount
    if before is None or not (count or code.co_flags & 4):
        return False
    values = frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & 4:
        # `*args` stands after the arguments with a name, and those that have one only.
        more = values.get(code.co_varnames[count + code.co_kwonlyargcount])
        arguments += more if isinstance(more, tuple) else ()
    return any(each is before for each in arguments)


def _installed() -> frozenset[CodeType]:
    """Return the code of the handlers that are installed now."""
    codes = set()
    for number in _NUMBERS:
        handler: object = _handler(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for place in (handler, vars(type(handler)).get("__call__")):
            function = getattr(place, "__func__", place)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return frozenset(codes)
