"""The page of `keystone report` in a real browser."""

import base64
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_browser
from PIL import Image
from runs_with_rounds import write_run_with_rounds

from keystone_robotics.monitor import Calibration
from keystone_robotics.records import Store
from keystone_robotics.report.page.data import Section, page_data
from keystone_robotics.report.page.read import read_runs
from keystone_robotics.report.page.write import write_page

pytestmark = pytest.mark.skipif(
    find_browser() is None and not os.environ.get("CI"),  # CI must not pass without looking at the page
    reason="NO BROWSER: the page is not tested; apt-get install chromium",
)

HERE = Path(__file__).parent / "screens"
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
TASKS = ("push", "pull", HOSTILE)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    arms = {"first": (0.3, 1), "medoid:k=4": (0.5, None), "keystone:k=8": (0.9, 8)}
    run = write_run_with_rounds(folder / "run", arms, TASKS, error=HOSTILE)
    Image.new("RGB", (900, 40), "teal").save(folder / "strip.png")
    section = Section("Mine", (HOSTILE,), folder / "strip.png", HOSTILE, "keystone eval")
    data = page_data(read_runs([run]), sections=[section])
    place = next(place for place in data["rounds"] if place >= 48)  # of the last arm
    frames = []
    for colour in ("red", "lime", "blue"):
        Image.new("RGB", (32, 32), colour).save(folder / "frame.png")
        frames.append("data:image/png;base64," + base64.b64encode((folder / "frame.png").read_bytes()).decode())
    data["films"] = {place: {"step": [0, 10, 48], "images": frames, "notes": [HOSTILE]}}
    write_page(folder / "page.html", data)
    return folder / "page.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    assert path, "no Chromium or Chrome in CI; apt-get install chromium"
    one = Browser(path, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def opened(browser, page):
    """The page, freshly opened; afterwards it must have been silent and alone."""
    browser.open(page)
    yield browser
    assert browser.console == []
    assert browser.requests == [page.resolve().as_uri()]


def texts(browser, selector):
    return browser.js(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


def test_the_first_screen_answers(opened):
    assert "keystone:k=8 is better than first" in opened.js("document.querySelector('h1').textContent")
    rows = texts(opened, "#answer tbody tr")
    assert len(rows) == 3
    assert "reference" in rows[0]
    assert "better" in rows[2]
    assert re.fullmatch(r"keystone:k=8 is better: \+\d.* points .*", texts(opened, "#answer .sure li")[1])
    label = opened.js("document.querySelector('#cost svg').getAttribute('aria-label')")
    assert re.search(r"keystone:k=8: \d+\.\d % at \d\.\d ms", label)
    boxes = opened.js(
        "['#answer table', '#cost'].map((one) => document.querySelector(one).getBoundingClientRect().bottom)"
    )
    assert max(boxes) < 900  # without scrolling


def test_tables_sort(opened):
    def column():
        return texts(opened, "#tasks tbody th")

    assert column() == sorted(column())
    opened.click("#tasks thead button")
    opened.click("#tasks thead button")
    assert column() == sorted(TASKS, reverse=True)
    assert opened.js("document.querySelector('#tasks th').getAttribute('aria-sort')") == "descending"
    opened.click("#tasks thead button", 1)
    rates = [float(text.partition("[")[0]) for text in texts(opened, "#tasks tbody tr > :nth-child(2)")]
    assert rates == sorted(rates, reverse=True)


def test_tasks_of_another_arm(opened):
    opened.choose("compare with first", "medoid:k=4")
    assert opened.js("document.querySelector('#tasks caption').textContent").startswith("medoid:k=4 against first")


def test_filters(opened):
    def rows():
        return texts(opened, "#list tbody tr")

    changed = rows()
    assert changed
    assert all("gained" in row or "lost" in row for row in changed)
    opened.choose("show", "all (72)")
    assert len(rows()) == 72
    opened.choose("arm", "keystone:k=8")
    opened.choose("task", "pull")
    assert len(rows()) == 8
    opened.choose("outcome", "error")
    assert rows() == []
    opened.choose("task", HOSTILE)
    opened.choose("outcome", "all")
    assert all(HOSTILE in row for row in rows())


def test_an_episode_is_opened_and_scrubbed(opened):
    opened.choose("show", "all (72)")
    opened.choose("arm", "keystone:k=8")
    opened.click("#list .open", 2)
    opened.until("document.activeElement.id == 'episode-title'")
    assert opened.js("document.querySelector('#list tr.on .open').textContent") in opened.js(
        "'● ' + document.querySelector('#episode-title').textContent"
    )
    opened.until("document.querySelectorAll('#paths path.path').length > 0")
    assert opened.js("document.querySelectorAll('#paths [data-candidate]').length") == 7  # and the executed one
    assert texts(opened, "#key li")[0].startswith("executed")
    said, drawn = texts(opened, "#now")[0], opened.js("document.querySelector('#chosen').getAttribute('d')")
    assert said.startswith("Round 1 of 6, step 0: candidate 0 of 8 was executed; consensus ")
    opened.press("ArrowRight")  # anywhere in the viewer
    assert texts(opened, "#now")[0].startswith("Round 2 of 6, step 8")
    assert opened.js("document.querySelector('#chosen').getAttribute('d')") != drawn
    opened.js("document.querySelector('#slider').focus()")
    opened.press("ArrowRight")  # of the slider itself
    opened.press("ArrowRight")
    assert texts(opened, "#now")[0].startswith("Round 4 of 6")
    opened.click("[data-strip=consensus]")  # in its middle
    assert texts(opened, "#now")[0][:7] in ("Round 3", "Round 4")
    drawn = opened.js("document.querySelector('#chosen').getAttribute('d')")
    opened.choose("up", "dimension 3")
    assert opened.js("document.querySelector('#chosen').getAttribute('d')") != drawn
    opened.click(".same button")
    opened.until("document.querySelector('#episode-title').textContent.includes('first')")


def test_paths_are_where_the_candidates_are(opened, page):
    """The way from the database to the screen, decoded by the browser."""
    opened.choose("show", "all (72)")
    opened.choose("arm", "keystone:k=8")
    opened.click("#list .open")
    opened.until("document.activeElement.id == 'episode-title'")
    opened.choose("across", "step of the chunk")
    points = opened.js("document.querySelector('#chosen').getAttribute('d')")
    shown = np.array([[float(number) for number in point.split()] for point in re.split("[ML]", points)[1:]])
    with Store(page.parent / "run") as store:
        task = sorted(TASKS)[0]
        (first, *_) = store.rounds(("keystone:k=8", task, 0, 0))
    assert len(shown) == 16
    assert np.corrcoef(shown[:, 0], np.arange(16))[0, 1] > 0.999
    assert np.corrcoef(shown[:, 1], first.candidates[0, :, 1])[0, 1] < -0.999  # up is less on a screen


def test_the_list_follows_the_keyboard(opened):
    opened.js("document.querySelector('#list .open').focus()")
    opened.press("ArrowDown")
    assert opened.js("document.activeElement == document.querySelectorAll('#list .open')[1]")


def test_what_is_not_there_is_said(opened):
    opened.choose("show", "all (72)")
    opened.choose("arm", "medoid:k=4")
    opened.click("#list .open")
    opened.until("document.querySelector('#episode-title').textContent.includes('medoid')")
    assert "--keep-rounds" in texts(opened, "#viewer .note")[0]
    opened.choose("arm", "keystone:k=8")
    opened.choose("outcome", "error")
    opened.click("#list .open")
    opened.until("!!document.querySelector('#viewer pre')")
    assert texts(opened, "#viewer pre") == [HOSTILE]


def test_hostile_names_are_text(opened):
    opened.choose("show", "all (72)")
    assert any(HOSTILE in text for text in texts(opened, "#list tbody tr"))
    assert opened.js("document.title") == opened.js("document.querySelector('h1').textContent") != "broken"
    assert opened.js("[...document.images].map((one) => [one.alt, one.naturalWidth])") == [
        [HOSTILE, 900],
        ["The environment at step 0, replayed", 32],
    ]
    assert opened.js("document.scripts.length") == 2


#: Contrast of text with what is behind it, after WCAG 2; colours come as rgb().
CONTRAST = """(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => { for (; one; one = one.parentElement) {
    const colour = numbers(getComputedStyle(one).backgroundColor); if (colour.length === 3 || colour[3] > 0) return colour; }
    return [255, 255, 255]; };
  const found = [];
  for (const one of document.querySelectorAll('body *')) {
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !one.getClientRects().length) continue;
    const style = getComputedStyle(one), ink = one instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(numbers(ink)), light(behind(one))].sort();
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) found.push([one.outerHTML.slice(0, 99), ink]);
  }
  return found; })()"""


#: Every sentence on one line: a longer one, such as the path of a run, does not move what is below it.
ONE_LINE = """for (const one of document.querySelectorAll('wbr')) one.remove();
for (const one of document.querySelectorAll('body *')) one.style.whiteSpace = 'nowrap';
for (const one of document.querySelectorAll('header, section, #answer .sure, p')) one.style.overflow = 'hidden';"""


def look(browser):
    """(H, W, 3) what is on the screen."""
    return np.asarray(Image.open(io.BytesIO(browser.screenshot())).convert("RGB"), float)


def assert_looks_like(path, pixels):
    """A screenshot against a thumbnail of 32 × 32 greys; a missing one is written anew.

    With sentences on one line, other words are up to 1.3 grey levels apart and another font 1.4; a page without its chart or
    its table 2.2 or more.
    """
    now = Image.fromarray(pixels.astype(np.uint8)).convert("L").resize((32, 32), Image.Resampling.BOX)
    if not path.exists():
        now.save(path)
        pytest.fail(f"wrote {path}: look at the page, then commit it")
    apart = np.abs(np.asarray(now, float) - np.asarray(Image.open(path), float))
    assert apart.mean() < 1.8, f"{path.name}: {apart.mean():.1f} grey levels apart on average"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 375])
def test_it_looks_right(browser, page, dark, width):
    browser.open(page, width, 812, dark)
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js(CONTRAST) == []
    pixels = look(browser)
    assert pixels.shape == (812, width, 3)
    assert (pixels.mean() < 60) if dark else (pixels.mean() > 200)
    assert (
        0.02 < (np.abs(pixels - np.median(pixels, (0, 1))).max(-1) > 60).mean() < 0.4
    )  # ink: neither blank nor a mess
    browser.js(ONE_LINE)
    thumbnail = HERE / f"{width}-{'dark' if dark else 'light'}.png"
    assert_looks_like(thumbnail, look(browser))
    for part in ("#cost svg", "#answer table"):
        browser.js(f"document.querySelector('{part}').style.display = 'none'")
        with pytest.raises(AssertionError, match="grey levels apart"):
            assert_looks_like(thumbnail, look(browser))
        browser.js(f"document.querySelector('{part}').style.display = ''")
    browser.js("document.getElementById('viewer').scrollIntoView()")
    assert browser.js("document.querySelector('#paths svg').getBoundingClientRect().right") <= width
    assert browser.console == []


def test_screen_readers_find_names(opened):
    assert opened.js(
        "[...document.querySelectorAll('table')].every((one) => one.caption && one.querySelector('th[scope=col]'))"
    )
    assert opened.js(
        "[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label') || one.ariaHidden == 'true')"
    )
    tree = opened.call("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node
        for node in tree
        if node["role"]["value"] in ("button", "combobox", "slider", "checkbox", "table", "image")
        and not node.get("ignored")
        and not node["name"]["value"]
    ]
    assert nameless == []


def test_an_alarm_has_a_strip_with_its_limit(browser, tmp_path):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.3, 1), "keystone:k=8": (0.9, 8)})
    alarm = Calibration("dispersion", "high", "constant", (0.05,), 1, 0.05, 19)
    write_page(tmp_path / "page.html", page_data(read_runs([run]), alarm=alarm))
    browser.open(tmp_path / "page.html")
    browser.choose("arm", "keystone:k=8")
    browser.click("#list button.open")
    browser.until("!!document.querySelector('[data-strip^=\"alarm score\"]')")
    label = browser.js("document.querySelector('[data-strip^=\"alarm score\"]').getAttribute('aria-label')")
    assert "0.00, 0.02, 0.03, 0.05, 0.07, 0.08" in label
    assert browser.js("document.querySelectorAll('[data-strip^=\"alarm score\"] polyline').length") == 2
    assert browser.console == []


@pytest.mark.parametrize("width", [1280, 375])
def test_long_names_of_tasks_leave_room_for_the_numbers(browser, tmp_path, width):
    """LIBERO's tasks are sentences."""
    arms = {"first": (0.3, None), "core-mean:k=16,steps=2": (0.7, None)}
    tasks = ("put both the alphabet soup and the cream cheese box in the basket", "x" * 300)
    write_page(tmp_path / "page.html", page_data(read_runs([write_run_with_rounds(tmp_path / "run", arms, tasks)])))
    browser.open(tmp_path / "page.html", width=width)
    hidden = "[...document.querySelectorAll('#tasks .wide, #list')].map((one) => one.scrollWidth - one.clientWidth)"
    assert max(browser.js(hidden)) <= 0


@pytest.mark.parametrize("width", [1280, 375])
def test_labels_of_the_cost_chart_do_not_overlap(browser, tmp_path, width):
    """Eight arms with nearly the same rate and latency."""
    arms = {f"{rule}:k={k},temperature=0.6": (0.5, k) for rule in ("medoid", "core-mean") for k in (2, 3, 4, 5)}
    run = write_run_with_rounds(tmp_path / "run", arms, ("push",), rounds=1)
    write_page(tmp_path / "page.html", page_data(read_runs([run])))
    browser.open(tmp_path / "page.html", width=width)
    boxes = browser.js(
        "[...document.querySelectorAll('#cost text.name')].map((one) => one.getBBox()).map(b => [b.x, b.y, b.width, b.height])"
    )
    assert len(boxes) == 8
    for number, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[number + 1 :]:
            apart = x + w <= x2 + 1 or x2 + w2 <= x + 1 or y + h <= y2 + 3 or y2 + h2 <= y + 3
            assert apart, (boxes[number], (x2, y2, w2, h2))


def test_a_film_follows_the_rounds(opened):
    """Frames of steps 0, 10 and 48; rounds begin at 0, 8, 16 and so on."""
    colours = "(() => { const all = Object.values(data.films)[0].images; return all.indexOf(byId('film').src); })()"
    opened.js("window.byId = (id) => document.getElementById(id); window.data = JSON.parse(byId('data').textContent)")
    assert opened.js(colours) == 0  # the filmed episode is open
    opened.js("byId('slider').value = 2; byId('slider').dispatchEvent(new Event('input'))")
    assert opened.js(colours) == 1
    assert opened.js("byId('film').alt") == "The environment at step 10, replayed"
    assert opened.js("document.querySelector('.film figcaption').textContent") == HOSTILE
    opened.js("byId('slider').value = 0; byId('slider').dispatchEvent(new Event('input'))")
    opened.click("#play")
    opened.until(f"{colours} == 2 && byId('play').textContent == 'Play'")
    assert opened.js("byId('slider').value == byId('slider').max")
    opened.click(".same button")  # the same episode of another arm, without a film
    opened.until("!byId('film')")
    assert "null" not in opened.js("byId('viewer').textContent")
