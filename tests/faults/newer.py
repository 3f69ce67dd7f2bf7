"""The command line of a version that has one more migration: python -m tests.faults.newer …

Its scripts are ours and one that gives messages a column and rewrites them all, in the folder of FAULTS_MIGRATIONS.
"""

import os
import shutil
from pathlib import Path

from sessionstore import migrate
from sessionstore.cli import main

REVISION = '''"""One more."""

import sqlalchemy as sa
from alembic import op

revision = "{next}"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("kind", sa.Text()))
    op.execute("UPDATE messages SET kind = 'said'")
    op.create_index("ix_messages_kind", "messages", ["conversation_pk", "kind"])
'''


NEXT = f"{int(migrate.HEAD) + 1:04}"


def prepare(folder: Path) -> None:
    """Put the scripts there."""
    shutil.copytree(migrate.script_location(), folder)
    (folder / "versions" / f"{NEXT}_one_more.py").write_text(REVISION.format(next=NEXT, head=migrate.HEAD))


if __name__ == "__main__":
    location = Path(os.environ["FAULTS_MIGRATIONS"])
    migrate.script_location = lambda: location
    migrate.HEAD = NEXT
    main()
