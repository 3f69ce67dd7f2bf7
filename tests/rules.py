"""PROTOCOL.md's rules about one conversation, in pure Python: what each call answers and what is true after it.

It shares no line with the product. The state machine compares the two step by step; the linearizability checker asks it whether
some order of the calls that were seen explains their answers. States are values, so that a checker can go back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Msg(NamedTuple):
    """A message. `first` is the content that it was stored with, by which a repeat is recognised.

    Without a position it waits in the queue, or was cancelled there; `claimed_by` is the token of the turn that took it.
    """

    id: str
    position: int | None
    content: Any
    status: str
    first: Any
    labels: Any = None
    version: int = 0
    is_input: bool = False
    claimed_by: str | None = None
    summary: int | None = None
    born: int = 0


class Turn(NamedTuple):
    """A lease and its holder."""

    token: str
    ttl: int
    expires_at: int
    begun_with: Any
    first_position: int
    asked: bool = False

    def expired(self, now: int) -> bool:
        return self.expires_at <= now or self.expires_at > now + self.ttl + 1000


class State(NamedTuple):
    """One id: how many lives it has had, and the present one."""

    lives: int = 0
    alive: bool = False
    made_by: Any = None
    version: int = 0
    next: int = 0
    title: str | None = None
    messages: tuple[Msg, ...] = ()
    turn: Turn | None = None
    ended: tuple[tuple[str, str, Any], ...] = ()


class Call(NamedTuple):
    """A call as the rules see it. `life` counts lives from 1."""

    name: str
    token: str | None = None
    life: int | None = None
    messages: tuple[tuple[str, Any, str], ...] = ()
    message_id: str = ""
    first: int = 0
    last: int = 0
    title: str | None = None
    force: bool = False
    ttl: int = 30_000
    busy: str = "reject"
    recreate: int | None = None
    if_match: str | None = None
    through: int | None = None
    ids: tuple[str, ...] | None = None
    seen: int = 0


class Said(NamedTuple):
    """An answer: its code, the version of the conversation where one is told, and the messages."""

    code: str
    version: int | None = None
    messages: tuple[tuple[str, int | None, Any, str], ...] = ()


GUARDED = {"append", "put", "label_message", "delete_message", "truncate", "delete", "renew", "release", "finish", "claim"}
GUARDED |= {"compact"}
MUST_HOLD = {"renew", "release", "finish"}
Step = tuple[State, Said]


def step(state: State, call: Call, now: int) -> Step:
    """What the call answers, and the state after it."""
    if call.name == "create":
        return create(state, call)
    gone = missing(state, call)
    if gone is not None:
        return state, gone
    if call.name in ("get", "messages", "context"):
        return state, look(state, call)
    return judge(state, call, now)


def missing(state: State, call: Call) -> Said | None:
    if not state.alive:
        return Said("conversation-deleted" if state.lives else "conversation-not-found")
    return Said("conversation-deleted") if call.life not in (None, state.lives) else None


def judge(state: State, call: Call, now: int) -> Step:
    turn, guarded = state.turn, call.name in GUARDED and not (call.name == "delete" and call.force)
    holds = turn is not None and call.token == turn.token
    refusal = None
    if not holds and (call.token is not None or call.name in MUST_HOLD) and call.name != "acquire":
        refusal = Said("lease-lost")
    elif guarded and turn is not None and not holds and not turn.expired(now):
        refusal = Said("generating")
    takeover = guarded and turn is not None and not holds and turn.expired(now)
    repeat = REPEATS.get(call.name)
    repeated = repeat(state, call) if repeat and (refusal or takeover) else None
    if repeated is not None or refusal is not None:
        return state, repeated or refusal or Said("?")
    started = end(state, "expired") if takeover else state
    if holds and turn is not None and call.name != "acquire":
        started = started._replace(turn=turn._replace(expires_at=now + turn.ttl))
    after, said = CHANGES[call.name](started, call, now)
    if said.code not in ("done", "replayed"):
        return state, said
    revived = turn is not None and call.token == turn.token and turn.expired(now)
    return raised(state, after, said, revived=revived)


def raised(before: State, after: State, said: Said, *, revived: bool = False) -> Step:
    """The version rises once when anything but the expiry changed, and then it was no repeat; or when a lease lives again."""
    changed = _visible(before) != _visible(after)
    after = after._replace(version=before.version + (changed or revived))
    old = {m.id: m for m in before.messages}
    stamped = (m if old.get(m.id) == m else m._replace(version=after.version) for m in after.messages)
    after = after._replace(messages=tuple(m if m.born else m._replace(born=m.version) for m in stamped))
    code = "done" if changed else said.code
    return after, said._replace(code=code, version=after.version if said.version == -1 else said.version)


def _visible(state: State) -> Any:
    turn = state.turn and state.turn._replace(expires_at=0, ttl=0)
    return state._replace(turn=turn, version=0, ended=())


def end(state: State, how: str, content: Any = None) -> State:
    if state.turn is None:
        return state
    ended = (*state.ended, (state.turn.token, how, content))
    next_version = state.version + 1
    messages = tuple(
        m._replace(status="interrupted", version=next_version) if m.status == "partial" else m for m in state.messages
    )
    return state._replace(turn=None, ended=ended, messages=messages)


def find(state: State, id: str) -> Msg | None:
    return next((m for m in state.messages if m.id == id), None)


def placed(state: State) -> list[Msg]:
    """The transcript, deleted messages with it."""
    return sorted((m for m in state.messages if m.position is not None), key=lambda m: m.position or 0)


def shown(messages: Any) -> tuple[tuple[str, int | None, Any, str], ...]:
    return tuple((m.id, m.position, m.content, m.status) for m in messages)


def add(state: State, id: str, content: Any, status: str) -> State:
    message = Msg(id, state.next, content, status, content)
    return state._replace(messages=(*state.messages, message), next=state.next + 1)


def replaced(state: State, id: str, **changes: Any) -> State:
    return state._replace(messages=tuple(m._replace(**changes) if m.id == id else m for m in state.messages))


# Calls -----------------------------------------------------------------------------------------------------------------


def create(state: State, call: Call) -> Step:
    identity = (call.title, call.messages)
    if state.alive:
        if state.made_by != identity:
            return state, Said("conversation-exists")
        first = tuple(m for m in placed(state) if (m.position or 0) < len(call.messages))
        return state, Said("replayed", state.version, shown(first))
    if call.recreate is None and state.lives:
        return state, Said("conversation-deleted")
    if call.recreate is not None and call.recreate != state.lives:
        return state, Said("conversation-deleted" if state.lives else "conversation-not-found")
    new = State(lives=state.lives + 1, alive=True, made_by=identity, version=1, title=call.title)
    for id, content, status in call.messages:
        new = add(new, id, content, status)
    new = new._replace(messages=tuple(m._replace(version=1, born=1) for m in new.messages))
    return new, Said("done", 1, shown(new.messages))


def look(state: State, call: Call) -> Said:
    living = shown(m for m in placed(state) if m.status != "deleted")
    if call.name == "context":
        return Said("done", None, shown(context(state)))
    return Said("done", state.version) if call.name == "get" else Said("done", None, living)


def context(state: State) -> list[Msg]:
    living = [m for m in placed(state) if m.status != "deleted"]
    summaries = [m for m in living if m.summary is not None]
    covered = -1 if not summaries else summaries[-1].summary or 0
    return summaries[-1:] + [m for m in living if m.summary is None and (m.position or 0) > covered]


def compact(state: State, call: Call, _: int) -> Step:
    """`through` is the last position that is covered, `seen` the version that was summarised."""
    ((id, content, _status),) = call.messages
    there, through, seen = find(state, id), call.through or 0, call.seen
    if there is not None:
        if there.status == "deleted":
            return state, Said("message-deleted")
        same = (there.first, there.summary) == (content, through)
        return state, Said("replayed", -1, shown([there])) if same else Said("message-exists")
    covered = [m for m in placed(state) if (m.position or 0) <= through]
    newer = [m for m in state.messages if m.summary is not None and m.status != "deleted" and m.born > seen]
    went = [m for m in state.messages if m.summary is not None and m.status == "deleted" and m.version > seen]
    if any((m.summary or 0) <= through for m in went):
        return state, Said("stale")
    if seen > state.version or any(m.version > seen for m in covered) or any((m.summary or 0) >= through for m in newer):
        return state, Said("stale")
    if not any(m.position == through and m.status != "deleted" for m in covered):
        return state, Said("invalid")
    after = add(state, id, content, "complete")
    after = replaced(after, id, summary=through)
    return after, Said("done", -1, shown(after.messages[-1:]))


def was_compacted(state: State, call: Call) -> Said | None:
    ((id, content, _status),) = call.messages
    there = find(state, id)
    if there is None or there.status == "deleted" or (there.first, there.summary) != (content, call.through or 0):
        return None
    return Said("replayed", state.version, shown([there]))


def append(state: State, call: Call, _: int) -> Step:
    after, told, new = state, [], False
    for id, content, status in call.messages:
        there = find(after, id)
        if there is None:
            after, new = add(after, id, content, status), True
            there = after.messages[-1]
        elif there.status == "deleted":
            return state, Said("message-deleted")
        elif there.first != content:
            return state, Said("message-exists")
        elif there.status == "queued":
            return state, Said("message-queued")
        told.append(there)
    return after, Said("done" if new else "replayed", None, shown(told))


UNUSABLE = {"deleted": "message-deleted", "queued": "message-queued"}


def queue(state: State, call: Call, _: int) -> Step:
    after, told, new = state, [], False
    for id, content, _status in call.messages:
        there = find(state, id)
        if there is None:
            there, new = Msg(id, None, content, "queued", content, is_input=True), True
            after = after._replace(messages=(*after.messages, there))
        elif there.status == "deleted":
            return state, Said("message-deleted")
        elif there.first != content:
            return state, Said("message-exists")
        told.append(there)
    return after, Said("done" if new else "replayed", None, shown(told))


def as_input(state: State, id: str) -> Msg | Said:
    there = find(state, id)
    if there is not None and there.status == "deleted":
        return Said("message-deleted")
    return Said("message-not-found") if there is None or not there.is_input else there


def cancel(state: State, call: Call, _: int) -> Step:
    there = as_input(state, call.message_id)
    if isinstance(there, Said):
        return state, there
    if there.status != "queued":
        return state, Said("input-claimed")
    return replaced(state, there.id, status="deleted", content=None, first=None), Said("done")


def claim(state: State, call: Call, _: int) -> Step:
    waiting = [m.id for m in state.messages if m.status == "queued"]
    after, new = state, False
    mine = None if state.turn is None else call.token
    for id in waiting if call.ids is None else call.ids:
        there = as_input(state, id)
        if isinstance(there, Said):
            return state, there
        if there.status != "queued" and there.claimed_by != mine:
            return state, Said("input-claimed")
        if there.status == "queued":
            after = replaced(after, id, position=after.next, status="complete", claimed_by=mine)._replace(next=after.next + 1)
            new = True
    told = [find(after, id) for id in (waiting if call.ids is None else call.ids)]
    return after, Said("done" if new else "replayed", None, shown(told))


def rolled_back(state: State, turn: Turn) -> State:
    """Without what a turn has stored; what it had claimed waits again."""
    messages = []
    for m in state.messages:
        stands = m.position is not None and m.position >= turn.first_position and m.status != "deleted"
        if stands and m.is_input and m.claimed_by == turn.token:
            messages.append(m._replace(position=None, status="queued", claimed_by=None))
        elif stands:
            messages.append(m._replace(status="deleted", content=None, first=None))
        else:
            messages.append(m)
    return state._replace(messages=tuple(messages))


def appended(state: State, call: Call) -> Said | None:
    there = [(find(state, id), content) for id, content, _ in call.messages]
    if all(m is not None and m.status not in UNUSABLE and m.first == content for m, content in there):
        return Said("replayed", None, shown(m for m, _ in there))
    return None


def put(state: State, call: Call, _: int) -> Step:
    ((id, content, status),) = call.messages
    there = find(state, id)
    if there is None and call.if_match is not None:
        return state, Said("precondition-failed")
    if there is None:
        after = add(state, id, content, status)
        return after, Said("done", None, shown(after.messages[-1:]))
    if there.status in UNUSABLE:
        return state, Said(UNUSABLE[there.status])
    if call.if_match == "stale":
        return state, Said("precondition-failed")
    if (there.content, there.status) == (content, status):
        return state, Said("replayed", None, shown([there]))
    if there.status == "complete" and status == "partial":
        return state, Said("message-complete")
    after = replaced(state, id, content=content, status=status)
    return after, Said("done", None, shown([m for m in after.messages if m.id == id]))


def superseded(state: State, call: Call) -> Said | None:
    """What a growing reply is told that a newer one of the same holder has overtaken in the queue; it changes nothing."""
    if call.name != "put" or state.turn is None or call.token != state.turn.token or call.if_match is not None:
        return None
    ((id, _, status),) = call.messages
    there = find(state, id)
    return Said("done", None, shown([there])) if status == "partial" and there and there.status == "partial" else None


def was_put(state: State, call: Call) -> Said | None:
    ((id, content, status),) = call.messages
    there = find(state, id)
    alike = there is not None and (there.content, there.status) == (content, status) and call.if_match != "stale"
    return Said("replayed", None, shown([there])) if alike else None


def delete_message(state: State, call: Call, _: int) -> Step:
    there = find(state, call.message_id)
    if there is None:
        return state, Said("message-not-found")
    if there.status in UNUSABLE:
        return state, Said(UNUSABLE[there.status])
    return replaced(state, call.message_id, status="deleted", content=None, first=None), Said("done")


def label_message(state: State, call: Call, _: int) -> Step:
    there = find(state, call.message_id)
    if there is None:
        return state, Said("message-not-found")
    if there.status in UNUSABLE:
        return state, Said(UNUSABLE[there.status])
    same = there.labels == call.title
    after = replaced(state, call.message_id, labels=call.title)
    return after, Said("replayed" if same else "done", None, shown([there]))


def fork(source: State, target: State, call: Call, now: int, titles: Any = ()) -> tuple[State, State, Said]:
    """A fork touches two ids: the source (`message_id` names it) as any guarded call does, and the new one.

    `force` stands for settled: then the source is not touched at all. `titles` are those that all living ones have.
    """
    gone = missing(source, call)
    if gone is not None:
        return source, target, gone
    identity = ("fork", call.message_id, source.lives, call.through, call.force)
    turn = source.turn
    holds = turn is not None and call.token == turn.token
    refusal = None
    if not holds and call.token is not None:
        refusal = Said("lease-lost")
    elif not call.force and turn is not None and not holds and not turn.expired(now):
        refusal = Said("generating")
    if target.alive and (target.made_by == identity or refusal is None):
        return source, target, Said("conversation-exists")
    if refusal is not None:
        return source, target, refusal
    if target.lives:
        return source, target, Said("conversation-deleted")
    after = source
    if not call.force and turn is not None and not holds:
        after = end(source, "expired")
    elif holds and turn is not None:
        after = source._replace(turn=turn._replace(expires_at=now + turn.ttl))
    bound = turn.first_position if call.force and turn is not None else None
    copied = _copied(after, call.through, bound)
    if copied is None:
        return source, target, Said("invalid")
    last = (copied[-1].position or 0) if copied else -1
    child = State(lives=1, alive=True, made_by=identity, version=1, next=last + 1, messages=copied)
    child = child._replace(title=numbered(source.title, titles))
    revived = holds and turn is not None and turn.expired(now)
    return raised(source, after, Said("done"), revived=revived)[0], child, Said("done", 1)


def numbered(title: str | None, titles: Any) -> str | None:
    """The title with the next free number."""
    if title is None:
        return None
    stem = title.split(" (")[0]
    taken = [int(other[len(stem) + 2 : -1]) for other in titles if other is not None and other.startswith(stem + " (")]
    return f"{stem} ({max([1, *taken]) + 1})"


def _copied(source: State, through: int | None, bound: int | None) -> tuple[Msg, ...] | None:
    living = [m for m in placed(source) if m.status != "deleted" and (bound is None or (m.position or 0) < bound)]
    if through is not None and through not in [m.position for m in living]:
        return None
    kept = [m for m in living if through is None or (m.position or 0) <= through]
    plain = (m._replace(version=1, born=1, claimed_by=None) for m in kept)
    return tuple(m._replace(status="interrupted") if m.status == "partial" else m for m in plain)


def truncate(state: State, call: Call, _: int) -> Step:
    hit = [m.id for m in placed(state) if call.first < (m.position or 0) <= call.last and m.status != "deleted"]
    after = state
    first = min((m.position or 0 for m in placed(state) if m.id in hit), default=0)
    covering = [m.id for m in placed(state) if hit and m.status != "deleted" and m.summary is not None and m.summary >= first]
    for id in {*hit, *covering}:
        after = replaced(after, id, status="deleted", content=None, first=None)
    return after, Said("done" if hit else "replayed", -1)


def delete(state: State, *_: Any) -> Step:
    return State(lives=state.lives), Said("done")


def label(state: State, call: Call, _: int) -> Step:
    return state._replace(title=call.title), Said("replayed" if call.title == state.title else "done", -1)


def acquire(state: State, call: Call, now: int) -> Step:
    turn, token = state.turn, call.token or ""
    if turn is not None and turn.token == token:
        if turn.begun_with != call.messages:
            return state, Said("token-used")
        renewed = state._replace(turn=turn._replace(expires_at=now + turn.ttl))
        return renewed, Said("replayed", -1, shown(find(state, id) for id, *_ in call.messages))
    if any(token == old for old, *_ in state.ended):
        return state, Said("lease-lost")
    if turn is not None and not turn.expired(now) and call.busy == "reject":
        return state, Said("generating")
    free = end(state, "expired" if turn is not None and turn.expired(now) else "interrupted")
    if turn is not None and not turn.expired(now) and call.busy == "rollback":
        free = rolled_back(free, turn)
    after, said = append(free, call, now)
    if said.code not in ("done", "replayed"):
        return state, said
    begun = Turn(token, call.ttl, now + call.ttl, call.messages, after.next)
    return after._replace(turn=begun), Said("done", -1, said.messages)


def renew(state: State, *_: Any) -> Step:
    return state, Said("done", -1)


def release(state: State, *_: Any) -> Step:
    return end(state, "released"), Said("done", -1)


def finish(state: State, call: Call, now: int) -> Step:
    after = state
    for message in call.messages:
        after, said = put(after, call._replace(messages=(message,)), now)
        if said.code not in ("done", "replayed"):
            return state, said
    after = end(after, "finished", call.messages)
    told = shown(m for id, *_ in call.messages for m in after.messages if m.id == id)
    return after, Said("done", -1, told)


def was_truncated(state: State, call: Call) -> Said | None:
    left = any(call.first < (m.position or 0) <= call.last and m.status != "deleted" for m in placed(state))
    return None if left else Said("replayed", state.version)


def ended_so(how: str) -> Callable[[State, Call], Said | None]:
    def was_ended(state: State, call: Call) -> Said | None:
        content = call.messages if how == "finished" else None
        if (call.token, how, content) not in state.ended:
            return None
        told = shown(m for id, *_ in call.messages for m in state.messages if m.id == id)
        return Said("replayed", state.version, told)

    return was_ended


def interrupt(state: State, call: Call, now: int) -> Step:
    turn = state.turn
    if turn is None:
        return state, Said("done", -1)
    if call.force or turn.expired(now):
        return end(state, "interrupted"), Said("done", -1)
    return state._replace(turn=turn._replace(asked=True)), Said("done", -1)


CHANGES: dict[str, Callable[[State, Call, int], Step]] = {
    "append": append,
    "put": put,
    "label_message": label_message,
    "delete_message": delete_message,
    "truncate": truncate,
    "delete": delete,
    "label": label,
    "acquire": acquire,
    "renew": renew,
    "release": release,
    "finish": finish,
    "interrupt": interrupt,
    "queue": queue,
    "cancel": cancel,
    "claim": claim,
    "compact": compact,
}


def was_queued(state: State, call: Call) -> Said | None:
    there = [(find(state, id), content) for id, content, _ in call.messages]
    if all(m is not None and m.status != "deleted" and m.first == content for m, content in there):
        return Said("replayed", None, shown(m for m, _ in there))
    return None


REPEATS: dict[str, Callable[[State, Call], Said | None]] = {
    "queue": was_queued,
    "append": appended,
    "put": was_put,
    "truncate": was_truncated,
    "compact": was_compacted,
    "finish": ended_so("finished"),
    "release": ended_so("released"),
}
