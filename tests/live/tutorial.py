"""Runs docs/tutorial.md: its commands in order, its files, and whether what it shows was printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
PLUGIN = "shardtoll.profiler.pytest_plugin"
EXIT_CODE = re.compile(r"#\s*exit code (\d+)\s*$")
BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>[\w.]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `file` is where the reader is told to write it."""

    language: str
    text: str
    file: str | None

    @property
    def commands(self) -> list[tuple[str, int]]:
        """Each command with the exit code that it says it has."""
        lines = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [(line, int(found.group(1)) if (found := EXIT_CODE.search(line)) else 0) for line in lines]


def blocks() -> Iterator[Block]:
    """Return the blocks of the tutorial in order."""
    for match in BLOCK.finditer(TUTORIAL.read_text(encoding="utf-8")):
        yield Block(match["language"], match["text"], match["file"])


def run(folder: Path, done: dict[str, str]) -> list[str]:
    """Run the tutorial in a folder, and return what is not as it says.

    `done` has the output of commands that were run before, and are not run again.
    """
    wrong: list[str] = []
    printed = ""
    after_commands = False
    for block in blocks():
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            printed = "" if not after_commands else printed
            for command, code in block.commands:
                said, left = (done[command], 0) if command in done else _run(command, folder)
                printed += said
                if left != code:
                    wrong.append(f"{command}: exit code {left}, not {code}\n{said}")
        elif block.language in ("text", "toml"):
            seen = _skeleton(printed + _written(folder))
            wrong += [
                f"not printed: {line}"
                for line in block.text.splitlines()
                if line.strip() not in ("", "...") and _skeleton(line) not in seen
            ]
    return wrong


def _run(command: str, folder: Path) -> tuple[str, int]:
    words = shlex.split(command, comments=True)
    shardtoll = [sys.executable, "-c", "from shardtoll.cli import main; main()"]
    words[:1] = {"python": [sys.executable], "shardtoll": shardtoll}.get(words[0], words[:1])
    if "pytest" in words and not entry_points(group="pytest11", name="shardtoll"):
        words += ["-p", PLUGIN]
    if "pytest" in words:
        # What other packages' plugins warn of is not ours to judge.
        words += ["-p", "no:dash", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )
    return ran.stdout + ran.stderr, ran.returncode


def _written(folder: Path) -> str:
    """Return what the commands wrote for the reader to look at."""
    path = folder / "modulation.toml"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _skeleton(text: str) -> str:
    """Return the text without figures, what rests on times, and line breaks: all differ by machine."""
    text = re.sub(r"saving (?:none made|unknown)", "saving #", text)
    text = re.sub(r"[\d.,_]+(?:\+cpu)?(?: [µnm]?s\b)?", "#", text)
    return re.sub(r"\s+", "", text)
