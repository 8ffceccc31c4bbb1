"""What the interconnect allows: fabrics as data, cost models, calibration."""

from shardtoll.analyzers.roofline.choose import choose_fabric
from shardtoll.analyzers.roofline.cost import Cost, collective_cost
from shardtoll.analyzers.roofline.fabric import UNKNOWN, Fabric, Link, Quantity, Rates
from shardtoll.analyzers.roofline.fit import MeasuredPoint, fit_fabric
from shardtoll.analyzers.roofline.load import known_fabrics, load_fabric, parse_fabric
from shardtoll.analyzers.roofline.place import Placement, hosts_note, one_node, place, ranks_per_host
from shardtoll.analyzers.roofline.write import to_toml

__all__ = [
    "UNKNOWN",
    "Cost",
    "Fabric",
    "Link",
    "MeasuredPoint",
    "Placement",
    "Quantity",
    "Rates",
    "choose_fabric",
    "collective_cost",
    "fit_fabric",
    "hosts_note",
    "known_fabrics",
    "load_fabric",
    "one_node",
    "parse_fabric",
    "place",
    "ranks_per_host",
    "to_toml",
]
