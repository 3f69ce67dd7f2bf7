"""The store on one SQLite file: one writer in each process, calls that share a transaction, and a fair gate between processes.

Nothing outside of this room and `dialect` knows that SQLite exists; `engines` opens it.
"""
