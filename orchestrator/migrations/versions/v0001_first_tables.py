"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cases",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("challenger", sa.String(length=42), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("outcome", sa.String(length=10), nullable=False),
        sa.Column("evidence", sa.String(length=66), nullable=False),
        sa.Column("jury", sa.Integer(), nullable=False),
        sa.Column("reveals", sa.Integer(), nullable=False),
        sa.Column("guilty_votes", sa.Integer(), nullable=False),
        sa.Column("opened_in", sa.String(length=66), nullable=False),
        sa.Column("resolved_in", sa.String(length=66), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("cases_by_commitment", "cases", ["node", "index"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("manifest_root", sa.String(length=66), nullable=False),
        sa.Column("batch_root", sa.String(length=66), nullable=False),
        sa.Column("anchor", sa.String(length=66), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("transaction", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "commitments",
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("root", sa.String(length=66), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("standing", sa.String(length=9), nullable=False),
        sa.Column("reason", sa.String(length=24), nullable=True),
        sa.PrimaryKeyConstraint("node", "index"),
    )
    op.create_index("commitments_by_step", "commitments", ["step"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=60), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("source"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "nodes",
        sa.Column("address", sa.String(length=42), nullable=False),
        sa.Column("operator", sa.String(length=42), nullable=False),
        sa.Column("role", sa.String(length=9), nullable=False),
        sa.Column("work_class", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=9), nullable=False),
        sa.Column("draw_tip", sa.String(length=66), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("address"),
    )
    op.create_table(
        "nonces",
        sa.Column("signer", sa.String(length=42), nullable=False),
        sa.Column("nonce", sa.String(length=66), nullable=False),
        sa.Column("expiry", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("signer", "nonce"),
    )
    op.create_index("nonces_by_expiry", "nonces", ["expiry"], unique=False)
    op.create_table(
        "payments",
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("amount", sa.String(length=30), nullable=False),
        sa.PrimaryKeyConstraint("block", "log_index"),
    )
    op.create_index("payments_by_node", "payments", ["node"], unique=False)
    op.create_table(
        "spent",
        sa.Column("file_hash", sa.String(length=66), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("file_hash"),
    )
    op.create_index("spent_by_step", "spent", ["step"], unique=False)
    op.create_table(
        "steps",
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("received", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("step"),
    )
    op.create_table(
        "uploads",
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(length=66), nullable=False),
        sa.Column("file_hash", sa.String(length=66), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("received", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("node", "index", "root"),
    )
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("validator", sa.String(length=42), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("index", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(length=66), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=24), nullable=True),
        sa.Column("draw_index", sa.BigInteger(), nullable=False),
        sa.Column("preimage", sa.String(length=66), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("received", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("validator", "draw_index"),
        sa.UniqueConstraint("validator", "node", "index", "root"),
    )
    op.create_index("verdicts_by_commitment", "verdicts", ["node", "index", "root"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("delete the database instead: it is rebuilt from chain and storage")
