"""The result file of one part: checks, figures and notes, on disk as soon as each is known."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Sheet:
    """What one part found. A part that is killed at its limit leaves all that it had written by then."""

    part: str
    path: Path
    machine: dict[str, Any]
    checks: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def check(self, name: str, seen: Any, wanted: Any, *, ok: bool | None = None) -> None:
        """Record a check; it holds if `seen` equals `wanted`, or as `ok` says. None: could not be checked."""
        held = seen == wanted if ok is None else ok
        self.checks.append({"name": name, "ok": held, "seen": seen, "wanted": wanted})
        print(f"{'ok  ' if held else 'FAIL'} {name}: {seen}" + ("" if held else f", wanted {wanted}"))
        self.save()

    def figure(self, name: str, value: Any) -> None:
        """Record a figure; None where it could not be measured."""
        self.figures[name] = value
        self.save()

    def note(self, text: str) -> None:
        """Record what a reader has to know, such as what this machine cannot run."""
        self.notes.append(text)
        print(text)
        self.save()

    def save(self, *, finished: bool = False) -> None:
        """Write the file; readers never see half of one."""
        document = {
            "part": self.part,
            "finished": finished,
            "ok": finished and all(check["ok"] for check in self.checks),
            "seconds": round(time.monotonic() - self.began_s, 2),
            "checks": self.checks,
            "figures": self.figures,
            "notes": self.notes,
            "machine": self.machine,
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.path)
