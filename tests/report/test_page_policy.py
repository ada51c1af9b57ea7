"""Every page has a policy against foreign scripts, and all pages come from one function."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from bertjax.convert.executable.web_page import page as web_page
from bertjax.report.page import Table, escaped, render_page, table_html

PACKAGE = Path(__file__).resolve().parents[2] / "bertjax"
HOSTILE = "</script><script>run()</script><img src=x onerror=run()>\"'&"


def test_policy_allows_only_own_styles_and_scripts() -> None:
    page = render_page("title", ["<p>text</p>"], style="p { color: red }", script="run()", reads_charts=True)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.keys() == {"default-src", "base-uri", "form-action", "style-src", "script-src"}
    assert {rules[key] for key in ("default-src", "base-uri", "form-action")} == {"'none'"}
    for kind, inner in (("style-src", r"<style>(.*?)</style>"), ("script-src", r"<script>(.*?)</script>")):
        texts = re.findall(inner, page, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[kind].split() == [f"'sha256-{one}'" for one in hashes]
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")


def test_page_without_script_allows_no_script() -> None:
    assert "script-src" not in render_page("title", [])


def test_page_with_a_library_allows_only_its_sources() -> None:
    page = web_page(HOSTILE, HOSTILE, {"labels": [HOSTILE], "inputs": [], "outputs": []}, [HOSTILE], HOSTILE)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = "'self' https://cdn.jsdelivr.net"
    assert rules["script-src"] == f"'sha256-{known}' {sources} blob: 'wasm-unsafe-eval'"
    assert rules["connect-src"] == sources and "unsafe-inline" not in policy
    assert "<script>run" not in page and "<img" not in page


def test_hostile_text_is_escaped() -> None:
    table = Table(HOSTILE, HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE),))
    page = render_page(HOSTILE, [table_html(table), f"<p>{escaped(HOSTILE)}</p>"])
    assert "<script>run" not in page and "<img" not in page and page.count("&lt;script&gt;run") >= 6


def test_all_pages_come_from_render_page() -> None:
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "<!doctype" in path.read_text()]
    assert files == ["report/page.py"], "make pages with report.page.render_page, which adds the policy"
