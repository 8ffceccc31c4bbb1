"""Who is stuck, where, since when and why: flights of ranks in, a diagnosis out. Pure.

It may import `analyzers.hang.judging`, `analyzers.hang.standing`, `analyzers.hang.verdict`, `ledger.answers`,
`ledger.records`.
Start reading in `diagnose`.
"""
