"""Flight files say what was noted, whoever reads them when, and damaged ones are refused or read in part."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from shardtoll.ledger import RunFolderError
from shardtoll.ledger.disk import flight_layout as layout
from shardtoll.ledger.disk import flight_memory
from shardtoll.ledger.disk.flight_file import parse_flight, read_flight
from shardtoll.ledger.disk.flight_memory import KEPT_S, memory_path, remove_dead
from shardtoll.ledger.disk.run_files import clear, flight_path, flights_in, is_run_folder
from shardtoll.ledger.records.flight import RankFlight
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from shardtoll.profiler.live.flight import kinds
from shardtoll.profiler.live.flight.flight import Flight
from tests.flights import write_flight

ROOT = Path(__file__).resolve().parents[4]


def noted(place: Place, message: Message, seq: int | None = None) -> PendingCollective:
    return PendingCollective(message, place, 0, seq)


def written(writer: Flight, folder: Path) -> RankFlight:
    """Return what is read once the watchdog has written."""
    writer.write()
    return read_flight(folder, writer.rank)


def test_what_was_noted_is_read(tmp_path: Path):
    write_flight(tmp_path, 3, 4, world=8, state=None, hang_in=True)
    flight = read_flight(tmp_path, 3)
    assert (flight.rank, flight.world_size, flight.state, flight.run_id) == (3, 8, "open", "run")
    assert [(call.number, call.place, call.finished_ns is None) for call in flight.calls] == [
        (1, 1, False), (2, 2, False), (3, 3, False), (4, 4, True),
    ]  # fmt: skip
    last = flight.calls[-1]
    assert (last.op, last.group, last.message_bytes, last.dtype) == ("all_reduce", "world", 16, "float32")
    assert last.source == "a.py:1 (f)"
    assert (flight.blocked, flight.blocked_call) == (4, last)
    assert flight.life == "alive", "it is this process"


def test_each_call_says_which_one_of_its_kind_it_is_and_how_many_steps_before_had(tmp_path: Path):
    """Also where those of before are no longer in the ring, nor their text in its slot."""
    writer = write_flight(tmp_path, 0, 0, state=None)
    message = Message("all_reduce", "world", 2)
    kind = noted(Place("other", source="a.py:1 (f)"), message)
    others = [noted(Place("other", source=f"b.py:{number} (f)"), message) for number in range(layout.RING)]
    for step, many in enumerate((2, 3, 1, 4)):
        writer.begin(step, 5)
        for _ in range(many):
            writer.issue(kind, 1)
        for other in others[: 0 if step == 3 else None]:
            writer.issue(other, 1)
        writer.begin(None, 6)
        writer.issue(kind, 1)
    calls = [call for call in written(writer, tmp_path).calls if call.source == "a.py:1 (f)"]
    last = [(call.step, call.nth_in_step, call.most_in_step) for call in calls]
    assert last[-5:] == [(3, 1, 3), (3, 2, 3), (3, 3, 3), (3, 4, 3), (None, None, None)]


def test_kinds_past_the_cap_of_counted_texts_say_that_their_counts_are_unknown(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 0, state=None)
    message = Message("all_reduce", "world", 2)
    many = 4 * layout.TEXTS
    kinds = [noted(Place("other", source=f"b.py:{number} (f)"), message) for number in range(many + 1)]
    for step in range(2):
        writer.begin(step, 5)
        for each in (*kinds, kinds[-1], kinds[0], kinds[0]):
            writer.issue(each, 1)
    calls = written(writer, tmp_path).calls
    counts = {(call.source, call.nth_in_step, call.most_in_step) for call in calls if call.step == 1}
    assert {each[1:] for each in counts if each[0] == f"b.py:{many} (f)"} == {(None, None)}
    assert ("b.py:0 (f)", 3, 3) in counts


def test_the_ring_keeps_the_last_calls_and_groups_the_rest(tmp_path: Path):
    writer = write_flight(tmp_path, 0, layout.RING + 40, state=None)
    other = Message("barrier", "other", 2), Place("other")
    writer.issue(noted(other[1], other[0]), 1)
    writer.begin(7, 5)
    flight = written(writer, tmp_path)
    assert len(flight.calls) == layout.RING
    assert flight.calls[-2].number == layout.RING + 40
    assert flight.step == 7
    world, last = flight.groups
    assert (world.name, world.issued_place, world.finished_place) == (
        "world",
        layout.RING + 40,
        layout.RING + 40,
    )
    assert (last.name, last.issued_place, last.finished_place) == ("other", 1, None)


def test_texts_make_room_for_others_and_come_back(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 0, state=None)
    first = Message("all_reduce", "world", 2, "float32", 1), Place("other", source="first.py:1 (f)")
    writer.issue(noted(first[1], first[0]), 1)
    kept = []
    for number in range(layout.TEXTS):
        kept.append(Place("other", source=f"other.py:{number} (f)"))
        writer.issue(noted(kept[-1], first[0]), 1)
    assert written(writer, tmp_path).calls[0].source != "first.py:1 (f)"
    writer.issue(noted(first[1], first[0]), 1)
    assert written(writer, tmp_path).calls[-1].source == "first.py:1 (f)"


def test_long_names_are_cut_and_never_lost(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 0, state=None)
    place = Place("forward", source="x" * 500 + ".py:9 (step)", module="m." * 500)
    writer.issue(noted(place, Message("all_reduce", "g" * 300, 2, "float32", 16)), 1)
    (call,) = written(writer, tmp_path).calls
    assert call.op == "all_reduce"
    assert call.source is not None
    assert call.source.endswith(".py:9 (step)")


def test_places_are_the_groups_count_less_what_ranks_do_not_share(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 0, state=None)
    message, place = Message("all_reduce", "world", 2), Place("other")
    send = Message("send", "world", 2, root=1), Place("other")
    assert writer.issue(noted(place, message, 0), 1)[0] == 1
    writer.issue(noted(send[1], send[0], 1), 1)
    slot = writer._slots["world"]
    slot.skew += 1
    writer.issue(noted(place, message, 2), 1)
    assert [call.place for call in written(writer, tmp_path).calls] == [1, 1, 2]


def test_after_the_end_nothing_more_is_written(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 2)
    before = flight_path(tmp_path, 0).read_bytes()
    writer.issue(noted(Place("other"), Message("barrier", "world", 2)), 1)
    writer.begin(3, 4)
    assert flight_path(tmp_path, 0).read_bytes() == before
    assert read_flight(tmp_path, 0).state == "closed"


def test_a_run_folder_is_cleared_of_them_and_not_known_by_them(tmp_path: Path):
    write_flight(tmp_path, 0)
    assert flights_in(tmp_path) == [0]
    assert not is_run_folder(tmp_path)
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["short", "magic", "head"])
def test_what_is_no_flight_file_is_refused_in_one_line(tmp_path: Path, damage: str):
    write_flight(tmp_path, 0)
    path = flight_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    if damage == "short":
        del data[-1:]
    elif damage == "magic":
        data[:2] = b"xx"
    else:
        data[layout.HEAD.size] = 0
    path.write_bytes(data)
    with pytest.raises(RunFolderError) as caught:
        read_flight(tmp_path, 0)
    assert "flight.rank00000.bin is damaged or cut short" in caught.value.message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [layout.SIZE, layout.SIZE // 2])
def test_a_file_of_another_version_is_said_to_be_one(tmp_path: Path, size: int):
    write_flight(tmp_path, 0)
    path = flight_path(tmp_path, 0)
    data = bytearray(path.read_bytes()[:size])
    data[8] = 1
    path.write_bytes(data)
    with pytest.raises(RunFolderError) as caught:
        read_flight(tmp_path, 0)
    assert caught.value.message == (
        f"{path} was written by another version of shardtoll "
        f"(flight file version 1; this one reads {layout.VERSION})"
    )
    assert caught.value.hint == "read it with the version of shardtoll that wrote it"


def test_any_damage_gives_a_flight_or_one_error(tmp_path: Path):
    write_flight(tmp_path, 0, 600, state=None, hang_in=True)
    whole = flight_path(tmp_path, 0).read_bytes()
    drawn = random.Random(0)
    read = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(drawn.choice((1, 20, 2_000))):
            begin = drawn.choice((0, layout.WORDS_AT, layout.RING_AT, layout.GROUPS_AT, layout.TEXTS_AT))
            place = min(begin + drawn.randrange(4_000), len(data) - 1)
            data[place] = drawn.randrange(256)
        try:
            flight = parse_flight(bytes(data), "x")
        except ValueError:
            continue
        read += 1
        assert len(flight.calls) <= layout.RING
    assert read > 50


def test_a_torn_entry_is_left_out(tmp_path: Path):
    write_flight(tmp_path, 0, 3)
    path = flight_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    entry = layout.RING_AT + 2 * layout.ENTRY.size
    data[entry : entry + 8] = (2 + layout.RING).to_bytes(8, "little")
    path.write_bytes(data)
    assert [call.number for call in read_flight(tmp_path, 0).calls] == [1, 3]


def test_ranks_fit_as_runs():
    ranks = (0, 8, 16, 24, 25, 26, 40)
    assert layout.ranks_of(layout.runs_of(ranks)) == ranks
    assert layout.ranks_of(layout.runs_of(tuple(range(4096)))) == tuple(range(4096))
    assert layout.ranks_of([[0, 1 << 60, 1]]) == ()
    assert layout.ranks_of("nonsense") == ()
    assert layout.ranks_of([[0, 8, 1]], world=8) == tuple(range(8))
    assert layout.ranks_of([[0, 9, 1]], world=8) == ()
    assert layout.ranks_of([[4, 3, 2]], world=8) == ()


@pytest.mark.parametrize("world", [4, layout.RANKS_MOST, None])
def test_groups_have_no_more_ranks_than_the_job(tmp_path: Path, world: int | None):
    write_flight(tmp_path, 0, world=layout.RANKS_MOST if world is None else world)
    path = flight_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    for index in range(layout.GROUPS):
        slot = layout.text_slot({"name": str(index), "ranks": [[0, layout.RANKS_MOST, 1]]}, 1, 400)
        assert slot is not None
        begin = layout.GROUPS_AT + index * layout.GROUP_BYTES + layout.GROUP_TEXT_AT
        data[begin : begin + len(slot)] = slot
    if world is None:
        data = data.replace(b"world_size", b"world_sizf", 1)
    path.write_bytes(data)
    ranks = [len(group.ranks) for group in read_flight(tmp_path, 0).groups]
    assert (len(ranks), sum(ranks)) == (layout.GROUPS, 0 if world == 4 else layout.RANKS_MOST)


def test_since_when_a_call_that_raised_was_waited_for(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 1, state=None)
    message = Message("all_reduce", "world", 2)
    assert written(writer, tmp_path).raised_since_ns is None
    epoch_ns = (written(writer, tmp_path).calls[0].issued_ns or 0) - 1_000
    work = object()
    note = writer.issue(noted(Place("other"), message), 5_000)
    writer.hands(work, note)
    writer.waits(id(work), 7_000)
    writer.wait_raised()
    kept = written(writer, tmp_path)
    assert (kept.raised, kept.raised_since_ns) == (note[0], 7_000 + epoch_ns)
    note = writer.issue(noted(Place("other"), message), 9_000)
    writer.raised(note)
    kept = written(writer, tmp_path)
    assert (kept.raised, kept.raised_since_ns) == (note[0], 9_000 + epoch_ns)


def test_texts_beyond_all_slots_cost_no_kept_call_its_text(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 0, state=None)
    places = [Place("other", source=f"a.py:{number} (f)") for number in range(3 * layout.TEXTS)]
    for _ in range(2):
        for place in places:
            writer.issue(noted(place, Message("all_reduce", "world", 2)), 1)
    calls = written(writer, tmp_path).calls
    assert [call.source for call in calls] == [place.source for place in places[-layout.RING :]]


def test_a_text_that_had_to_make_room_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Place] = []
    text = kinds._text
    monkeypatch.setattr(kinds, "_text", lambda message, place: made.append(place) or text(message, place))
    writer = write_flight(tmp_path, 0, 0, state=None)
    message = Message("all_reduce", "world", 2)
    places = [Place("other", source=f"a.py:{number} (f)") for number in range(3 * layout.TEXTS)]
    for _ in range(3):
        for place in places:
            writer.issue(noted(place, message), 1)
    assert len(made) == len(places)
    other = Message("all_reduce", "world", 2, message_bytes=8)
    writer.issue(noted(places[-1], other), 1)
    writer.issue(noted(places[-1], message), 1)
    calls = written(writer, tmp_path).calls
    assert [call.source for call in calls[-3:]] == [places[-1].source] * 3
    assert [call.message_bytes for call in calls[-3:]] == [None, 8, None], "another message is another kind"


@pytest.mark.parametrize("harm", ["cut", "removed", "replaced", "folder"])
def test_a_file_that_is_cut_short_or_removed_is_written_anew(tmp_path: Path, harm: str):
    folder = tmp_path / "run"
    writer = write_flight(folder, 0, 3, state=None)
    path = flight_path(folder, 0)
    if harm == "cut":
        os.truncate(path, 100)
    elif harm == "folder":
        folder.rename(tmp_path / "away")
    else:
        path.unlink()
    if harm == "replaced":
        path.write_text("of somebody else")
    message = Message("all_reduce", "world", 2)
    for number in range(3 * layout.RING):
        writer.issue(noted(Place("other", source=f"b.py:{number} (f)"), message), 1)
    writer.begin(5, 1)
    writer.write(repair=True)
    writer.end("closed")
    assert writer.lost is None
    if harm == "replaced":
        assert path.read_text() == "of somebody else"
    else:
        kept = read_flight(tmp_path / "away" if harm == "folder" else folder, 0)
        assert (kept.state, kept.calls[-1].number) == ("closed", 3 + 3 * layout.RING)


def test_a_file_that_cannot_be_written_is_given_up_and_said(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 1, state=None)
    image = writer._image
    assert image is not None
    os.close(image._file)
    image._file = os.open(flight_path(tmp_path, 0), os.O_RDONLY)
    writer.write()
    assert "Bad file descriptor" in str(writer.lost)
    writer.issue(noted(Place("other"), Message("barrier", "world", 2)), 1)
    writer.end("closed")


KILLED = """
import os, signal, sys
from pathlib import Path
from shardtoll.profiler.live.cause.pending import Message, PendingCollective, Place
from tests.flights import write_flight
writer = write_flight(Path(sys.argv[1]), 0, 2, state=None)
message = Message("all_reduce", "world", 2, "float32", 16)
writer.issue(PendingCollective(message, Place("other", source="last.py:1 (f)"), 0), 5_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_rank_leaves_its_last_call_on_its_host(tmp_path: Path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False, timeout=60)
    whole = flight_path(tmp_path, 0).read_bytes()
    kept = read_flight(tmp_path, 0)
    assert (kept.life, kept.calls[-1].source, kept.blocked) == ("dead", "last.py:1 (f)", 3)
    assert len(parse_flight(whole, "x").calls) == 2, "the file itself was written before"
    name = json.loads(whole[layout.HEAD.size : layout.HEAD_BYTES].rstrip(b"\0"))["memory"]
    path = memory_path(name)
    assert path is not None
    assert path.exists()
    remove_dead()
    assert path.exists(), "another audit on the host begins before anybody asks"
    long_ago = path.stat().st_mtime - KEPT_S - 1
    os.utime(path, (long_ago, long_ago))
    remove_dead()
    assert not path.exists()
    assert read_flight(tmp_path, 0).calls[-1].number == 2


def test_memory_of_a_process_that_lives_stays_until_its_end(tmp_path: Path):
    writer = write_flight(tmp_path, 0, 1, state=None)
    image = writer._image
    assert image is not None
    path = image._memory._path
    assert path is not None
    remove_dead()
    assert path.exists()
    writer.end("closed")
    assert not path.exists()


def test_memory_that_another_rank_removes_meanwhile_leaves_the_rest_and_no_open_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flight_memory, "FOLDER", tmp_path)
    space, pid = flight_memory._namespace(), os.getpid()
    files = [tmp_path / f"shardtoll-{space}-{pid}-1-{number:032x}" for number in range(6)]
    for file in files:
        file.touch()
        os.utime(file, (0, 0))
    asked: list[int] = []

    def removed_by_another(asked_pid: int) -> int:
        if not asked:
            # The folder's names were read by now.
            files[2].unlink()
        asked.append(asked_pid)
        return 2

    monkeypatch.setattr(flight_memory, "started_ticks", removed_by_another)
    with warnings.catch_warnings():
        # An unclosed folder warns where nobody can catch it: pytest turns that into a failure.
        warnings.simplefilter("error")
        remove_dead()
        gc.collect()
    assert len(asked) == len(files), "the look ended at the file that was gone"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "shardtoll-1-2-3-x", "", None, 7])
def test_only_names_that_we_give_are_looked_for(name: object):
    assert memory_path(name) is None
