"""Fuzz everything that reads what strangers send:

    python -m tests.fuzz [--seconds 60] [--seed N] [--only decoders|server]

Half of the time goes to the decoders in this process, half to a running server (schemathesis). Ends with 1 when something
was found.
"""

import argparse
import random
import sys

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
    share = asked.seconds / (1 if asked.only else 2)
    found = 0
    if asked.only != "server":
        found += decode_anything(share, asked.seed)
    if asked.only != "decoders":
        found += call_from_document(share, asked.seed, asked.examples)
    sys.stdout.write(f"{found} found\n")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
