"""Serve the status page: one self-contained document that polls the summary and loads nothing from elsewhere.

Text that strangers can write (reasons, addresses) reaches the page as text only. The content security policy forbids
everything but the page's own script, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from fastapi.responses import HTMLResponse


def page_response(run: int) -> HTMLResponse:
    """Return the page of a run."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY, "X-Muster-Run": str(run)})


_PAGE = (files("orchestrator") / "status.html").read_text(encoding="utf-8")
_SCRIPT = _PAGE.partition("<script>")[2].partition("</script>")[0]
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; script-src 'sha256-{_SCRIPT_HASH}'"
)
