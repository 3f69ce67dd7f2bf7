"""The disk that everything is measured on: a folder in memory, and an fsync of fixed cost."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SOURCE = Path(__file__).with_name("fixed_fsync.c")
FSYNC_US = 250


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, removed afterwards."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="bench-") as folder:
        yield Path(folder)


def environment(folder: Path, fsync_us: int = FSYNC_US) -> dict[str, str]:
    """The environment in which an fsync costs so much. The preloaded library is built on the spot."""
    library = folder / "fixed_fsync.so"
    if not library.exists():
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), "FIXED_FSYNC_US": str(fsync_us)}
