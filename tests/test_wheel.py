"""The wheel, in an environment that has nothing else: it migrates, serves and answers."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import httpx2
import pytest

import sessionstore
from sessionstore import migrate

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.wheel, pytest.mark.one_file]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_the_two_packages_and_the_migrations_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "sessionstore",
        "sessionstore_api",
        f"sessionstore-{sessionstore.__version__}.dist-info",
    }
    assert "sessionstore/migrations/env.py" in names
    assert any(name.startswith("sessionstore/migrations/versions/0001") for name in names)
    assert {"sessionstore/py.typed", "sessionstore_api/py.typed"} <= set(names)
    # The bill of materials, where PEP 770 wants it.
    assert f"sessionstore-{sessionstore.__version__}.dist-info/sboms/server.cdx.json" in names


@pytest.mark.parametrize("pinned", [False, True], ids=["newest", "pinned"])
def test_an_installed_wheel_migrates_serves_and_answers(wheel: Path, tmp_path: Path, *, pinned: bool) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    run = environment / "bin"
    pins = ["--require-hashes", "-r", ROOT / "requirements/server.txt"] if pinned else [f"{wheel}[api]"]
    subprocess.run([run / "pip", "install", "--quiet", *pins], check=True, cwd=tmp_path)
    if pinned:
        subprocess.run([run / "pip", "install", "--quiet", "--no-deps", wheel], check=True, cwd=tmp_path)
        subprocess.run([run / "pip", "check"], check=True, cwd=tmp_path)
    url = f"sqlite:///{tmp_path}/store.db"
    migrated = subprocess.run(
        [run / "sessionstore", "migrate", "--database", url], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert f"went from nothing to {migrate.HEAD}" in migrated.stdout
    serving = subprocess.Popen(
        [run / "sessionstore", "serve", "--database", url, "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert serving.stdout is not None
        address = serving.stdout.readline().split()[2]
        assert httpx2.post(f"{address}/v1/conversations", json={"id": "c"}).status_code == 201
        assert httpx2.get(f"{address}/readyz").status_code == 200
    finally:
        serving.terminate()
        serving.communicate(timeout=30)
    assert serving.returncode == 0
    doctor = subprocess.run([run / "sessionstore", "doctor", "--database", url], capture_output=True, text=True, check=False)
    assert doctor.returncode == 0, doctor.stdout


def test_the_library_alone_is_enough_to_migrate(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    run = environment / "bin"
    subprocess.run([run / "pip", "install", "--quiet", wheel], check=True, cwd=tmp_path)
    url = f"sqlite:///{tmp_path}/store.db"
    subprocess.run([run / "sessionstore", "migrate", "--database", url], check=True, cwd=tmp_path)
    serve = subprocess.run([run / "sessionstore", "serve"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "pip install 'sessionstore[api]'" in serve.stderr
