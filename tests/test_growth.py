"""What grows and what must not: the log behind an idle reader, long conversations (cases F4, F7, M16)."""

from pathlib import Path

import pytest

from sessionstore import Store
from sessionstore.engine import sqlite3
from sessionstore.sqlite import connections
from sessionstore.sqlite.log import LOG_LIMIT_BYTES
from tests.conftest import Clock, on_file, texts, user


@pytest.mark.parametrize("fault", [None, "pretended"])
def test_f4_the_log_behind_an_idle_reader_grows_evenly_and_shrinks_when_it_ends(
    url: str, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    monkeypatch.setattr(connections, "engine_fault", lambda: fault)
    with Store.open(url, clock=clock, synchronous="normal") as store:
        store.create("c")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        sizes = [on_file(store).log_bytes()]
        for _ in range(2):
            for _ in range(1000):
                store.append("c", [user("x" * 2000)])
            sizes.append(on_file(store).log_bytes())
        first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
        assert 0.8 < second / first < 1.25
        reader.execute("COMMIT")
        reader.close()
        for _ in range(1500):
            store.append("c", [user("x" * 2000)])
        assert on_file(store).log_bytes() < 3 * LOG_LIMIT_BYTES
        assert store.get("c").message_count == 3500


def test_m16_a_hundred_thousand_messages_are_all_there_after_a_restart(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock, synchronous="normal") as store:
        store.create("c")
        for begin in range(0, 100_000, 1000):
            store.append("c", [user(n) for n in range(begin, begin + 1000)])
        store.append("c", [user("last")])
    with Store.open(url, clock=clock) as store:
        assert store.get("c").message_count == 100_001
        last = store.messages("c", order="desc", limit=3)
        assert [message.content for message in last.items] == ["last", 99_999, 99_998]
        assert last.next == 99_998
        store.fork("c", "f")
        assert store.get("f").message_count == 100_001
        assert texts(store, "f") == list(range(1000))
