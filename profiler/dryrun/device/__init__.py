"""The device that is not there: tensors, values, streams and storages of a dry run.

It may import `ledger.records`, `profiler.live.cause`, `profiler.live.values`.
Start reading in `devices`; `timeline` has streams and events, `storages` what lives on the device.
"""
