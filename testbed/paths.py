"""Where the repository's files lie that tests read."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VECTORS: Final = ROOT / "tests" / "unit" / "vectors"
