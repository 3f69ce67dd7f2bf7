"""The store on PostgreSQL: a transaction for each conversation, whose row is locked first, from as many processes as there are.

Nothing outside of this room and `dialect` knows that PostgreSQL exists; `engines` opens it. It needs the extra `postgres`.
"""
