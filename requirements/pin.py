"""Pin what a server needs, each file by its hash, and write the bill of materials of it (CycloneDX): `make pin`.

Neither says where anything is to be had from: that is for whoever installs to choose.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PINS, BILL = HERE / "server.txt", HERE / "server.cdx.json"
EXTRAS = ("api", "client", "postgres", "otel")
HEAD = """\
# What `sessionstore serve` needs, pinned and hashed. Made by `make pin`; install it so, with your own index:
#     pip install --require-hashes -r requirements/server.txt && pip install --no-deps sessionstore
"""


def main() -> None:
    """Write both."""
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    nothing_of_places = ["--no-header", "--no-config", "--no-emit-index-url", "--no-emit-find-links"]
    whole = ["--universal", "--python-version", "3.11", "--generate-hashes", "--quiet"]
    pinned = _run("uv", "pip", "compile", HERE.parent / "pyproject.toml", *extras, *whole, *nothing_of_places)
    PINS.write_text(HEAD + pinned)
    made = _run("cyclonedx-py", "requirements", PINS, "--output-reproducible", "--of", "JSON")
    BILL.write_text(json.dumps(without_places(json.loads(made)), indent=1, sort_keys=True) + "\n")


def _run(program: str, *arguments: str | Path) -> str:
    command = [Path(sys.executable).with_name(program), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def without_places(bill: dict[str, object]) -> dict[str, object]:
    """The bill with the hashes of each part, and without where it was found, or who wrote the bill."""
    bill.pop("metadata", None)
    parts: list[dict[str, object]] = bill["components"]  # type: ignore[assignment]
    for part in parts:
        found: list[dict[str, object]] = part.pop("externalReferences", [])  # type: ignore[assignment]
        part["hashes"] = [one for reference in found for one in reference["hashes"]]  # type: ignore[attr-defined]
        del part["description"]
    return bill


if __name__ == "__main__":
    main()
