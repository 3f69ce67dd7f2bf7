"""What the package shows to the world."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import sessionstore
from sessionstore import AsyncStore, Store

ROOT = Path(sessionstore.__file__).parent


def test_the_public_names_exist_and_are_documented() -> None:
    for name in sessionstore.__all__:
        found = getattr(sessionstore, name)
        assert name == "__version__" or inspect.getdoc(found)
    assert sorted(sessionstore.__all__) == sessionstore.__all__


def test_every_public_method_says_what_the_caller_gets() -> None:
    for kind in (Store, AsyncStore):
        for name, member in inspect.getmembers(kind):
            assert name.startswith("_") or inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_the_package_is_typed_and_imports_no_web_framework() -> None:
    assert (ROOT / "py.typed").exists()
    code = "import sys, sessionstore; print([m for m in ('starlette', 'uvicorn', 'httpx2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_logs_nothing_and_sets_nothing_up() -> None:
    code = "import logging, sessionstore; assert not logging.getLogger().handlers"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_arguments_after_the_subject_are_named() -> None:
    """`store.delete("x", True)` would say nothing; flags are keywords everywhere."""
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if name.startswith("_"):
            continue
        positional = [p for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(positional) <= 4, name
        assert not any(isinstance(p.default, bool) for p in positional), name


def test_functions_are_short_and_files_are_small() -> None:
    files = [*ROOT.glob("*.py"), *(ROOT.parent / "api/sessionstore_api").glob("*.py")]
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[int(len(lengths) * 0.9)] <= 30
