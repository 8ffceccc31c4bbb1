"""Who asked for a collective: frames, modules, parameters, groups, phases.

It may import `ledger.records`.
Start reading in `attribute`.
"""
