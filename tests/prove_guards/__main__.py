"""Prove that the tests can fail: take one guard out of the product at a time, and ask the test that has to notice.

    python -m tests.prove_guards [NAME …]     (make prove-guards)

Each mutant is the product with one piece of text replaced, in a copy; a mutant that survives is a missing test.
"""

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.prove_guards.mutants import MUTANTS, POSTGRESQL, Mutant
from tests.prove_guards.one_run import run

ROOT = Path(__file__).parents[2]
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
PASSED, FAILED = 0, 1
AT_ONCE = 4
"""More than there are cores: most wait for something."""


def main() -> int:
    """Try the mutants, some at a time. Answers whether one survived."""
    wanted = set(sys.argv[1:])
    if unknown := wanted - {mutant.name for mutant in MUTANTS}:
        raise SystemExit(f"No such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(AT_ONCE) as pool:
        product = _compiled(Path(directory))
        survivals = pool.map(lambda mutant: _report(product, mutant), mutants)
        survived = [mutant.name for mutant, survives in zip(mutants, survivals, strict=True) if survives]
    print(
        f"{len(mutants) - len(survived)} of {len(mutants)} mutants killed",
        *(f"SURVIVED: {name}" for name in survived),
        sep="\n",
    )
    return min(len(survived), 1)


def _compiled(product: Path) -> Path:
    """The product and its tests, compiled once."""
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, product / name, ignore=ignored) if source.is_dir() else shutil.copy2(source, product / name)
    output = product / "output"
    if run(product, output, "--collect-only") != PASSED:
        raise SystemExit(output.read_text())
    return product


def _report(product: Path, mutant: Mutant) -> bool:
    code, said = _try(product, mutant)
    if code not in (PASSED, FAILED):
        raise SystemExit(f"{mutant.name}: {mutant.test} was not run\n{said}")
    survives = code == PASSED
    print(f"{mutant.name:45} {'SURVIVED' + said[-2000:] if survives else f'killed by {mutant.test}'}", flush=True)
    return survives


def _try(product: Path, mutant: Mutant) -> tuple[int | None, str]:
    with tempfile.TemporaryDirectory() as directory:
        copy, output = Path(directory) / "mutant", Path(directory) / "output"
        shutil.copytree(product, copy, copy_function=os.link)
        _mutate(copy / mutant.file, mutant)
        # The faces in the process are enough, but for the client itself.
        faces = "Client AsyncClient" if "/client/" in mutant.file else "Store AsyncStore"
        engine = "postgresql" if mutant.tests == POSTGRESQL or "/postgresql/" in mutant.file else "sqlite"
        test = f"{mutant.tests}::{mutant.test}"
        return run(copy, output, test, FACES=faces, SESSIONSTORE_TEST_ENGINE=engine), output.read_text()


def _mutate(file: Path, mutant: Mutant) -> None:
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    # The others' copies are links to the same file.
    file.unlink()
    file.write_text(text.replace(mutant.old, mutant.new))


if __name__ == "__main__":
    sys.exit(main())
