"""Fixtures of the download tests: a stand-in of both hubs, and each hub in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import hubs
from tests.hub_lab import contents
from tests.hubs import Hub


@pytest.fixture(params=["modelscope", "huggingface"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Both hubs at one address, patient clients made impatient, and a home without tokens."""
    import huggingface_hub.constants
    from modelscope_hub import _legacy_api

    from tengtune.hub import plan, transfer

    hub = Hub(contents())
    server = hubs.serve(hub)
    for name in ("HTTP_PROXY", "http_proxy", "HF_TOKEN", "MODELSCOPE_API_TOKEN", "MODELSCOPE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MODELSCOPE_ENDPOINT", "HF_ENDPOINT"):
        monkeypatch.setenv(name, hub.url)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(_legacy_api, "REPO_TREE_PAGE_MAX_ATTEMPTS", 1)
    monkeypatch.setattr(transfer, "WAITS", (0.0,) * 5)
    monkeypatch.setattr(plan, "LISTING_WAITS", (0.0,) * 2)
    huggingface_hub.close_session()
    yield hub
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()
