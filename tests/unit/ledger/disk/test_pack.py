from __future__ import annotations

import json

import pytest

from shardtoll.ledger import Ledger
from shardtoll.ledger.disk.pack import pack, unpack
from shardtoll.ledger.tables.ledger import empty_tables


def test_a_ledger_survives_the_wire(make):
    for ledger in (make.ledger(rank=3), Ledger(make.run(), (), empty_tables())):
        assert unpack(pack(ledger)) == ledger


def test_a_table_without_rows_takes_no_bytes(make):
    ledger = make.ledger()
    data = pack(ledger)
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    rows = [table.num_rows for table in ledger.tables.values()]
    assert 0 in rows
    assert sorted(size > 0 for size in head["sizes"]) == sorted(count > 0 for count in rows)


def test_bytes_behind_the_ledger_do_no_harm(make):
    """A gather pads to the longest; the head says where the ledger ends."""
    ledger = make.ledger()
    assert unpack(pack(ledger) + bytes(64)) == ledger


def test_a_cut_is_noticed_wherever_it_is(make):
    data = pack(make.ledger(steps=1))
    for cut in [*range(0, len(data), 199), *range(len(data) - 10, len(data))]:
        with pytest.raises(ValueError, match=r"."):
            unpack(data[:cut])


@pytest.mark.parametrize(
    "head",
    [b"{}", b"[]", b"null", b'{"sizes":[1,2]}', b'{"sizes":[0,0,0,0,0]}', b'{"sizes":null}', b"\xff\xfe"],
)
def test_a_foreign_head_is_no_ledger(head):
    with pytest.raises(ValueError, match=r"."):
        unpack(len(head).to_bytes(8, "little") + head)
