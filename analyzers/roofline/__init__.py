"""The limits of the interconnect: fabrics as data, cost models, calibration.

It is a door: it hands out what its rooms export, and holds no code of its own.
Start reading in `model.cost`, and in `machines.fabric` for what a fabric is.
"""

from typing import TYPE_CHECKING

from shardtoll.ledger.lazy import exports

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline.machines.choose import choose_fabric as choose_fabric
    from shardtoll.analyzers.roofline.machines.choose import describes as describes
    from shardtoll.analyzers.roofline.machines.choose import fabric_on_record as fabric_on_record
    from shardtoll.analyzers.roofline.machines.choose import gpu_of_run as gpu_of_run
    from shardtoll.analyzers.roofline.machines.choose import other_device_note as other_device_note
    from shardtoll.analyzers.roofline.machines.choose import with_device as with_device
    from shardtoll.analyzers.roofline.machines.curve import Curve as Curve
    from shardtoll.analyzers.roofline.machines.curve import CurvePoint as CurvePoint
    from shardtoll.analyzers.roofline.machines.fabric import UNKNOWN as UNKNOWN
    from shardtoll.analyzers.roofline.machines.fabric import Fabric as Fabric
    from shardtoll.analyzers.roofline.machines.fabric import Link as Link
    from shardtoll.analyzers.roofline.machines.gpu import Gpu as Gpu
    from shardtoll.analyzers.roofline.machines.gpu import find_gpu as find_gpu
    from shardtoll.analyzers.roofline.machines.gpu import known_gpus as known_gpus
    from shardtoll.analyzers.roofline.machines.gpu import load_gpu as load_gpu
    from shardtoll.analyzers.roofline.machines.hardware import fabric_of_hardware as fabric_of_hardware
    from shardtoll.analyzers.roofline.machines.load import fabric_names as fabric_names
    from shardtoll.analyzers.roofline.machines.load import known_fabrics as known_fabrics
    from shardtoll.analyzers.roofline.machines.load import load_fabric as load_fabric
    from shardtoll.analyzers.roofline.machines.load import parse_fabric as parse_fabric
    from shardtoll.analyzers.roofline.machines.quantity import Quantity as Quantity
    from shardtoll.analyzers.roofline.machines.write import gpu_to_toml as gpu_to_toml
    from shardtoll.analyzers.roofline.machines.write import to_toml as to_toml
    from shardtoll.analyzers.roofline.model.cost import Cost as Cost
    from shardtoll.analyzers.roofline.model.cost import collective_cost as collective_cost
    from shardtoll.analyzers.roofline.model.cost import collective_costs as collective_costs
    from shardtoll.analyzers.roofline.model.measured_cost import calibrated as calibrated
    from shardtoll.analyzers.roofline.model.measured_cost import extrapolated as extrapolated
    from shardtoll.analyzers.roofline.model.measured_cost import measured_cost as measured_cost
    from shardtoll.analyzers.roofline.model.measured_cost import measured_ranks as measured_ranks
    from shardtoll.analyzers.roofline.model.measured_cost import sizes_note as sizes_note
    from shardtoll.analyzers.roofline.model.measured_cost import with_links as with_links
    from shardtoll.analyzers.roofline.model.place import Placement as Placement
    from shardtoll.analyzers.roofline.model.place import hosts_note as hosts_note
    from shardtoll.analyzers.roofline.model.place import one_node as one_node
    from shardtoll.analyzers.roofline.model.place import place as place
    from shardtoll.analyzers.roofline.model.place import ranks_per_host as ranks_per_host
else:
    __getattr__, __dir__ = exports(
        __name__,
        {
            "machines.choose": "choose_fabric describes fabric_on_record gpu_of_run other_device_note "
            "with_device",
            "machines.curve": "Curve CurvePoint",
            "machines.fabric": "Fabric Link UNKNOWN",
            "machines.gpu": "Gpu find_gpu known_gpus load_gpu",
            "machines.hardware": "fabric_of_hardware",
            "machines.load": "fabric_names known_fabrics load_fabric parse_fabric",
            "machines.quantity": "Quantity",
            "machines.write": "gpu_to_toml to_toml",
            "model.cost": "Cost collective_cost collective_costs",
            "model.measured_cost": "calibrated extrapolated measured_cost measured_ranks sizes_note "
            "with_links",
            "model.place": "Placement hosts_note one_node place ranks_per_host",
        },
    )
