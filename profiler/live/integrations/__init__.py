"""Adapters that audit training run by a trainer library: one file each, which alone imports that library.

It may import `ledger`, `ledger.records`, `profiler.live.session`.
Start reading in `running`.
"""
