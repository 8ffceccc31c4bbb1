"""A budget in a test: the fourth DiT attempt, which communicates where no line says so, and its mended twin.

pytest samples/budget/test_as_declared.py      # over budget: four collectives, each with its line
pytest samples/budget/test_by_channels.py      # passes
"""
