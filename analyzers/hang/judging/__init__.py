"""Who holds the job up: members, circles, ends and ways apart in, a diagnosis out. Pure.

It may import `analyzers.hang.order`, `analyzers.hang.standing`, `ledger.answers`, `ledger.records`.
Start reading in `judge`.
"""
