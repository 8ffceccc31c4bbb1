"""Values computed once for all analyses: matches, clocks, waits, floors.

It may import `analyzers.roofline`, `analyzers.shared`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `context`; `match` says which records are one collective, `fill` has waits, bandwidths
and floors.
"""
