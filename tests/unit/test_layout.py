"""Texts in columns of a terminal: a Chinese character takes two."""

from __future__ import annotations

import textwrap

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.cli.command import Formatter
from tengtune.ui.layout import columns, wrapped


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("显存", 4), ("（a）", 5), ("", 0)])
def test_chinese_characters_take_two_columns(text: str, width: int) -> None:
    assert columns(text) == width


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("减小序列长度，再试一次", 8, ["减小序列", "长度，再", "试一次"]),
        ("一二三四，五", 8, ["一二三", "四，五"]),  # no mark at the begin of a line
        ("一二三（ab）四", 8, ["一二三", "（ab）四"]),  # nor a bracket at its end
        ("用 --fix 写", 6, ["用", "--fix", "写"]),
        ("/a/very/long/path 在", 4, ["/a/very/long/path", "在"]),
        ("", 4, []),
    ],
)
def test_lines_end_where_chinese_lines_may(text: str, width: int, lines: list[str]) -> None:
    assert list(wrapped(text, width)) == lines


@given(st.lists(st.text("abc-", min_size=1, max_size=9), max_size=30), st.integers(9, 40))
def test_english_is_wrapped_as_textwrap_does(words: list[str], width: int) -> None:
    text = " ".join(words)
    assert list(wrapped(text, width)) == textwrap.wrap(text, width, break_on_hyphens=False)


@given(st.text("显存abc ，。（）", max_size=80), st.integers(12, 40))
def test_nothing_is_lost(text: str, width: int) -> None:
    assert "".join("".join(wrapped(text, width)).split()) == "".join(text.split())


def test_texts_of_options_stand_below_each_other() -> None:
    formatter = Formatter(width=40)
    assert isinstance(formatter, click.HelpFormatter)
    formatter.write_dl([("--model 路径", "模型目录"), ("--n", "一"), ("-" * 32, "二")])
    assert formatter.getvalue().splitlines() == [
        "--model 路径" + " " * 20 + "模型目录",
        "--n" + " " * 29 + "一",
        "-" * 32,
        " " * 32 + "二",
    ]
