"""What the model's constants are before any sweep is looked at, and how far each may be from it."""

from __future__ import annotations

from typing import Final, NamedTuple

NCCL: Final = "NCCL src/graph/tuning.cc v2.30"
SHARES: Final = "shares measured in shared/reference/ROOFLINE.md"
TOLD: Final = "what aws-ofi-nccl src/platform-aws.cpp tells NCCL of a hop"
TCPXO: Final = (
    "small all_reduces of two a3-mega hosts take 123 to 160 us: two hops, beside 27 us of NCCL's own"
)
CHANNELS: Final = f"{NCCL}: a channel of NVLSTree carries 96 GB/s between two Blackwell domains"
OURS: Final = "no source: what a transfer of this kind is expected to need"

PROTOCOLS: Final = ("LL", "LL128", "Simple")
ALGORITHMS: Final = ("ring", "tree", "nvls", "nvlstree", "collnet", "pat", "chain", "pairwise", "direct")

GENERATIONS: Final[dict[str, str]] = {
    **dict.fromkeys(("v100-sxm-16gb", "v100-sxm-32gb", "v100-dgxs-16gb", "v100-dgxs-32gb"), "volta"),
    **dict.fromkeys(("t4", "rtx-2080", "rtx-2080-ti"), "turing"),
    **dict.fromkeys(("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a10g"), "ampere"),
    **dict.fromkeys(("a800-sxm-80gb", "a800-pcie-80gb", "rtx-3070", "rtx-3080", "rtx-3080-ti"), "ampere"),
    **dict.fromkeys(("rtx-3090", "rtx-3090-ti"), "ampere"),
    **dict.fromkeys(
        ("l4", "l40s", "rtx-4070", "rtx-4070-ti", "rtx-4080", "rtx-4080-super", "rtx-4090"), "ada"
    ),
    **dict.fromkeys(("h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "gh200-96gb", "gh200-144gb"), "hopper"),
    **dict.fromkeys(("h800-sxm", "h800-pcie", "h20"), "hopper"),
    **dict.fromkeys(("b200-sxm", "gb200", "b300-sxm", "gb300", "rtx-5080", "rtx-5090"), "blackwell"),
    **dict.fromkeys(("mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x"), "cdna"),
}
"""By `Gpu.name`."""

KNOWN: Final[dict[str, tuple[str, bool]]] = {
    **dict.fromkeys(("nvswitch", "nvlink", "infiniband", "efa", "slingshot"), ("measured sweeps", True)),
    **dict.fromkeys(("pcie", "xgmi", "memory"), ("published rates; no sweep was at hand", False)),
    "roce": ("taken to be as InfiniBand", False),
    **dict.fromkeys(("tcpx", "ethernet"), ("guessed: no sweep was at hand", False)),
}
"""Kind of link -> where its constants come from, and whether they were measured."""


class Prior(NamedTuple):
    """A constant before learning."""

    value: float
    spread: float
    """Standard deviation of its logarithm; 0: taken as it is."""
    source: str
    guess: bool = False
    """Whether it is a guess, where nothing can be learned about it."""

    @property
    def sourced(self) -> bool:
        """Whether the constant, when it is not learned, comes from anywhere but a guess."""
        return not self.guess and self.source != OURS


def _protocols(name: str, values: tuple[float, float, float], spread: float) -> dict[str, Prior]:
    return {
        f"{name}.{protocol}": Prior(value, spread, NCCL)
        for protocol, value in zip(("LL", "LL128", "Simple"), values, strict=True)
    }


PRIORS: Final[dict[str, Prior]] = {
    **_protocols("base_us.ring", (6.6, 14.0, 8.4), 0.3),
    **_protocols("base_us.gather", (6.6, 14.0, 8.4), 0.3),
    **_protocols("base_us.tree", (6.8, 14.0, 8.4), 0.3),
    **_protocols("near_hop_us.ring", (0.6, 1.9, 3.4), 0.3),
    **_protocols("near_hop_us.gather", (0.6, 1.9, 3.4), 0.4),
    **_protocols("near_hop_us.tree", (0.6, 1.25, 4.0), 0.3),
    **_protocols("net_hop_us.ring", (2.7, 4.0, 14.0), 0.3),
    **_protocols("net_hop_us.gather", (2.7, 4.0, 14.0), 0.4),
    **_protocols("net_hop_us.tree", (5.0, 8.5, 14.0), 0.3),
    "base_us.nvls.Simple": Prior(25, 0.4, NCCL),
    "base_us.nvlstree.Simple": Prior(25, 0.4, NCCL),
    "base_us.collnet.Simple": Prior(31, 0.0, NCCL),
    "base_us.pat.Simple": Prior(8, 0.0, NCCL),
    "base_us.pairwise.default": Prior(12, 0.5, OURS),
    "base_us.direct.default": Prior(12, 0.5, OURS),
    "near_hop_us.nvls.Simple": Prior(0, 0.0, NCCL),
    "near_hop_us.nvlstree.Simple": Prior(0, 0.0, NCCL),
    "near_hop_us.collnet.Simple": Prior(0.4, 0.0, NCCL),
    "near_hop_us.pat.Simple": Prior(2.8, 0.0, NCCL),
    "near_hop_us.pairwise.default": Prior(0.5, 0.7, OURS),
    "near_hop_us.direct.default": Prior(0.6, 0.0, NCCL),
    "net_hop_us.nvls.Simple": Prior(0, 0.0, NCCL),
    "net_hop_us.nvlstree.Simple": Prior(20.9, 0.3, NCCL),
    "net_hop_us.collnet.Simple": Prior(0, 0.0, NCCL),
    "net_hop_us.pat.Simple": Prior(3.5, 0.0, NCCL),
    "net_hop_us.pairwise.default": Prior(4, 0.5, OURS),
    "net_hop_us.direct.default": Prior(5, 0.4, OURS),
    "latency_factor.ampere": Prior(1, 0.3, OURS),
    "latency_factor.hopper": Prior(1, 0.0, "the generation that the others are held against"),
    "latency_factor.blackwell": Prior(1, 0.15, OURS),
    "net_factor.ring.slingshot": Prior(2, 0.5, OURS),
    "net_factor.gather.slingshot": Prior(2, 0.5, OURS),
    "net_factor.tree.slingshot": Prior(2, 0.5, OURS),
    "net_factor.pairwise.slingshot": Prior(2, 0.5, OURS),
    "net_factor.pairwise.infiniband": Prior(1, 0.0, OURS),
    "net_factor.ring.efa": Prior(1, 0.3, OURS),
    "net_factor.tree.efa": Prior(1, 0.3, OURS),
    "net_factor.nvlstree.efa": Prior(1, 0.3, OURS),
    "plugin_us.efa": Prior(25, 0.5, f"a third of {TOLD}"),
    "plugin_us.efa_ampere": Prior(37, 0.5, f"half of {TOLD}"),
    "plugin_us.slingshot": Prior(2, 0.7, OURS),
    "plugin_us.tcpx": Prior(56, 0.0, TCPXO),
    "plugin_us.ethernet": Prior(15, 0.0, OURS, guess=True),
    "near_share.ring.ampere": Prior(0.77, 0.05, SHARES),
    "near_share.ring.hopper": Prior(0.815, 0.05, SHARES),
    "near_share.ring.blackwell": Prior(0.8, 0.05, "NCCL's 40.1 of 50 GB/s a link (src/graph/topo.h)"),
    "near_share.ring.racks_blackwell": Prior(0.48, 0.1, OURS),
    "near_share.ring.default": Prior(0.75, 0.0, OURS, guess=True),
    "near_share.tree.default": Prior(0.72, 0.1, OURS),
    "near_share.tree.racks_blackwell": Prior(0.4, 0.1, f"{CHANNELS}, of tree 42.8"),
    "near_share.tree.many_racks_blackwell": Prior(0.22, 0.1, f"{CHANNELS}, of tree 24 from three domains on"),
    "near_share.nvls.hopper": Prior(0.69, 0.1, OURS),
    "near_share.nvls.blackwell": Prior(0.6, 0.1, OURS),
    "near_share.nvls.rack_blackwell": Prior(0.48, 0.1, OURS),
    "near_share.nvlstree.default": Prior(0.63, 0.1, OURS),
    "near_share.nvlstree.racks_blackwell": Prior(0.48, 0.1, "as NVLS in one rack: two are as fast as one"),
    "near_share.nvlstree.many_racks_blackwell": Prior(0.22, 0.1, f"{CHANNELS}, 43.8 from three domains on"),
    "near_share.pairwise.default": Prior(0.8, 0.05, OURS),
    "near_share.direct.default": Prior(0.815, 0.05, SHARES),
    "net_share.ring.infiniband": Prior(0.98, 0.01, SHARES),
    "net_share.ring.infiniband_ampere": Prior(0.92, 0.03, OURS),
    "net_share.ring.rails_infiniband": Prior(0.81, 0.05, SHARES),
    "net_share.ring.efa": Prior(0.85, 0.1, OURS),
    "net_share.ring.slingshot": Prior(0.74, 0.05, OURS),
    "net_share.ring.default": Prior(0.85, 0.0, OURS, guess=True),
    "net_share.tree.infiniband": Prior(0.83, 0.05, OURS),
    "net_share.tree.efa": Prior(0.83, 0.05, OURS),
    "net_share.tree.slingshot": Prior(0.7, 0.05, OURS),
    "net_share.tree.default": Prior(0.8, 0.0, OURS, guess=True),
    "net_share.pairwise.infiniband": Prior(0.91, 0.03, SHARES),
    "net_share.pairwise.infiniband_ampere": Prior(0.85, 0.05, OURS),
    "net_share.pairwise.efa": Prior(0.85, 0.0, OURS),
    "net_share.pairwise.slingshot": Prior(0.4, 0.15, OURS),
    "net_share.pairwise.default": Prior(0.8, 0.0, OURS, guess=True),
    "net_share.direct.default": Prior(0.5, 0.1, OURS),
    "net_share.direct.rails_infiniband": Prior(0.3, 0.1, OURS),
    "net_share.collnet.default": Prior(0.9, 0.0, OURS),
    "net_share.pat.default": Prior(0.75, 0.0, NCCL),
    "protocol_share.near.LL": Prior(0.35, 0.3, OURS),
    "protocol_share.near.LL128": Prior(0.92, 0.03, NCCL),
    "protocol_share.net.LL": Prior(0.2, 0.4, OURS),
    "protocol_share.net.LL128": Prior(0.9, 0.05, NCCL),
    "ramp.ring.near": Prior(0.5, 0.6, OURS),
    "ramp.ring.net": Prior(0.3, 0.6, OURS),
    "ramp.ring.slingshot": Prior(0.6, 0.6, OURS),
    "ramp.gather.near": Prior(0.5, 0.6, OURS),
    "ramp.gather.net": Prior(0.3, 0.6, OURS),
    "ramp.gather.rails_infiniband": Prior(0.7, 0.6, OURS),
    "ramp.gather.slingshot": Prior(0.6, 0.6, OURS),
    "ramp.tree.near": Prior(0.6, 0.6, OURS),
    "ramp.tree.net": Prior(0.6, 0.6, OURS),
    "ramp.tree.slingshot": Prior(0.9, 0.6, OURS),
    "ramp.nvls.near": Prior(0.88, 0.3, "shared/reference/ROOFLINE.md"),
    "ramp.nvlstree.net": Prior(0.88, 0.3, "shared/reference/ROOFLINE.md"),
    "ramp.pairwise.near": Prior(0.5, 0.6, OURS),
    "ramp.pairwise.net": Prior(0.2, 0.6, OURS),
    "ramp.pairwise.slingshot": Prior(0.3, 0.6, OURS),
    "ramp.direct.near": Prior(0.5, 0.6, OURS),
    "ramp.direct.net": Prior(0.3, 0.6, OURS),
    "ramp_factor.LL": Prior(1, 0.6, OURS),
    "ramp_factor.LL128": Prior(1, 0.6, OURS),
    "ramp_factor.Simple": Prior(1, 0.0, "the protocol that the others are held against"),
    "few_channels_gbps.default": Prior(650, 0.1, OURS),
    "few_channels_bytes.default": Prior(64 << 20, 0.0, OURS),
    "host_call_us.torch": Prior(40, 0.3, OURS),
}
