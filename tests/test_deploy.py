"""Files in `deploy/` fit the tools that read them: by these tools' own schemas where they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

DEPLOY = Path(__file__).parents[1] / "deploy"
MANIFESTS = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8").split("\n---\n")


def manifest(kind: str, name: str) -> Any:
    (found,) = (
        document
        for document in (plain_yaml.parse(text, "kubernetes.yaml") for text in MANIFESTS)
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    )
    return found


def compose() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_the_stacks_are_stacks() -> None:
    config = load_config(DEPLOY / "stack.yaml")
    assert type(check_stack(config)).__name__ == "DynasorCoTController"
    text = manifest("ConfigMap", "scaffolding-stack")["data"]["stack.yaml"]
    assert StackConfig.model_validate(plain_yaml.parse(text, "stack.yaml")) == config


def test_the_stack_asks_the_engine_where_it_is() -> None:
    services = compose()["services"]
    for engine in ("vllm", "trtllm"):
        assert services[engine]["networks"]["default"]["aliases"] == ["engine"]
        assert services["serve"]["depends_on"][engine]["condition"] == "service_healthy"
    url = load_config(DEPLOY / "stack.yaml").workers["generation"].args["base_url"]
    assert url == "http://engine:8000/v1"
    assert manifest("Service", "engine")["spec"]["ports"][0]["port"] == 8000


def test_trtllm_serve_reads_a_long_chain_in_steps() -> None:
    """A chain resent for a probe may be longer than max_num_tokens, which the server refuses otherwise."""
    page = (DEPLOY.parent / "docs" / "models.md").read_text(encoding="utf-8")
    assert "--enable_chunked_prefill" in compose()["services"]["trtllm"]["command"]
    assert "`trtllm-serve MODEL --port 8000 --enable_chunked_prefill`" in page


def test_the_image_on_tensorrt_llm_has_what_its_scaffolding_imports() -> None:
    """1.2 imports `mcp` without requiring it; without it, stand-ins replace upstream's classes."""
    steps = (DEPLOY.parent / "docker" / "Dockerfile.tensorrt_llm").read_text(encoding="utf-8")
    assert 'pip install --constraint /held.txt ".[serve,openai,trtllm]"' in steps


def test_every_service_has_a_health_check() -> None:
    assert all("healthcheck" in service for service in compose()["services"].values())
    for name in ("engine", "scaffolding"):
        (container,) = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    (serve,) = manifest("Deployment", "scaffolding")["spec"]["template"]["spec"]["containers"]
    assert serve["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_kubernetes_takes_the_manifests() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for text in MANIFESTS:
        kubernetes_validate.validate(plain_yaml.parse(text, "kubernetes.yaml"), "1.31", strict=True)


def test_compose_takes_the_file() -> None:
    spec = pytest.importorskip("compose_viz.spec.compose_spec")
    spec.ComposeSpecification.model_validate(compose())
