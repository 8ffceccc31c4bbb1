"""What the interconnect allows: fabrics as data, cost models, calibration."""

from shardtoll.analyzers.roofline.choose import choose_fabric, other_device_note
from shardtoll.analyzers.roofline.cost import Cost, collective_cost, collective_costs
from shardtoll.analyzers.roofline.curve import Curve, CurvePoint
from shardtoll.analyzers.roofline.fabric import UNKNOWN, Fabric, Link
from shardtoll.analyzers.roofline.gpu import Gpu
from shardtoll.analyzers.roofline.gpus import find_gpu, known_gpus
from shardtoll.analyzers.roofline.hardware import fabric_of_hardware
from shardtoll.analyzers.roofline.load import fabric_names, known_fabrics, load_fabric, parse_fabric
from shardtoll.analyzers.roofline.measured import calibrated, measured_cost, with_links
from shardtoll.analyzers.roofline.place import Placement, hosts_note, one_node, place, ranks_per_host
from shardtoll.analyzers.roofline.quantity import Quantity
from shardtoll.analyzers.roofline.write import to_toml

__all__ = [
    "UNKNOWN",
    "Cost",
    "Curve",
    "CurvePoint",
    "Fabric",
    "Gpu",
    "Link",
    "Placement",
    "Quantity",
    "calibrated",
    "choose_fabric",
    "collective_cost",
    "collective_costs",
    "fabric_names",
    "fabric_of_hardware",
    "find_gpu",
    "hosts_note",
    "known_fabrics",
    "known_gpus",
    "load_fabric",
    "measured_cost",
    "one_node",
    "other_device_note",
    "parse_fabric",
    "place",
    "ranks_per_host",
    "to_toml",
    "with_links",
]
