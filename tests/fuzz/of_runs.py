"""Run folders: one file of a rank damaged in its bytes, its values, its columns or its kind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shardtoll.ledger import Ledger, RankWriter, RunFolderError
from shardtoll.ledger.disk.provisional_file import TABLES
from tests.fuzz.ledgers import of_rank
from tests.fuzz.mutate import NUMBERS, TEXTS, of_bytes, of_tree
from tests.fuzz.of_reports import drawn
from tests.fuzz.seams import Attack

_PLAIN: Final = {"compression": "NONE", "use_dictionary": False, "write_statistics": False}


def write(folder: Path, parts: dict[int, Ledger], *, closed: int) -> None:
    """Write a run of these ranks; those from `closed` on never closed and have journals."""
    for rank, part in parts.items():
        writer = RankWriter(folder, rank, "one run")
        writer.describe(part.run, part.groups)
        writer.append_batches({name: _batch(table) for name, table in part.tables.items()})
        if rank < closed:
            writer.close(part.run, part.groups)
        else:
            writer.provisional([{name: _batch(part.tables[name]) for name in TABLES}])
            writer.abandon()


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def runs() -> Attack:
    """Run folders: read, one of four also followed, one of 80 analysed and drawn."""
    from shardtoll.analyzers.analyses import run as analyze
    from shardtoll.ledger import read_run
    from shardtoll.ledger.disk.follow import Follower

    parts = {rank: of_rank(rank) for rank in range(2)}
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), parts, closed=1)
        files = {path.name: path.read_bytes() for path in Path(made).iterdir()}

    def attack(chance: random.Random, folder: Path) -> None:
        run = folder / "run"
        if run.is_dir():
            shutil.rmtree(run)
        run.mkdir()
        for name, content in files.items():
            (run / name).write_bytes(content)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            damage(run, chance)
        ledger = read_run(run)
        fate = chance.random()
        if fate < 1 / 4:
            Follower(run).read()
        if fate < 1 / 80:
            drawn(analyze(ledger), chance, folder)

    return attack


def ledgers() -> Attack:
    """Ledgers whose tables are sound and whose values are hostile: analysed and drawn."""
    from shardtoll.analyzers.analyses import run as analyze
    from shardtoll.ledger.tables.validated import validated
    from tests.fuzz.ledgers import pipeline
    from tests.sample_reports import report

    plain = report()
    bases = [Ledger(plain.run, plain.groups, plain.tables), pipeline()]

    def attack(chance: random.Random, folder: Path) -> None:
        base = chance.choice(bases)
        tables = dict(base.tables)
        for _ in range(chance.choice((1, 1, 2, 5))):
            name = chance.choice(sorted(name for name, table in tables.items() if table.num_rows))
            try:
                tables[name] = validated(name, _changed(tables[name], chance))
                ledger = Ledger(base.run, base.groups, tables)
            except ValueError as error:
                # As readers refuse it, whatever they read it from.
                raise RunFolderError(f"a damaged table ({error})", "run the job again") from error
        drawn(analyze(ledger), chance, folder)

    return attack


def damage(run: Path, chance: random.Random) -> None:
    """Damage one file of a run folder."""
    path = chance.choice(sorted(run.iterdir()))
    if not path.is_file() or path.is_symlink():
        return
    way = chance.random()
    if way < 0.04:
        _other_kind(path, chance)
    elif path.suffix == ".json" and way < 0.8:
        with contextlib.suppress(ValueError):
            # Not if it was damaged before.
            made = json.dumps(of_tree(json.loads(path.read_bytes()), chance))
            path.write_bytes(made.encode("utf-8", "surrogatepass"))
    elif path.suffix != ".json" and way < 0.6:
        _values(path, chance)
    else:
        path.write_bytes(of_bytes(path.read_bytes(), chance))


def _other_kind(path: Path, chance: random.Random) -> None:
    path.unlink()
    match chance.randrange(5):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.symlink_to("/dev/zero")
        case _:
            path.write_bytes(b"")


def _values(path: Path, chance: random.Random) -> None:
    """Write the table anew with hostile values or other columns; not packed, so that bytes reach the rows."""
    try:
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path).read()
        else:
            with pa.OSFile(str(path), "rb") as file:
                table = pa.ipc.open_stream(file).read_all()
    except (pa.ArrowException, OSError):
        return
    for _ in range(chance.randint(0, 3)):
        table = _changed(table, chance)
    made = pa.BufferOutputStream()
    try:
        if path.suffix == ".parquet":
            pq.write_table(table, made, **_PLAIN)
        else:
            with pa.ipc.new_stream(made, table.schema) as stream:
                stream.write_table(table)
    except pa.ArrowException:
        # Not with nulls where the schema allows none.
        return
    path.write_bytes(made.getvalue().to_pybytes())
    if chance.random() < 0.6:
        path.write_bytes(of_bytes(path.read_bytes(), chance))


def _changed(table: pa.Table, chance: random.Random) -> pa.Table:
    place = chance.randrange(table.num_columns) if table.num_columns else 0
    if not table.num_columns or not table.num_rows:
        return table
    item = table.schema.field(place)
    way = chance.random()
    if way < 0.05:
        return table.remove_column(place)
    if way < 0.1:
        return table.set_column(place, item.name, table.column(place).cast(pa.string()))
    if way < 0.15:
        return pa.concat_tables([table] * chance.choice((2, 30)))
    values: list[Any] = table.column(place).to_pylist()
    rows = range(len(values)) if chance.random() < 0.3 else [chance.randrange(len(values))]
    for row in rows:
        values[row] = _value(item.type, chance)
    return table.set_column(place, item, pa.array(values, item.type))


def _value(kind: pa.DataType, chance: random.Random) -> Any:
    if chance.random() < 0.1:
        return None
    if pa.types.is_integer(kind):
        number = int(chance.choice(NUMBERS))
        return max(-(2**63), min(2**63 - 1, number))
    if pa.types.is_floating(kind):
        return float(chance.choice(NUMBERS)) if chance.random() < 0.9 else float("nan")
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    return chance.choice(TEXTS).encode("utf-8", "replace").decode()
