"""Start a server, let schemathesis (in an environment of its own) call it from its OpenAPI document, stop it.

    python -m tests.fuzz [--examples N]

Fails on any 5xx and on any answer, status or header that the document does not have.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.test_serve import Server

SCHEMATHESIS = Path(__file__).parents[1] / ".venv-fuzz/bin/schemathesis"
CHECKS = ",".join(f"{aspect}_conformance" for aspect in ("status_code", "content_type", "response_schema", "response_headers"))


def main() -> int:
    """Answer schemathesis' exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--seed", default="1")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(f"sqlite:///{directory}/fuzz.db")
        try:
            arguments = ["run", f"{server.address}/openapi.json", "--seed", asked.seed, "--max-examples", str(asked.examples)]
            # Events have no end that could be waited for.
            chosen = ["--exclude-path-regex", "/events$", "--checks", f"not_a_server_error,{CHECKS}"]
            chosen += ["--phases", "examples,coverage,fuzzing,stateful"]
            return subprocess.call([SCHEMATHESIS, *arguments, *chosen], cwd=directory)
        finally:
            code = server.stop()
            sys.stdout.write(f"the server ended with {code}: {server.errors or 'no words'}\n")


if __name__ == "__main__":
    sys.exit(main())
