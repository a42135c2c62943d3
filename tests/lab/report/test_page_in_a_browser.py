"""The report in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def browse(path: Path, profile: Path, *flags: str) -> str:
    """What headless Chromium prints about a file, without a network."""
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update"]
    quiet += ["--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}", "--hide-scrollbars"]
    command = [str(CHROMIUM), *quiet, "--virtual-time-budget=3000", *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def picture(path: Path, folder: Path, *flags: str) -> np.ndarray:
    shot = folder / "shot.png"
    browse(path, folder / "profile", f"--screenshot={shot}", *flags)
    return np.asarray(Image.open(shot).convert("L"), dtype=float)


# Hovers over the first chart that is shown, after choosing test accuracy and hiding a method.
HOVER = """<script>
document.getElementById("test").click();
document.getElementById("operations").click();
document.getElementById("k1").click();
const lines = [...document.querySelectorAll("svg.lines")];
const seen = lines.filter((each) => each.getBoundingClientRect().width);
const box = seen[0].getBoundingClientRect();
const at = { clientX: box.left + box.width / 2, clientY: box.top + 40, bubbles: true };
seen[0].dispatchEvent(new PointerEvent("pointermove", at));
document.body.dataset.seen = seen.map((c) => c.getAttribute("aria-label")).join("; ");
document.body.dataset.said = document.getElementById("tip").textContent;
document.getElementById("theme").click();
</script></body>"""


@needs_chromium
def test_a_browser_shows_verdict_and_charts_and_reports_no_error(folder, tmp_path):
    dom = browse(folder / "whole/report.html", tmp_path / "profile", "--dump-dom")
    assert 'data-ready="yes"' in dom
    assert "data-error" not in dom
    assert "train accuracy <em>1." in dom
    assert dom.count('class="chart') > 15


@needs_chromium
def test_switches_legend_hover_and_theme_work(folder, tmp_path):
    changed = tmp_path / "hover.html"
    changed.write_text((folder / "whole/report.html").read_text().replace("</body>", HOVER))
    dom = browse(changed, tmp_path / "profile", "--dump-dom")
    assert "data-error" not in dom
    seen = re.search(r'data-seen="([^"]*)"', dom)[1]
    assert seen.split("; ") == [
        "Test accuracy against epochs",
        "Test accuracy against floating-point operations",
        "Average test accuracy against operations, muon ends at 1",
    ]
    tip = re.search(r'data-said="(epoch 4.5[^"]*)"', dom)[1]
    assert "drop-muon:epoch-shift" in tip
    assert "drop-muon:uniform" not in tip
    assert re.search(r'<html[^>]* data-theme="(dark|light)"', dom)


@needs_chromium
@pytest.mark.parametrize(
    ("name", "size"), [("whole/report.html", "1400,1200"), ("all.html", "500,1200")]
)
def test_the_page_is_light_or_dark_and_never_blank(folder, tmp_path, name, size):
    light = picture(folder / name, tmp_path, f"--window-size={size}")
    assert light.std() > 20
    assert np.median(light) > 240
    themed = tmp_path / "dark.html"
    themed.write_text((folder / name).read_text().replace("<html", '<html data-theme="dark"', 1))
    dark = picture(themed, tmp_path, f"--window-size={size}")
    assert dark.std() > 20
    assert np.median(dark) < 40
