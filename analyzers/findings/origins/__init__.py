"""Origins of lateness: the rank and the work that took longer than its peers', and what that cost.

It may import `analyzers.context`, `analyzers.pipelines`, `analyzers.replay.points`, `analyzers.shared`,
`ledger`.
Start reading in `origin`.
"""
