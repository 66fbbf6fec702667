"""The table of routes: each document as JSON and, where a template shows it, as HTML."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from explorer.routes import documents, pages


def names_of(router: APIRouter) -> dict[str, set[str]]:
    """Return the parameters of each route by its path."""
    flat = {route.path: get_flat_dependant(route.dependant) for route in router.routes if isinstance(route, APIRoute)}
    return {path: {one.name for one in (*used.path_params, *used.query_params)} for path, used in flat.items()}


def test_document_is_routed_as_json_and_as_html() -> None:
    as_json, as_html = names_of(documents), names_of(pages)
    assert as_json["/v1/runs/{run}/cases"] == {"run", "before", "limit"}
    assert as_html["/court"] == {"before"}, "a page has as many lines as the default says"
    assert as_json["/v1/runs/{run}/cases/{case}"] == {"run"} | as_html["/court/{case}"] == {"run", "case"}


def test_every_document_refuses_another_run() -> None:
    found = names_of(documents)
    assert len(found) > 20
    assert [path for path, names in found.items() if "run" not in names] == []
