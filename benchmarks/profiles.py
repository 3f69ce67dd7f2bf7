"""Where the microseconds go: py-spy looks at a busy process, and the lines it saw most are listed."""

import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import disk, http
from benchmarks.sides import Process

SECONDS = 6


def write(folder: Path, target: Path) -> None:
    """Profile the hot paths of the library and of the server."""
    if spy() is None:
        return
    text = [
        _library(folder, "one caller, FULL", "ours.Library", "one"),
        _library(folder, "16 tasks, FULL", "ours.Awaited", "many"),
    ]
    if shutil.which("wrk"):
        text.append(_server(folder))
    target.write_text("\n\n".join(text) + "\n")


def spy() -> str | None:
    """Where py-spy is."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _library(folder: Path, title: str, side: str, job: str) -> str:
    process = Process(side, folder / f"profile-{job}", disk.environment(folder))
    try:
        process.do("warm", sessions=["one", *(f"many-{n}" for n in range(200))])
        process.begin(job, seconds=SECONDS + 2)
        seen = _look(process.pid, folder)
        process.end()
    finally:
        process.close()
    return f"# {title}\n{seen}"


def _server(folder: Path) -> str:
    server = http.Served(folder / "profile-http", disk.environment(folder), "full", 18_476)
    try:
        for n in range(200):
            server.call("POST", "/v1/conversations", {"id": f"c{n}"})
        loaded = _beside(lambda: server.load(http.APPEND, 64, SECONDS + 2))
        seen = _look(server.pid, folder)
        loaded.join()
    finally:
        server.close()
    return f"# 64 clients append over HTTP, FULL\n{seen}"


def _beside(action: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def _look(pid: int, folder: Path) -> str:
    raw = folder / "profile.raw"
    command = [spy() or "", "record", "--rate", "400", "--duration", str(SECONDS), "--function", "--format", "raw",
               "--output", str(raw), "--pid", str(pid)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    own, total = Counter[str](), 0
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        own[stack.rpartition(";")[2]] += int(count)
        total += int(count)
    return "\n".join(f"{count / total:6.1%}  {where}" for where, count in own.most_common(25))
