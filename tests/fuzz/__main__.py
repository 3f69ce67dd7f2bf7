"""Fuzz everything that reads what strangers send:

    python -m tests.fuzz [--seconds 60] [--seed N] [--only decoders|server]

The decoders are fuzzed in this process, a running server (schemathesis) beside it, each for so long. Ends with 1 when something
was found.
"""

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.decoders import decode_anything
from tests.fuzz.server import call_from_document


def main() -> int:
    """Answer 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--only", choices=["decoders", "server"])
    asked = parser.parse_args()
    sys.stdout.write(f"seed {asked.seed}\n")
    with ThreadPoolExecutor(1) as beside:
        serving = (
            beside.submit(call_from_document, asked.seconds, asked.seed, asked.examples) if asked.only != "decoders" else None
        )
        found = decode_anything(asked.seconds, asked.seed) if asked.only != "server" else 0
        found += 0 if serving is None else serving.result()
    sys.stdout.write(f"{found} found\n")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
