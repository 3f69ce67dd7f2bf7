"""Prove that the tests can fail: take one guard out of the product at a time, and see which named tests notice.

    python -m tests.prove_guards [NAME …]     (make prove-guards)

Each mutant is the product with one piece of text replaced, in a copy; a mutant that survives is a missing test.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = (
    "sessionstore",
    "api",
    "tests",
    "migrations",
    "examples",
    "docs",
    "requirements",
    "pyproject.toml",
    "alembic.ini",
    "README.md",
)
CONVERSATIONS, MESSAGES = "tests/test_conversations.py", "tests/test_messages.py"
LEASES, FORKS, TRANSACT = "tests/test_leases.py", "tests/test_forks.py", "tests/test_transact.py"
DATABASE, READS, GROUPS = "tests/test_database.py", "tests/test_reads.py", "tests/test_groups.py"
EVENTS, GENERATE, KEEPER = "tests/test_events.py", "tests/test_generate.py", "tests/test_keeper.py"
CLIENT, STREAMS = "tests/test_client.py tests/test_client_trouble.py", "tests/api/test_events.py"
ENDS = "tests/test_turn_ends.py"
COMPACTION, CONTEXTS, UNDO = "tests/test_compaction.py", "tests/test_contexts.py", "tests/test_undo.py"
FINDING, SEARCH = "tests/test_finding.py", "tests/test_search.py"
FORGETTING, TRANSFER = "tests/test_forgetting.py", "tests/test_transfer.py"
POSTGRESQL, COPYING = "tests/test_postgresql.py", "tests/test_copying.py"
OWNERS, ROOM, SLOW = "tests/test_owners.py", "tests/test_room.py", "tests/test_slow_clients.py"
ENTRY, HOSTS, OBSERVED = "tests/api/test_access.py", "tests/api/test_hosts.py", "tests/api/test_observed.py"
ACCESS, HOSTS_FILE, PROTOCOL = (f"api/sessionstore_api/{name}.py" for name in ("access", "hosts", "protocol"))
FILES, BACKUPS, CHECKING = "tests/test_files.py", "tests/test_backups.py", "tests/test_checking.py"


class Mutant(NamedTuple):
    """A guard taken out: where, what, what instead, and the tests that are asked."""

    name: str
    file: str
    old: str
    new: str
    tests: str


def _(name: str, file: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant(name, f"sessionstore/{file}.py", old, new, tests)


MUTANTS = [
    # Owners and keys
    _("writes of owners are kept together", "door", "((self.owner, call.id),), call.size", "(call.id,), call.size", OWNERS),
    _("the newest change is everybody's", "feed", "    *newest, pruned = transaction.row(queries.OWN_CHANGES, owner=owner)\n", "    *newest, pruned = *transaction.row(queries.NEWEST_CHANGE), 0\n", OWNERS),
    _("a view has its first owner's door", "store", "        view._door = self._door.of(view.owner)  # noqa: SLF001  # our own\n", "", OWNERS),
    _("a view reads its first owner's rows", "store", "        view.owner = self.limits.owner(owner)\n        view._door = self._door.of(view.owner)", "        view._door = self._door.of(self.limits.owner(owner))", OWNERS),
    _("everybody is an owner", "limits", 'if self.id(value, path) == "*":', "if False:", OWNERS),
    _("a revoked key is good", "keys", "self.revoked_at is not None or (", "(", OWNERS),
    _("a key never expires", "keys", "self.expires_at is not None and self.expires_at <= now", "False", OWNERS),
    _("keys are stored as they are", "keys", 'return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()', "return secret", OWNERS),
    _("keys that are over do not count", "keys", "COUNT = select(func.count()).select_from(select(k.hash).limit(1).subquery())", "COUNT = select(func.count()).select_from(select(k.hash).where(VALID).limit(1).subquery())", OWNERS),
    Mutant("nobody needs a key", ACCESS, "            if await self._keys.any():\n                self._want()\n", "            await self._keys.any()\n", ENTRY),
    Mutant("anybody comes in from elsewhere", ACCESS, "            if not is_local((incoming.scope", "            if False and ((incoming.scope", ENTRY),
    Mutant("any word is a key", ACCESS, "        if key is None:\n            self._forget", "        if False:\n            self._forget", ENTRY),
    Mutant("a key has nobody's owner", ACCESS, "self._store.of(key.owner), key, self._most", "self._store, key, self._most", ENTRY),
    Mutant("read-only keys write", ACCESS, 'if not self.may_write and method not in ("GET", "HEAD"):', "if False:", ENTRY),
    Mutant("everybody sees the metrics", ACCESS, "if admin and not self.is_admin:", "if False:", ENTRY),
    Mutant("streams outlive their key", ACCESS, "            gone.end()\n", "            pass\n", ENTRY),
    Mutant("a key has no limit", ACCESS, "self.key is not None and self.under_way[kind] >= self._most[kind]", "False", ENTRY),
    Mutant("requests are never over", ACCESS, "        self.under_way[kind] -= 1\n", "        pass\n", ENTRY),
    Mutant("all keys are kept for ever", ACCESS, "        while len(self._visitors) > MOST_KNOWN and", "        while False and", ENTRY),
    Mutant("anybody forces", "api/sessionstore_api/operations.py", "        check_force(call)\n", "", ENTRY),
    Mutant("a takeover is no force", "api/sessionstore_api/operations.py", ' or busy != "reject"', "", ENTRY),
    Mutant("two keys are one", ACCESS, 'incoming.single_header("Authorization")', 'incoming.header(b"authorization")', ENTRY),
    # Hosts and pages
    Mutant("any name is ours", HOSTS_FILE, "        return HostRefused()\n", "        return None\n", HOSTS),
    Mutant("two hosts are one", HOSTS_FILE, "if len(hosts) != 1 or", "if", HOSTS),
    Mutant("any address is ours", HOSTS_FILE, "or _same_address(name, here)", 'or name[0].isdigit()', HOSTS),
    Mutant("any page may call", HOSTS_FILE, "        if origin and not _is_ours(origin, host.decode(\"latin-1\")):\n            return OriginRefused()\n", "", HOSTS),
    Mutant("any site may call", HOSTS_FILE, "return None if all(site in OWN_PAGES for site in sites) else OriginRefused()", "return None", HOSTS),
    Mutant("links lead anywhere", HOSTS_FILE, 'scope["path"] == LINKED and ', "", HOSTS),
    Mutant("forms without a body are calls", "api/sessionstore_api/calls.py", 'if raw or b"content-type" in incoming.headers:', "if raw:", HOSTS),
    _("all pages may be allowed", "settings", 'if any(not _ORIGIN.fullmatch(origin) for origin in self.origins):', "if False:", HOSTS),
    # What is slow, long or much
    Mutant("what does not come is waited for", PROTOCOL, "            self._arrival = self.loop.call_later(self.receive_seconds, self._give_up)\n", "            pass\n", SLOW),
    Mutant("silence is waited for", PROTOCOL, "        super().connection_made(transport)\n        self._expect()\n", "        super().connection_made(transport)\n", SLOW),
    Mutant("who thinks is cut off", PROTOCOL, "        else:\n            self._expect_no_more()\n", "        else:\n            pass\n", SLOW),
    Mutant("trickles begin anew", PROTOCOL, "        if self._arrival is None:\n            self._arrival =", "        self._expect_no_more()\n        if True:\n            self._arrival =", SLOW),
    Mutant("a head has no end", PROTOCOL, "self._head_bytes > self.head_bytes and", "False and", "tests/test_serve.py"),
    _("an owner has no end", "creation", "        if living <= most:\n            return\n", "        return\n", ROOM),
    _("who is full is counted each time", "creation", "now + PACE * (now - began) if living > most else 0.0", "0.0", ROOM),
    _("one owner reads for all", "awaiting", "READERS, READERS_OF_ONE, KEY_READERS = 8, 4, 2", "READERS, READERS_OF_ONE, KEY_READERS = 8, 8, 2", OWNERS),
    _("keys are looked up last", "awaiting", "        return await self._run(self._keys, action)\n", "        return await self._run(self._readers, action)\n", OWNERS),
    _("what was deleted takes room", "burial", "    note_deleted(life)\n", "", ROOM),
    _("a restored backup brings keys back", "sqlite/copies", "revoked = 0 if keep_keys else connection", "revoked = 0 if True else connection", OWNERS),
    Mutant("streams are opened with a revoked key", "api/sessionstore_api/events.py", "        visitor.check_valid()\n        yield first\n", "        yield first\n", ENTRY),
    Mutant("streams from before there were keys go on", ACCESS, "        self._wants_keys = True\n        self._anybody.end()\n", "        self._wants_keys = True\n", ENTRY),
    Mutant("who was not found for trouble is believed", ACCESS, "                known.believed_until = 0.0\n            raise\n", "                pass\n            raise\n", ENTRY),
    Mutant("a key that was seen shows nothing", ACCESS, "        self._want()\n        if known is None", "        if known is None", ENTRY),
    Mutant("who was let in is not asked again", "api/sessionstore_api/operations.py", '            await incoming.scope["state"]["access"].confirm(visitor)\n', "            pass\n", ENTRY),
    Mutant("a late request answers an earlier one", PROTOCOL, "        if self.answers_earlier:\n", "        if False:\n", SLOW),
    Mutant("pipelined requests share their time", PROTOCOL, "        self._expect_no_more()\n        super().on_message_complete()\n", "        super().on_message_complete()\n", SLOW),
    Mutant("what comes behind an answer has no end", PROTOCOL, "        super().on_response_complete()  # type: ignore[misc]\n        self._note_arrival()\n", "        super().on_response_complete()  # type: ignore[misc]\n", SLOW),
    Mutant("a body has no end under other servers", "api/sessionstore_api/incoming.py", "            async with asyncio.timeout(seconds):\n", "            if True:\n", SLOW),
    Mutant("two origins are one", HOSTS_FILE, " or len(origins) > 1", "", HOSTS),
    _("what others made does not count", "creation", "known.living + life.row.pk - known.life <= most", "known.living < most", ROOM),
    _("the last place is given away", "creation", "known.living + life.row.pk - known.life <= most", "known.living + life.row.pk - known.life <= most + 1", ROOM),
    _("an owner's inputs have no end", "inputs", "[0] + new > most:", "[0] > most:", ROOM),
    _("metadata are as large as contents", "limits", "return self._json(value, path, self.metadata_bytes)", "return self._json(value, path, self.message_bytes)", ROOM),
    _("wide letters count as one", "limits", "if len(text) > most // 4 and len(text.encode()) > most:", "if len(text) > most:", ROOM),
    # What is told
    Mutant("errors are logged with their words", "api/sessionstore_api/logs.py", 'event["error"] = type(error).__name__', 'event["error"] = repr(error)', OBSERVED),
    Mutant("addresses are metrics", "api/sessionstore_api/operations.py", 'state["route"], state["stream"] = operation.path,', 'state["route"], state["stream"] = scope["path"],', OBSERVED),
    Mutant("any request id is taken", "api/sessionstore_api/observed.py", 'name == b"x-request-id" and _ID.fullmatch(value)', 'name == b"x-request-id"', OBSERVED),
    Mutant("the database's place is told", "api/sessionstore_api/problems.py", "    error = without_place(error)\n", "", "tests/api/test_service.py"),
    # The door
    _("lease check gone", "door", "life.live and not life.holds:\n        return", "False:\n        return", LEASES),
    _("token compare gone", "door", "and hmac.compare_digest(stored, given)", "", LEASES),
    _("a wrong token passes", "door", "(call.must_hold or call.token_hash is not None)", "call.must_hold", LEASES),
    _("must-hold gone", "door", "(call.must_hold or call.token_hash is not None)", "call.token_hash is not None", LEASES),
    _("incarnation check gone", "door", "call.incarnation not in (None, row.pk)", "False", CONVERSATIONS),
    _("precondition gone", "door", 'call.if_match is not None and call.if_match not in ("*", life.tag)', "False", CONVERSATIONS),
    _("repeats not recognised before the lease", "door", "done = repeat(conversation.stored) if", "done = None if", MESSAGES),
    _("a repeat ends the expired lease", "door", "repeat and (refusal or takeover)", "repeat and refusal", MESSAGES),
    _("expired lease not ended by others", "door", "            if takeover:\n", "            if False:\n", LEASES),
    _("clock read before the lock", "sqlite/database", "        try:\n            try:\n                if self._groups.idle",
      "        began, inner = self.statements.clock(), change\n"
      "        early = type('Early', (Transaction,), {'__slots__': (), 'now': lambda _: began})\n"
      "        change = lambda t: (setattr(t, '__class__', early), inner(t))[1]\n"
      "        try:\n            try:\n                if self._groups.idle", TRANSACT),
    _("a save brings a deleted conversation back", "door", "raise missing(transaction, self.owner, call.id)",
      "give_birth(transaction, Birth(id=call.id, title=None, metadata_json='{}', create_digest='',"
      " recreate=__import__('sessionstore.creation').creation.newest_tombstone(transaction, self.owner, call.id)),"
      " self.owner, self._limits); row = living(transaction, self.owner, call.id)", CONVERSATIONS),
    _("coroutines pass", "door", 'hasattr(result, "__await__")', "False", TRANSACT),
    # Creation
    _("tombstone ignored", "creation", "tombstone != recreate and tombstone is not None", "False", CONVERSATIONS),
    _("any recreate passes", "creation", "tombstone != recreate and", "recreate is None and", CONVERSATIONS),
    _("recreate of what never was", "creation", "tombstone is None and recreate is not None", "False", CONVERSATIONS),
    _("create digest compare gone", "creation", "[0] == create_digest)", "[0] is not None)", CONVERSATIONS),
    _("a dead parent passes", "creation", "    if parent is None:\n        raise missing(transaction, owner, parent_id)\n    return parent.pk",
      "    return parent.pk if parent else None", CONVERSATIONS),
    # What is stored
    _("digest compare gone", "stored", "if digest != draft.digest:", "if False:", MESSAGES),
    _("deleted messages come back by append", "stored", 'if message.status == "deleted":\n            raise', 'if False:\n            raise', MESSAGES),
    _("alike without status", "stored", "and message.status == draft.status", "", LEASES),
    _("alike without content", "stored", "and jsontext.same(message.content_json, draft.content_json)", "", MESSAGES),
    _("alike without metadata", "stored", "and (draft.metadata_json is None or jsontext.same(message.metadata_json, draft.metadata_json))", "", MESSAGES),
    # The life
    _("version not raised", "life", "else self.row.version + 1", "else self.row.version", CONVERSATIONS),
    _("position not taken", "life", "row.next_position += 1", "row.next_position += 0", MESSAGES),
    _("count not kept", "life", "row.message_count += 1", "row.message_count += 0", MESSAGES),
    _("fence not written", "life", "row.next_position, row.generation if self.holds else None", "row.next_position, None", LEASES),
    _("the holder does not renew", "life", "        if holds:\n            self.extend_lease()", "", LEASES),
    _("renewal not written", "life", "elif self._renewed:", "elif False:", LEASES),
    _("partials outlive their turn", "life", "self.transaction.do(statements.SETTLE_PARTIAL", "(lambda *a, **k: 0)(statements.SETTLE_PARTIAL", LEASES),
    _("a caught error is forgotten", "life", "if self.doom is not None:", "if False:", TRANSACT),
    _("life after deletion", "life", "if self.buried:", "if False:", TRANSACT),
    # Guarded mutations
    _("partial without a lease", "conversation", 'draft.status == "partial" and not self.holds', "False", TRANSACT),
    _("complete becomes partial", "conversation", 'there.status == "complete" and draft.status == "partial"', "False", MESSAGES),
    _("deleted messages are edited", "conversation", 'if message.status == "deleted":', "if False:", MESSAGES),
    _("message precondition gone", "conversation", "if if_match is not None or only_create:", "if False:", MESSAGES),
    _("message precondition of delete gone", "conversation", 'if if_match not in (None, "*", there.tag):', "if False:", MESSAGES),
    _("fence not checked in finish and release", "conversation", "if not self.holds or self.row.generation is None:", "if False:", TRANSACT),
    _("truncate has no end", "statements", 'm.position <= b("through"), alive).values', "alive, b('through') > -9).values", MESSAGES),
    _("truncate forgets the count", "conversation", "self.row.message_count -= removed", "", MESSAGES),
    _("delete message forgets the count", "conversation", "self.row.message_count -= 1", "", MESSAGES),
    # Unguarded
    _("acquire over a live lease", "unguarded", 'if self.live and order.if_busy == "reject":', "if False:", LEASES),
    _("token accepted twice", "unguarded", "if self.stored.turn_of(order.token_hash) is not None:", "if False:", LEASES),
    _("a repeated acquire takes other messages", "unguarded", "turn.begin_digest != order.begin_digest", "False", LEASES),
    _("acquire without its precondition", "unguarded", 'order.if_match is not None and order.if_match not in ("*", self.tag)', "False", LEASES),
    _("the same token is another turn", "unguarded", "self.row.lease_token == order.token_hash and", "False and", LEASES),
    _("interrupt hits any turn", "unguarded", "or generation not in (None, self.row.generation)", "", LEASES),
    _("interrupt not left for the holder", "unguarded", "            self.request_interrupt()", "            pass", LEASES),
    # Repeats
    _("end digest compare gone", "repeats", "turn is None or turn.end_digest != end_digest", "turn is None", LEASES),
    _("release repeated as anything", "repeats", "turn is not None and turn.end_digest == RELEASED", "turn is not None", LEASES),
    _("fork repeat behind the lease", "repeats", "        if made_by(stored.transaction, fork, digest):", "        if False:", FORKS),
    _("truncate repeat behind the lease", "repeats", "removed=0) if left is None else None", "removed=0) if False else None", MESSAGES),
    # Burial, forks, rules
    _("messages outlive the conversation", "burial", "life.transaction.do(statements.FORGET_MESSAGES, pk=row.pk)", "", CONVERSATIONS),
    _("digests outlive the conversation", "burial", "life.transaction.do(statements.FORGET_TURNS, pk=row.pk)", "", CONVERSATIONS),
    _("a held child does not block", "burial", "if descendant.live and not force:", "if False:", CONVERSATIONS),
    _("a settled fork takes the turn along", "forking", "if order.settled and life.row.generation is not None:", "if False:", FORKS),
    _("fork past the end", "compaction", "not at or at[0].status", "at and at[0].status", FORKS),
    _("forks keep partials", "statements", 'case((m.status == "partial", "interrupted"), else_=m.status)', "m.status", FORKS),
    _("leases never expire", "model", "return expires_at <= now or", "return", LEASES),
    _("clock steps lock everybody out", "model", " or expires_at > now + ttl_ms + CLOCK_TOLERANCE_MS", "", LEASES),
    _("tokens stored as they are", "orders", "hashlib.sha256(token.encode()).hexdigest()", "token", LEASES),
    _("change counter stands still", "dialect", "coalesce(max(change), 0) + 1", "coalesce(max(change), 0) + 0", READS),
    # The database
    _("BEGIN IMMEDIATE made deferred", "sqlite/connections", 'dbapi_connection.execute("BEGIN IMMEDIATE")', 'dbapi_connection.execute("BEGIN")',
      DATABASE + " " + CONVERSATIONS),
    _("no room in the search index is a broken disk", "sqlite/connections", "(4874, sqlite3.SQLITE_IOERR) if", "(4874,) if", DATABASE),
    _("lost transactions count as committed", "sqlite/connections", "if not dbapi_connection.in_transaction:", "if False:", DATABASE),
    _("swallowed statement errors commit", "sqlite/writer", "if transaction.failed is not None:\n                raise", "if False:\n                raise", DATABASE),
    _("readers may write", "sqlite/connections", '"PRAGMA query_only=ON"', '"PRAGMA query_only=OFF"', DATABASE),
    _("nested calls pass", "sqlite/database", "if in_a_change():", "if False:", TRANSACT),
    # Files
    _("links are followed", "sqlite/files", "if name.is_symlink():", "if False:", FILES),
    _("network file systems pass", "sqlite/files", "if kind in NETWORK:", "if False:", FILES),
    _("any mount that fits counts", "sqlite/files", "len(each[1][0].parts), each[0]", "each[0], each[0]", FILES),
    _("another user's file passes", "sqlite/files", "if user not in (0, found.st_uid):", "if False:", FILES),
    _("root writes what is read-only", "sqlite/files", " or not name.stat().st_mode & 0o222", "", FILES),
    _("a cut file is a new one", "sqlite/files", "if not found.st_size and _size(Path(f\"{path}-wal\")):", "if False:", FILES),
    _("an orphaned log is deleted", "sqlite/files", '    elif Path(f"{path}-wal").exists():', "    elif False:", FILES),
    _("a lost log is not missed", "sqlite/log", "self._files.check_log()", "self._files.log_bytes()", FILES),
    _("a lost database is not missed", "sqlite/log", "self._files.look()", "pass", FILES),
    _("a lost log is copied back", "sqlite/connections", "if opened is None or opened.leave():", "if True:", FILES),
    _("closing does not look", "sqlite/opened", "            try:\n                self.check()\n            except StorageFailed:\n                return False\n", "", FILES),
    _("a new connection does not look", "sqlite/connections", "        connection.opened.check()\n", "", FILES),
    _("a file with two names passes", "sqlite/files", "if _has_two_names(path):", "if False:", FILES),
    _("readers do not look", "sqlite/database", "            self._sqlite.files.look()\n", "", FILES),
    _("a lost file is opened again", "sqlite/connections", "    refuse_lost(path)\n", "", FILES),
    _("a closed file is still open", "sqlite/opened", "                _opened.pop(self._database, None)", "                pass", FILES),
    _("migrations of rows are not noticed", "sqlite/connections", '            connection.exec_driver_sql("CREATE TABLE sessionstore_migrated (at INTEGER)")\n            connection.exec_driver_sql("DROP TABLE sessionstore_migrated")\n', "", FILES),
    _("ready without its files", "sqlite/database", "        self._check_files()\n        self._sqlite", "        self._sqlite", FILES),
    _("no alarm for a long log", "sqlite/log", "elif self._bytes > self._alarm_at:", "elif False:", FILES),
    _("alarm after alarm", "sqlite/log", "self._alarm_at = 2 * self._bytes", "pass", FILES),
    _("old code writes a new schema", "sqlite/writer", "        self._revision.check(self._cursor)\n", "", FILES),
    _("old code reads a new schema", "sqlite/database", "            self._revision.check(connection)\n", "", FILES),
    _("any change is another schema", "sqlite/revision", "if found != self._expected:", "if True:", FILES),
    _("Litestream beside a broken engine", "sqlite/files", "if fault is not None and left.exists():", "if False:", FILES),
    _("ready beside Litestream", "sqlite/connections", "        check_companions(self.path, self.fault)\n        check_writable", "        check_writable", FILES),
    _("a full disk is tried again and again", "sqlite/writer", "        self._room.check()\n", "", FILES),
    _("a full disk is not remembered", "sqlite/writer", "                self._room.ran_out()\n", "                pass\n", FILES),
    _("more room is not noticed", "sqlite/room", " and self._free() < self._left + MORE_BYTES", "", FILES),
    _("no room for ever", "sqlite/room", "time.monotonic() < self._try_at and ", "", FILES),
    # Backups and checks
    _("a backup is not looked at", "sqlite/backups", '        _check(made, f"what was copied from {database}")\n', "", BACKUPS),
    _("a backup replaces another", "sqlite/backups", "        target.hardlink_to(made)\n", "        made.rename(target)\n", BACKUPS),
    _("a backup replaces another without links", "sqlite/backups", "if error.errno == errno.EEXIST or target.exists():", "if error.errno == errno.EEXIST:", BACKUPS),
    _("a store that is closed makes backups", "sqlite/database", "        self._check_files()\n        return backups", "        return backups", BACKUPS),
    _("databases of one name share backups", "sqlite/backups", "hashlib.sha256(os.fsencode(database)).hexdigest()[:6]", "'000000'", BACKUPS),
    _("the backup just made is removed", "sqlite/backups", " and found != made", "", BACKUPS),
    _("root's restores are root's", "sqlite/backups", "        files.give_to_owner(made, path.parent)\n", "", BACKUPS),
    _("root's databases are root's", "sqlite/files", "        give_to_owner(Path(made), path.parent)\n", "", BACKUPS),
    _("a backup is not synced", "sqlite/backups", "    copies.sync(made)\n", "", BACKUPS),
    _("all backups are kept", "sqlite/backups", "0 if keep is None else _remove_old(folder, name, keep, target)", "0", BACKUPS),
    _("others' files are removed as backups", "sqlite/backups", "if ours.fullmatch(found.name) and found != made", "if found != made", BACKUPS),
    _("a failed backup leaves its work", "sqlite/backups", "    finally:\n        shutil.rmtree(workplace, ignore_errors=True)", "    finally:\n        pass", BACKUPS),
    _("another one's work is removed", "sqlite/backups", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB", BACKUPS),
    _("fresh work is removed", "sqlite/backups", "if time.time() - left.stat().st_mtime > FRESH_SECONDS:", "if True:", BACKUPS),
    _("a restore replaces a database", "sqlite/backups", "        if Path(name).exists():\n            raise DatabaseUnusable", "        if False:\n            raise DatabaseUnusable", BACKUPS),
    _("a live database is taken for a backup", "sqlite/backups", 'if Path(f"{backup}-wal").exists():', "if False:", BACKUPS),
    _("a damaged backup is restored", "sqlite/backups", "    _check(backup, str(backup))\n", "", BACKUPS),
    _("a restored database goes on as it was", "sqlite/backups", "        keys = copies.begin_anew(made, now, keep_keys=keep_keys)\n", "        keys = 0\n", BACKUPS),
    _("lives keep their numbers", "sqlite/copies", "SET pk = pk + :life, parent_pk = parent_pk + :life,", "SET", BACKUPS),
    _("restored cursors go on", "sqlite/copies", "- 1 FROM conversations)\"\n_BEGIN", "* 0 FROM conversations)\"\n_BEGIN", BACKUPS),
    _("numbers of lost lives come again", "sqlite/copies", "SELECT 'conversations', {_LAST} UNION ALL SELECT 'generations', {_FENCE}", "SELECT 'generations', {_FENCE}", BACKUPS),
    _("fences of lost turns come again", "sqlite/copies", " UNION ALL SELECT 'generations', {_FENCE}", "", BACKUPS),
    _("changes of what is empty begin at one", "sqlite/copies", "WHERE NOT EXISTS (SELECT 1 FROM conversations)", "WHERE 0", BACKUPS),
    _("restored twice, the same twice", "sqlite/copies", "base = now * 1_000 + secrets.randbelow(1_000)", "base = 10**12", BACKUPS),
    _("restored leases live on", "sqlite/copies", "interrupt_requested_at = NULL WHERE generation IS NOT NULL", "interrupt_requested_at = NULL WHERE 0", BACKUPS),
    _("a restored index has other numbers", "sqlite/copies", "        fulltext.forget_all(connection)\n", "", BACKUPS),
    _("repaired though it was right", "checking", "if transaction.row(_among(broken), pk=fault.incarnation) is None:", "if False:", CHECKING),
    _("a repair nobody sees", "checking", "            life.raise_version()\n            life.write_back()", "            life.write_back()", CHECKING),
    _("the turn of another is ended", "checking", '    life.drop_lease("interrupted")', '    life.end_generation("expired")', CHECKING),
    _("forked children go on", "sqlite/database", "if self._writer.turn.inherited:\n            raise Closed", "if False:\n            raise Closed", DATABASE),
    _("forked children open the file of their parent", "sqlite/turn", "if _inherited and path.exists()", "if False and path.exists()", DATABASE),
    _("a transaction outlives its end", "transaction", "        self._connection = None\n", "        pass\n", TRANSACT),
    _("checkpoints run free on a broken engine", "sqlite/connections", '"PRAGMA wal_autocheckpoint=0"', '"PRAGMA wal_autocheckpoint=1000"', DATABASE),
    _("a failed COMMIT stored nothing", "sqlite/writer", "                self._room.ran_out()\n            raise OutcomeUnknown", "                self._room.ran_out()\n            raise known", DATABASE),
    _("after an I/O error work goes on", "sqlite/writer", "            self.refusal = self.refusal or known", "            pass", DATABASE),
    # Groups
    _("a failed call keeps what it wrote", "sqlite/writer", 'self._connection.execute("ROLLBACK TO item")', "pass", GROUPS),
    _("a group that was undone goes on in autocommit", "sqlite/writer", "if not self._connection.in_transaction:\n            raise _Undone",
      "if False:\n            raise _Undone", GROUPS),
    _("after an I/O error the group is committed", "sqlite/writer", "        if isinstance(self.refusal, StorageFailed):\n            # Whoever", "        if False:\n            # Whoever", GROUPS),
    _("answered before the commit", "sqlite/writer", "            self._commit(len(ran))\n        except _Undone:",
      "            __import__('sessionstore.items').items.answer(ran)\n            self._commit(len(ran))\n        except _Undone:", GROUPS),
    _("a busy COMMIT is not tried again", "sqlite/writer", "isinstance(known, Busy) and not lost and (end is None or time.monotonic() < end)", "False", GROUPS),
    _("one exception for all", "items", "copy.copy(error) if len(items) > 1 and isinstance(error, SessionStoreError) else error", "error", GROUPS),
    _("what is past its deadline runs", "items", "if item.running and item.deadline < now:", "if False:", GROUPS),
    _("no end of a group's time", "sqlite/writer", "if count and now > end:", "if False:", GROUPS),
    _("what was cancelled runs", "items", "not self.future.cancelled() and super().begin()", "super().begin()", "tests/api/test_every_operation.py"),
    _("what was given up runs", "items", "        except BaseException:\n            self.begin()\n            raise", "        except BaseException:\n            raise", GROUPS),
    _("a waiter's patience has no end", "items", "self.future.set_exception(Busy())", "pass", GROUPS),
    _("nobody goes first", "sqlite/lanes", "            if item.lane is Lane.FIRST:", "            if False:", GROUPS),
    _("a release passes its own conversation's save", "sqlite/lanes", "if item.keys[0] not in in_line:", "if True:", GROUPS),
    _("no reserved places", "sqlite/lanes", "self._places + RESERVED_PLACES if", "self._places if", GROUPS),
    _("the line has no end", "sqlite/lanes", "if waiting >= places or", "if False or", GROUPS),
    _("the line has room for any bytes", "sqlite/lanes", "or (self._bytes and self._bytes + item.bytes > WAITING_BYTES)", "", GROUPS),
    _("bytes are never free again", "sqlite/lanes", "            self._bytes -= sum(item.bytes for item in group)", "            pass", GROUPS),
    _("what was put back goes last", "sqlite/lanes", "        group = list(self._again)", "        group: list[Item] = []", GROUPS),
    _("a deletion passes its own conversation's renewal", "sqlite/lanes", "and not any(item.keys[0] in line[0].keys for item in first)", "", GROUPS),
    _("those who go first leave nothing to the others", "sqlite/lanes", "else GROUP_ITEMS // 2", "else GROUP_ITEMS", GROUPS),
    _("a stumbling writer leaves its callers alone", "sqlite/groups", "        finally:\n            answer(ran)", "        finally:\n            pass", GROUPS),
    _("a stumbling writer dies", "sqlite/groups", "                except Exception:", "                except ZeroDivisionError:", GROUPS),
    _("a failed thread is taken for one", "sqlite/groups", "                self._thread = thread", "                pass", GROUPS),
    _("the gate has no deadline", "sqlite/gate", "            if waited > seconds:", "            if False:", GROUPS),
    _("a gate that cannot be had stops everybody", "sqlite/gate", "        except OSError:\n            # Somebody", "        except ZeroDivisionError:\n            # Somebody", GROUPS),
    _("long work in groups", "sqlite/lanes", "            if line[0].lane is Lane.ALONE:\n                break", "", GROUPS),
    _("who goes alone starves", "sqlite/lanes", "return not first or (self._passed and", "return not first or (False and", GROUPS),
    _("groups of any length", "sqlite/lanes", "while line and len(group) < GROUP_ITEMS and", "while line and", GROUPS),
    _("groups of any weight", "sqlite/lanes", "and size < GROUP_BYTES:", ":", GROUPS),
    _("a lone caller's thread is not his own", "sqlite/database", "if self._groups.idle and self._writer.enter():", "if False:", GROUPS),
    _("close drops what waits", "sqlite/database", "        self._groups.close(0 if self._writer.turn.mine else self._timeout)\n", "", GROUPS),
    _("the gate stands open", "sqlite/gate", "fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", GROUPS),
    _("a child holds the gate", "sqlite/gate", "    for gate in list(_gates):\n        gate.close()", "    pass", GROUPS),
    _("one bad save spoils the others", "transaction", 'self._connection.execute("ROLLBACK TO part")', "pass", DATABASE),
    _("a key that stands twice hides behind escapes", "jsontext", 'b"\\\\u0022" not in raw and', "", "tests/test_values.py"),
    # Inputs and the feed
    _("the queue has no end", "inputs", "life.row.queued_count + new > life.limits.queued_inputs", "False", "tests/test_inputs.py"),
    _("inputs of another turn are claimed", "inputs", 'message.status != "queued" and message.generation != _turn(life)', "False", "tests/test_inputs.py"),
    _("what was claimed is cancelled", "inputs", '_waiting(life, message_id).status != "queued"', "False", "tests/test_inputs.py"),
    _("cancelled inputs come back", "inputs", 'message is not None and message.status == "deleted"', "False", "tests/test_inputs.py"),
    _("a rollback forgets inputs", "unguarded", "        inputs.unclaim(self, turn.number, turn.first_position)\n", "", "tests/test_inputs.py"),
    _("a rollback keeps what the turn said", "unguarded", "        self.row.message_count -= self.transaction.run(", "        self.row.message_count -= (lambda *a, **k: 0)(", "tests/test_inputs.py"),
    _("a claimed input hides what came before it", "queries", "m.position.is_not(None), m.mode.is_(None), m.created_version", "m.position.is_not(None), m.created_version", "tests/test_changes.py"),
    _("deletions are not told", "queries", '_shown = or_(alive, m.version > b("hidden"))', '_shown = or_(alive, m.version > b("hidden") + 10**9)', "tests/test_changes.py"),
    _("another life is no reset", "feed", "since.incarnation != conversation.incarnation or", "", "tests/test_changes.py"),
    _("pages of changes skip rows of one version", "queries", 'tuple_(m.version, m.pk) > tuple_(b("version"), b("row"))', 'm.version > b("version")', "tests/test_changes.py"),
    # Following
    _("followers not told when the watcher starts", "watch", "        self.tell_everybody()\n        look_at_leases", "        look_at_leases", EVENTS),
    _("own commits ring no bell", "sqlite/writer", "if self.committed is not None:", "if False:", EVENTS),
    _("other processes not asked for", "watch", "pulse.beats() or self._bell.is_set()", "self._bell.is_set()", EVENTS),
    _("expired leases not looked at", "watch", "if time.monotonic() >= look_at_leases:", "if False:", EVENTS),
    _("one look at many changes", "watch", "if len(rows) < NEWS_PER_LOOK:", "if True:", EVENTS),
    _("a watcher that stumbles stays down", "watch", "            except Exception as error:", "            except ZeroDivisionError:\n                return\n            except Exception as error:", EVENTS),
    _("the list is not told", "watch", "                self._tell(Topic(owner, None), None)\n            if len", "                pass\n            if len", EVENTS),
    _("a new life is followed on", "following", "limit=CHANGES_PER_EVENT, incarnation=seen.incarnation", "limit=CHANGES_PER_EVENT", EVENTS),
    _("expiry is no news", "following", "(seen.since, seen.expired) == (found.conversation.tag, expired)", "seen.since == found.conversation.tag", EVENTS),
    _("pages lose their place", "following", "Seen(found.conversation.incarnation, since, found.next,", "Seen(found.conversation.incarnation, found.since, None,", EVENTS),
    _("expiry is no news of the list", "following", "return found, ListSeen(found.change, None, known ^ told, begun=True)", "return found, ListSeen(found.change, None, known, begun=True)", EVENTS),
    _("who ran out is not told in the list", "following", "told = frozenset(sorted(expired ^ known)[:CHANGES_PER_EVENT])", "told = NOBODY", EVENTS),
    _("every page is a reset", "feed", "reset=whole and place is None", "reset=whole", EVENTS),
    _("the list has no tombstones", "feed", "    if not reset:\n        gone =", "    if False:\n        gone =", EVENTS),
    _("a revived lease is no news", "life", "self._revived = self._revived or self.expired", "pass", EVENTS),
    _("revived by a save, two versions", "life", "self.row.version if self.raised else", "self.row.version if self.changed else", EVENTS),
    _("what came while it was read is lost", "channel", "            if not self._looking[seen]:", "            if True:", EVENTS),
    _("followers share one error", "channel", "copy.copy(error) if", "error if", EVENTS),
    _("a closed store leaves followers waiting", "store", "        self.watch.tell_everybody()\n", "", EVENTS),
    # Generating
    _("no renewal in between", "keeper", "and (left := self._due - running_time()) > 0", "", KEEPER),
    _("suspend does not count", "keeper", "min(left, LONGEST_SLEEP)", "left", KEEPER),
    _("a failed renewal is the last", "keeper", "            except Exception as error:", "            except ZeroDivisionError:\n                return\n            except Exception as error:", KEEPER),
    _("what is lost is kept on", "keeper", "self._lost(error)\n                    return", "self._lost(error)", KEEPER),
    _("a wish to stop waits for the next call", "live", "                alarm()\n", "                pass\n", GENERATE),
    _("lost is not raised at the next call", "liveturn", "        if self._gone is not None:\n            raise", "        if False:\n            raise", GENERATE),
    _("turns outlive their store", "store", "        self.turns.end()\n", "", ENDS),
    _("a closed client keeps its turns", "client/blocking", "        self.turns.end()\n", "", ENDS),
    _("a turn that is over is given back", "liveturn", "        self._keepable.turns.discard(self)\n", "", ENDS),
    _("close does not wait for who enters", "ongoing", "self._changing.wait_for(lambda: set(self._entering) <= {threading.get_ident()}, ENTERING_SECONDS)", "pass", ENDS),
    _("a turn begins in a closed store", "ongoing", "            if self._ended:\n                raise Closed\n", "", ENDS),
    _("every turn waits for a busy database", "ongoing", "answers = answers and turn.give_back()", "turn.give_back()", ENDS),
    _("a turn that is cancelled while it leaves stays", "aioturn", "await asyncio.shield(self._leaving)", "await self._leaving", ENDS),
    _("a turn that is cancelled while it enters stays", "aioturn", "            entering.add_done_callback(self._abandon_entered)\n", "", ENDS),
    _("a busy end is no end", "liveturn", "except Unavailable as error:", "except ZeroDivisionError as error:", ENDS),
    _("a turn that cannot be kept stays", "liveturn", "            self._abandon()\n            raise", "            raise", ENDS),
    _("a lost answer of a save is believed", "aioturn", "known = self._known.pop(id, None)", "known = self._known.get(id)", ENDS),
    _("a finish given up leaves the turn deaf", "liveturn", "            self._finishing = False\n            if", "            if", ENDS),
    _("a closed store keeps its turns", "liveturn", "ttl_ms, keepable.final)", "ttl_ms)", ENDS),
    _("a watcher in trouble makes a storm", "watch", "self._stopping.wait(TROUBLE_SECONDS)", "self._bell.wait(TROUBLE_SECONDS)", ENDS),
    _("failed storage is not told", "watch", "        # Why nobody watches any more, their own look will tell them as well.\n        self.tell_everybody()", "", EVENTS),
    _("a clock that steps back is not told", "watch", "expired ^ before", "expired - before", EVENTS),
    _("an older state is not told", "watch", "        if newest < seen:", "        if False:", EVENTS),
    _("tombstones of shown rows are hidden", "feed", "hidden=begin.began if whole else -1", "hidden=2**62 if whole else -1", "tests/test_changes.py"),
    _("late comers get what was read before", "channel", "self._looking[seen], waiting = False, self._waiting.pop(seen, [])", "self._looking[seen], waiting = False, self._waiting.setdefault(seen, [])", EVENTS),
    _("followers who left are remembered", "channel", "            self._forget(seen)\n", "", EVENTS),
    _("dropped events are told on", "events", "        if not getattr(self, \"_over\", True):", "        if False:", EVENTS),
    _("a growing reply is never complete", "life", 'self.drop_lease("complete" if complete else "interrupted")', 'self.drop_lease("interrupted")', GENERATE),
    _("a failed turn is completed", "liveturn", 'return "failed" if isinstance(error, Exception) else "interrupted"', 'return "completed"', GENERATE),
    _("an interrupted turn is completed", "liveturn", 'return "interrupted" if self._interrupted else "completed"', 'return "completed"', GENERATE),
    _("saves without a precondition", "liveturn", "draft, if_match=known, only_create=known is None", "draft", GENERATE),
    # The latest partial wins
    _("partials are not folded", "sqlite/lanes", "return folded(group)", "return group", GROUPS),
    _("complete messages are folded", "orders", 'draft.status == "partial" and if_match is None', "if_match is None", GROUPS),
    _("conditional saves are folded", "orders", "and if_match is None and not only_create:", ":", GROUPS),
    _("labels of folded saves are lost", "orders", "token, incarnation, draft.metadata_json)", "token, incarnation)", GROUPS),
    _("folded across other calls", "items", "        last.update(dict.fromkeys(item.keys, len(kept)))", "        last.update(dict.fromkeys(item.keys, len(kept)) if item.fold else {})", GROUPS),
    _("a cancelled save is the one that counts", "items", "self.change = self._wanted[-1].change", "pass", GROUPS),
    _("folded saves say that they created", "items", "self.result if error or newest or fold is None else", "self.result if True else", GROUPS),
    # Events over HTTP
    Mutant("slow readers are kept", "api/sessionstore_api/events.py", "if clock() - began > SLOW_SECONDS:", "if False:", STREAMS),
    Mutant("readers of nothing are kept", "api/sessionstore_api/protocol.py", "            self._look_again()\n        else:\n            self.transport.abort()", "            self._look_again()\n        else:\n            pass", STREAMS),
    Mutant("steady readers are cut off", "api/sessionstore_api/protocol.py", "if self.transport.get_write_buffer_size() < self._unread_bytes:", "if False:", STREAMS),
    Mutant("a server waits for who does not read", "api/sessionstore_api/serve.py", "connection.waits_for_reader:", "False:", STREAMS),
    Mutant("a stopped server stops the next one", "api/sessionstore_api/serve.py", "UVICORNS_HANDLE_EXIT(self, sig, frame)", "super().handle_exit(sig, frame)", STREAMS),
    Mutant("contents are logged", "api/sessionstore_api/events.py", 'logging.getLogger("sse_starlette.sse").addFilter(lambda record: record.msg != "chunk: %s")', "", CLIENT),
    Mutant("a stopping server says nothing", "api/sessionstore_api/serve.py", 'self.lifespan.state["store"].end_events()', "pass", STREAMS),
    Mutant("Last-Event-ID ignored", "api/sessionstore_api/events.py", 'state_of(call.last_event_id, "Last-Event-ID") or', "", STREAMS),
    Mutant("what moved takes filters", "api/sessionstore_api/conversations.py", "if query != unfiltered:", "if False:", STREAMS),
    # History
    _("compaction of a future", "compaction", "seen_version >= life.next_version\n        or", "False\n        or", COMPACTION),
    _("a summary of a deleted summary", "statements", "or_(_came, _went)", "_came", COMPACTION),
    _("compaction of younger messages", "compaction", "or (youngest is not None and youngest[0] > seen_version)", "or False", COMPACTION),
    _("compaction of changed messages", "compaction", "or life.transaction.row(statements.CHANGED_THROUGH, **asked) is not None", "", COMPACTION),
    _("two summaries of one range", "compaction", "or life.transaction.row(statements.COVERED_SINCE, **asked) is not None", "", COMPACTION),
    _("a summary of nothing", "compaction", "    check_place(life, through_position, \"$.through_position\")\n", "", COMPACTION),
    _("a compaction again with another place", "compaction", "elif there.summary_through != through_position:", "elif False:", COMPACTION),
    _("summaries outlive what they say", "conversation", "            removed += compaction.forget_summaries(self, first[0])\n", "", COMPACTION),
    _("a compaction that was done is refused", "store", "repeats.compacted(draft, through_position),", "None,", COMPACTION),
    _("the summary is shown last", "transcript", "[summary, *shown] if stretch.order == \"asc\" else [*shown, summary]", "[*shown, summary]", COMPACTION),
    _("what is covered is shown", "transcript", "stretch, after=max(stretch.after, covered)", "stretch, after=stretch.after", COMPACTION),
    _("older summaries are shown", "transcript", "covered)), summaries=False)", "covered)))", COMPACTION),
    _("a context is cut anywhere", "contexts", "if needed < number and begins_turn(self.messages[number], self.messages[number - 1]):", "if True:", CONTEXTS),
    _("calls are parted from results", "contexts", "if needed < number and begins_turn", "if begins_turn", CONTEXTS),
    _("who steers begins a turn", "contexts", "and not speaks(older) and not in_a_turn", "and not speaks(older)", CONTEXTS),
    _("a run of messages is cut", "contexts", "speaks(younger) and not speaks(older)", "speaks(younger)", CONTEXTS),
    _("results of tools are words", "toolcalls", "message.role == \"user\" and not tool_ids(message).answers", "message.role == \"user\"", UNDO),
    _("calls are not looked for behind the budget", "contexts", "while not walk.is_settled and", "while False and", CONTEXTS),
    _("results are read for calls", "toolcalls", "            if not answered:\n", "            if True:\n", CONTEXTS),
    _("half a turn is better than none", "contexts", "    if not kept:\n        raise", "    if False:\n        raise", CONTEXTS),
    _("a message without tokens is free", "contexts", "if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:", "if False:", CONTEXTS),
    _("the head is not counted", "contexts", "[budget.size(head)], iter(newest_first)", "[0], iter(newest_first)", CONTEXTS),
    _("forks have one title", "forking", "_next_title(life, title) if order.title is None", "title if order.title is None", UNDO),
    _("numbers of other titles count", "forking", "found is not None and found[1] == stem", "found is not None", UNDO),
    _("a fork by id is another fork", "forking", "point = self.point.in_positions(source)", "point = self.point", UNDO),
    _("a fork at a message that was deleted", "forking", "if message is not None and message.status == \"deleted\":", "if False:", UNDO),
    _("an undo takes what came later", "undoing", "end = -1 if copy.forked_from is None else copy.forked_from.position", "end = 2**40", UNDO),
    _("any conversation is a backup", "undoing", "        if not exists.same:\n            raise\n", "", UNDO),
    _("a backup that was gone on with", "undoing", "        if there.version > 1:", "        if False:", UNDO),
    _("an edit in between is lost", "undoing", "        yield from _compare(id, copy, start, end, seen)\n", "", UNDO),
    _("what is truncated is not what was compared", "undoing", "\"if_match\": seen.tag, ", "", UNDO),
    _("a failed undo leaves its fork", "undoing", "        if fresh:\n            yield _made(\"delete\"", "        if False:\n            yield _made(\"delete\"", UNDO),
    _("children are roots", "queries", "found = found.where(c.parent_pk.is_(None))", "pass", FINDING),
    _("any value of a key", "queries", "_HAS_VALUE if \"metadata_value\" in filters.asked else _HAS_KEY", "_HAS_KEY", FINDING),
    _("usage of children is left out", "queries", "    if descendants:\n", "    if False:\n", FINDING),
    _("anything is added up", "limits", "if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= MOST_USED:", "if False:", FINDING),
    _("words are syntax", "matching", "'\"' + word.replace('\"', '\"\"') + '\"'", "word", SEARCH),
    _("quotes end a word", "matching", "word.replace('\"', '\"\"')", "word", SEARCH),
    _("what is not indexed is not found", "sqlite/fulltext", "    hits += _unindexed(connection, match, owner, within, before, count)\n", "", SEARCH),
    _("marks are anybody's", "sqlite/fulltext", "for unsayable in (\"0000\", \"0002\", \"0003\"):", "for unsayable in (\"0000\",):", SEARCH),
    _("a zero ends a text", "sqlite/fulltext", "for unsayable in (\"0000\", \"0002\", \"0003\"):", "for unsayable in (\"0002\", \"0003\"):", SEARCH),
    _("the index answers for what has changed", "sqlite/fulltext", "    AND NOT EXISTS (SELECT 1 FROM search_pending p WHERE p.message_pk = search.rowid)\n", "", SEARCH),
    _("the dead are found", "sqlite/fulltext", "AND c.owner = :owner AND c.deleted_at IS NULL\n    AND NOT", "AND c.owner = :owner\n    AND NOT", SEARCH + " " + FORGETTING),
    _("the unindexed dead are found", "sqlite/fulltext", "    AND c.owner = :owner AND c.deleted_at IS NULL AND {indexed(\"m\")}\"\"\"", "    AND c.owner = :owner AND {indexed(\"m\")}\"\"\"", SEARCH + " " + FORGETTING),
    _("removed words stay in the index", "sqlite/fulltext", "(_NOTED, (_FORGET, _LEARN_NOTED, _DONE))", "(_NOTED, (_LEARN_NOTED, _DONE))", SEARCH),
    _("changed messages are not learned", "sqlite/fulltext", "(_FORGET, _LEARN_NOTED, _DONE)", "(_FORGET, _DONE)", SEARCH),
    _("a number that was used again is known", "sqlite/fulltext", "WHEN {_known(\"new\")} AND {indexed(\"new\")}", "WHEN 0 AND {indexed(\"new\")}", SEARCH),
    _("the index never catches up", "sqlite/writer", "while (far or urgent) and fulltext.is_due(self._connection):", "while False:", SEARCH),
    _("the index never rests", "sqlite/writer", "return self._removed or time.monotonic() >= self._index_after", "return True", SEARCH),
    _("the index rests far behind", "sqlite/writer", "far, urgent = fulltext.behind(self._connection) > FAR_BEHIND, ", "far, urgent = False, ", SEARCH),
    _("removed texts wait in the notes", "sqlite/fulltext", "    if keeps_removed(connection):\n        return True\n", "", FORGETTING),
    _("a removal is no reason to look", "sqlite/writer", "not (self._removed or self._connection.total_changes", "not (self._connection.total_changes", FORGETTING),
    _("a busy index is an error", "sqlite/writer", "        except (*DRIVER_ERRORS, SessionStoreError) as error:\n            # It is tried again", "        except ZeroDivisionError as error:\n            # It is tried again", SEARCH),
    _("an upsert breaks on its note", "sqlite/fulltext", "SELECT {row}.pk, {row}.conversation_pk, {said} WHERE NOT {known}", "SELECT {row}.pk, {row}.conversation_pk, {said}", SEARCH),
    _("partial messages are indexed", "sqlite/fulltext", "{row}.status IN ('complete', 'interrupted')", "{row}.status IN ('complete', 'interrupted', 'partial')", SEARCH),
    _("what changed meanwhile is pruned", "forgetting", "if max(change for _, change in members) != family.newest:", "if False:", FORGETTING),
    _("a generating conversation stops a prune", "forgetting", "OTHERWISE_ENGAGED = (Generating, ", "OTHERWISE_ENGAGED = (", FORGETTING),
    _("a family is as old as its root", "bulk", "func.max(_families.c.updated_at).label(\"updated_at\")", "func.min(_families.c.updated_at).label(\"updated_at\")", FORGETTING),
    _("forgetting makes young", "conversation", "            self.quiet = not self.raised\n", "", FORGETTING),
    _("what is shortened meanwhile is cut blindly", "forgetting", "None, cut.pk, tag, lane=Lane.ALONE)", "None, cut.pk, None, lane=Lane.ALONE)", FORGETTING),
    _("retention cuts anywhere", "forgetting", "    last = _border(transaction, pk, wanted) - 1", "    last = wanted - 1", FORGETTING),
    _("retention takes summaries", "statements", "m.position <= b(\"through\"), alive, m.summary_through.is_(None))", "m.position <= b(\"through\"), alive)", FORGETTING),
    _("pruned tombstones are not noted", "forgetting", "    transaction.run(bulk.NOTE_PRUNED, owner=owner, change=change)\n", "", FORGETTING),
    _("what was pruned is forgotten", "feed", " or pruned > (after if horizon is None else horizon)", "", FORGETTING),
    _("the whole list begins again and again", "feed", "pruned > (after if horizon is None else horizon)", "pruned > after", FORGETTING),
    _("the newest change is pruned", "bulk", "c.change < select(func.max(c.change)).scalar_subquery()", "c.change >= 0", FORGETTING),
    _("tombstones keep their children", "forgetting", "    transaction.run(bulk.FORGET_PARENT, pk=pk)\n", "", FORGETTING),
    _("an import is abandoned at once", "forgetting", "self._now - ABANDONED_MS", "self._now + ABANDONED_MS", TRANSFER),
    _("the living are erased", "forgetting", "    if transaction.row(bulk.IS_TOMBSTONE, pk=pk) is None:\n        return 0\n    transaction.removed", "    transaction.removed", FORGETTING + " " + TRANSFER),
    _("a purge leaves the index", "sqlite/database", "        while more:\n", "        while False:\n", FORGETTING),
    _("a purge leaves what was left behind", "upkeep", "        forgetting.erase_abandoned()\n", "", FORGETTING),
    _("a purge leaves the log", "sqlite/connections", "wal_checkpoint(TRUNCATE)", "wal_checkpoint(PASSIVE)", FORGETTING),
    _("the log is emptied past the gate", "sqlite/writer", "if not self._gate.inside:", "if False:", FORGETTING),
    _("an import goes over what is there", "importing", "check_vacant(transaction, self._owner, line.id, line.create_digest or \"\")", "pass", TRANSFER),
    _("half an import is seen", "bulk", "updated_at=b(\"now\"), change=next_change(), deleted_at=b(\"now\"),", "updated_at=b(\"now\"), change=next_change(), deleted_at=None,", TRANSFER),
    _("a broken import stays", "importing", "        finally:\n            self._drop()", "        finally:\n            pass", TRANSFER),
    _("a tidied import goes on", "forgetting", "    transaction.run(bulk.GIVE_UP_ARRIVAL, at=pk)\n", "", TRANSFER),
    _("what arrives is news", "queries", ", c.arriving_at.is_(None))", ")", TRANSFER),
    _("a cut file is whole", "importing", "            if not self._ended:", "            if False:", TRANSFER),
    _("messages may be missing", "importing", "        if self.messages != self.line.messages:", "        if False:", TRANSFER),
    _("leases are exported", "exporting", "\"interrupted\" if status == \"partial\" else status", "status", TRANSFER),
    _("turns of an import are anybody's", "importing", "numbers.get(message[\"turn\"])", "message[\"turn\"]", TRANSFER),
    # The client
    _("a delete names no life", "client/mutations", "    if incarnation is None:\n        incarnation = (yield from reads.get(limits, id)).incarnation\n", "", CLIENT),
    _("an interrupt names no turn", "client/turns", "        generation = None if turn is None else turn.number", "        generation = None", CLIENT),
    _("a put that was done is refused", "client/mutations", "if refused.same and (exchange.again or free):", "if False:", CLIENT),
    _("a put without a lease looks nothing up", "client/mutations", "free = token is None and if_match is None and not only_create", "free = False", CLIENT),
    _("a label looks nothing up", "client/mutations", "seen = if_match or (yield from reads.get(limits, id, incarnation=incarnation)).tag", "seen = if_match", CLIENT),
    _("a fork that was done is refused", "client/mutations", "if not (exchange.again and exists.same):", "if True:", CLIENT),
    _("a fork whose source has gone is refused", "client/mutations", "if not exchange.again or deleted.conversation_id != id:", "if True:", CLIENT),
    _("a claim is repeated blindly", "client/persistence", "if self._exchange.again and self._exchange.once:", "if False:", CLIENT),
    _("a claim names nothing", "client/turns", "named = [item.message.id for item in waiting.items] or None", "named = None", CLIENT),
    _("a claim gives up when one is cancelled", "client/turns", "if ids is not None or exchange.again:", "if True:", CLIENT),
    _("an unknown outcome is called unreachable", "client/persistence", "raise OutcomeUnknown if self._exchange.again else error", "raise error", CLIENT),
    _("its own change is called a refusal", "client/persistence", "isinstance(error, PreconditionFailed) and self._exchange.again and not error.same", "False", CLIENT),
    _("a server that stops ends turns", "client/persistence", "if isinstance(error, Closed):", "if False:", CLIENT),
    _("silence is tried only once", "client/persistence", "first = not self._tries and self._patience > 0", "first = False", CLIENT),
    _("messages without ids", "client/bodies", "if draft.named or not as_named else without_id(draft)", "if draft.named else without_id(draft)", CLIENT),
    _("messages of a create get ids", "client/bodies", "if draft.named or not as_named else without_id(draft)", "", "tests/test_leases.py tests/test_conversations.py"),
    _("a gateway's error is final", "client/persistence", "isinstance(error, UnexpectedAnswer) and error.status in GATEWAY", "False", CLIENT),
    _("a break is the end of events", "client/events", "                failure = error\n", "                return\n", CLIENT),
    _("patience runs while it is quiet", "client/events", "                    persistence = None\n", "                    persistence = persistence or Persistence(exchange, self._patience)\n", CLIENT),
    _("a reconnect knows nothing", "client/stream", 'headers["Last-Event-ID"] = self._last_id', "pass", CLIENT),
    _("half a character is no answer", "client/decoding", "return msgspec.json.decode(_without_lone_surrogates(body), type=kind)", "raise", CLIENT),
    _("errors lose what they inherit", "client/problems", "[field.name for field in dataclasses.fields(kind)]", "list(kind.__annotations__)", CLIENT),
    _("anything is taken for done", "client/exchange", "if self.status != NO_CONTENT:", "if False:", CLIENT),
    _("migrations with foreign keys on", "sqlite/connections", "foreign_keys=False)", "foreign_keys=True)", "tests/test_migrations.py"),
    _("migrations leave broken references", "sqlite/connections", "            if broken:", "            if False:", "tests/test_migrations.py"),
    # PostgreSQL: run on a server
    _("a row is not locked", "statements", "c.id == b(\"id\"), LIVING).with_for_update()", "c.id == b(\"id\"), LIVING)", POSTGRESQL),
    _("a create looks for tombstones first only", "creation", "    check_buried(transaction, owner, birth.id, birth.recreate)\n    life", "    life", POSTGRESQL),
    _("an import looks for tombstones first only", "importing", "        check_buried(transaction, self._owner, line.id, None)\n", "", POSTGRESQL),
    _("late committers are missed", "dialect", "return f\"least({change}, {_NUMBER.format('pg_snapshot_xmin(pg_current_snapshot())')} - 1)\"", "return change", POSTGRESQL),
    _("changes of one transaction share a place", "postgresql/transaction", "            self._changes += 1\n", "", POSTGRESQL),
    _("opening under load moves the base", "postgresql/database", "pg_snapshot_xmax(pg_current_snapshot())", "pg_snapshot_xmin(pg_current_snapshot())", POSTGRESQL),
    _("the base is not moved at all", "postgresql/database", "            self.write(_catch_up)\n", "            pass\n", POSTGRESQL),
    _("the time of a lock that was given back", "postgresql/writing", "            transaction.forget_time()\n", "", POSTGRESQL),
    _("a lost COMMIT is made again", "postgresql/writing", "                raise OutcomeUnknown from error\n", "                pass\n", POSTGRESQL),
    _("a commit without a standby is acknowledged", "postgresql/writing", "        if session.warned:\n", "        if False:\n", POSTGRESQL),
    _("deadlocks are errors", "postgresql/connections", 'AGAIN = ("40001", "40P01")', 'AGAIN = ("00000",)', POSTGRESQL),
    _("lost connections are errors", "postgresql/writing", "most = LOST_ATTEMPTS if", "most = 1 if", POSTGRESQL),
    _("nobody is notified", "postgresql/pulse", '                connection.execute(f"NOTIFY {CHANNEL}")\n', "", POSTGRESQL),
    _("nobody looks for himself", "postgresql/pulse", "self._heard or time.monotonic() >= self._look_at, False", "self._heard, False", POSTGRESQL),
    _("a foreign schema is written", "postgresql/transaction", "if self._expected and revision != self._expected:", "if False:", POSTGRESQL),
    _("migrations wait for nobody", "postgresql/connections", '                    connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")\n', "                    pass\n", POSTGRESQL),
    _("a stopped client holds a row for ever", "postgresql/connections", "most_ms or IDLE_MS", "0", POSTGRESQL),
    _("what was given up kills its thread", "postgresql/parts", "    if part.error is None and part.result is not None:\n", "    if part.error is None:\n", POSTGRESQL),
    _("threads that were promised count as free", "postgresql/lines", "if len(self._ready) > self._idle and", "if not self._idle and", POSTGRESQL),
    _("a server's defaults are taken", "postgresql/connections", "                connection.isolation_level, connection.read_only = psycopg.IsolationLevel.READ_COMMITTED, False\n", "                pass\n", POSTGRESQL),
    _("durability is the server's default", "postgresql/connections", '            if self.synchronous == "full":\n', "            if False:\n", POSTGRESQL),
    _("an unfinished copy can be opened", "copying", "    transaction.run(MARK, mark=mark)\n", "", COPYING),
    _("a copy is made over something", "copying", "    if rows or any(transaction.row(read) is not None for read in READ.values()):\n", "    if False:\n", COPYING),
    _("a copy begins with what may be in the way", "copying", "                if _comparable(row) != wanted.get(row[0]):\n", "                if False:\n", COPYING),
    _("numbers begin anew in a copy", "copying", "            self._target.go_on_from(transaction, counters)\n", "", COPYING),
]  # fmt: skip


def main() -> int:
    """Try the mutants, two at a time. Answers how many survived."""
    wanted = set(sys.argv[1:])
    mutants = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    with ThreadPoolExecutor(2) as pool:
        survived = [mutant.name for mutant, lives in zip(mutants, pool.map(_report, mutants), strict=True) if lives]
    print(
        f"{len(mutants) - len(survived)} of {len(mutants)} mutants killed",
        *(f"SURVIVED: {name}" for name in survived),
        sep="\n",
    )
    return min(len(survived), 1)


def _report(mutant: Mutant) -> bool:
    failed, output = _try(mutant)
    word = f"killed by {', '.join(failed)}" if failed else "SURVIVED" + output[-2000:]
    print(f"{mutant.name:45} {word}", flush=True)
    return not failed


def _try(mutant: Mutant) -> tuple[list[str], str]:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy / name)
        _mutate(copy / mutant.file, mutant)
        run = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "--maxfail=1",
            "-p",
            "no:cacheprovider",
            "-o",
            "faulthandler_timeout=15",
            *mutant.tests.split(),
        ]
        # The faces in the process are enough, but for the client itself.
        faces = "Client AsyncClient" if "/client/" in mutant.file else "Store AsyncStore"
        engine = "postgresql" if mutant.tests == POSTGRESQL else "sqlite"
        ours = {"PYTHONPATH": f"{copy}:{copy / 'api'}", "FACES": faces, "SESSIONSTORE_TEST_ENGINE": engine}
        environment = {**os.environ, **ours}
        done = subprocess.run(run, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=600)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::([\w]+)", done.stdout, flags=re.MULTILINE)
    # A test that hangs ends the run without a word about its name (faulthandler_timeout).
    return failed or (["a test that hung"] if done.returncode != 0 else []), done.stdout


def _mutate(file: Path, mutant: Mutant) -> None:
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    file.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    sys.exit(main())
