"""`python -m tests.fuzz`: a run over all seams, or one input again with `--again SEAM NUMBER`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import run as runner
from tests.fuzz.child import chance_of
from tests.fuzz.seams import SEAMS, refused, seam_of


def main() -> int:
    """Run what the arguments say; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="over all seams")
    parser.add_argument("--seconds", type=float, default=3_600.0)
    parser.add_argument("--turn", type=float, default=60.0, help="seconds that a child lives")
    parser.add_argument("--seed", default=time.strftime("%j"))
    parser.add_argument("--seam", action="append", default=[], choices=[seam.name for seam in SEAMS])
    parser.add_argument(
        "--again", nargs=2, metavar=("SEAM", "NUMBER"), help="one input again, with its traceback"
    )
    parser.add_argument("-o", "--output", type=Path, help="figures as JSON, written after each turn")
    given = parser.parse_args()
    if given.again:
        seam = seam_of(given.again[0])
        with tempfile.TemporaryDirectory(prefix="shardtoll-fuzz-") as folder:
            begun = time.process_time()
            try:
                told = refused(
                    seam.attack(), chance_of(given.seed, seam.name, int(given.again[1])), Path(folder)
                )
            finally:
                print(f"{time.process_time() - begun:.2f} s of CPU", file=sys.stderr)
        print("refused" if told else "read")
        return 0
    results = runner.run(
        given.seed,
        inputs=given.inputs,
        seconds=given.seconds,
        turn_s=given.turn,
        only=given.seam,
        told=lambda line: print(line, flush=True),
        save=given.output,
    )
    faults = [fault for result in results.values() for fault in result.tally.faults]
    for fault in faults[:20]:
        print(json.dumps(fault))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
