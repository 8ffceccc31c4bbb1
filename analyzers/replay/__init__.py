"""Two replays of a step over all ranks: `points` of recorded collectives, `events` of all that takes time.

It is a door: it hands out what its rooms export, and holds no code of its own.
Start reading in `points.point_graph` and `events.engine`.
"""
