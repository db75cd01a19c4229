"""The report in a real browser: no text lies over another, wide or narrow, and nothing is asked of the network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.evaluation.compare.compared import compare_runs, kept_samples
from scaffolding_ext.evaluation.report.page import rendered

pytestmark = pytest.mark.integration
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Every visible line of text as a rectangle, cut to what its scrolling ancestors show.
MEASURE = """
<script>
addEventListener("load", () => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const boxes = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const unseen = ["SCRIPT", "STYLE", "OPTION", "TITLE"].includes(node.parentElement.tagName.toUpperCase());
    if (unseen || !node.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
      for (let box = node.parentElement; box; box = box.parentElement) {
        if (getComputedStyle(box).overflowX === "visible" || box === document.documentElement) continue;
        const frame = box.getBoundingClientRect();
        [left, right] = [Math.max(left, frame.left), Math.min(right, frame.right)];
        [top, bottom] = [Math.max(top, frame.top), Math.min(bottom, frame.bottom)];
      }
      if (right - left > 2 && bottom - top > 4) boxes.push({ left, top, right, bottom, text: node.data.trim() });
    }
  }
  const over = [];
  for (let i = 0; i < boxes.length; i += 1) for (let j = 0; j < i; j += 1) {
    const [a, b] = [boxes[i], boxes[j]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1.5 && high > 4) over.push([a.text, b.text]);
  }
  const fills = (where) => {
    const marks = [...document.querySelectorAll(`${where} circle`)];
    return [...new Set(marks.map((mark) => mark.getAttribute("fill")))].sort();
  };
  const cards = [...document.querySelectorAll(".charts section")].map((card) => card.getBoundingClientRect().bottom);
  const below = document.querySelector("#filters").closest("section").getBoundingClientRect().top;
  const found = {
    marks: fills(".timeline"), legend: fills(".looks"), gap: below - Math.max(...cards),
    cues: [...document.querySelectorAll(".scroll")].map((box) => getComputedStyle(box).backgroundAttachment),
    width: innerWidth, scrolls: document.documentElement.scrollWidth, boxes: boxes.length, over,
    asked: performance.getEntriesByType("resource").map((entry) => entry.name),
  };
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""

# A frame of the wanted width: a window is never narrower than 500 pixels.
FRAME = """
<script>addEventListener("message", (event) => { document.querySelector("output").textContent = event.data; });</script>
<iframe src="report.html{place}" style="width: {width}px; height: 1200px; border: 0"></iframe><output></output>
"""


@pytest.fixture
def report(write_run: Callable[..., Path], tmp_path: Path) -> Path:
    def trace(number: int) -> list[dict[str, Any]]:
        probes = [
            {
                "event": "probe",
                "branch": [b],
                "seconds": 0.1 * k + 0.01 * b,
                "position": 64 * k,
                "answer": str(number + k // 3),
                "answer_class": k // 3,
            }
            for k in range(1, 12)
            for b in range(3)
        ]
        return [
            *probes,
            {"event": "vote", "branch": [], "seconds": 1.3, "answers": ["1", "2", "3"], "classes": [0, 1, 2]},
        ]

    stack = "controller: {{type: DynasorCoTController, args: {{certainty_threshold: {}}}}}\n"
    folders = [write_run("plain chain of thought", [(f"question-{n}", n % 2, 400 + n) for n in range(60)])]
    for threshold in (2, 3, 5):
        rows = [(f"question-{n}", n % 7 > 5 - threshold, 90 * threshold, {"trace": trace(n)}) for n in range(60)]
        folders.append(write_run(f"dynasor-with-threshold-{threshold}", rows, stack.format(threshold)))
    compared = compare_runs(folders)
    path = tmp_path / "report.html"
    text = rendered(compared, kept_samples(compared.runs, 60))
    path.write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    return path


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("place", ["", "#s7"])
def test_nothing_overlaps_and_nothing_is_asked_for(report: Path, width: int, place: str) -> None:
    frame = report.with_name("frame.html")
    frame.write_text(FRAME.replace("{place}", place).replace("{width}", str(width)), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1300", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    written = re.search(r"<output>(.+?)</output>", done.stdout, re.DOTALL)
    assert written is not None, done.stderr
    found = json.loads(html.unescape(written[1]))
    assert found["width"] == width
    assert found["scrolls"] <= width  # tables scroll in frames of their own
    assert found["boxes"] > 30
    assert found["over"] == []
    assert found["marks"] == found["legend"]  # each colour of a mark is explained
    assert len(found["marks"]) == (4 if place else 0)
    if not place:
        assert found["gap"] >= 10
    assert set(found["cues"]) <= {"local, local, scroll, scroll"}  # a table that goes on behind an edge casts a shadow
    assert found["asked"] == []
