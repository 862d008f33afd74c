"""The page of `quantmill report` in Chromium: it draws every section without an error, sorts, filters, and fits a phone."""
import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from report_models import ReportTest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
# Pictures to look at are left here if it is set.
PICTURES = os.environ.get("QUANTMILL_PICTURES")

# Runs in the page, after it has drawn itself.
QUESTIONS = r"""
<script>
addEventListener("load", () => {
  const rows = () => [...document.querySelectorAll("#tensor-table tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
  const head = (index) => document.querySelectorAll("#tensor-table th button")[index];
  const answers = {sections: [...document.querySelectorAll("section")].map((section) => section.id)};
  answers.marks = Object.fromEntries([...document.querySelectorAll("section")].map((section) => [section.id, section.querySelectorAll("svg .mark").length]));
  answers.charts = [...document.querySelectorAll("svg[aria-label]")].map((svg) => svg.getAttribute("aria-label"));
  answers.untitled = document.querySelectorAll("svg:not([aria-label])").length;
  answers.nan = [...document.querySelectorAll("svg *")].filter((node) => [...node.attributes].some((a) => /NaN|Infinity|undefined/.test(a.value))).length;
  answers.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  answers.first = rows()[0];
  answers.count = rows().length;
  head(0).click();
  answers.byName = rows().map((row) => row[0]);
  head(0).click();
  answers.byNameDown = rows().map((row) => row[0]);
  head(1).click();
  answers.errors = rows().map((row) => parseFloat(row[1]));
  const search = document.querySelector("#tensor-table input"), select = document.querySelector("#tensor-table select");
  search.value = "Experts.5.";
  search.dispatchEvent(new Event("input"));
  answers.found = rows().map((row) => row[0]);
  search.value = "";
  search.dispatchEvent(new Event("input"));
  if (select) {
    select.value = "mxfp6-e2m3";
    select.dispatchEvent(new Event("change"));
    answers.chosen = rows().map((row) => row[0]);
  }
  const print = document.createElement("pre");
  print.id = "answers";
  print.textContent = JSON.stringify(answers);
  document.body.append(print);
});
</script>
"""


def browse(*args):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
               "--enable-logging=stderr", "--virtual-time-budget=5000", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)


class Page(ReportTest):
    def prepare(self):
        super().prepare()
        cls = type(self)
        cls.page, cls.both = self.folder / "one.html", self.folder / "two.html"
        self.report(self.out, "-o", self.page, "--stats", self.folder / "calib")
        self.report(self.out, self.other, "-o", self.both)

    def ask(self, page, width):
        """The answers to QUESTIONS in a window of that width. A window has a least width, a frame has none."""
        asked = self.folder / "asked.html"
        asked.write_text(page.read_text().replace("</body>", QUESTIONS + "</body>"))
        frame = self.folder / "frame.html"
        frame.write_text(f'<body style="margin:0"><iframe id="f" src="asked.html" style="border:0;width:{width}px;height:9000px"></iframe><script>'
                         'addEventListener("load", () => { const p = document.createElement("pre"); '
                         'p.textContent = document.getElementById("f").contentDocument.getElementById("answers").textContent; document.body.append(p); });</script>')
        result = browse("--dump-dom", f"--window-size={max(width, 500)},2000", frame.as_uri())
        self.assertNotIn("CONSOLE", result.stderr)
        found = re.search(r"<pre>(.*?)</pre>", result.stdout, re.DOTALL)
        self.assertIsNotNone(found, result.stdout[-500:] + result.stderr[-2000:])
        return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))

    def picture(self, page, name, width, height):
        if PICTURES:
            frame = self.folder / "frame.html"
            frame.write_text(f'<body style="margin:0"><iframe src="{page.as_uri()}" style="border:0;width:{width}px;height:{height}px"></iframe>')
            browse(f"--screenshot={Path(PICTURES) / name}", f"--window-size={max(width, 500)},{height}", frame.as_uri())

    def check(self, answers, marks):
        self.assertEqual({name: answers["marks"][name] > 0 for name in marks}, marks)
        self.assertEqual((answers["untitled"], answers["nan"]), (0, 0))
        self.assertLessEqual(answers["wide"], 0)
        names = answers["byName"]
        self.assertEqual(names, sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]))
        self.assertEqual(answers["byNameDown"], names[::-1])
        self.assertTrue(answers["found"] and all("experts.5." in name for name in answers["found"]))

    def test_every_section_of_a_report_is_drawn_at_both_widths(self):
        self.picture(self.page, "report-1280.png", 1280, 7000)
        self.picture(self.page, "report-390.png", 390, 9000)
        for width in (390, 1280):
            with self.subTest(width=width):
                answers = self.ask(self.page, width)
                self.check(answers, {"sizes": True, "errors": True, "scales": True, "codes": True, "experts": True, "timing": True})
                self.assertEqual(answers["sections"], ["sizes", "errors", "scales", "codes", "experts", "outliers", "kept", "timing", "tensors", "provenance"])
                self.assertEqual(answers["marks"]["experts"], 24)
                self.assertTrue([chart for chart in answers["charts"] if chart.startswith("Error weighted by activations, by layer")], answers["charts"])
                self.assertEqual(answers["count"], 80)
                self.assertEqual(answers["errors"], sorted(answers["errors"], reverse=True))
                self.assertEqual(len(answers["chosen"]), 8)
                self.assertTrue(all(".self_attn." in name for name in answers["chosen"]))

    def test_two_reports_are_compared(self):
        self.picture(self.both, "compare-1280.png", 1280, 3500)
        for width in (390, 1280):
            with self.subTest(width=width):
                answers = self.ask(self.both, width)
                self.check(answers, {"sizes": True, "tensors": True, "timing": True})
                self.assertEqual(answers["sections"], ["comparison", "sizes", "tensors", "timing", "provenance-a", "provenance-b"])

    def test_a_report_with_little_in_it_is_drawn(self):
        page = self.folder / "small.html"
        self.report(self.other, "-o", page, "--no-codes")
        answers = self.ask(page, 390)
        self.check(answers, {"sizes": True, "errors": True})
        self.assertNotIn("experts", answers["sections"])

    def test_it_asks_nothing_of_a_network(self):
        self.assertEqual(re.findall(r"(?:src|href)=\"(?!data:,)|https?://(?!www\.w3\.org/2000/svg)|@import|fetch\(", self.page.read_text()), [])


if __name__ == "__main__":
    unittest.main()
