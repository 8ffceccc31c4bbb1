"""Timed collectives of a calibration and the curves that go into a fabric file.

It may import `ledger.records`.
Start reading in `measured`.
"""
