"""The diagnosis in words: one sentence, its remedy and the finding. Pure.

It may import `analyzers.hang.judging`, `analyzers.hang.standing`, `ledger.records`, `ledger.words`.
Start reading in `hang_sentence`.
"""
