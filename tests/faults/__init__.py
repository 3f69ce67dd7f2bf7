"""Faults on purpose: processes that die, power that fails, disks that fill up and break, clocks that jump, too many callers.

Each module is one kind of fault, against the product as it is run: servers and programs of their own, real files. What was
acknowledged is written down by those who were told so, outside of the product, and compared with what is in the file then.

    python -m tests.faults [--long] [NAME …]     (make faults, make faults-long)
"""
