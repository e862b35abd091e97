"""report.html in a real browser: nothing is loaded, nothing complains, everything fits on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import Browser, browser
from tests.report_lab import make_recipe, write_run

from tengtune.steps import report
from tengtune.ui import language
from tengtune.ui.console import Console

PHONE, DESK = 360, 1100

OUTSIDE = """
[...document.querySelectorAll('*')]
  .map(e => [e.tagName + '.' + e.className, e.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth + 1 || box.left < -1))
  .map(([name]) => name)
"""
"""Elements that reach beyond the window's sides."""

SHOWN = "getComputedStyle(document.querySelector('.headline [lang={}]')).display != 'none'"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = make_recipe(tmp_path_factory.mktemp("page"))
    write_run(recipe)
    language.choose("zh")
    report.run(recipe, Console("quiet"))
    language.choose(None)
    return recipe.folder / "report.html"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_is_loaded_nothing_complains_and_all_fits(chromium: Browser, file: Path, width: int) -> None:
    chromium.open(file, width)
    chromium.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert [each["request"]["url"] for each in chromium.of("Network.requestWillBeSent")] == [
        file.absolute().as_uri()
    ]
    for complaint in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert chromium.of(complaint) == []
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.evaluate(OUTSIDE) == []
    assert (
        chromium.evaluate("document.title") == "客服助手 · tengtune"
    )  # not what the data's script would make it


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_verdict_is_seen_at_once(chromium: Browser, file: Path, width: int) -> None:
    chromium.open(file, width, 640)
    for number in (1, 2):
        box = chromium.evaluate(
            f"document.querySelectorAll('.headline')[{number - 1}].getBoundingClientRect().toJSON()"
        )
        assert 0 < box["top"] < box["bottom"] < 640
        assert box["height"] > 15
    assert "学到了" in chromium.evaluate("document.querySelector('.headline').innerText")


def test_a_click_changes_the_language(chromium: Browser, file: Path) -> None:
    chromium.open(file, DESK)
    assert (chromium.evaluate(SHOWN.format("zh")), chromium.evaluate(SHOWN.format("en"))) == (True, False)
    chromium.evaluate("document.querySelector('label[for=show-en]').click()")
    assert (chromium.evaluate(SHOWN.format("zh")), chromium.evaluate(SHOWN.format("en"))) == (False, True)
    text = chromium.evaluate("document.body.innerText")
    assert "It learned" in text
    assert "学到了" not in text


def test_curves_are_drawn_and_dots_stay_round(chromium: Browser, file: Path) -> None:
    chromium.open(file, PHONE)
    box = chromium.evaluate("document.querySelector('path.main').getBoundingClientRect().toJSON()")
    assert box["width"] > 200
    assert box["height"] > 80
    assert chromium.evaluate("document.querySelectorAll('path.dot').length") == 7  # before, five, after
    fonts = chromium.evaluate(
        "[...document.querySelectorAll('.plot span')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(fonts) >= 11


def test_what_is_folded_is_printed(chromium: Browser, file: Path, tmp_path: Path) -> None:
    chromium.open(file, DESK)
    run_file = "document.querySelector('#run pre').checkVisibility()"
    assert chromium.evaluate(run_file) is False
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.evaluate(run_file) is True
    assert chromium.evaluate("getComputedStyle(document.querySelector('.languages')).display") == "none"
    chromium.call("Emulation.setEmulatedMedia", media="")
    chromium.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")
