"""Whether all that is always true of the tables is true, and what can be put right where it is not."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from sqlalchemy import TextClause, text

from sessionstore import bulk, statements
from sessionstore.database import Database
from sessionstore.invariants import LEFTOVERS, Invariant
from sessionstore.items import Lane
from sessionstore.life import Life, Row
from sessionstore.limits import Limits
from sessionstore.model import Checked, Fault
from sessionstore.transaction import Transaction

MOST_FAULTS = 1_000
"""Of one kind; there may be more."""
_NAMED = text("SELECT id FROM conversations WHERE pk = :pk")


class Checking:
    """Looks at everything, in one snapshot; repairs one conversation at a time, each in a transaction of its own."""

    def __init__(self, database: Database, owner: str, limits: Limits) -> None:
        self._database, self._owner, self._limits = database, owner, limits

    def check(self) -> Checked:
        """What is wrong."""
        engine = self._database.integrity_faults()
        faults, leftovers = self._database.read(lambda transaction: (list(self._faults(transaction)), _leftovers(transaction)))
        return Checked(engine=engine, faults=faults, leftovers=leftovers)

    def repair(self, checked: Checked) -> Iterator[Fault]:
        """Put right what can be, and answer what was. Raises the children of `Unavailable`."""
        for fault in checked.faults:
            if fault.invariant != "search" and can_repair(fault) and self._repaired(fault):
                yield fault
        unfound = [fault for fault in checked.faults if fault.invariant == "search"]
        if unfound:
            self._database.make_search_anew()
            yield from unfound

    def _faults(self, transaction: Transaction) -> Iterator[Fault]:
        for invariant in self._database.invariants:
            for pk, found in transaction.rows(_query(invariant)):
                yield Fault(invariant=invariant.name, incarnation=pk, conversation_id=_name(transaction, pk), found=found)

    def _repaired(self, fault: Fault) -> bool:
        broken = next(one for one in self._database.invariants if one.name == fault.invariant)

        def change(transaction: Transaction) -> bool:
            row = transaction.row(statements.LIFE_BY_PK, pk=fault.incarnation)
            # Somebody may have put it right, or deleted it, meanwhile.
            if transaction.row(_among(broken), pk=fault.incarnation) is None:
                return False
            if row is None:
                return self._buried(transaction, fault)
            life = Life(transaction, Row(*row), transaction.now(), self._limits, self._owner, holds=False)
            REPAIRS[fault.invariant](life)
            life.raise_version()
            life.write_back()
            return True

        return self._database.write(change, Lane.ALONE)

    def _buried(self, transaction: Transaction, fault: Fault) -> bool:
        """What was deleted has no version to raise: its turns are over, and its place in the order of changes is its own."""
        pk = fault.incarnation or 0
        if fault.invariant == "turns":
            return bool(_close_turns(transaction, pk, transaction.now()))
        return fault.invariant == "changes" and bool(transaction.run(bulk.CHANGE_ANEW, at=pk))


@cache
def _query(invariant: Invariant) -> TextClause:
    """Where it is broken."""
    return text(f"SELECT * FROM ({invariant.sql}) faults LIMIT {MOST_FAULTS}")


@cache
def _among(invariant: Invariant) -> TextClause:
    """Whether it is broken in one conversation."""
    named = f"SELECT CAST(NULL AS INTEGER) AS pk, CAST(NULL AS TEXT) AS found UNION ALL {invariant.sql}"
    return text(f"SELECT 1 FROM ({named}) faults WHERE pk = :pk")


def _name(transaction: Transaction, pk: int | None) -> str | None:
    row = transaction.row(_NAMED, pk=pk)
    return None if row is None else str(row[0])


def _leftovers(transaction: Transaction) -> int:
    return len(transaction.rows(_query(LEFTOVERS)))


# What is put right ------------------------------------------------------------------------------------------------------


def _recount(life: Life) -> None:
    life.row.message_count, life.row.queued_count = life.transaction.row(bulk.COUNTS, pk=life.row.pk)


def _move_on(life: Life) -> None:
    life.row.next_position = life.transaction.row(bulk.NEXT_POSITION, pk=life.row.pk)[0]


def _overtake(life: Life) -> None:
    life.row.version = life.transaction.row(bulk.NEWEST_VERSION, pk=life.row.pk)[0]


def _end_lease(life: Life) -> None:
    # Not the turn that it names: that may be over, or somebody else's.
    life.drop_lease("interrupted")
    life.write_back()
    _end_turns(life)


def _end_turns(life: Life) -> None:
    _close_turns(life.transaction, life.row.pk, life.now)


def _close_turns(transaction: Transaction, pk: int, now: int) -> int:
    return transaction.run(bulk.CLOSE_TURNS, pk=pk, now=now)


def _settle(life: Life) -> None:
    life.transaction.run(
        statements.SETTLE_PARTIAL, pk=life.row.pk, version=life.raise_version(), now=life.now, status="interrupted"
    )


def _change(_: Life) -> None:
    """Its next version has a change of its own."""


def _make_root(life: Life) -> None:
    life.transaction.run(statements.ORPHAN, at=life.row.pk)


REPAIRS: Mapping[str, Callable[[Life], None]] = {
    "counts": _recount,
    "positions": _move_on,
    "versions": _overtake,
    "changes": _change,
    "leases": _end_lease,
    "turns": _end_turns,
    "partials": _settle,
    "references": _make_root,
}
"""By invariant. Each gives its conversation a new version, so that whoever follows it sees what became of it."""


def can_repair(fault: Fault) -> bool:
    """Whether there is a way to put it right."""
    return fault.invariant == "search" or (fault.invariant in REPAIRS and fault.incarnation is not None)
