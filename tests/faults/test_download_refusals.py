"""What hubs, networks and lists of files can do wrong to a download: one screen each, nothing left behind."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest
from modelscope_hub import _legacy_api
from tests.hub_lab import ONE_HUB, SHARDS, assert_whole, console, get, problem, told
from tests.hubs import REPO, Hub, serve

from tengtune.hub import transfer
from tengtune.hub.download import bring
from tengtune.hub.plan import Wish
from tengtune.ui.problems import Problem


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "denied"), (403, "denied"), (404, "no_file"), (405, "refused"), (500, "cut"), (429, "cut")],
)
def test_answers_that_refuse_a_file(hub: Hub, tmp_path: Path, source: str, status: int, code: str) -> None:
    hub.statuses["tokenizer.json"] = [status] * 6
    assert problem(tmp_path / "m", source).code == f"download.{code}"
    assert not (tmp_path / "m" / "config.json").exists()
    hub.statuses.clear()
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")


LISTS = {"modelscope": "files", "huggingface": "main"}
"""The last part of each list's address."""


@pytest.mark.parametrize(
    ("status", "code"), [(401, "denied"), (403, "denied"), (405, "refused"), (503, "unreachable")]
)
def test_answers_that_refuse_the_list(hub: Hub, tmp_path: Path, source: str, status: int, code: str) -> None:
    hub.statuses[LISTS[source]] = [status] * 3
    fault = problem(tmp_path / "m", source)
    assert fault.code == f"download.{code}"
    assert not (tmp_path / "m").exists()


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.statuses = {LISTS[source]: [503], SHARDS[0]: [500, 429]}
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")


def test_a_model_that_is_not_there_names_the_nearest(hub: Hub, tmp_path: Path, source: str) -> None:
    fault = problem(tmp_path / "m", source, "Qwen/Qwen2.5-7B-Instuct")
    assert fault.code == "download.no_model"
    assert "Did you mean Qwen/Qwen2.5-7B-Instruct" in fault.texts()["fix"]
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("empty", [False, True])
def test_a_revision_that_is_not_there(hub: Hub, tmp_path: Path, source: str, empty: bool) -> None:
    hub.empty_for_unknown = empty
    fault = problem(tmp_path / "m", source, revision="v9")
    assert (fault.code, fault.values["revision"]) == ("download.no_revision", "v9")
    if source == "modelscope":
        assert "v1.0" in fault.texts()["fix"]


@pytest.mark.parametrize("page", [b"<html>log in to the network</html>", b"[]", b'{"Data": 5}', b"null"])
def test_something_else_answers(hub: Hub, tmp_path: Path, source: str, page: bytes) -> None:
    hub.page = page
    assert problem(tmp_path / "m", source).code in ("download.bad_answer", "download.no_revision")


def test_nothing_answers(hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODELSCOPE_ENDPOINT", "HF_ENDPOINT"):
        monkeypatch.setenv(name, "http://user:secret@127.0.0.1:9")
    fault = problem(tmp_path / "m", source)
    assert (fault.code, fault.exit_code) == ("download.unreachable", 4)
    assert "refused" in fault.texts()["why"]
    assert "--from DIR" in fault.texts()["fix"]
    assert "secret" not in f"{fault.where} {fault}"


def test_a_silent_server_is_given_up(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    monkeypatch.setattr(_legacy_api, "REPO_TREE_PAGE_TIMEOUT_SECONDS", 0.1)
    hub.delay = 0.4
    assert problem(tmp_path / "m", source).code == "download.unreachable"


@ONE_HUB
def test_a_trickle_is_given_up_and_gone_on_from(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SLOW_SECONDS", 0.1)
    hub.files = {"config.json": b"{}", "model.bin": b"12345678" * 3}
    hub.trickle = 0.03
    voice = console()
    bring(Wish(REPO, tmp_path / "m", source), voice)
    assert "B/s; going on" in told(voice)
    assert (tmp_path / "m" / "model.bin").read_bytes() == b"12345678" * 3


def test_offline_by_the_clients_own_variable(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert problem(tmp_path / "m", "huggingface").code == "download.offline_mode"
    assert hub.requests == []


def test_the_proxy_of_the_environment_is_used(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, hub.url = hub.url, "http://hub.invalid"
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("http_proxy", proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MODELSCOPE_ENDPOINT", "HF_ENDPOINT"):
        monkeypatch.setenv(name, hub.url)
    figures = get(tmp_path / "m", source)
    assert figures["source"] == "http://hub.invalid"
    assert_whole(hub, tmp_path / "m")


def test_the_old_variable_of_modelscope_is_honoured(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODELSCOPE_ENDPOINT")
    monkeypatch.setenv("MODELSCOPE_DOMAIN", hub.url)
    get(tmp_path / "m", "modelscope")
    assert_whole(hub, tmp_path / "m")


def test_a_private_model_needs_the_token(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "t0ken"
    fault = problem(tmp_path / "m", source)
    assert fault.code == "download.denied"
    variable = {"modelscope": "MODELSCOPE_API_TOKEN", "huggingface": "HF_TOKEN"}[source]
    assert variable in fault.texts()["fix"]
    monkeypatch.setenv(variable, "t0ken")
    get(tmp_path / "m", source)
    assert_whole(hub, tmp_path / "m")
    assert "t0ken" not in (tmp_path / "m" / "download.json").read_text()


def test_the_token_stays_with_the_hub(
    hub: Hub, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Hub(hub.files)
    server = serve(elsewhere)
    hub.token, hub.cdn = "t0ken", elsewhere.url
    monkeypatch.setenv({"modelscope": "MODELSCOPE_API_TOKEN", "huggingface": "HF_TOKEN"}[source], "t0ken")
    get(tmp_path / "m", source)
    server.shutdown()
    server.server_close()
    assert {r.path for r in elsewhere.requests} == {f"/cdn/{name}" for name in SHARDS}
    assert all(r.authorization is None for r in elsewhere.requests)
    assert all(r.authorization == "Bearer t0ken" for r in hub.requests)


def test_nothing_is_kept_in_the_home_folder_or_told_of_it(hub: Hub, tmp_path: Path, source: str) -> None:
    get(tmp_path / "m", source)
    assert not (tmp_path / "home").exists()
    assert all("tengtune/" in request.agent for request in hub.requests)


@ONE_HUB
@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/../../x", "a\\..\\x", "x\0y", "a//b", "x\ny", ".", "n" * 300],
)
def test_a_list_that_leads_out_of_the_folder_is_refused(
    hub: Hub, tmp_path: Path, source: str, name: str
) -> None:
    hub.extra = [{"Path": name, "Size": 1, "Type": "blob", "Sha256": "0" * 64}]
    assert problem(tmp_path / "deep" / "m", source).code == "download.unsafe_name"
    assert [p.name for p in tmp_path.rglob("*")] == []


@ONE_HUB
def test_links_in_the_folder_are_not_written_through(hub: Hub, tmp_path: Path, source: str) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / f"{SHARDS[0]}.partial").symlink_to(tmp_path / "precious")
    (tmp_path / "m" / "tokenizer.json").symlink_to(tmp_path / "nowhere")
    get(tmp_path / "m", source)
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert_whole(hub, tmp_path / "m")


@ONE_HUB
def test_a_repository_without_a_model(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.files = {"README.md": b"x", "model.q4.gguf": b"y"}
    fault = problem(tmp_path / "m", source)
    assert fault.code == "download.no_weights"
    assert "model.q4.gguf" in fault.texts()["why"]


@ONE_HUB
def test_an_index_that_names_a_shard_nobody_has(hub: Hub, tmp_path: Path, source: str) -> None:
    del hub.files[SHARDS[1]]
    assert problem(tmp_path / "m", source).code == "weights.missing_shards"
    assert not (tmp_path / "m" / "config.json").exists()
    assert json.loads((tmp_path / "m" / "download.json").read_text())["whole"] is False


@ONE_HUB
def test_a_file_where_the_folder_should_be(hub: Hub, tmp_path: Path, source: str) -> None:
    (tmp_path / "m").write_text("precious")
    assert problem(tmp_path / "m", source).code == "download.not_a_folder"
    assert problem(tmp_path / "m" / "n", source).code == "io.not_folder"
    assert (tmp_path / "m").read_text() == "precious"


@ONE_HUB
def test_two_downloads_into_one_folder(hub: Hub, tmp_path: Path, source: str) -> None:
    hub.delay = 0.2
    results: list[str] = []

    def one() -> None:
        try:
            get(tmp_path / "m", source)
            results.append("whole")
        except Problem as fault:
            results.append(fault.code)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["download.busy", "whole"]
    assert_whole(hub, tmp_path / "m")


@pytest.mark.parametrize("broken", ['{"model": 5}', "[]", '{"files": {"../x": {}}}', "\xff", "{" * 9999])
def test_a_broken_record_counts_as_none(hub: Hub, tmp_path: Path, broken: str) -> None:
    get(tmp_path / "m", "modelscope")
    (tmp_path / "m" / "download.json").write_text(broken, encoding="latin-1")
    hub.requests.clear()
    figures = get(tmp_path / "m", None)
    assert (figures["fetched"], len(hub.requests)) == (0, 1)
    assert_whole(hub, tmp_path / "m")
