"""The long run of both kinds of fuzzing: `python -m tests.fuzz.run --requests 6000 --seed 1`.

Prints one line of JSON, and fails when one reply was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.described import Described
from tests.fuzz.raw import Raw
from tests.fuzz.target import KEY, target

SHOWN_FAULTS = 50


def main() -> None:
    """Fuzz a fresh front until the requests are made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=6000, help="the least number of each kind")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same requests")
    arguments = parser.parse_args()
    logging.disable()  # each request that is no HTTP would have a line
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, target(Path(folder)) as front:
        described = Described(front, KEY, arguments.seed)
        described.run_until(arguments.requests)
        raw = Raw(front, KEY, arguments.seed)
        raw.run(arguments.requests)
        num_left = front.count("running")
    faults = [*described.faults, *raw.faults]
    for fault in faults[:SHOWN_FAULTS]:
        sys.stderr.write(f"{fault}\n")
    told = {
        "seed": arguments.seed,
        "described": described.num_requests,
        "operations": len(described.operations),
        "raw": raw.num_requests,
        "statuses": {
            "described": dict(sorted(described.statuses.items())),
            "raw": dict(sorted(raw.statuses.items())),
        },
        "faults": len(faults),
        "still_running": num_left,
        "seconds": round(time.monotonic() - began_at),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(1 if faults or num_left else 0)


if __name__ == "__main__":
    main()
