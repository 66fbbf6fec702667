"""What deploy/ names is there: settings that load, files, ports, limits, metrics of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from explorer import app as explorer
from muster.constants import MAX_EVIDENCE_BYTES, MAX_FILE_BYTES
from muster.settings.schema import Settings
from muster.settings.sources import load_settings
from muster.tasksets.contribution_pack import MAX_PACK_BYTES
from orchestrator import app as orchestrator
from orchestrator.admission import CHECK
from orchestrator.auth import HEADER_BUFFERING, HEADER_METHOD, HEADER_TARGET
from orchestrator.elsewhere import shown_elsewhere
from testbed.paths import ROOT
from testbed.suite.sources import PRODUCTION

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "muster"}
NGINX = (DEPLOY / "nginx" / "muster.conf").read_text()
METRIC = re.compile(r"\bmuster_\w+")
MADE = re.compile(r'telemetry\.(counter|gauge|histogram)\(\s*"(\w+)"')


def exposed_metrics() -> set[str]:
    """Return the names under which the metrics of the code are scraped."""
    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    modules = [path for room in PRODUCTION for path in (ROOT / room).rglob("*.py")]
    made = [found for path in modules for found in MADE.findall(path.read_text(encoding="utf-8"))]
    assert len(made) > 40
    return {f"muster_{name}{end}" for kind, name in made for end in ends[kind]}


def expressions() -> Iterator[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    board = json.loads((DEPLOY / "grafana" / "muster.json").read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])


def settings_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a process of the compose file, its environment included."""
    service = OURS[name]
    for variable, value in service.get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    _, option, path = service["command"]
    mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    assert option == "--config"
    return load_settings(DEPLOY / mounts[path])


def test_rules_and_dashboard_name_metrics_of_the_code() -> None:
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) >= 20
    assert named - exposed_metrics() == set()


@pytest.mark.parametrize("name", sorted(OURS))
def test_settings_of_the_compose_file_load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, service = settings_of(name, monkeypatch), OURS[name]
    secrets = {secret["target"] for secret in service.get("secrets", ())}
    keys = {str(path) for path in (settings.keys.keystore, settings.keys.password_file) if path}
    assert keys <= secrets, "each key is handed over"
    assert {secret["source"] for secret in service.get("secrets", ())} <= set(COMPOSE["secrets"])
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or source.startswith(("./run", "./model")) or (DEPLOY / source).exists()


def test_nginx_passes_on_to_orchestrators_and_explorer(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, shown = [], settings_of("explorer", monkeypatch)
    for name in ("orchestrator-1", "orchestrator-2"):
        settings = settings_of(name, monkeypatch)
        ports.append(settings.orchestrator.port)
        assert settings.orchestrator.trusted_proxies == ["127.0.0.1"]
        assert settings.orchestrator.explorer_url == settings.orchestrator.url == shown.orchestrator.url
        assert COMPOSE["services"][name]["network_mode"] == "service:nginx"
    assert shown.explorer.trusted_proxies == ["127.0.0.1"]
    assert COMPOSE["services"]["explorer"]["network_mode"] == "service:nginx"
    found = [int(port) for port in re.findall(r"^ +server 127\.0\.0\.1:(\d+)", NGINX, re.MULTILINE)]
    assert found == [*ports, *reversed(ports), shown.explorer.port], "members and readers have another process first"
    weights = str(settings_of("trainer", monkeypatch).shardcast.dir)
    assert f"alias {weights}/" in NGINX
    assert f"weights:{weights}:ro" in COMPOSE["services"]["nginx"]["volumes"]


def paths_of(routes: list[Any]) -> set[str]:
    """Return a path for each route that is read, with something in the place of its parameters."""
    return {re.sub(r"{[^}]*}", "7", one.path) for one in routes if "GET" in one.methods}


def test_nginx_sends_to_the_explorer_what_the_orchestrators_have_elsewhere() -> None:
    """Both processes have the addresses about the service: nginx asks the orchestrators."""
    none: Any = SimpleNamespace()
    elsewhere = paths_of(shown_elsewhere.routes)
    own = paths_of(orchestrator.create_app(none).routes) - elsewhere
    shown = paths_of(explorer.create_app(none).routes)
    patterns = re.findall(r'"~(\^\(GET\|HEAD\):[^"]+)" +muster_explorer;', NGINX)
    sent = {path for path in own | elsewhere | shown if any(re.search(one, f"GET:{path}") for one in patterns)}
    assert len(patterns) == 5
    assert sent == elsewhere | shown - own
    assert shown & own == {"/healthz", "/readyz", "/version", "/openapi.json", "/metrics", "/v1/join"}


def test_nginx_lets_the_largest_bodies_pass() -> None:
    uploads, messages, unsigned = (int(size) << 20 for size in re.findall(r"client_max_body_size (\d+)m;", NGINX))
    assert messages > max(MAX_EVIDENCE_BYTES, MAX_PACK_BYTES)
    assert uploads == unsigned > MAX_FILE_BYTES
    assert f"proxy_set_header {HEADER_METHOD} $request_method;" in NGINX
    assert f"proxy_set_header {HEADER_TARGET} $request_uri;" in NGINX
    assert NGINX.count(f"proxy_pass http://muster_members{CHECK};") == NGINX.count(f"location = {CHECK} ") == 1
    assert f"proxy_set_header {HEADER_BUFFERING} $request_time;" in NGINX


def test_image_has_no_secret_and_no_root() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    assert re.findall(r"^USER (\w+)$", text, re.MULTILINE) == ["muster"]
    assert all((ROOT / path).exists() for path in re.findall(r"muster/[\w/.]+\.txt", text))
