"""Keys, each for one owner, and what confines what an owner is told to his own conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORDS = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("hash", WORDS, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("owner", WORDS, nullable=False),
        sa.Column("read_only", NUMBER, nullable=False),
        sa.Column("admin", NUMBER, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("expires_at", NUMBER),
        sa.Column("revoked_at", NUMBER),
        sa.PrimaryKeyConstraint("hash", name="pk_keys"),
        sa.CheckConstraint("read_only IN (0, 1) AND admin IN (0, 1)", name=op.f("ck_keys_rights")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_keys_name", "keys", ["name"], unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"), postgresql_where=sa.text("revoked_at IS NULL"),
    )  # fmt: skip
    partial_index("ix_conversations_gone", ["owner", "change"], "deleted_at IS NOT NULL")
    partial_index("ix_conversations_queued", ["owner", "queued_count"], "queued_count > 0")


def downgrade() -> None:
    # Without them a server would let everybody in.
    if op.get_bind().execute(sa.text("SELECT count(*) FROM keys")).scalar():
        raise RuntimeError("There are keys, and an older version would serve everybody: delete them first, if that is meant")
    for name in ("queued", "gone"):
        op.drop_index(f"ix_conversations_{name}", "conversations")
    op.drop_table("keys")


def partial_index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "conversations", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
