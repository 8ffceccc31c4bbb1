"""The rank and job that a dry run plays, and the variables that torchrun would set for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """Which rank of which job this process plays."""

    size: int
    rank: int
    per_host: int

    @property
    def local_rank(self) -> int:
        """Place among the ranks of its host."""
        return self.rank % self.per_host

    @property
    def local_size(self) -> int:
        """Ranks of its host."""
        return min(self.per_host, self.size)

    def variables(self) -> dict[str, str]:
        """Return the variables that torchrun sets for each process."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.per_host),
            "GROUP_WORLD_SIZE": str(-(-self.size // self.per_host)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "dry",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
