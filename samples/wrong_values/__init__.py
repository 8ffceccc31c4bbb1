"""Programs that train, and learn nothing: their values are wrong in themselves.

It may import `profiler`, `samples.strategies` and `samples`; torchrun runs each module.
Start reading in `same_seed`.
"""
