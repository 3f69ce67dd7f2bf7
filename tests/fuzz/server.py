"""A running server, called by schemathesis (in an environment of its own) from its OpenAPI document: with a key, and without.

Finds any 5xx, any answer, status or header that the document does not have, and a server whose memory keeps growing.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from sessionstore import Store
from tests.test_serve import Server

SCHEMATHESIS = Path(__file__).parents[2] / ".venv-fuzz/bin/schemathesis"
CHECKS = ",".join(f"{aspect}_conformance" for aspect in ("status_code", "content_type", "response_schema", "response_headers"))
# Between the first pass and the last: what it knows of statements and pages is known by then.
GROWTH_BYTES = 64 * 1024 * 1024


def call_from_document(seconds: float, seed: int, examples: int) -> int:
    """Let schemathesis run again and again, with other seeds, until that time is over. Answers how often it found something."""
    found, end = 0, time.monotonic() + seconds
    for with_key in (False, True):
        until = end - (seconds / 2 if not with_key else 0)
        found += _one_server(until, seed, examples, with_key=with_key)
    return found


def _one_server(until: float, seed: int, examples: int, *, with_key: bool) -> int:
    with tempfile.TemporaryDirectory() as directory:
        url, headers = f"sqlite:///{directory}/fuzz.db", dict[str, str]()
        if with_key:
            with Store.open(url, migrate_first=True) as store:
                headers["Authorization"] = f"Bearer {store.keys.create('fuzz', 'somebody', admin=True).secret}"
        server = Server(url, SESSIONSTORE_LOG_LEVEL="error")
        found, memory = 0, list[int]()
        try:
            while not memory or time.monotonic() < until:
                found += _pass(server, directory, headers, seed + len(memory), examples)
                memory.append(_memory(server, headers))
        finally:
            code = server.stop()
            told = f"; memory {memory[0] >> 20} to {memory[-1] >> 20} MiB in {len(memory)} passes" if memory else ""
            sys.stdout.write(f"the server ended with {code}: {server.errors or 'no words'}{told}\n")
        return found + (code != 0) + (server.errors != "") + (memory[-1] - memory[0] > GROWTH_BYTES)


def _pass(server: Server, directory: str, headers: dict[str, str], seed: int, examples: int) -> int:
    arguments = ["run", f"{server.address}/openapi.json", "--seed", str(seed), "--max-examples", str(examples)]
    for name, value in headers.items():
        arguments += ["--header", f"{name}: {value}"]
    # Events have no end that could be waited for.
    chosen = ["--exclude-path-regex", "/events$", "--checks", f"not_a_server_error,{CHECKS}"]
    chosen += ["--phases", "examples,coverage,fuzzing,stateful"]
    return int(subprocess.call([SCHEMATHESIS, *arguments, *chosen], cwd=directory) != 0)


def _memory(server: Server, headers: dict[str, str]) -> int:
    told = httpx2.get(f"{server.address}/metrics", headers=headers).text
    found = re.search(r"^process_resident_memory_bytes (\S+)$", told, flags=re.MULTILINE)
    assert found is not None
    return int(float(found[1]))
