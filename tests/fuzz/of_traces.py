"""Traces of torch.profiler and exports of Nsight Systems, from the file to the drawn report."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import zstandard

from tests.fuzz.mutate import TEXTS, deep, hostile, of_bytes, of_text, of_tree
from tests.fuzz.of_reports import drawn
from tests.fuzz.seams import DATA, Attack
from tests.shared_inputs import FOLDER

_EVENT = re.compile(rb"\{\s*\"(ph|name)\"")


def _real() -> list[bytes]:
    """Return real traces, unpacked, where they are at hand."""
    folder = FOLDER / "traces" if FOLDER is not None else None
    if folder is None or not folder.is_dir():
        return []
    return [gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("*rank*.json.gz"))[:6]]


def _excerpt(content: bytes, chance: random.Random) -> bytes:
    """Return some dozen events in a row from a real trace, with its head and its tail."""
    first = content.index(b"[", content.index(b'"traceEvents"')) + 1
    head = content[:first] if first < 4_000 else b'{"traceEvents": ['
    place = chance.randrange(first, max(first + 1, len(content) - 30_000))
    match = _EVENT.search(content, place)
    start = match.start() if match else content.index(b"{", first)
    return head + content[start : start + chance.randrange(2_000, 12_000)] + content[-300:]


def _made(small: list[bytes], real: list[bytes], chance: random.Random) -> bytes:
    if real and chance.random() < 0.3:
        made = of_text(_excerpt(chance.choice(real), chance), chance)
    else:
        made = chance.choice(small)
        way = chance.random()
        if way < 0.65:
            tree = of_tree(json.loads(made), chance)
            made = json.dumps(tree, indent=chance.choice((None, None, 1))).encode("utf-8", "surrogatepass")
        elif way < 0.95:
            made = of_text(made, chance)
        else:
            made = made.replace(b'"args": {', b'"args": {"deep": ' + deep(chance).encode() + b", ", 1)
    match chance.randrange(16):
        case 0:
            return of_bytes(gzip.compress(made, 1), chance)
        case 1:
            return of_bytes(zstandard.compress(made), chance)
        case 2:
            return gzip.compress(made, 1)
    return made


def traces() -> Attack:
    """Traces: every one read as a job of one or two files; one of 80 analysed and drawn."""
    from shardtoll.analyzers.analyses import run as analyze
    from shardtoll.profiler.traces import read_traces

    small = [path.read_bytes() for path in sorted(DATA.glob("*.trace.json"))]
    real = _real()

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "rank0.json"
        path.write_bytes(_made(small, real, chance))
        paths = [str(path)]
        if chance.random() < 0.1:
            other = folder / "rank1.json"
            other.write_bytes(_made(small, real, chance) if chance.random() < 0.5 else small[1])
            paths.append(str(other))
        _read(paths, chance, folder)

    def _read(paths: list[str], chance: random.Random, folder: Path) -> None:
        (job,) = read_traces(paths, jobs=1, cache=False)
        fate = chance.random()
        if fate < 1 / 80:
            drawn(analyze(job.ledger), chance, folder)

    return attack


def nsys() -> Attack:
    """Exports of Nsight Systems: pages of the database damaged, or values, columns and tables changed."""
    import tempfile

    from shardtoll.analyzers.analyses import run as analyze
    from shardtoll.profiler.traces import read_traces
    from tests.nsys_exports import write_rank

    with tempfile.TemporaryDirectory() as made:
        base = write_rank(Path(made)).read_bytes()

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "rank0.sqlite"
        if chance.random() < 0.5:
            path.write_bytes(of_bytes(base, chance))
        else:
            path.write_bytes(base)
            with contextlib.closing(sqlite3.connect(path)) as database:
                # Half-done changes are as good; of a damaged one nobody needs the journal.
                database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
                for _ in range(chance.randint(1, 4)):
                    with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                        _change(database, chance)
                database.commit()
        (job,) = read_traces([str(path)], jobs=1, cache=False)
        if chance.random() < 1 / 80:
            drawn(analyze(job.ledger), chance, folder)

    return attack


def _change(database: sqlite3.Connection, chance: random.Random) -> None:
    names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    table = chance.choice(names)
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    column = chance.choice(columns)
    where = (
        ""
        if chance.random() < 0.5
        else " WHERE rowid IN (SELECT rowid FROM t LIMIT 1)".replace("t ", f'"{table}" ')
    )
    match chance.randrange(8):
        case 0:
            database.execute(f'DROP TABLE "{table}"')
        case 1:
            database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
        case 2:
            database.execute(f'DELETE FROM "{table}"{where}')
        case 3:
            listed = ", ".join(f'"{each}"' for each in columns)
            for _ in range(chance.choice((1, 6))):
                database.execute(f'INSERT INTO "{table}" ({listed}) SELECT {listed} FROM "{table}"')
        case _:
            value: Any = hostile(chance)
            if not isinstance(value, (int, float, str, type(None))):
                value = chance.choice((b"\x00\xff", chance.choice(TEXTS)))
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                value = float(value)
            database.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', (value,))
