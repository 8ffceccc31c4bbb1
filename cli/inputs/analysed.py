"""Results of the analyses for a run or trace, kept so that `check` after `report` need not repeat them.

An entry's name is a digest of all that the analyses depend on: the ledger's content, the fabric and our own
code. It holds the analyses' additions to the ledger, which every command reads again. An entry that cannot be
read back is made anew.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from shardtoll.ledger import Report, SchemaError, analyze
from shardtoll.ledger.tables.ledger import empty_tables
from shardtoll.ledger.tables.parquet import from_parquet, to_parquet
from shardtoll.ledger.tables.validated import validated
from shardtoll.profiler.traces.job import cache

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric
    from shardtoll.ledger import Ledger

_CODE: Final = ("shardtoll.ledger", "shardtoll.analyzers")
_FILLED: Final = ("collectives", "steps", "notices")
"""Tables to which the analyses add columns or rows; the others are the ledger's own."""
_REST: Final = "report.json"


def analysed(ledger: Ledger, fabric: Fabric | None, *, keep: bool) -> Report:
    """Return the ledger's report, kept from an earlier command where there was one; `keep`: use the cache."""
    if not keep:
        return analyze(ledger, fabric)
    with cache.open_results(keep=True) as results_folder:
        if results_folder.folder is None:
            return analyze(ledger, fabric)
        path = results_folder.folder / f"{_digest(ledger, fabric)}{cache.REPORT_SUFFIX}"
        report = _kept(path, ledger)
        if report is None:
            report = analyze(ledger, fabric)
            cache.write_whole(path, _packed(report))
        return report


def _digest(ledger: Ledger, fabric: Fabric | None) -> str:
    head = msgspec.json.encode((ledger.run, ledger.groups, ledger.findings, fabric), enc_hook=dict)
    hashing = hashlib.blake2b(cache.code_digest(_CODE).encode() + head, digest_size=32)
    for name, table in ledger.tables.items():
        hashing.update(f"\0{name}\0{table.num_rows}\0".encode())
        for batch in table.to_batches():
            hashing.update(batch.serialize())
    return hashing.hexdigest()


def _packed(report: Report) -> bytes:
    """Return the entry's bytes: a zip, unpacked, whose checksums reveal a damaged file."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr(_REST, replace(report, tables=empty_tables()).to_json())
        for name in _FILLED:
            packed.writestr(f"{name}.parquet", to_parquet(report.tables[name]).to_pybytes())
    return whole.getvalue()


def _kept(path: Path, ledger: Ledger) -> Report | None:
    """Return the report of an entry; None if there is none, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as packed:
            rest = Report.from_json(packed.read(_REST).decode())
            tables = dict(ledger.tables)
            for name in _FILLED:
                tables[name] = from_parquet(pa.py_buffer(packed.read(f"{name}.parquet")))
                validated(name, tables[name])
        report = replace(rest, run=ledger.run, tables=tables)
        cache.use(path)
    except (
        *(OSError, ValueError, KeyError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error, pa.ArrowException, SchemaError),
    ):
        return None
    return report
