"""The device that is not there: tensors, values, streams, storages and the work of operators.

It may import `ledger.records`, `profiler.live.cause`, `profiler.live.values`.
Start reading in `devices`; `timeline` has streams and events, `storages` what lives on the device, `work`
FLOPs and bytes.
"""
