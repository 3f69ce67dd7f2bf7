"""What comes along with the server: pinned, hashed, listed, and few."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.one_file

ROOT = Path(__file__).parents[1]
PINS = (ROOT / "requirements/server.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVED = ("api", "client", "postgres", "otel")
PINNED = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", PINS, flags=re.MULTILINE)}


def wanted() -> list[Requirement]:
    extras = (PROJECT["optional-dependencies"][extra] for extra in SERVED)
    return [Requirement(line) for line in (*PROJECT["dependencies"], *(line for extra in extras for line in extra))]


def test_all_that_a_server_needs_is_pinned_to_what_the_project_wants() -> None:
    for one in wanted():
        assert one.specifier.contains(PINNED[canonicalize_name(one.name)]), one
        for extra in one.extras:
            assert f"{one.name}-{extra}" in PINNED


def test_each_pin_has_the_hashes_of_its_files_and_says_nothing_of_where_they_are() -> None:
    entries = re.split(r"^(?=[\w.-]+==)", PINS, flags=re.MULTILINE)[1:]
    assert len(entries) == len(PINNED)
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    # Where things are to be had from is for whoever installs to say.
    places = re.compile(r"https?://(?!cyclonedx\.org)|--(extra-)?index|--find-links|@ file:")
    for written in (ROOT / "requirements").glob("server.*"):
        assert not places.search(written.read_text())


def test_the_bill_of_materials_lists_the_same() -> None:
    bill = json.loads((ROOT / "requirements/server.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert {canonicalize_name(part["name"]): part["version"] for part in bill["components"]} == PINNED
    for part in bill["components"]:
        hashes = {one["content"] for one in part["hashes"]}
        assert hashes
        assert all(f"sha256:{one}" in PINS for one in hashes)


def test_there_are_few() -> None:
    """On Linux, with all extras of a server."""
    assert len(PROJECT["dependencies"]) <= 6
    assert len(PINNED) <= 30
