"""The house: the rooms, and which room imports which. Drawn into CONTRIBUTING.md, held by import-linter.

    python docs/house.py           draws the pictures between the marks of CONTRIBUTING.md, and writes what
                                   each room imports into its `__init__.py`
    python docs/house.py --check   exits with 1 if they are not those of today's imports, if imports go in a
                                   circle, or if a room does not say where to start reading
    python docs/house.py --arrows  writes the list of meant arrows in pyproject.toml from today's imports

A room is a folder with Python in it. Imports inside functions and for type checkers count. `__init__.py` of a
folder with rooms in it is a door: it hands out what lies inside, and is not where an arrow begins.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, TypeAlias, cast

import grimp
from importlinter import Contract, ContractCheck, fields, output

ROOT: Final = Path(__file__).resolve().parents[1]
ROOTS: Final = ("ledger", "profiler", "analyzers", "dashboards", "cli")
PAGE: Final = ROOT / "CONTRIBUTING.md"
PROJECT: Final = ROOT / "pyproject.toml"
MARKS: Final = re.compile(r"(<!-- house: begin -->\n).*?(<!-- house: end -->)", re.DOTALL)
LISTED: Final = re.compile(r"(type = \"arrows\"\narrows = \[\n).*?(\]\n)", re.DOTALL)

MAY_IMPORT: Final = re.compile(r"^It (?:may import|is a door:) [^.]*(?:\.\w[^.]*)*\.$", re.MULTILINE)
"""The sentence of a room's docstring that says what it may import; names hold dots."""
DOOR: Final = "It is a door: it hands out what its rooms export, and holds no code of its own."
"""The same sentence of a room whose code lies in rooms inside it."""
START: Final = re.compile(r"^Start reading in (`[^.]*(?:\.\w[^.]*)*)\.$", re.MULTILINE)
"""The sentence of a room's docstring that names the modules and rooms below it to read first."""

Arrows: TypeAlias = Mapping[str, frozenset[str]]
"""Who imports -> what it imports; rooms and modules without `shardtoll.` before them."""


@cache
def house() -> grimp.ImportGraph:
    """Return which module of the product imports which."""
    return grimp.build_graph(*(f"shardtoll.{root}" for root in ROOTS), cache_dir=None)


def module_arrows(graph: grimp.ImportGraph) -> Arrows:
    """Return which module imports which."""
    return {
        _short(module): frozenset(_short(name) for name in graph.find_modules_directly_imported_by(module))
        for module in graph.modules
        if _ours(module)
    }


def room_arrows(graph: grimp.ImportGraph) -> Arrows:
    """Return which room imports which other room; every room has an entry."""
    modules = module_arrows(graph)
    folders = {module.rpartition(".")[0] for module in modules} - {""}
    doors = {folder for folder in folders if any(other.startswith(f"{folder}.") for other in folders)}
    rooms: dict[str, set[str]] = {}
    for module, imported in modules.items():
        room = _room(module, folders)
        targets = rooms.setdefault(room, set())
        if module not in doors:
            targets |= {_room(name, folders) for name in imported if _ours(f"shardtoll.{name}")} - {room}
    # A door with no module beside it is no room.
    lived_in = {
        room
        for room, targets in rooms.items()
        if room not in doors or targets or _inside(room, modules, folders)
    }
    named = {target for targets in rooms.values() for target in targets}
    return {room: frozenset(targets) for room, targets in sorted(rooms.items()) if room in lived_in | named}


def _inside(room: str, modules: Iterable[str], folders: set[str]) -> bool:
    return any(module.rpartition(".")[0] == room and module not in folders for module in modules)


def _ours(module: str) -> bool:
    return module.startswith("shardtoll.") and module.split(".")[1] in ROOTS


def _short(module: str) -> str:
    return module.removeprefix("shardtoll.")


def _room(module: str, folders: set[str]) -> str:
    return module if module in folders else module.rpartition(".")[0]


def circle(arrows: Arrows) -> list[str] | None:
    """Return a circle of imports, its first name again at its end; None without one."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return None


def bare(arrows: Arrows) -> Arrows:
    """Return the arrows without those that a way over other rooms implies: a picture can be read then."""
    reach = {name: _reached(name, arrows) for name in arrows}
    return {
        name: frozenset(
            target
            for target in targets
            if not any(target in reach.get(other, set()) for other in targets if other != target)
        )
        for name, targets in arrows.items()
    }


def _reached(name: str, arrows: Arrows) -> set[str]:
    seen: set[str] = set()
    waiting = list(arrows.get(name, ()))
    while waiting:
        other = waiting.pop()
        if other not in seen:
            seen.add(other)
            waiting += arrows.get(other, ())
    return seen


def picture(arrows: Arrows) -> str:
    """Return the star, then each root folder's rooms, as Mermaid."""
    star: dict[str, set[str]] = {root: set() for root in ROOTS}
    for room, targets in arrows.items():
        star[_root(room)] |= {_root(target) for target in targets} - {_root(room)}
    parts = ["The star: an arrow goes from what imports to what is imported.", _mermaid(star, "")]
    for root in ROOTS:
        inner = {
            room: frozenset(target for target in targets if _root(target) == root)
            for room, targets in arrows.items()
            if _root(room) == root
        }
        parts += [
            f"`{root}/`: an arrow that follows from others is not drawn.",
            _mermaid(bare(inner), root),
        ]
    return "\n\n".join(parts) + "\n"


def _root(room: str) -> str:
    return room.partition(".")[0]


def _mermaid(arrows: Mapping[str, Iterable[str]], root: str) -> str:
    lines = ["```mermaid", "flowchart TD"]
    for room in sorted(arrows):
        label = f"{root}/*.py" if room == root else room.removeprefix(f"{root}.").replace(".", "/")
        lines.append(f'  {_node(room)}["{label}"]')
    lines += [
        f"  {_node(room)} --> {_node(other)}" for room in sorted(arrows) for other in sorted(arrows[room])
    ]
    return "\n".join([*lines, "```"])


def _node(room: str) -> str:
    # `end` is a word of Mermaid's own; no room's name with a prefix is.
    return "r_" + room.replace(".", "_")


def listed(arrows: Arrows) -> list[str]:
    """Return the arrows as the contract in pyproject.toml has them, a line a room."""
    return [f"{room} -> {' '.join(sorted(targets))}" for room, targets in sorted(arrows.items()) if targets]


def doors(arrows: Arrows) -> dict[Path, str]:
    """Return each room's `__init__.py` with the text it has when its docstring says what it imports."""
    texts = {}
    for room, targets in arrows.items():
        folder = ROOT.joinpath(*room.split("."))
        path = folder / "__init__.py"
        names = ", ".join(f"`{target}`" for target in sorted(targets)) or "nothing of ours"
        sentence = DOOR if not targets and not _modules(folder) else f"It may import {names}."
        line = textwrap.fill(sentence, 110, break_long_words=False, break_on_hyphens=False)
        text = path.read_text(encoding="utf-8")
        if MAY_IMPORT.search(text) is None:
            head, end, rest = text.partition('"""\n')
            text = f"{head.rstrip()}\n\nIt may import nothing.\n{end}{rest}"
        texts[path] = MAY_IMPORT.sub(line, text, count=1)
    return texts


def _modules(folder: Path) -> list[Path]:
    """Return the modules of a folder, `__init__.py` apart."""
    return [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]


def lost_starts(folders: Iterable[Path]) -> list[str]:
    """Return a line for each folder with Python in it whose docstring does not say where to start reading.

    The names in that sentence are modules or rooms below the folder. Folders of data need no such sentence.
    """
    lines = []
    for folder in folders:
        if not any(path.name != "__init__.py" for path in folder.rglob("*.py")):
            continue
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        start = START.search(text.split('"""')[1])
        names = re.findall(r"`([^`]+)`", start[1]) if start is not None else []
        missing = [name for name in names if not _below(folder, name)]
        if missing:
            lines.append(f"{folder}: there is no {', '.join(missing)} to start reading in")
        elif not names:
            lines.append(f"{folder}: the docstring does not say `Start reading in ...`")
    return lines


def _below(folder: Path, name: str) -> bool:
    path = folder.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def folders_with_python() -> list[Path]:
    """Return the product's folders with Python in them."""
    return sorted(path.parent for root in ROOTS for path in (ROOT / root).rglob("__init__.py"))


class MeantArrows(Contract):
    """import-linter's contract that rooms import what `arrows` lists, a line a room, and nothing else."""

    type_name = "arrows"
    arrows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        """Hold the graph against the list; an arrow that nothing imports any more fails too."""
        meant = {
            (room, target)
            for line in cast("list[str]", self.arrows)
            for room, _, targets in [line.partition(" -> ")]
            for target in targets.split()
        }
        drawn = {(room, target) for room, targets in room_arrows(graph).items() for target in targets}
        wrong = {"not meant": sorted(drawn - meant), "meant, but nothing imports so": sorted(meant - drawn)}
        return ContractCheck(kept=drawn == meant, metadata=wrong)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each arrow that is wrong, and what to do."""
        for what, pairs in check.metadata.items():
            for room, target in pairs:
                output.print_error(f"{what}: {room} -> {target}")
        output.print_error("change the import, or the list in pyproject.toml (python docs/house.py --arrows)")


def main(given: list[str] | None = None) -> int:
    """Draw, check or list; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the picture is old"
    )
    parser.add_argument("--arrows", action="store_true", help="write the meant arrows into pyproject.toml")
    options = parser.parse_args(given)
    rooms = room_arrows(house())
    wrong = 0
    for what, arrows in (("rooms", rooms), ("modules", module_arrows(house()))):
        names = circle(arrows)
        if names is not None:
            print(f"{what} import in a circle: {' -> '.join(reversed(names))}", file=sys.stderr)
            wrong = 1
    for line in lost_starts(folders_with_python()):
        print(line, file=sys.stderr)
        wrong = 1
    drawn = MARKS.sub(
        lambda marks: f"{marks[1]}\n{picture(rooms)}\n{marks[2]}", PAGE.read_text(encoding="utf-8")
    )
    for path, text in {PAGE: drawn, **doors(rooms)}.items():
        if text == path.read_text(encoding="utf-8"):
            continue
        if options.check:
            print(f"{path.relative_to(ROOT)} is old: run python docs/house.py", file=sys.stderr)
            wrong = 1
        else:
            path.write_text(text, encoding="utf-8")
    if options.arrows:
        lines = "".join(f'    "{line}",\n' for line in listed(rooms))
        text = PROJECT.read_text(encoding="utf-8")
        PROJECT.write_text(LISTED.sub(lambda marks: f"{marks[1]}{lines}{marks[2]}", text), encoding="utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
