"""Start of the migrations. A new database gets its tables from `orchestrator.tables`; later changes follow as files."""

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass
