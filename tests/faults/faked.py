"""The command line under a clock that is moved while it runs: python -m tests.faults.faked …

libfaketime makes a sleep of it fail with EINVAL when the clock is moved meanwhile, which no system does. A wait for no file at
all takes the same time and is left alone.
"""

import select
import time


def rest(seconds: float) -> None:
    """Sleep."""
    select.select([], [], [], seconds)


vars(time)["sleep"] = rest

if __name__ == "__main__":
    from sessionstore.cli import main

    main()
