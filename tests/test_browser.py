"""The report opened from disk in a real browser, as users open it: three sizes, light and dark, mouse, finger, keys.

Needs a chromium of the system's and `pip install 'joulegrad[browser]'`. Screenshots are left in scratch/screens.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import made_runs
import pytest

from joulegrad.lab import report, sweep

SCREENS = Path(__file__).parents[1] / "scratch" / "screens"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SIZES = {"wide": (1440, 900, False), "tablet": (820, 1180, True), "phone": (390, 844, True)}
JOULES = {"coded": {"uplink": 0.02, "downlink": 0.1}, "modelled": {"train": 1.5, "tail": 0.4}}


@pytest.fixture(scope="module")
def chromium():
    """The system's own; the browser tests are the only ones that need it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip("NO BROWSER: pip install 'joulegrad[browser]'")
    if found is None:
        pytest.skip("NO BROWSER: there is no chromium on the path; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS.split())
        yield browser
        browser.close()


@contextmanager
def opened(chromium, file: Path, size="wide", scheme="light"):
    """A page that is ready; at the end nothing has gone wrong in it, and nothing was asked of a network."""
    width, height, touch = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
    )
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    yield page
    assert wrong == []
    context.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Two methods at two densities and three seeds, a half-finished third method, a damaged folder, a missing run."""
    out = made_runs.small_sweep(tmp_path_factory.mktemp("runs"))
    made_runs.write(
        out / "half", [0.4, 0.6], rounds=4, finished=False, compress="ErrorFeedback(TopK(density=0.1))", cost=700.0,
        more={"joules": JOULES},
    )  # fmt: skip
    (out / "torn").mkdir()
    (out / "torn" / "header.json").write_text("{")
    (out / sweep.PLAN).write_text(json.dumps({"later": "compress=dense seed=2"}))
    return report.write(report.read([out]), out / "report.html")[0]


def curves(page, figure: str) -> list[str]:
    """Names of what a figure shows."""
    return page.evaluate(f"document.getElementById('{figure}').data.map(t => t.name).filter(Boolean)")


def rows(page, table: str) -> list[str]:
    return page.locator(f"#{table} tbody tr").all_inner_texts()


def x_range(page, figure: str) -> list[float]:
    return page.evaluate(f"document.getElementById('{figure}')._fullLayout.xaxis.range.map(Number)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_opens_from_disk_and_fits(chromium, page_file, size, scheme):
    with opened(chromium, page_file, size, scheme) as page:
        SCREENS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENS / f"report-{size}-{scheme}.png", full_page=True)
        wide, inside = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide == inside
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        for figure in page.locator(".figure").all():
            assert figure.locator(".main-svg, .absent").count() >= 1, figure.get_attribute("id")
        ink, paper = (page.evaluate(f"getComputedStyle(document.body).{of}") for of in ("color", "backgroundColor"))
        assert contrast(ink, paper) > 7
        small = page.evaluate("[...document.querySelectorAll('svg text')].map(t => parseFloat(t.style.fontSize))")
        assert min(size for size in small if size) >= 10


def contrast(*colours: str) -> float:
    """Of two colours, as the Web Content Accessibility Guidelines count it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted(map(luminance, colours), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_axis_is_switched(chromium, page_file):
    with opened(chromium, page_file) as page:
        title = "document.getElementById('pareto').layout.xaxis.title.text"
        assert page.evaluate(title) == "Σc of what was sent (modelled)"
        assert "× 0.50" in next(row for row in rows(page, "table") if row.startswith("CWMP, density=0.1"))
        page.get_by_label("Bytes sent").check()
        assert page.evaluate(title) == "payloads, all clients (coded)"
        line = next(row for row in rows(page, "table") if row.startswith("CWMP, density=0.1"))
        assert "4.00 kB" in line
        assert "× 1.00" in line
        page.get_by_label("Uplink joules").check()  # only one method kept a ledger
        assert curves(page, "pareto") == ["ErrorFeedback(TopK)"]
        assert "40.0 mJ" in next(row for row in rows(page, "table") if row.startswith("ErrorFeedback(TopK)"))


def test_a_method_is_hidden_and_comes_back(chromium, page_file):
    with opened(chromium, page_file) as page:
        before = rows(page, "table")
        button = page.get_by_role("button", name="CWMP", exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert sorted(curves(page, "pareto")) == ["ErrorFeedback(TopK)", "TopK"]
        for figure in ("rounds", "spent", "starved"):
            assert not any(name.startswith("CWMP") for name in curves(page, figure))
        assert [row for row in before if not row.startswith("CWMP")] == rows(page, "table")
        button.click()
        assert rows(page, "table") == before


def test_density_layers_and_target_are_chosen(chromium, page_file):
    with opened(chromium, page_file) as page:
        page.get_by_label("Curves at").select_option("all")
        assert len(curves(page, "rounds")) == 5
        page.get_by_label("Curves at").select_option("density=0.01")
        assert sorted(curves(page, "rounds")) == ["CWMP, density=0.01", "TopK, density=0.01"]
        page.locator("#way").select_option(label="TopK, density=0.01")
        assert page.locator("#never").inner_text() == "Never sent: fc.weight."
        page.locator("#target").select_option("0.8")
        assert "reached by 0 of 3" in next(row for row in rows(page, "table") if row.startswith("CWMP, density=0.01"))


def test_hover_says_what_a_point_is(chromium, page_file):
    with opened(chromium, page_file) as page:
        page.locator("#pareto").scroll_into_view_if_needed()
        point = page.locator("#pareto .scatterlayer .trace .points path").nth(3)
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#pareto .hoverlayer text")
        said = page.locator("#pareto .hoverlayer").text_content()
        for words in ("accuracy ", "units (modelled)", "a client-round", "B (coded)"):
            assert words in said


def test_keys_reach_everything(chromium, page_file):
    with opened(chromium, page_file) as page:
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.closest('fieldset')?.id"))
        assert {"theme", "axes", "methods", "knobs", "pareto", "rounds", "spent", "target", "way", "layers"} <= reached
        page.locator("#pareto").focus()
        whole = x_range(page, "pareto")
        page.keyboard.press("+")
        nearer = x_range(page, "pareto")
        assert nearer[1] - nearer[0] == pytest.approx(0.6 * (whole[1] - whole[0]))
        page.keyboard.press("ArrowRight")
        assert x_range(page, "pareto")[0] > nearer[0]
        page.keyboard.press("0")
        assert x_range(page, "pareto") == pytest.approx(whole)
        page.get_by_role("button", name="CWMP", exact=True).focus()
        page.keyboard.press("Space")
        assert "CWMP" not in curves(page, "pareto")
        page.get_by_label("Energy, paper's units").focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_label("Uplink joules").is_checked()


def test_a_finger_zooms_by_buttons_and_scrolls_by_dragging(chromium, page_file):
    with opened(chromium, page_file, "phone") as page:
        assert page.evaluate("document.getElementById('pareto').layout.dragmode") is False
        whole = x_range(page, "pareto")
        page.get_by_role("button", name="Accuracy against cost: zoom in").tap()
        assert x_range(page, "pareto")[0] > whole[0]
        page.get_by_role("button", name="Accuracy against cost: show all").tap()
        assert x_range(page, "pareto") == pytest.approx(whole)


def test_the_theme_is_switched_and_the_window_resized(chromium, page_file):
    with opened(chromium, page_file) as page:
        page.get_by_role("button", name="Dark").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.get_by_role("button", name="Light").is_visible()
        page.set_viewport_size({"width": 390, "height": 844})
        for _ in range(50):
            page.wait_for_timeout(100)
            if page.evaluate("document.documentElement.scrollWidth") == 390:
                break
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("document.getElementById('pareto')._fullLayout.width") < 390


def test_what_is_missing_is_said(chromium, page_file):
    with opened(chromium, page_file) as page:
        notes = page.locator("#notes summary")
        assert notes.inner_text() == "not finished: 1 · not begun: 1 · cannot be read: 1"
        notes.click()
        for words in ("half: 2 of 4 rounds", "compress=dense seed=2", "torn/header.json is damaged"):
            assert words in page.locator("#notes").inner_text()
        assert "Ways without a ledger are left out" in page.locator("#ledger-lead").inner_text()
        page.get_by_role("button", name="ErrorFeedback(TopK)").click()
        assert "Not measured or configured" in page.locator("#ledger").inner_text()


def test_what_users_call_things_is_only_text(chromium, tmp_path):
    name = "mine.Odd(what='<img src=x onerror=alert(1)></script><b>')"
    made_runs.write(tmp_path / "a", [0.5, 0.6], compress=name)
    file = report.write(report.read([tmp_path]), tmp_path / "r.html", title="<script>alert(2)</script>")[0]
    with opened(chromium, file) as page:
        assert page.locator("h1").inner_text() == "<script>alert(2)</script>"
        assert "<img src=x" in page.locator("#methods").inner_text()
        assert page.locator("main img").count() == 0


def test_a_large_sweep_is_still_small_and_drawn(chromium, tmp_path):
    layers = {f"layer{n // 8}.{n % 8}.weight": 1000 for n in range(62)}
    entries = {"layer_entries": [5] * 62, "layer_density": [0.0123456] * 62}
    for n, method in enumerate(("TopK", "CWMP", "RandomK", "ErrorFeedback(TopK", "ErrorFeedback(CWMP")):
        for density in (0.01, 0.05, 0.1, 0.2):
            compress = f"{method}(density={density})" + ")" * method.count("(")
            for seed in range(2):
                folder = made_runs.write(
                    tmp_path / f"{n}-{density}-{seed}", [0.1 + 0.003 * t + 0.001 * n for t in range(150)], seed=seed,
                    compress=compress, cost=1000 * density, more=entries,
                )  # fmt: skip
                found = json.loads((folder / "header.json").read_text())
                (folder / "header.json").write_text(json.dumps({**found, "layers": layers}))
    file = report.write(report.read([tmp_path]), tmp_path / "large.html")[0]
    assert file.stat().st_size < 6_000_000
    with opened(chromium, file) as page:
        assert len(curves(page, "pareto")) == 5
        assert page.evaluate("document.getElementById('layers').data[0].z.length") == 62
