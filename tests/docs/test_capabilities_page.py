"""The page of capabilities says what capabilities.yaml says, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ["cpu", "cuda", "ascend_910", "ascend_910b"]
NAMES = {"torch": "PyTorch", "mindspore": "MindSpore"}
WORDS = {
    "en": {"yes": "yes", "no": "no", "unverified": "unverified"},
    "zh": {"yes": "有", "no": "没有", "unverified": "未验证"},
}


def rows(lang: str) -> list[list[str]]:
    """The cells of the page's table, without its two first lines."""
    text = (ROOT / "docs" / lang / "capabilities.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("lang", WORDS)
def test_the_table_is_the_files(lang: str) -> None:
    text = (ROOT / "src" / "tengtune" / "facts" / "capabilities.yaml").read_text(encoding="utf-8")
    expected = [
        [f"`{feature}`", NAMES[backend], *(WORDS[lang][devices[device]] for device in DEVICES)]
        for feature, backends in yaml.load(text, Loader=yaml.BaseLoader).items()
        for backend, devices in backends.items()
    ]
    assert [[name, *rest] for name, _, *rest in rows(lang)] == expected
    assert len(expected) == 46
    assert all(what for _, what, *_ in rows(lang))


@pytest.mark.parametrize("lang", WORDS)
def test_no_card_has_a_yes(lang: str) -> None:
    on_cards = {cell for row in rows(lang) for cell in row[4:]}
    assert on_cards == {WORDS[lang]["no"], WORDS[lang]["unverified"]}


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "docs/en/README.md", "docs/zh/README.md"])
def test_the_lists_of_pages_name_it(page: str) -> None:
    assert "capabilities.md)" in (ROOT / page).read_text(encoding="utf-8")
