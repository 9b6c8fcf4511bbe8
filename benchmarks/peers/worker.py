"""One peer, warm: `python -m benchmarks.peers.worker NAME`.

A line of JSON in, `{"source": ..., "product": ...}`, a line out, `{"error": ...}`, empty where the product is made.
"""

import importlib
import json
import os
import sys
import traceback


def main(name: str) -> None:
    """Answer until there are no more requests."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        make = importlib.import_module(f"benchmarks.peers.{name}").make
        for line in sys.stdin:
            error = ""
            try:
                make(**json.loads(line))
            except Exception:  # whatever it is, it ends the benchmark on the other side
                error = traceback.format_exc()
            print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
