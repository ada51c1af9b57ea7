"""Draw the README's picture from a quickstart's report: `python tests/report/readme_picture.py RUN`.

Writes `report_light.png` and `report_dark.png` in `.github/pictures`: the held-out figures and the first two curves.
Each file also contains the figures and the recipe's digest, which a test compares with the README and the recipe.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from page_browser import Browser, find_browser

from bertjax.config import Config, differences, load_recipe
from bertjax.run.telemetry import METRICS_FILE, read_metrics

REPOSITORY = Path(__file__).resolve().parents[2]
PICTURES = REPOSITORY / ".github" / "pictures"
WIDTH, SCALE = 760, 2  # width of the page in pixels; pixels of the picture per pixel of the page
_KEYWORD = b"bertjax\0"
_CLIP = """(() => {
  for (const element of document.querySelectorAll('h1, .about, .verdict, .tiles, .terms, h2')) element.remove();
  const [table, chart] = ['table.rows', '.chart'].map(what => document.querySelector(what).getBoundingClientRect());
  return [table.top + scrollY - 8, chart.bottom + scrollY + 8];
})()"""


def recipe_digest() -> str:
    """The SHA-256 (hex) of the quickstart's settings; a new config field with its default does not change it."""
    settings = {key: value for key, (_, value) in sorted(differences(load_recipe("quickstart"), Config()).items())}
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()


def run_figures(run: Path) -> dict[str, Any]:
    """The held-out figures at the end of a run, and the digest of its recipe."""
    last = [record for record in read_metrics(run / METRICS_FILE) if "eval/mlm_loss" in record][-1]
    return {name: value for name, value in last.items() if name.startswith("eval/")} | {"recipe": recipe_digest()}


def read_figures(picture: Path) -> dict[str, Any]:
    """Read the figures from a text chunk of the PNG."""
    content = picture.read_bytes()
    start = content.index(b"tEXt" + _KEYWORD) + 4
    (size,) = struct.unpack(">I", content[start - 8 : start - 4])
    return json.loads(content[start + len(_KEYWORD) : start + size])


def with_figures(png: bytes, figures: dict[str, Any]) -> bytes:
    """Add the figures as a text chunk before the end of a PNG."""
    chunk = b"tEXt" + _KEYWORD + json.dumps(figures).encode()
    end = png.index(b"IEND") - 4
    return png[:end] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[end:]


def main() -> int:
    """Draw both pictures. Returns the exit code."""
    run, program = Path(sys.argv[1]), find_browser()
    if program is None:
        print("no browser: apt-get install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(program, Path(folder))
        try:
            for name, dark in (("light", False), ("dark", True)):
                browser.open(run / "report.html", WIDTH, dark=dark)
                top, bottom = browser.ask(_CLIP)
                clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": SCALE}
                shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
                picture = with_figures(base64.b64decode(shot["data"]), run_figures(run))
                (PICTURES / f"report_{name}.png").write_bytes(picture)
        finally:
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
