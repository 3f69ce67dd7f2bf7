"""Races that the database settles, each in three arenas: threads on one store, processes on one file, servers on one file.

Every test asserts the answers and what is left in the tables. Rounds are few here; `make stress` runs many.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import ENGINE, Tables
from tests.races.arenas import ARENAS, Arena
from tests.races.operations import Outcome, message, op

SEATS = 8
ROUNDS = 5
_ids = count()


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One database for all races."""
    if ENGINE == "sqlite":
        template = request.getfixturevalue("template")
        yield f"sqlite:///{shutil.copy(template, tmp_path_factory.mktemp('races') / 'races.db')}"
        return
    with request.getfixturevalue("postgresql").database() as url:
        yield url


@pytest.fixture(scope="module", params=ARENAS)
def arena(request: pytest.FixtureRequest, place: str) -> Iterator[Arena]:
    opened = ARENAS[request.param](place, SEATS)
    yield opened
    opened.close()


@pytest.fixture
def left(place: str) -> Tables:
    return Tables(place)


@pytest.fixture
def id() -> str:
    return f"x{next(_ids)}"


@pytest.fixture(params=range(ROUNDS), ids=lambda number: f"round {number}")
def again(request: pytest.FixtureRequest) -> int:
    """Run the test some times: a race has more than one order."""
    return int(request.param)


def codes(outcomes: list[Outcome]) -> Counter[str]:
    return Counter(outcome.code for outcome in outcomes)


LIVING = "SELECT pk FROM conversations WHERE id = ? AND deleted_at IS NULL"
MESSAGES = (
    "SELECT m.id, m.position, m.content, m.status FROM messages m JOIN conversations c ON c.pk = m.conversation_pk"
    " WHERE c.id = ? ORDER BY m.position"
)


def test_r1_the_same_create_by_many_happens_once(arena: Arena, left: Tables, id: str, again: int) -> None:
    outcomes = arena.together([op("create", id, messages=[message("hi")])] * SEATS)
    assert codes(outcomes) == {"done": 1, "replayed": SEATS - 1}
    told = {outcome.value["messages"][0]["id"] for outcome in outcomes}
    assert len(told) == 1
    assert left.rows(MESSAGES, id) == [(told.pop(), 0, '"hi"', "complete")]


def test_r2_different_creates_all_happen(arena: Arena, left: Tables, id: str) -> None:
    outcomes = arena.together([op("create", f"{id}-{n}") for n in range(SEATS)])
    assert codes(outcomes) == {"done": SEATS}
    assert all(left.rows(LIVING, f"{id}-{n}") for n in range(SEATS))


def test_r4_the_same_fork_by_many_happens_once(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id, messages=[message(n) for n in range(3)]))
    outcomes = arena.together([op("fork", id, new=f"{id}-f")] * SEATS)
    assert codes(outcomes) == {"done": 1, "conversation-exists": SEATS - 1}
    assert all(outcome.value["same"] for outcome in outcomes if outcome.code != "done")
    assert left.rows(MESSAGES, f"{id}-f") == left.rows(MESSAGES, id)
    assert left.one("SELECT version FROM conversations WHERE id = ?", id) == 1


def test_r7_create_against_delete_ends_in_some_order(arena: Arena, left: Tables, id: str, again: int) -> None:
    created, deleted = arena.together([op("create", id, messages=[message("hi")]), op("delete", id)])
    assert created.code == "done"
    assert deleted.code in ("done", "conversation-not-found")
    assert bool(left.rows(LIVING, id)) == (deleted.code != "done")
    assert len(left.rows(MESSAGES, id)) == (deleted.code != "done")


def test_r9_one_delete_of_many_is_the_delete(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    outcomes = arena.together([op("delete", id)] * 4)
    assert codes(outcomes) == {"done": 1, "conversation-deleted": 3}
    assert left.one("SELECT count(*) FROM conversations WHERE id = ?", id) == 1


def test_r10_a_read_against_a_delete_is_whole_or_gone(arena: Arena, id: str, again: int) -> None:
    arena.do(op("create", id, messages=[message(n) for n in range(50)]))
    *pages, _ = arena.together([op("messages", id, limit=1000)] * 4 + [op("delete", id)])
    for page in pages:
        assert page.code == "conversation-deleted" or len(page.value["messages"]) == 50
    assert arena.do(op("get", id)).code == "conversation-deleted"


def test_r11_saves_against_a_forced_delete_leave_nothing(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    token = f"token-of-the-holder-of-{id}"
    arena.do(op("acquire", id, token=token))
    saves = [op("put", id, message=message(n, f"m{n}", status="partial"), token=token) for n in range(SEATS - 1)]
    *saved, deleted = arena.together([*saves, op("delete", id, force=True)])
    assert deleted.code == "done"
    assert codes(saved).keys() <= {"done", "conversation-deleted"}
    assert left.rows(MESSAGES, id) == []
    assert left.rows(LIVING, id) == []


def test_r13_a_late_title_against_a_delete_brings_nothing_back(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    late = [op("label", id, title="late"), op("append", id, messages=[message("late")]), op("fork", id, new=f"{id}-f")]
    *outcomes, deleted = arena.together([*late, op("delete", id)])
    assert deleted.code == "done"
    assert codes(outcomes).keys() <= {"done", "conversation-deleted"}
    assert left.rows("SELECT title, message_count FROM conversations WHERE id = ?", id) == [(None, 0)]
    assert left.rows(MESSAGES, id) == []


def test_r17_a_child_never_outlives_its_parent(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    child, _ = arena.together([op("create", f"{id}-c", parent_id=id), op("delete", id)])
    assert child.code in ("done", "conversation-deleted")
    assert left.rows(LIVING, f"{id}-c") == []


def test_l1_of_many_that_acquire_one_wins(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    outcomes = arena.together([op("acquire", id, holder=f"h{n}") for n in range(SEATS)])
    assert codes(outcomes) == {"done": 1, "generating": SEATS - 1}
    winner = next(outcome.value for outcome in outcomes if outcome.code == "done")
    assert {outcome.value["holder"] for outcome in outcomes if outcome.code != "done"} == {winner["holder"]}
    assert left.rows("SELECT generation FROM conversations WHERE id = ?", id) == [(winner["generation"],)]
    number = "SELECT count(*) FROM generations g JOIN conversations c ON c.pk = g.conversation_pk WHERE c.id = ?"
    assert left.one(number, id) == 1


def test_l11_rounds_of_turns_keep_every_answer_after_its_question(arena: Arena, left: Tables, id: str) -> None:
    arena.do(op("create", id))
    for round in range(ROUNDS):
        tokens = [f"token-{id}-round-{round}-seat-{seat}" for seat in range(4)]
        outcomes = arena.together([op("acquire", id, token=token, messages=[message(f"q{round}")]) for token in tokens])
        assert codes(outcomes) == {"done": 1, "generating": 3}
        token = tokens[[outcome.code for outcome in outcomes].index("done")]
        assert arena.do(op("finish", id, messages=[message(f"a{round}", role="assistant")], token=token)).code == "done"
    said = [content for _, _, content, _ in left.rows(MESSAGES, id)]
    assert said == [f'"{letter}{round}"' for round in range(ROUNDS) for letter in "qa"]


def test_l13_and_l17_a_token_sent_by_many_is_one_turn(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    token = f"token-of-everybody-in-{id}"
    outcomes = arena.together([op("acquire", id, token=token, messages=[message("q", "q")])] * SEATS)
    assert codes(outcomes) == {"done": 1, "replayed": SEATS - 1}
    assert len({outcome.value["generation"] for outcome in outcomes}) == 1
    assert left.rows(MESSAGES, id) == [("q", 0, '"q"', "complete")]
    assert arena.do(op("release", id, token=token)).code == "done"
    assert codes(arena.together([op("acquire", id, token=token)] * SEATS)) == {"lease-lost": SEATS}


def test_l18_a_finish_sent_by_many_is_one_end(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    token = f"token-of-everybody-in-{id}"
    arena.do(op("acquire", id, token=token))
    outcomes = arena.together([op("finish", id, messages=[message("bye")], usage={"n": 1}, token=token)] * SEATS)
    assert codes(outcomes) == {"done": 1, "replayed": SEATS - 1}
    assert len(left.rows(MESSAGES, id)) == 1


def test_l9_an_old_release_never_frees_the_new_holders_lease(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    old, new = f"token-of-the-old-of-{id}", f"token-of-the-new-of-{id}"
    arena.do(op("acquire", id, token=old))
    outcomes = arena.together(
        [op("acquire", id, token=new, if_busy="interrupt"), op("release", id, token=old), op("finish", id, token=old)]
    )
    assert outcomes[0].code == "done"
    assert codes(outcomes[1:]).keys() <= {"done", "lease-lost"}
    assert arena.do(op("renew", id, token=new)).code == "done"


def test_m1_appends_take_each_position_once_and_batches_stay_together(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    outcomes = arena.together([op("append", id, messages=[message([n, 0]), message([n, 1])]) for n in range(SEATS)])
    assert codes(outcomes) == {"done": SEATS}
    rows = {row[0]: row for row in left.rows(MESSAGES, id)}
    assert sorted(row[1] for row in rows.values()) == list(range(2 * SEATS))
    for outcome in outcomes:
        first, second = outcome.value["messages"]
        assert second["position"] == first["position"] + 1
        assert (rows[first["id"]][1], rows[second["id"]][1]) == (first["position"], second["position"])


def test_m2_the_same_message_by_many_is_stored_once(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    outcomes = arena.together([op("append", id, messages=[message("hi", "m")])] * SEATS)
    assert codes(outcomes) == {"done": 1, "replayed": SEATS - 1}
    assert left.rows(MESSAGES, id) == [("m", 0, '"hi"', "complete")]


def test_m2_one_id_with_two_contents_is_one_message(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id))
    outcomes = arena.together([op("append", id, messages=[message(n, "m")]) for n in range(SEATS)])
    assert codes(outcomes) == {"done": 1, "message-exists": SEATS - 1}
    assert len(left.rows(MESSAGES, id)) == 1


def test_m6_appends_and_renames_from_old_reads_are_both_there(arena: Arena, left: Tables, id: str) -> None:
    arena.do(op("create", id))
    for round in range(ROUNDS):
        appended, renamed = arena.together([op("append", id, messages=[message(round)]), op("label", id, title=str(round))])
        assert (appended.code, renamed.code) == ("done", "done")
    assert left.rows("SELECT title, version FROM conversations WHERE id = ?", id) == [(str(ROUNDS - 1), 2 * ROUNDS + 1)]
    assert len(left.rows(MESSAGES, id)) == ROUNDS


def test_m13_a_fork_of_the_beginning_does_not_see_what_is_appended(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id, messages=[message(n) for n in range(10)]))
    forked, _ = arena.together(
        [op("fork", id, new=f"{id}-f", through_position=9), op("append", id, messages=[message("late")])]
    )
    assert forked.code == "done"
    assert [content for _, _, content, _ in left.rows(MESSAGES, f"{id}-f")] == [str(n) for n in range(10)]


def test_m15_a_truncate_sent_by_many_takes_only_its_range(arena: Arena, left: Tables, id: str, again: int) -> None:
    arena.do(op("create", id, messages=[message(n) for n in range(5)]))
    cut = op("truncate", id, after_position=2, through_position=4)
    outcomes = arena.together([cut, op("append", id, messages=[message("later")]), cut, cut])
    assert codes(outcomes).keys() <= {"done", "replayed"}
    living = [content for _, _, content, status in left.rows(MESSAGES, id) if status != "deleted"]
    assert living == ["0", "1", "2", '"later"']
