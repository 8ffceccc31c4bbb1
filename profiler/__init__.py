"""Everything that makes records. `audit` is what a user imports; it needs torch and pyarrow only.

Reading trace files needs no torch, so what captures inside a job is imported when it is first used.

It may import `profiler.live.entry`.
Start reading in `live.session.session` for jobs, in `traces.job.job` for trace files, in `dryrun.run` for dry
runs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtoll.profiler.dryrun.entry import dry_run as dry_run
    from shardtoll.profiler.live.gradients.gradients import check_gradients as check_gradients
    from shardtoll.profiler.live.session.session import Session as Session
    from shardtoll.profiler.live.session.session import audit as audit
else:
    # pytest loads the plugin, and with it this file, in suites that ask for nothing of ours.
    def _door():
        from shardtoll.ledger.lazy import exports

        return exports(
            __name__,
            {
                "dryrun.entry": "dry_run",
                "live.gradients.gradients": "check_gradients",
                "live.session.session": "Session audit",
            },
        )

    def __getattr__(name: str) -> object:
        return _door()[0](name)

    def __dir__() -> list[str]:
        return _door()[1]()
