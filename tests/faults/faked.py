"""The command line under a clock that is moved while it runs: python -m tests.faults.faked …

libfaketime makes a sleep of it fail with EINVAL when the clock is moved meanwhile, which no system does. A wait for no file at
all takes the same time and is left alone.
"""

import select
import time

time.sleep = lambda seconds: select.select([], [], [], seconds)  # type: ignore[assignment]

if __name__ == "__main__":
    from sessionstore.cli import main

    main()
