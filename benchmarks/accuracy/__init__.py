"""Parts of the benchmarks that judge a model: of sweeps, of layouts in order, of replayed steps.

Which sweeps predict which, the peers' formulas, the orders of layouts, medians over steps. Start reading in
`cases`.
"""
