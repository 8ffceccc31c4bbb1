"""The event engine: any graph of nodes, lanes and meetings, simulated with the durations that it is given.

It may import nothing of ours.
Start reading in `event_graph` and `engine`.

Forecasts, dry runs and edited steps run on it. It knows no records and imports numpy alone:

    builder = Builder()                                   # event_builder
    host, stream = builder.lane(), builder.lane()         # what runs one node at a time, in node order
    launch = builder.node(rank, host, Kind.HOST, 10_000)  # -> its number; gap_ns=, release_ns=, after=[...]
    builder.node(rank, stream, Kind.COLLECTIVE, 50_000, meet=builder.rendezvous(), after=[launch])
    builder.edge(before, after, lag_ns)                   # .nodes(...) and .edges(...) take whole arrays
    graph = builder.graph()                               # event_graph.EventGraph, frozen arrays
    outcome = simulate(graph, durations=None, contention=None, order=None, force=False)   # engine
    outcome.start_ns, .end_ns, .arrival_ns, .wait_ns      # [n] each
    outcome.makespan_ns, .end_by_rank(graph.rank), .held_by, .last    # the last two: the critical path

A node that waits at a rendezvous (`meet`) starts when all that feed it have arrived, and lasts its transfer.
`Contention(factor, source)` prices the overlap of compute and collectives; `LLM_FOUNDRY` is a fitted factor.
"""
