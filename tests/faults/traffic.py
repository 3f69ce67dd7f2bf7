"""Callers over HTTP who work like agents do, repeat what was not answered, and write down what they were told."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import httpx2

from tests.faults.ledger import Ledger

TIMEOUT = httpx2.Timeout(30.0)
REFUSED = {429, 503}


class Traffic:
    """So many callers, each with a conversation of his own, in which he begins turn after turn. `address` says whom to ask."""

    def __init__(
        self, address: Callable[[], str], ledger: Ledger, callers: int, *, name: str = "c", pause: float = 0.0
    ) -> None:
        self._address, self.ledger, self._callers, self._name, self._pause = address, ledger, callers, name, pause
        self.latencies: list[float] = []
        self.ending = asyncio.Event()

    async def run(self) -> None:
        """Until `ending` is set: then each finishes the call that he is at."""
        limits = httpx2.Limits(max_connections=self._callers, max_keepalive_connections=self._callers)
        self.ledger.begin()
        async with httpx2.AsyncClient(timeout=TIMEOUT, limits=limits) as client, asyncio.TaskGroup() as callers:
            for number in range(self._callers):
                callers.create_task(self._work(client, f"{self._name}{number}"))

    async def _work(self, client: httpx2.AsyncClient, id: str) -> None:
        base = f"/v1/conversations/{id}"
        await self._call(client, "POST", "/v1/conversations", {"id": id}, id)
        for turn in itertools.count():
            token, question, reply = f"token-of-{id}-turn-{turn:06}", f"{turn}-q", f"{turn}-a"
            asked = {"holder": id, "token": token, "messages": [_message(question, f"question {turn}", "user")]}
            steps: list[Any] = [("POST", f"{base}/lease", asked, question, f"question {turn}")]
            for part in ("Let", "Let me", f"Let me see: {turn}."):
                put = {"role": "assistant", "content": part, "status": "partial"}
                steps.append(("PUT", f"{base}/messages/{reply}", put, reply, part))
            last = f"Let me see: {turn}. Four packets."
            finished = {"messages": [_message(reply, last)]}
            steps.append(("POST", f"{base}/lease/finish", finished, reply, last))
            for method, path, body, message_id, content in steps:
                if self.ending.is_set():
                    return
                self.ledger.send(id, message_id, content)
                await self._call(
                    client, method, path, body, id, message_id, {"Lease-Token": token} if path[-6:] != "/lease" else {}
                )
                await asyncio.sleep(self._pause)

    async def _call(
        self,
        client: httpx2.AsyncClient,
        method: str,
        path: str,
        body: Any,
        id: str,
        message_id: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Ask until it is answered. Whoever ends meanwhile leaves it open whether it was done."""
        while True:
            began = time.monotonic()
            try:
                answer = await client.request(method, self._address() + path, json=body, headers=headers or {})
            except (httpx2.HTTPError, OSError):
                self.ledger.answers["no answer"] += 1
                if self.ending.is_set():
                    return
                await asyncio.sleep(0.02)
                continue
            self.latencies.append(time.monotonic() - began)
            if answer.status_code in (200, 201):
                self.ledger.answers["done"] += 1
                self.ledger.acknowledge(id, message_id)
                return
            self._refused(answer, f"{method} {path}")
            if self.ending.is_set():
                return
            await asyncio.sleep(0.05)

    def _refused(self, answer: httpx2.Response, call: str) -> None:
        problem = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        self.ledger.answers[str(problem.get("code", answer.status_code))] += 1
        if answer.status_code not in REFUSED or "retry-after" not in answer.headers or not problem.get("code"):
            self.ledger.wrong.append(f"{call} was answered {answer.status_code} {answer.text[:200]}")


def _message(id: str, content: str, role: str = "assistant") -> dict[str, Any]:
    return {"id": id, "role": role, "content": content}
