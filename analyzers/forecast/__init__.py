"""What a training plan costs before anybody runs it: memory and time of a step.

It may import `ledger`.
Start reading in `memory`.
"""
