"""Analyses: the ledger in, findings out. Pure: nothing is printed, drawn, written or fetched.

It may import `analyzers.bounds`, `analyzers.context`, `analyzers.findings.needless`,
`analyzers.findings.replicas`, `analyzers.findings.stages`, `analyzers.findings.stragglers`,
`analyzers.findings.trust`, `analyzers.headline`, `analyzers.roofline`, `analyzers.shared`,
`analyzers.whatif`, `ledger`, `ledger.records`, `ledger.report`, `ledger.tables`.
Start reading in `analyses`, which runs them all.
"""

from typing import TYPE_CHECKING

from shardtoll.ledger.lazy import exports

if TYPE_CHECKING:
    from shardtoll.analyzers.analyses import ANALYSES as ANALYSES
    from shardtoll.analyzers.analyses import run as run
    from shardtoll.analyzers.context.context import Context as Context
else:
    __getattr__, __dir__ = exports(__name__, {"analyses": "ANALYSES run", "context.context": "Context"})
