"""A program that writes through the library until it is killed: python -m tests.faults.writers URL ID FIRST

A line before each call and one after its answer: `send ID NUMBER` and `done ID NUMBER`.
"""

import itertools
import sys

from sessionstore import Draft, Store


def main() -> None:
    """Append messages in order, the first with that number. A repeat is recognised by its id."""
    url, id, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Store.open(url, busy_timeout_ms=20_000) as store:
        store.create(id)
        _say(f"done {id} -1")
        for number in itertools.count(first):
            _say(f"send {id} {number}")
            store.append(id, [Draft(id=f"m{number}", role="user", content=number)])
            _say(f"done {id} {number}")


def _say(line: str) -> None:
    # One write(2), so that a line is whole or not there.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
