"""A state machine plays several clients, with tokens, without, and with stale ones, against the store and the rules."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sessionstore import Draft, Store, errors
from sessionstore.model import (
    Acquired,
    Answer,
    Compacted,
    Conversation,
    Created,
    Finished,
    Interruption,
    Message,
    Renewed,
    Saved,
    Tag,
    Truncated,
)
from tests import rules
from tests.conftest import Clock
from tests.rules import Call, Said, State

IDS = st.sampled_from(["a", "b"])
TOKENS = st.sampled_from([f"token-number-{n}-of-the-pool" for n in range(4)])
MAYBE_TOKEN = st.one_of(st.none(), TOKENS)
MESSAGE_IDS = st.sampled_from(["m0", "m1", "m2"])
# As JSON texts: to Python 1 and 1.0 are equal, to the rules they are not.
CONTENTS = st.sampled_from(["1", "1.0", '"x"'])
MAYBE_LIFE = st.one_of(st.none(), st.none(), st.integers(1, 3))
COMPLETE = st.tuples(MESSAGE_IDS, CONTENTS, st.just("complete"))
ANY_STATUS = st.tuples(MESSAGE_IDS, CONTENTS, st.sampled_from(["complete", "partial"]))
POSITIONS = st.integers(-1, 4)
IF_MATCH = st.sampled_from([None, None, "*", "current", "stale"])


def unique(messages: Any, least: int = 0) -> Any:
    return st.lists(messages, min_size=least, max_size=2, unique_by=lambda message: message[0]).map(tuple)


class Clients(RuleBasedStateMachine):
    """Each rule is a call by somebody; each is made of the store and of the rules, and must be answered alike."""

    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{shutil.copy(self.template, Path(self.folder.name) / 'store.db')}"
        self.clock = Clock()
        self.store = self._open()
        self.states = {id: State() for id in ("a", "b", "c")}
        self.lives: dict[str, list[int]] = {id: [] for id in self.states}

    def _open(self) -> Store:
        return Store.open(self.url, clock=self.clock, synchronous="normal")

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def play(self, id: str, call: Call) -> None:
        """The call, made of both."""
        expected_state, expected = rules.step(self.states[id], call, self.clock.now)
        said = self.ask(id, call)
        assert said == expected, (id, call, self.states[id])
        self.states[id] = expected_state

    def ask(self, id: str, call: Call) -> Said:
        try:
            answer = self._method(id, call)
        except errors.SessionStoreError as error:
            return Said(error.code)
        said = _said(answer)
        if call.name == "create" and said.code == "done":
            self.lives[id].append(self.store.get(id).incarnation)
        return said

    def _incarnation(self, id: str, life: int | None) -> int | None:
        """A life by its count is a number of the store's; one that never was is a number that never will be."""
        if life is None:
            return None
        return self.lives[id][life - 1] if life <= len(self.lives[id]) else 10**9

    def _method(self, id: str, call: Call) -> Any:
        life, recreate = self._incarnation(id, call.life), self._incarnation(id, call.recreate)
        if call.name == "compact":
            ((message_id, content, _),) = call.messages
            summary = Draft(id=message_id, role="user", content=json.loads(content))
            return self.store.compact(
                id, summary, through_position=call.through or 0, seen_version=call.seen, token=call.token, incarnation=life
            )
        return _method(self.store, id, call, life, recreate, self._tag(id, call))

    def _tag(self, id: str, call: Call) -> Any:
        """The tag that a precondition means: of the message as it is, or as it was before."""
        if call.if_match in (None, "*"):
            return call.if_match
        there = rules.find(self.states[id], call.messages[0][0])
        incarnation = self.lives[id][-1] if self.lives[id] else 1
        version = there.version if there is not None else 1
        return Tag(incarnation, version if call.if_match == "current" else version + 1000)

    @rule(
        source=IDS,
        token=MAYBE_TOKEN,
        through=st.one_of(st.none(), st.integers(0, 3)),
        settled=st.booleans(),
        again=st.booleans(),
    )
    def fork(self, source: str, token: str | None, through: int | None, settled: bool, again: bool) -> None:
        target = "c" if again else "b" if source == "a" else "a"
        call = Call("fork", token, message_id=source, through=through, force=settled)
        titles = [state.title for state in self.states.values() if state.alive]
        after, child, expected = rules.fork(self.states[source], self.states[target], call, self.clock.now, titles)
        try:
            answer = self.store.fork(source, target, through_position=through, settled=settled, token=token)
            said = Said("done", answer.value.version)
            self.lives[target].append(answer.value.incarnation)
        except errors.SessionStoreError as error:
            said = Said(error.code)
        assert said == expected, (source, target, call, self.states)
        self.states[source], self.states[target] = after, child

    @rule(id=IDS, token=MAYBE_TOKEN, message_id=MESSAGE_IDS, label=st.sampled_from([None, "x", "y"]))
    def label_message(self, id: str, token: str | None, message_id: str, label: str | None) -> None:
        self.play(id, Call("label_message", token, message_id=message_id, title=label))

    @rule(id=IDS, messages=unique(COMPLETE), recreate=MAYBE_LIFE, title=st.sampled_from([None, "t"]))
    def create(self, id: str, messages: Any, recreate: int | None, title: str | None) -> None:
        self.play(id, Call("create", messages=messages, recreate=recreate, title=title))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, messages=unique(ANY_STATUS, 1))
    def append(self, id: str, token: str | None, life: int | None, messages: Any) -> None:
        if token is not None or all(status == "complete" for *_, status in messages):
            self.play(id, Call("append", token, life, messages))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, message=ANY_STATUS, if_match=IF_MATCH)
    def put(self, id: str, token: str | None, life: int | None, message: Any, if_match: str | None) -> None:
        if token is not None or message[2] == "complete":
            self.play(id, Call("put", token, life, (message,), if_match=if_match))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, message_id=MESSAGE_IDS)
    def delete_message(self, id: str, token: str | None, life: int | None, message_id: str) -> None:
        self.play(id, Call("delete_message", token, life, message_id=message_id))

    @rule(id=IDS, token=MAYBE_TOKEN, first=POSITIONS, more=st.integers(0, 3))
    def truncate(self, id: str, token: str | None, first: int, more: int) -> None:
        self.play(id, Call("truncate", token, first=first, last=first + more))

    @rule(
        id=IDS,
        token=MAYBE_TOKEN,
        life=MAYBE_LIFE,
        summary=st.tuples(st.sampled_from(["s0", "s1", "m2"]), CONTENTS, st.just("complete")),
        through=st.integers(0, 4),
        ago=st.sampled_from([0, 0, 0, 1, 2, -1]),
    )
    def compact(self, id: str, token: str | None, life: int | None, summary: Any, through: int, ago: int) -> None:
        seen = self.states[id].version - ago
        if seen >= 1:
            self.play(id, Call("compact", token, life, (summary,), through=through, seen=seen))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, force=st.booleans())
    def delete(self, id: str, token: str | None, life: int | None, force: bool) -> None:
        self.play(id, Call("delete", token, life, force=force))

    @rule(id=IDS, token=MAYBE_TOKEN, title=st.sampled_from([None, "t", "u"]))
    def label(self, id: str, token: str | None, title: str | None) -> None:
        self.play(id, Call("label", token, title=title))

    @rule(
        id=IDS,
        token=TOKENS,
        life=MAYBE_LIFE,
        messages=unique(COMPLETE),
        ttl=st.sampled_from([1_000, 30_000]),
        busy=st.sampled_from(["reject", "interrupt", "rollback"]),
    )
    def acquire(self, id: str, token: str, life: int | None, messages: Any, ttl: int, busy: str) -> None:
        self.play(id, Call("acquire", token, life, messages, ttl=ttl, busy=busy))

    @rule(id=IDS, token=MAYBE_TOKEN, name=st.sampled_from(["renew", "release"]), life=MAYBE_LIFE)
    def renew_or_release(self, id: str, token: str | None, name: str, life: int | None) -> None:
        self.play(id, Call(name, token, life))

    @rule(id=IDS, token=MAYBE_TOKEN, messages=unique(ANY_STATUS))
    def finish(self, id: str, token: str | None, messages: Any) -> None:
        self.play(id, Call("finish", token, messages=messages))

    @rule(id=IDS, token=MAYBE_TOKEN, force=st.booleans())
    def interrupt(self, id: str, token: str | None, force: bool) -> None:
        self.play(id, Call("interrupt", token, force=force))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, messages=unique(COMPLETE, 1))
    def queue(self, id: str, token: str | None, life: int | None, messages: Any) -> None:
        self.play(id, Call("queue", token, life, messages))

    @rule(id=IDS, token=MAYBE_TOKEN, life=MAYBE_LIFE, message_id=MESSAGE_IDS)
    def cancel(self, id: str, token: str | None, life: int | None, message_id: str) -> None:
        self.play(id, Call("cancel", token, life, message_id=message_id))

    @rule(
        id=IDS,
        token=MAYBE_TOKEN,
        life=MAYBE_LIFE,
        ids=st.one_of(st.none(), st.lists(MESSAGE_IDS, min_size=1, max_size=2, unique=True).map(tuple)),
    )
    def claim(self, id: str, token: str | None, life: int | None, ids: tuple[str, ...] | None) -> None:
        self.play(id, Call("claim", token, life, ids=ids))

    @rule(milliseconds=st.sampled_from([1, 500, 1_000, 30_000, -3_600_000, 3_600_000]))
    def time_passes_or_steps(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def crash_and_reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    @invariant()
    def everybody_sees_what_the_rules_say(self) -> None:
        for id, state in self.states.items():
            for name in ("get", "messages", "context"):
                assert self.ask(id, Call(name)) == rules.step(state, Call(name), self.clock.now)[1]
            if state.alive:
                self._same_view(self.store.get(id), state)

    def _same_view(self, seen: Conversation, state: State) -> None:
        turn = state.turn
        assert seen.title == state.title
        assert seen.message_count == sum(message.status != "deleted" for message in rules.placed(state))
        waiting = [message.id for message in state.messages if message.status == "queued"]
        assert (seen.queued_inputs, [item.message.id for item in self.store.inputs(seen.id).items]) == (len(waiting), waiting)
        assert (seen.generation is None) == (turn is None)
        if seen.generation is not None and turn is not None:
            shown = (seen.generation.expires_at, seen.generation.expired, seen.generation.interrupt_requested)
            assert shown == (turn.expires_at, turn.expired(self.clock.now), turn.asked)


def _method(store: Store, id: str, call: Call, life: int | None, recreate: int | None, tag: Any) -> Any:
    drafts = [_draft(*message) for message in call.messages]
    who: dict[str, Any] = {"token": call.token, "incarnation": life}
    match call.name:
        case "create":
            return store.create(id, title=call.title, messages=drafts, recreate=recreate)
        case "get" | "messages":
            return getattr(store, call.name)(id)
        case "context":
            return store.messages(id, view="context")
        case "append":
            return store.append(id, drafts, **who)
        case "put":
            return store.put(id, drafts[0], if_match=tag, **who)
        case "label_message":
            return store.label_message(id, call.message_id, {"label": call.title}, **who)
        case "delete_message":
            return store.delete_message(id, call.message_id, **who)
        case "truncate":
            return store.truncate(id, after_position=call.first, through_position=call.last, **who)
        case "delete":
            return store.delete(id, force=call.force, **who)
        case "label":
            return store.label(id, title=call.title, **who)
        case "acquire":
            options: dict[str, Any] = {"ttl_ms": call.ttl, "if_busy": call.busy, "messages": drafts, **who}
            return store.acquire(id, "holder", **options)
        case "finish":
            return store.finish(id, drafts, **who)
        case "interrupt":
            return store.interrupt(id, force=call.force, **who)
        case "queue":
            return store.queue_inputs(id, drafts, **who)
        case "cancel":
            return store.cancel_input(id, call.message_id, **who)
        case "claim":
            return store.claim_inputs(id, call.ids, **who)
    return getattr(store, call.name)(id, **who)


def _said(answer: Any) -> Said:
    """An answer in the words of the rules."""
    code, value = "done", answer
    if isinstance(answer, Answer):
        code, value = "replayed" if answer.replayed else "done", answer.value
    match value:
        case Conversation():
            return Said(code, value.version)
        case Saved():
            return Said(code, None, _told([value.message]))
        case Message():
            return Said(code, None, _told([value]))
        case Created() | Acquired() | Finished():
            return Said(code, value.conversation.version, _told(value.messages))
        case Compacted():
            return Said(code, value.conversation.version, _told([value.summary]))
        case Truncated() | Renewed() | Interruption():
            return Said(code, value.conversation.version)
        case list():
            return Said(code, None, _told(value))
        case None:
            return Said(code)
    return Said(code, None, _told(value.items))


def _told(messages: list[Message]) -> Any:
    return tuple((m.id, m.position, m.content_json, m.status) for m in messages)


def _draft(id: str, content: str, status: Any) -> Draft:
    return Draft(id=id, role="user", content=json.loads(content), status=status)


def test_the_store_keeps_the_rules(template: Path) -> None:
    Clients.template = template
    quick = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Clients, settings=quick)
