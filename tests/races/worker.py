"""A process that does what it is told: one operation a line in, one outcome a line out.

python -m tests.races.worker URL
"""

import json
import sys

from sessionstore import Store
from tests.races.operations import Op, on_store


def main() -> None:
    """Serve standard input until it ends."""
    with Store.open(sys.argv[1], busy_timeout_ms=int(sys.argv[2])) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            outcome = on_store(store, Op(*json.loads(line)))
            sys.stdout.write(json.dumps([outcome.code, dict(outcome.value)]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
