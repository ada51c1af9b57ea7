"""The READMEs in a browser with GitHub's layout: tables fit a phone, the first result is within two screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_browser import Browser, find_browser

REPOSITORY = Path(__file__).resolve().parents[2]
SCREEN = 800  # pixels in height
# The rules that determine widths in github-markdown-css 5.9: https://github.com/sindresorhus/github-markdown-css
STYLE = """
body { margin: 0 }
article { box-sizing: border-box; max-width: 980px; margin: 0 auto; padding: 45px;
  font: 16px/1.5 -apple-system, BlinkMacSystemFont, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif }
@media (max-width: 767px) { article { padding: 16px } }
article > * { margin: 0 0 16px }
h2 { font-size: 1.5em; margin-top: 24px; padding-bottom: .3em }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse }
th, td { padding: 6px 13px; border: 1px solid }
code, pre { font: 85% ui-monospace, SFMono-Regular, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace }
code { padding: .2em .4em; white-space: break-spaces }
pre { padding: 16px; overflow: auto; line-height: 1.45 }
pre code { padding: 0; font-size: 100%; white-space: pre }
img { max-width: 100% }
"""
WIDE_TABLES = """[...document.querySelectorAll('table')].filter(table => table.scrollWidth > table.clientWidth)
  .map(table => `${table.rows[0].innerText}: ${table.scrollWidth} of ${table.clientWidth}`)"""
END_OF_RESULT = """[...document.querySelectorAll('pre')].find(block => block.innerText.includes('MLM accuracy'))
  .getBoundingClientRect().bottom"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_tables_fit_and_the_first_result_is_near(browser: Browser, tmp_path: Path, name: str, width: int) -> None:
    markdown = pytest.importorskip("markdown_it", reason="needs markdown-it-py, which rich brings along")
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    page = markdown.MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)
    page = page.replace('src="https:', 'src="')  # no badges from the network
    (tmp_path / "page.html").write_text(
        f'<!doctype html><meta charset="utf-8"><base href="{REPOSITORY.as_uri()}/">'
        f"<style>{STYLE}</style><article>{page}</article>",
        encoding="utf-8",
    )
    browser.open(tmp_path / "page.html", width, height=SCREEN)
    assert browser.ask("document.querySelectorAll('table').length") == 4
    assert not browser.ask(WIDE_TABLES)
    assert browser.ask(END_OF_RESULT) < 2 * SCREEN
