"""One of many on a file whose log begins anew all the time: python -m tests.faults.racers URL ID SECONDS write|checkpoint"""

import random
import sys
import time

from sessionstore import Draft, Store
from sessionstore.sqlite import log
from tests.conftest import on_file


def main() -> None:
    """Write as fast as can be, or do nothing but copy the log back. Prints how many messages were acknowledged."""
    url, id, seconds, what = sys.argv[1:5]
    # So that whoever writes copies the log back after almost each commit.
    log.LOG_LIMIT_BYTES = 16 * 1024
    end, choice, count = time.monotonic() + float(seconds), random.Random(id), 0
    with Store.open(url, synchronous="normal", busy_timeout_ms=20_000) as store:
        while time.monotonic() < end:
            if what == "write":
                texts = [str(choice.random()) * choice.choice((1, 1, 40)) for _ in range(choice.choice((1, 1, 1, 2, 5, 30)))]
                store.append(id, [Draft(id=f"m{count + index}", role="user", content=text) for index, text in enumerate(texts)])
                count += len(texts)
            else:
                # TRUNCATE under the gate, and a commit whose chore is PASSIVE under the write lock.
                on_file(store).empty_log()
                store.label(id, title=str(choice.random()))
    print(count)


if __name__ == "__main__":
    main()
