"""What the interconnect allows: fabrics as data, cost models, calibration.

It is a door: it hands out what its rooms export, and holds no code of its own.
Start reading in `model.cost`, and in `machines.fabric` for what a fabric is.
"""

from shardtoll.analyzers.roofline.machines.choose import (
    choose_fabric,
    gpu_of_run,
    other_device_note,
    with_device,
)
from shardtoll.analyzers.roofline.machines.curve import Curve, CurvePoint
from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN, Fabric, Link
from shardtoll.analyzers.roofline.machines.gpu import Gpu, find_gpu, known_gpus
from shardtoll.analyzers.roofline.machines.hardware import fabric_of_hardware
from shardtoll.analyzers.roofline.machines.load import fabric_names, known_fabrics, load_fabric, parse_fabric
from shardtoll.analyzers.roofline.machines.quantity import Quantity
from shardtoll.analyzers.roofline.machines.write import to_toml
from shardtoll.analyzers.roofline.model.cost import Cost, collective_cost, collective_costs
from shardtoll.analyzers.roofline.model.measured import calibrated, measured_cost, sizes_note, with_links
from shardtoll.analyzers.roofline.model.place import Placement, hosts_note, one_node, place, ranks_per_host

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
    "gpu_of_run",
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
    "sizes_note",
    "to_toml",
    "with_device",
    "with_links",
]
