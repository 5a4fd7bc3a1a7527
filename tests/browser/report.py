"""Runs the report page in a headless browser, where Playwright and Chromium are there.

    python tests/browser/report.py [--piecewise target/release/piecewise] [--screenshots DIR]
    python tests/browser/report.py --picture docs/pictures/report.png   # the picture of the README

Needs `pip install playwright`, and Chromium by CHROMIUM, on the path, or as Playwright's own.
Without them it says so and succeeds, unless PIECEWISE_REQUIRE_BROWSER=1.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCREENS = [
    ("desktop", 1280, 900, "light"),
    ("desktop-dark", 1280, 900, "dark"),
    ("small", 360, 740, "light"),
    ("small-dark", 360, 740, "dark"),
]
# The contrast of every text with what is behind it, by the formula of WCAG 2.
CONTRAST = """() => {
  const channel = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll("body *:not(script):not(style):not(svg *)")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.getClientRects().length) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(`${e.tagName} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""
UNNAMED = """() => [...document.querySelectorAll("button, input, select, [role=button], [role=region]")]
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
  .map((e) => e.outerHTML.slice(0, 80))"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(1 if os.environ.get("PIECEWISE_REQUIRE_BROWSER") == "1" else 0)


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def heading(page):
    return page.text_content("#detail-heading")


def check_screen(page, name, width):
    expect(page.evaluate("document.documentElement.scrollWidth") <= width, f"{name}: scrolls sideways")
    expect(not (bad := page.evaluate(CONTRAST)), f"{name}: low contrast: {bad}")
    expect(not (unnamed := page.evaluate(UNNAMED)), f"{name}: without a name: {unnamed}")


def check_use(page):
    """By pointer and by keyboard: pieces, slots, search, kernels."""
    page.click("#timeline button:nth-child(3)")
    expect(heading(page).startswith("p2: piece"), heading(page))
    expect("region" in page.text_content("#detail pre"), "no IR")
    page.focus("#timeline button:nth-child(3)")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(heading(page).startswith("p3: split op"), heading(page))
    tab_stops = page.eval_on_selector_all("#timeline [tabindex='0'], #slots [tabindex='0']", "e => e.length")
    expect(tab_stops == 2, f"{tab_stops} tab stops in the maps")

    slot = page.locator("#slots rect.boundary").first
    slot.hover()
    hint = page.text_content("#hint")
    expect("boundary" in hint and "bytes" in hint and "bf16" in hint, hint)
    slot.click()
    expect(hint.startswith(page.url.split("#")[1] + ":"), f"{hint} at {page.url}")
    slot.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect("output" in page.text_content("#detail-body"), "the last slot is an output")

    page.keyboard.press("/")
    page.keyboard.type("layers.3 q_proj")
    expect(page.locator("#results li").count() > 0, "nothing found")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect("q_proj" in page.text_content("#detail"), "the search opens what it found")
    page.fill("#search", "no such thing anywhere")
    expect(page.text_content("#matches") == "0 found", page.text_content("#matches"))
    page.keyboard.press("Escape")
    expect(page.locator("#results li").count() == 0, "Escape clears the search")

    page.click("#timeline button:nth-child(3)")
    before = page.text_content("#detail caption >> nth=0")
    page.select_option("#size", index=0)
    expect(page.text_content("#detail caption >> nth=0") != before, "the sizes differ")
    page.locator("#detail td .link").first.click()
    expect(heading(page).startswith("Kernel "), heading(page))
    for button in ["#zoom-in", "#zoom-out", "#zoom-fit"]:
        page.click(button)
    expect(float(page.get_attribute("#slots", "width")) <= page.eval_on_selector("#scroll", "e => e.clientWidth") + 1,
           "fit fits")


def check_hostile(page):
    """Names of markup are text."""
    expect(page.evaluate("document.title").startswith("</script>"), page.evaluate("document.title"))
    expect("</script><script>" in page.text_content("h1"), "the name is shown")
    expect(page.locator("img, b, script:not([type])").count() == 1, "markup came from a name")
    for index in range(page.locator("#timeline button").count()):
        page.locator("#timeline button").nth(index).click()
        expect(page.locator("#detail img, #detail b").count() == 0, "markup came from a name")


def draw(page, file):
    """The step and its slots, a piece of the first layer chosen."""
    page.click("#timeline button:nth-child(3)")
    page.locator("section:has(#timeline)").screenshot(path=file)
    page.reload()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--piecewise", default=str(ROOT / "target/debug/piecewise"))
    parser.add_argument("--screenshots")
    parser.add_argument("--picture", help="where a picture of the step and its slots goes")
    args = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        skip("Playwright for Python is not installed")
    found = [shutil.which(name) for name in ["chromium", "chromium-browser", "google-chrome"]]
    browser_path = os.environ.get("CHROMIUM") or next((path for path in found if path), None)
    if not pathlib.Path(args.piecewise).exists():
        skip(f"{args.piecewise} is not built")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {}
        for name, model in [("tiny", "examples/tiny-qwen3"), ("hostile", "tests/browser/hostile.pw")]:
            pages[name] = f"{folder}/{name}.html"
            command = [args.piecewise, "inspect", "--model", model, "--html", pages[name]]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        try:
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        except Exception as error:  # Playwright has one class for everything.
            skip(f"no browser starts: {str(error).splitlines()[0]}")
        for name, width, height, scheme in SCREENS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            context.set_offline(True)
            page = context.new_page()
            faults, requests = [], []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda message: faults.append(message.text))
            page.on("dialog", lambda dialog: faults.append("a dialog opened"))
            page.on("request", lambda request: requests.append(request.url))
            for subject, check in [("tiny", check_use), ("hostile", check_hostile)]:
                page.goto(f"file://{pages[subject]}")
                if args.screenshots:
                    pathlib.Path(args.screenshots).mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=f"{args.screenshots}/{subject}-{name}.png", full_page=True)
                if args.picture and (subject, name) == ("tiny", "desktop"):
                    draw(page, args.picture)
                check_screen(page, f"{subject} {name}", width)
                check(page)
                check_screen(page, f"{subject} {name} after use", width)
            expect(not faults, f"{name}: {faults}")
            expect(all(url.startswith("file://") for url in requests), f"{name}: {requests}")
            print(f"{name}: ok")
        browser.close()


if __name__ == "__main__":
    main()
