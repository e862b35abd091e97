"""`tengtune docker`: commands written out by hand, read back by a parser of the tests' own, and by docker."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.docker_goldens import DOCKER_QWEN, OURS, RECIPE

from tengtune import facts
from tengtune import recipe as recipes
from tengtune.cli.main import main
from tengtune.docker import container, images, machine, places, reference, render
from tengtune.docker.places import Mount
from tengtune.ui.problems import Problem

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tengtune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command, called in tmp_path: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENGTUNE_LANG", "en")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["docker", *arguments])
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def split(text: str) -> list[str]:
    """As a shell does: shlex knows no lines that go on."""
    return shlex.split(text.replace("\\\n", ""))


@dataclass
class Parsed:
    """A docker run command, as docker takes it apart."""

    options: dict[str, list[str]] = field(default_factory=dict)
    image: str = ""
    inner: list[str] = field(default_factory=list)


NO_USERS = ["abc", "abc:users", "1000", "1000:", ":1000", "-1:1", "1:2:3", "１:１", "1000:1000 -v /:/x", ""]
NO_USERS += ["2147483648:1", "1:9999999999"]


def parsed(words: list[str]) -> Parsed:
    assert words[:2] == ["docker", "run"]
    result, waiting = Parsed(), words[2:]
    while waiting[0].startswith("-"):
        name, equals, value = waiting.pop(0).partition("=")
        if not equals and name not in ("-it", "--rm"):
            value = waiting.pop(0)
        result.options.setdefault(name, []).append(value)
    result.image, *result.inner = waiting
    return result


def mount_of(value: str) -> dict[str, str]:
    """A --mount: one line of CSV, its fields KEY=VALUE or KEY."""
    (row,) = csv.reader([value], strict=True)
    return {key: text for key, _, text in (part.partition("=") for part in row)}


def a_run(folder: Path, **places: str) -> Path:
    """A run file whose model and data are there."""
    values = {"model": "model", "data": "data.json", **places}
    (folder / values["model"]).mkdir(parents=True, exist_ok=True)
    (folder / values["data"]).parent.mkdir(parents=True, exist_ok=True)
    (folder / values["data"]).write_text("[]", encoding="utf-8")
    run = folder / "run.yaml"
    run.write_text(yaml.safe_dump({**values, "name": "a"}, allow_unicode=True), encoding="utf-8")
    return run


def host(
    root: Path, chip: str = "d802", cards: tuple[int, ...] = (0, 1, 6), driver: str = "25.5.2"
) -> machine.Machine:
    """A host with cards, a driver below /opt/ascend and npu-smi in sbin; no dcmi, no hccn.conf."""
    for path in (*(f"dev/davinci{n}" for n in cards), "dev/davinci_manager", "usr/local/sbin/npu-smi"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    texts = {
        "etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/ascend\n",
        "opt/ascend/driver/version.info": f"Version={driver}\nInnerversion=V100R001C19\n",
        "sys/bus/pci/devices/0000:c1:00.0/vendor": "0x19e5\n",
        "sys/bus/pci/devices/0000:c1:00.0/device": f"0x{chip}\n",
        "sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
        "sys/bus/pci/devices/0000:00:00.0/device": "0xd801\n",
    }
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return machine.look(root)


def test_the_command_is_the_one_written_out(tmp_path: Path, tengtune: Cli) -> None:
    a_run(tmp_path, model="../base model", data="../数据/a.json")
    (tmp_path / "runs").mkdir()
    code, out, err = tengtune("--cards", "4-5", "--chip", "A2", "--user", "1000:1000")
    assert code == 0, err
    assert out == OURS.format(folder=tmp_path, parent=tmp_path.parent)
    assert "torch==2.12.0" in err
    sources = Path(__file__).parents[2]
    assert f"pip wheel --no-deps -w tengtune-wheel {sources}\n" in err
    assert "docker cp tengtune-wheel tengtune-a:/opt/" in err
    assert "stat -c %g /dev/davinci0" in err


@pytest.mark.parametrize(
    ("arguments", "golden"),
    [
        (("recipe",), RECIPE),
        (("recipe", "-i", "my/image:1"), RECIPE.replace(RECIPE.split()[-2], "my/image:1")),
        (("docker_qwen.sh",), DOCKER_QWEN),
        (
            ("docker_qwen.sh", "-i", "my/image:1", "-c", "/data/Qwen-7B-Chat", "-n", "q"),
            DOCKER_QWEN.replace("qwenllm/qwen-mindspore:v23.0.RC3", "my/image:1")
            .replace("NOT_SET", "/data/Qwen-7B-Chat")
            .replace("--name=qwen-mindspore", "--name=q"),
        ),
    ],
)
def test_the_references_commands_are_theirs_word_by_word(
    arguments: tuple[str, ...], golden: str, tengtune: Cli
) -> None:
    code, out, err = tengtune("--like", *arguments)
    assert code == 0
    assert split(out) == split(golden)
    assert ("no --network=host" in err) == (arguments[0] == "recipe")
    assert ("no /etc/hccn.conf" in err) == (arguments[0] == "docker_qwen.sh")
    assert ("NOT_SET" in err) == (arguments == ("docker_qwen.sh",))


def test_a_checkpoint_with_blanks_stays_one_word() -> None:
    words = reference.words("docker_qwen.sh", {"checkpoint": "/a b/it's"})
    assert "/a b/it's:/data/qwen/models/Qwen-7B-Chat" in split(reference.command(words))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--like", "recipe", "-c", "x"), "docker.not_taken"),
        (("--like", "recipe", "--cards", "0"), "ui.wrong_option"),
        (("-c", "x", "--cards", "0"), "ui.wrong_option"),
        (("--cards", "0", "-s", "seed=1"), "ui.wrong_option"),
        (("--cards", "0"), "docker.chip_unknown"),
        (("--cards", "0", "-i", "--privileged"), "docker.bad_image"),
        (("--cards", "0", "-i", "x", "-n", "ä b"), "docker.bad_name"),
        *((("--cards", "0", "-i", "x", f"--user={user}"), "docker.bad_user") for user in NO_USERS),
        (("--cards", "0-x", "-i", "x"), "ranktable.bad_cards"),
        (("-i", "x"), "docker.no_cards"),
    ],
)
def test_what_does_not_go_is_refused(arguments: tuple[str, ...], code: str, tengtune: Cli) -> None:
    exit_code, out, err = tengtune(*arguments)
    assert exit_code == (3 if code == "docker.no_cards" else 2)
    assert out == ""
    assert code in err


@pytest.mark.parametrize("text", ["0,1,4", "0-1,4", "0，1、4"])
def test_lists_of_cards_in_every_notation(text: str, tengtune: Cli) -> None:
    code, out, _ = tengtune("-q", "-i", "x", "--cards", text)
    assert code == 0
    options = parsed(split(out)).options
    cards = ["/dev/davinci0", "/dev/davinci1", "/dev/davinci4"]
    assert options["--device"] == [*cards, "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert options["-e"] == ["ASCEND_VISIBLE_DEVICES=0,1,4", "ASCEND_RT_VISIBLE_DEVICES=0,1,2"]


def test_a_host_is_read_from_its_files(tmp_path: Path) -> None:
    found = host(tmp_path)
    assert (found.cards, found.chip, found.driver, found.ascend) == ((0, 1, 6), "A2", "25.5.2", "/opt/ascend")
    assert found.group == (tmp_path / "dev/davinci0").stat().st_gid
    mounts, lacking = container.host_mounts(found)
    assert [mount.source for mount in mounts] == [
        "/opt/ascend/driver",
        "/usr/local/sbin/npu-smi",
        "/etc/ascend_install.info",
    ]
    assert lacking == ["/usr/local/dcmi", "/etc/hccn.conf"]
    assert not any(mount.writable for mount in mounts)
    assert container.check_cards([1, 6], found) == (1, 6)
    with pytest.raises(Problem, match=r"no card 2\."):
        container.check_cards([1, 2], found)


def test_on_a_host_with_cards_nothing_needs_to_be_named(
    tmp_path: Path, tengtune: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path)
    found = replace(host(tmp_path / "host", driver="24.1.0"), group=1001, architecture="aarch64")
    monkeypatch.setattr(machine, "look", lambda: found)
    code, out, err = tengtune("--user", "1000:1000")
    assert code == 0, err
    command = parsed(split(out.partition(" && ")[2]))
    assert command.image == "quay.io/ascend/cann:8.2.rc1-910b-ubuntu22.04-py3.11"
    assert command.options["--group-add"] == ["1001"]
    assert command.options["-e"] == ["ASCEND_VISIBLE_DEVICES=0,1,6", "ASCEND_RT_VISIBLE_DEVICES=0,1,2"]
    assert "left out: /usr/local/dcmi, /etc/hccn.conf" in err
    assert "torch_npu==2.6.0" in err
    assert "docker.no_card" in tengtune("--cards", "0-1,3")[2]


def test_two_kinds_of_cards_are_no_kind(tmp_path: Path) -> None:
    host(tmp_path)
    other = tmp_path / "sys/bus/pci/devices/0000:c2:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x19e5\n", encoding="ascii")
    (other / "device").write_text("0xd801\n", encoding="ascii")
    assert machine.look(tmp_path).chip is None


@pytest.mark.parametrize(
    ("chip", "backend", "driver", "image"),
    [
        ("A2", "torch", "26.0.rc1", "quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11"),
        ("A2", "torch", "25.2.0", "quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11"),
        ("A2", "torch", "24.1.0", "quay.io/ascend/cann:8.2.rc1-910b-ubuntu22.04-py3.11"),
        ("A2", "torch", "24.1.rc2.2", "quay.io/ascend/cann:8.2.rc1-910b-ubuntu22.04-py3.11"),
        ("A3", "torch", "25.5.0", "quay.io/ascend/cann:9.1.0-a3-ubuntu22.04-py3.11"),
        ("910", "torch", "25.5.0", "quay.io/ascend/cann:9.0.0-910-ubuntu22.04-py3.11"),
        ("A2", "torch", "24.1.rc1", None),
        ("A2", "torch", "23.0.rc3", None),
        ("910", "mindspore", "25.5.0", None),
        ("310P", "torch", "25.5.0", None),
        (None, "torch", "25.5.0", None),
    ],
)
def test_an_image_is_chosen_or_has_to_be_named(
    chip: str | None, backend: str, driver: str, image: str | None, tmp_path: Path
) -> None:
    found = host(tmp_path, driver=driver)
    if image is None:
        with pytest.raises(Problem, match="--image"):
            images.choose(chip, backend, found)
    else:
        assert images.choose(chip, backend, found).name == image


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("a2", "-910b-"),
        ("910B4", "-910b-"),
        ("Ascend 910B4-1", "-910b-"),
        ("Atlas 800T A2", "-910b-"),
        ("8x atlas-800i-a2", "-910b-"),
        ("910ProB", "-910-"),
        ("atlas 800 9000", "-910-"),
        ("910c", "-a3-"),
        ("910b", "-910b-"),
    ],
)
def test_cards_by_the_names_people_have_for_them(text: str, tag: str, tengtune: Cli) -> None:
    code, out, err = tengtune("--cards", "0", "--chip", text)
    assert code == 0, err
    assert tag in split(out)[-2]
    assert ("is taken for the generation" in err) == (text != "a2")


@pytest.mark.parametrize("name", ["x86_64", "aarch64", "riscv64"])
def test_another_machine_need_not_be_like_this_one(
    name: str, tengtune: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cards are elsewhere: what this machine is says nothing, and the image's machines are told."""
    monkeypatch.setattr(machine.platform, "machine", lambda: name)
    code, out, err = tengtune("--cards", "0-7", "--chip", "A2")
    assert code == 0, err
    assert "-910b-" in out
    assert "for machines of aarch64, x86_64" in err
    assert "driver unknown" in err
    assert "wants 25.2, 25.3, 25.5, 25.7, 26.0, 26.1, 26.2" in err


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_question_mark_stands_for_what_is_not_known(
    lang: str, tmp_path: Path, tengtune: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", lang)
    a_run(tmp_path, model="../base model", data="../数据/a.json")
    code, _, err = tengtune("--cards", "0", "--chip", "910", "-s", "backend=mindspore")
    assert (code, "docker.backend_unknown" in err) == (2, True)
    assert "?" not in err


def test_a_driver_that_is_named_chooses_the_image(tengtune: Cli) -> None:
    code, out, err = tengtune("--cards", "0-7", "--chip", "A2", "--driver", "24.1.RC3")
    assert (code, "cann:8.2.rc1-910b-" in out, "the host's driver is not known" in err) == (0, True, False)
    code, out, err = tengtune("--cards", "0-7", "--chip", "A2", "--driver", "23.0.3")
    assert (code, out, "docker.image_unknown" in err) == (2, "", True)
    assert "take these drivers: 25.2, " in err


@pytest.mark.parametrize(("cards", "code"), [("0-7", 0), ("0-16", 2), ("8", 2)])
def test_cards_that_a_product_has(cards: str, code: int, tengtune: Cli) -> None:
    found, _, err = tengtune("--cards", cards, "--chip", "Atlas 800T A2")
    assert (found, "docker.no_slot" in err) == (code, code != 0)
    assert tengtune("--cards", cards, "--chip", "A2")[0] == 0


@pytest.mark.parametrize(("chip", "bare"), [("910A", False), ("910b4", False), ("910b", True)])
def test_the_note_on_910b_is_for_whoever_wrote_it(chip: str, bare: bool, tengtune: Cli) -> None:
    _, _, err = tengtune("--cards", "0", "--chip", chip)
    assert ("without a digit" in err) == bare


@pytest.mark.parametrize(
    ("text", "code", "exit_code"),
    [
        ("a100", "docker.not_ascend", 2),
        ("cpu", "docker.not_ascend", 2),
        ("310P3", "plan.no_training", 3),
        ("910x", "docker.chip_unlisted", 2),
    ],
)
def test_cards_that_have_no_image(text: str, code: str, exit_code: int, tengtune: Cli) -> None:
    found, out, err = tengtune("--cards", "0", "--chip", text)
    assert (found, out, code in err) == (exit_code, "", True)


def test_the_table_of_images_is_in_order_and_on_the_pages() -> None:
    """A tag says which CANN and which chip it is for; both pages show every image (A3's beside A2's)."""
    codes = {"A2": "-910b-", "A3": "-a3-", "910": "-910-"}
    rows = facts.tree("images.yaml")["images"]
    for row in rows:
        assert codes[row["chip"]] in row["image"]
        assert f"{row['cann'].lower()}-" in row["image"]
        assert row["backend"] in ("torch", "mindspore")
        assert all(version == version.lower() for version in row["drivers"])
    for page in ("docs/en/docker.md", "docs/zh/docker.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert all(row["image"].replace("-a3-", "-910b-") in text for row in rows)


def mounts(run: Path) -> dict[str, tuple[str, bool]]:
    """target -> (source, writable)"""
    return {m.target: (m.source, m.writable) for m in places.of_run(recipes.load(run))}


def test_paths_are_found_wherever_links_lead(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    for folder in (home / "runs", store / "blobs", store / "snapshot", store / "questions"):
        folder.mkdir(parents=True)
    (store / "blobs" / "abc").write_text("x", encoding="utf-8")
    (store / "snapshot" / "model.safetensors").symlink_to("../blobs/abc")
    (store / "d.json").write_text("[]", encoding="utf-8")
    (store / "q.jsonl").write_text("[]", encoding="utf-8")
    (home / "model").symlink_to(store / "snapshot")  # seen from inside: beside the run file
    (tmp_path / "alias").symlink_to(store)  # not seen from inside
    run = home / "run.yaml"
    run.write_text(
        f"model: model\ndata: [{tmp_path}/alias/d.json]\noutput: {{evaluate: [../store/q.jsonl]}}\n",
        encoding="utf-8",
    )
    assert mounts(run) == {
        f"{home}": (f"{home}", False),
        f"{home}/runs": (f"{home}/runs", True),
        f"{store}/snapshot": (f"{store}/snapshot", False),
        f"{store}/blobs": (f"{store}/blobs", False),
        f"{tmp_path}/alias/d.json": (f"{store}/d.json", False),
        f"{store}/q.jsonl": (f"{store}/q.jsonl", False),
    }


def test_what_lies_beside_the_run_file_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    run = a_run(tmp_path, data="in/data.json")
    assert mounts(run) == {
        f"{tmp_path}": (f"{tmp_path}", False),
        f"{tmp_path}/runs": (f"{tmp_path}/runs", True),
    }
    run.write_text(run.read_text(encoding="utf-8") + "output: {dir: .}\n", encoding="utf-8")
    assert mounts(run) == {f"{tmp_path}": (f"{tmp_path}", True)}


def test_a_model_that_is_still_to_come_is_downloaded_into_a_writable_folder(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.write_text("model: Qwen/Qwen2.5-0.5B\ndata: data.json\n", encoding="utf-8")
    assert mounts(run)[f"{tmp_path}/models"] == (f"{tmp_path}/models", True)
    (tmp_path / "models/Qwen2.5-0.5B").mkdir(parents=True)
    (tmp_path / "models/Qwen2.5-0.5B/config.json").touch()
    assert f"{tmp_path}/models" not in mounts(run)


def test_a_mindrecord_comes_with_its_shards_and_indexes(tmp_path: Path) -> None:
    archive = ROOT / "tests/golden/mindrecord/two_shards.tar.xz"
    store = tmp_path / "store"
    shutil.unpack_archive(archive, store)
    names = sorted(path.name for path in store.rglob("*mindrecord*") if path.is_file())
    assert len(names) == 4
    folder = next(path.parent for path in store.rglob(names[0]))
    common = names[0].removesuffix("0")
    home = tmp_path / "home"
    home.mkdir()
    run = home / "run.yaml"
    run.write_text(f"model: .\ndata: {folder}/{common}\n", encoding="utf-8")
    assert [target for target in mounts(run) if target.startswith(f"{store}")] == [
        f"{folder}/{name}" for name in names
    ]


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("model", "~/model", "docker.home"),
        ("model", "nowhere", "docker.absent"),
        ("data", "nowhere.json", "docker.absent"),
        ("output.dir", "data.json", "engine.dir_no_folder"),
        ("output.dir", "data.json/runs", "engine.dir_no_folder"),
        ("output.dir", "/", "docker.covers"),
        ("output.dir", "/usr/local", "docker.covers"),
        ("output.dir", "/etc/qwen", "docker.covers"),
        ("output.dir", "/dev/shm/runs", "docker.covers"),
        ("output.dir", "/root", "docker.covers"),
        ("output.dir", "runs\n", "docker.name"),
        ("output.dir", "runs ", "docker.name"),
    ],
)
def test_paths_that_cannot_be_mounted_are_refused(key: str, value: str, code: str, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with pytest.raises(Problem) as caught:
        places.of_run(recipes.load(run, [f"{key}={value}"]))
    assert caught.value.code == code
    assert caught.value.texts("zh")["fix"]


PATHS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/"),
    min_size=1,
    max_size=30,
).map(lambda text: f"/data/{text}x")
MOUNTS = st.builds(Mount, PATHS, PATHS, st.just("data"), st.booleans(), st.booleans())


def made(*given_mounts: Mount) -> container.Container:
    return container.Container(
        "an/image:1", "name", (0, 3), given_mounts, group=1000, folder=given_mounts[0].target
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(MOUNTS, min_size=1, max_size=3))
def test_odd_names_survive_shell_and_csv(drawn: list[Mount]) -> None:
    whole = made(*drawn)
    words = split(render.command(whole))
    if whole.to_make:
        end = words.index("&&")
        assert words[:end] == ["mkdir", "-p", *(m.source for m in drawn if m.absent)]
        words = words[end + 1 :]
    assert words == render.words(whole)
    found = parsed(words)
    assert (found.image, found.inner) == ("an/image:1", ["bash"])
    assert found.options["-w"] == [drawn[0].target]
    for value, mount in zip(found.options["--mount"], drawn, strict=True):
        expected = {"type": "bind", "source": mount.source, "target": mount.target}
        assert mount_of(value) == (expected if mount.writable else {**expected, "readonly": ""})


@settings(max_examples=60, deadline=None)
@given(st.lists(MOUNTS, min_size=1, max_size=3))
def test_odd_names_survive_compose(drawn: list[Mount]) -> None:
    service = yaml.safe_load(render.compose(made(*drawn)))["services"]["train"]
    for volume, mount in zip(service["volumes"], drawn, strict=True):
        for key, path in (("source", mount.source), ("target", mount.target)):
            assert "$" not in volume[key].replace("$$", "")  # nothing that compose would fill in
            assert volume[key].replace("$$", "$") == path


def test_a_command_in_a_shell_gets_what_was_meant(tmp_path: Path) -> None:
    """A stand-in for docker says what a real shell hands to it."""
    stub = tmp_path / "docker"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stub.chmod(0o755)
    whole = made(Mount('/数据/it\'s "$HOME" `x`, a:b\\', "/t", "data"))
    done = subprocess.run(
        ["bash", "-c", render.command(whole)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.splitlines() == render.words(whole)[1:]


# The part of the compose specification that is used here: key -> type, and what its items are.
SERVICE: dict[str, type] = {
    "image": str, "container_name": str, "command": list, "stdin_open": bool, "tty": bool,
    "network_mode": str, "ipc": str, "devices": list, "environment": dict, "volumes": list,
    "user": str, "group_add": list,
    "working_dir": str,
}  # fmt: skip
VOLUME: dict[str, type] = {"type": str, "source": str, "target": str, "read_only": bool, "bind": dict}


def checked_compose(text: str) -> dict[str, Any]:
    """The service, after a look at every key and type."""
    tree = yaml.safe_load(text)
    assert list(tree) == ["services"]
    assert list(tree["services"]) == ["train"]
    service: dict[str, Any] = tree["services"]["train"]
    assert all(type(value) is SERVICE[key] for key, value in service.items())
    texts = [*service["command"], *service["devices"], *service["environment"].values()]
    assert all(type(text) is str for text in [*texts, *service.get("group_add", [])])
    for volume in service["volumes"]:
        assert all(type(value) is VOLUME[key] for key, value in volume.items())
        assert volume["type"] == "bind"
        assert set(volume["bind"]) == {"create_host_path"}
    return service


def test_a_compose_file_says_the_same_as_the_command(tmp_path: Path, tengtune: Cli) -> None:
    a_run(tmp_path, data="../other/a.json")
    arguments = ("-q", "--cards", "[2,4)", "-i", "my:1", "--user", "1:1")
    code, text, _ = tengtune(*arguments, "--compose")
    assert code == 0
    service = checked_compose(text)
    code, out, _ = tengtune(*arguments, "--json")
    words = [json.loads(line) for line in out.splitlines()][-1]["command"]
    found = parsed(words)
    assert service["image"] == found.image == "my:1"
    assert [service["container_name"]] == found.options["--name"] == ["tengtune-a"]
    assert [service["network_mode"]] == found.options["--network"]
    assert [service["ipc"]] == found.options["--ipc"]
    assert [service["user"]] == found.options["--user"]
    assert [service["working_dir"]] == found.options["-w"] == [f"{tmp_path}"]
    assert service["devices"] == [f"{node}:{node}" for node in found.options["--device"]]
    assert [f"{key}={value}" for key, value in service["environment"].items()] == found.options["-e"]
    read = [
        (volume["source"], volume["target"], volume.get("read_only", False)) for volume in service["volumes"]
    ]
    given_mounts = [mount_of(value) for value in found.options["--mount"]]
    assert read == [(each["source"], each["target"], "readonly" in each) for each in given_mounts]
    made_by_compose = [v["source"] for v in service["volumes"] if v["bind"]["create_host_path"]]
    assert made_by_compose == [f"{tmp_path}/runs"]


def test_a_group_is_added_by_its_number() -> None:
    assert checked_compose(render.compose(made(Mount("/a", "/a", "data"))))["group_add"] == ["1000"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_flag_is_explained_beside_the_command(
    lang: str, tmp_path: Path, tengtune: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path)
    monkeypatch.setenv("TENGTUNE_LANG", lang)
    code, out, err = tengtune("--cards", "0", "-i", "x", "--explain")
    assert code == 0
    assert out.startswith(f"mkdir -p {tmp_path}/runs && docker run ")
    lines = err.splitlines()
    for flag in out.replace(" \\\n", "\n").splitlines()[1:]:
        at = lines.index(flag.strip())
        assert any(line.startswith("    ") for line in lines[at + 1 : at + 5]), flag


def test_fewer_cards_than_ranks_are_told(tmp_path: Path, tengtune: Cli) -> None:
    run = a_run(tmp_path)
    run.write_text(run.read_text(encoding="utf-8") + "parallel: {ranks: 8, nodes: 2}\n", encoding="utf-8")
    assert "wants 4 ranks" in tengtune("--cards", "0-2", "-i", "x")[2]
    assert "ranks" not in tengtune("--cards", "0-3", "-i", "x")[2]


def test_cards_that_the_run_leaves_idle_are_told(tmp_path: Path, tengtune: Cli) -> None:
    run = a_run(tmp_path)
    for backend in ("torch", "mindspore"):
        options = ("--cards", "0-3", "-i", "x", "-s", f"backend={backend}", "-s", "train.global_batch=8")
        assert "of the 4 in the container" not in tengtune(str(run), *options)[2]
        assert "takes 2 cards of the 4" in tengtune(str(run), *options, "-s", "parallel.ranks=2")[2]


def test_every_reason_there_is_has_a_text() -> None:
    whys = ("run_file", "results", "download", "model", "data", "questions")
    whole = made(*(Mount(f"/{why}", f"/{why}", why) for why in whys))
    text = render.explanation(replace(whole, user="1:1"))
    for words in ("--user=1:1", "--group-add=1000", *(f"source=/{why}," for why in whys)):
        at = next(i for i, line in enumerate(text.splitlines()) if words in line)
        assert text.splitlines()[at + 1].startswith("    "), words


def test_a_terminal_that_cannot_show_a_path_gets_no_command(tmp_path: Path) -> None:
    a_run(tmp_path, data="../other/数据.json")
    done = subprocess.run(
        [sys.executable, "-m", "tengtune", "docker", "--cards", "0", "-i", "x"],
        cwd=tmp_path,
        env={**os.environ, "TENGTUNE_LANG": "en", "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"docker.encoding" in done.stderr


def test_run_names_of_any_kind_become_names_docker_takes() -> None:
    for run, expected in (("a b", "tengtune-a-b"), ("问答", "tengtune"), ("v1.0_x", "tengtune-v1.0_x")):
        assert container.name_of(run) == expected
        assert container.check_name(container.name_of(run)) == expected


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
def test_docker_itself_takes_the_command_apart(tmp_path: Path) -> None:
    """Its client reads all flags before it looks for a daemon, which there is none of at this address."""
    whole = made(Mount('/a, "b":c $x', "/t", "data", writable=True), Mount("/数 据", "/u", "data"))
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    for words, wrong in ((render.words(whole), False), (["docker", "run", "--mount", "x", "y"], True)):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 125  # no daemon
        assert ("invalid argument" in done.stderr) == wrong


def _has_compose() -> bool:
    found = shutil.which("docker")
    return (
        bool(found) and not subprocess.run([str(found), "compose", "version"], capture_output=True).returncode
    )


@pytest.mark.skipif(not _has_compose(), reason="no docker compose here")
def test_docker_compose_takes_the_file(tmp_path: Path) -> None:
    whole = made(Mount('/a, "b":c $x', "/t", "data", writable=True), Mount("/数 据", "/u", "data"))
    (tmp_path / "compose.yaml").write_text(render.compose(whole), encoding="utf-8")
    done = subprocess.run(
        ["docker", "compose", "config", "--format", "json"], cwd=tmp_path, capture_output=True, check=True
    )
    service = json.loads(done.stdout)["services"]["train"]
    assert [volume["source"] for volume in service["volumes"]] == ['/a, "b":c $$x', "/数 据"]
