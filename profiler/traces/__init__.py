"""Readers of trace files: torch profiler (Kineto) traces become the same ledger as live runs. No torch."""
