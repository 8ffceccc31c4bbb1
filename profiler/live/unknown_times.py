"""Why times are not known: what a report says where it shows none."""

from __future__ import annotations

from typing import Final

from shardtoll.profiler.live.device_times import DeviceReading

ON_FAKE: Final = (
    "operators ran on fake tensors: collectives and FLOPs are counted, but their times are those of no "
    "device and their values are unknown"
)


def times_unknown(host_times: bool, *, spans: bool, device: DeviceReading | None = None) -> str | None:
    """Return why times are not known, None where they are.

    `host_times`: whether operators are done when they return. `spans`: whether the transport's are there.
    `device`: what the device's events said.
    """
    if device is not None:
        return (
            "operators and transfers are not timed on this device without a trace (audit(trace=True)): "
            "known are the step's time and for how long its stream stood still for each collective"
        )
    if not host_times:
        return "device times are not captured live on this device: durations and exposed time are unknown"
    if not spans:
        return (
            "torch's profiler could not be used in some steps (another one ran, this torch lacks it, or "
            "a step ended inside backward): start and duration of their collectives are unknown"
        )
    return None
