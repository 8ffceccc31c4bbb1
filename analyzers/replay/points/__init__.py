"""A recorded step as points: arrivals at collectives and their ends, with each rank's own time between.

It may import `analyzers.context`, `analyzers.shared`.
Start reading in `point_graph`, then `point_replay`.

It is made from the collectives' table alone. Findings ask it who made whom late (`findings/origins`).
`analyzers/recorded` turns it into a graph of `replay/events` for `whatif`.
"""
