"""Graphs of a planned step for the event engine: sharded over replicas, or in stages by a schedule.

It may import `analyzers.replay.events`.
Start reading in `staged_step`.
"""
