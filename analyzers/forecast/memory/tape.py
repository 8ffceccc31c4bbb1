"""Writes the allocations of a step in order. Sizes are bytes; a storage is named by its number."""

from __future__ import annotations

from shardtoll.analyzers.forecast.memory.allocator import Event
from shardtoll.ledger.answers.plan_memory import Category


class Tape:
    """The events so far. Fractions of bytes are cut off."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._born = 0

    def new(self, size: float, category: Category = "temporaries", stream: int = 0) -> int:
        """A storage is born; returns its number."""
        self._born += 1
        self.events.append((self._born, int(size), category, stream))
        return self._born

    def drop(self, *numbers: int) -> None:
        """Storages are freed."""
        for number in numbers:
            self.events.append((number, None, "other", 0))

    def passing(self, *sizes: float, category: Category = "temporaries", stream: int = 0) -> None:
        """Storages that live at the same time and are freed at once."""
        self.drop(*[self.new(size, category, stream) for size in sizes])
