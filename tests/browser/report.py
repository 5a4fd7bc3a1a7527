"""Runs the report page in a headless browser, where Playwright and Chromium are there.

    python tests/browser/report.py [--piecewise target/release/piecewise] [--screenshots DIR]
    python tests/browser/report.py --pictures docs/pictures   # the pictures of the README and docs/dumps.md

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


def check_graph(page):
    """The graph with one layer for its equals, its nodes, and the remarks."""
    note = page.text_content("#graph-note")
    expect("that are equal" in note, note)
    drawn = page.locator("#graph .node").count()
    nodes = page.evaluate("data.nodes.length")
    expect(0 < drawn < nodes / 2, f"{drawn} of {nodes} nodes are drawn")
    # Between the first and the last of six layers.
    expect(page.evaluate("equal.times") == 5, f"{page.evaluate('equal.times')} of the layers are equal")
    kinds = page.evaluate("new Set(data.steps.map((step) => step.unique)).size")
    shown = page.evaluate("new Set([...nodeShapes.keys()].map((at) => data.steps[data.nodes[at].step].unique)).size")
    expect(shown == kinds, f"of {kinds} unique pieces {shown} are drawn")
    expect(page.locator("#graph .edge").count() >= drawn - 2, "nodes without lines")
    expect(page.locator("#graph .edge.next").count() > 0, "nothing leads to the next layer")
    boxes = page.eval_on_selector_all("#graph .node rect", "e => e.map((r) => [+r.getAttribute('y'), +r.getAttribute('height')])")
    boxes.sort()
    expect(all(a[0] + a[1] <= b[0] for a, b in zip(boxes, boxes[1:])), "nodes overlap")

    page.locator("#graph .node.region").nth(1).click()
    expect(heading(page).startswith("Node ") and "region" in heading(page), heading(page))
    for fact in ["fuses", "operations", "bytes read", "written in"]:
        expect(page.locator("#detail dt", has_text=fact).count() > 0, f"no {fact}")
    expect(page.locator("#detail table", has_text="Remarks at").count() == 1, "no remarks at the node")
    expect(page.locator("#graph .node.chosen").count() == 1, "the node is not marked")
    # What was chosen comes back with the address.
    address = heading(page)
    page.reload()
    expect(heading(page) == address, f"{heading(page)} for {address}")
    page.focus("#graph .node[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(heading(page).startswith("Node "), heading(page))
    # A node of the last layer is shown by the one that stands for it.
    last = page.evaluate("data.nodes.findLastIndex((node) => isFolded(node.step))")
    page.evaluate(f"showNode({last})")
    expect(page.locator("#graph .node.chosen").count() == 1, "a node of a later layer is not marked")
    expect("layers.5" in page.text_content("#detail"), "it is the last layer's")

    rows = page.locator("#remarks tbody tr")
    every = rows.count()
    expect(every == page.evaluate("data.remarks.length") > 5, f"{every} remarks")
    expect(page.evaluate("data.remarks.some((remark) => remark.equals.length === 5)"), "no remark stands for six layers")
    page.select_option("#remarks-pass", "split")
    expect(0 < rows.count() < every and "split here" in page.text_content("#remarks"), "remarks of one pass")
    page.fill("#search", "split here")
    page.keyboard.press("Enter")
    expect(heading(page).startswith("split: split here"), heading(page))
    page.fill("#search", "")


def check_kernels(page):
    """Of a GPU: what kernels take of it, and why their ways come first."""
    page.click("#timeline button:last-child")
    expect("Why each part is computed so" in page.text_content("#detail"), "no reasons")
    page.locator("#detail td .link", has_text="region").first.click()
    expect(heading(page).startswith("Kernel "), heading(page))
    for fact in ["registers of a thread", "shared memory of a block", "blocks on a multiprocessor"]:
        expect(page.locator("#detail dt", has_text=fact).count() == 1, f"no {fact}")
    expect("__global__" in page.text_content("#detail pre >> nth=-1"), "no source")


def check_hostile(page):
    """Names of markup are text."""
    expect(page.evaluate("document.title").startswith("</script>"), page.evaluate("document.title"))
    expect("</script><script>" in page.text_content("h1"), "the name is shown")
    expect(page.locator("img, b, script:not([type])").count() == 1, "markup came from a name")
    for index in range(page.locator("#timeline button").count()):
        page.locator("#timeline button").nth(index).click()
        expect(page.locator("#detail img, #detail b").count() == 0, "markup came from a name")


def draw(page, folder):
    """The pictures of the documents: the step and its slots with a piece of the first layer chosen, the
    graph, and the remarks of fusion."""
    page.click("#timeline button:nth-child(3)")
    page.locator("section:has(#timeline)").screenshot(path=folder / "report.png")
    page.locator("#graph .node.region").nth(1).click()
    page.locator("section:has(#graph)").screenshot(path=folder / "report-graph.png")
    page.select_option("#remarks-pass", "fuse")
    page.evaluate("[...document.querySelectorAll('#remarks tbody tr')].slice(8).forEach((row) => row.remove())")
    page.locator("section:has(#remarks)").screenshot(path=folder / "report-remarks.png")
    page.reload()


def check_pictures(folder):
    """The pictures of the page in the documents are the ones that are drawn here, each is shown, and all are
    as wide as they are drawn: by another page they would be drawn anew."""
    kept = ROOT / "docs/pictures"
    drawn = sorted(path.name for path in folder.glob("*.png"))
    there = sorted(path.name for path in kept.glob("report*.png"))
    expect(drawn == there, f"{drawn} are drawn, and {there} are in {kept}")
    shown = "".join((ROOT / name).read_text() for name in ["README.md", "docs/dumps.md"])
    width = lambda path: int.from_bytes(path.read_bytes()[16:20], "big")
    for name in drawn:
        expect(f"pictures/{name}" in shown, f"no document shows {name}")
        widths = width(folder / name), width(kept / name)
        expect(widths[0] == widths[1], f"{name} is {widths[1]} wide, and drawn {widths[0]} wide: draw it anew")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--piecewise", default=str(ROOT / "target/debug/piecewise"))
    parser.add_argument("--screenshots")
    parser.add_argument("--pictures", type=pathlib.Path, help="the folder where the pictures of documents go")
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
        subjects = [("tiny", "examples/tiny-qwen3", check_use), ("graph", "examples/tiny-qwen3", check_graph),
                    ("hostile", "tests/browser/hostile.pw", check_hostile)]
        if os.environ.get("PIECEWISE_CUDA_LIBRARY_DIRS"):
            subjects.append(("gpu", "examples/block.pw", check_kernels))
        else:
            print("skipped: the page of a GPU, for which PIECEWISE_CUDA_LIBRARY_DIRS has to name NVRTC")
        for name, model, _ in subjects:
            pages[name] = f"{folder}/{name}.html"
            command = [args.piecewise, "inspect", "--model", model, "--html", pages[name], "--no-cache"]
            command += ["--device", "cuda:sm_90a", "--tune", "off"] if name == "gpu" else []
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        pictures = args.pictures or pathlib.Path(folder) / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
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
            for subject, _, check in subjects:
                page.goto(f"file://{pages[subject]}")
                if args.screenshots:
                    pathlib.Path(args.screenshots).mkdir(parents=True, exist_ok=True)
                    page.screenshot(path=f"{args.screenshots}/{subject}-{name}.png", full_page=True)
                if (subject, name) == ("tiny", "desktop"):
                    draw(page, pictures)
                check_screen(page, f"{subject} {name}", width)
                check(page)
                check_screen(page, f"{subject} {name} after use", width)
            expect(not faults, f"{name}: {faults}")
            expect(all(url.startswith("file://") for url in requests), f"{name}: {requests}")
            print(f"{name}: ok")
        browser.close()
        if not args.pictures:
            check_pictures(pictures)


if __name__ == "__main__":
    main()
