"""The pages of `keystone report` and `keystone inspect` in a real browser."""

import base64
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import chromium
from PIL import Image
from playwright.sync_api import Error, expect
from runs_with_rounds import write_run_with_rounds

from keystone_robotics.evaluate.demonstrations import Frame
from keystone_robotics.monitor import Calibration
from keystone_robotics.records import Store
from keystone_robotics.report import inspection
from keystone_robotics.report.page.data import Section, page_data
from keystone_robotics.report.page.read import read_runs
from keystone_robotics.report.page.write import write_page

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
def browser():
    try:
        with chromium() as one:
            yield one
    except Error as error:
        if os.environ.get("CI"):  # which must not pass without looking at the page
            raise
        pytest.skip(f"NO BROWSER: the page is not tested; apt-get install chromium ({error.message.splitlines()[0]})")


@pytest.fixture(scope="module")
def tabs(browser):
    """A tab of a desktop and one of a phone, and what they said and asked a network for."""
    said, asked = [], []
    found = {phone: browser.new_page(is_mobile=phone) for phone in (False, True)}
    for tab in found.values():
        tab.on("console", lambda one: said.append(one.text) if one.type in ("error", "warning", "assert") else None)
        tab.on("pageerror", lambda error: said.append(error.message))
        tab.on("request", lambda one: None if one.url.startswith("data:") else asked.append(one.url))
    return found, said, asked


@pytest.fixture
def show(tabs):
    """Opens a file at a size in CSS pixels. Afterwards its page must have been silent and alone."""
    tabs, said, asked = tabs
    said.clear()
    asked.clear()
    files = []

    def open_file(path, width=1280, height=900, dark=False):
        tab = tabs[width < 600]
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme="dark" if dark else "light")
        files.append(path.resolve().as_uri())
        tab.goto(files[-1])
        return tab

    yield open_file
    assert said == []
    assert asked == files


@pytest.fixture
def opened(show, page):
    return show(page)


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def choose(page, label, text):
    page.get_by_role("combobox", name=label, exact=True).select_option(label=text)


def test_the_first_screen_answers(opened):
    assert "keystone:k=8 is better than first" in opened.evaluate("document.querySelector('h1').textContent")
    rows = texts(opened, "#answer tbody tr")
    assert len(rows) == 3
    assert "reference" in rows[0]
    assert "better" in rows[2]
    assert re.fullmatch(r"keystone:k=8 is better: \+\d.* points .*", texts(opened, "#answer .sure li")[1])
    label = opened.evaluate("document.querySelector('#cost svg').getAttribute('aria-label')")
    assert re.search(r"keystone:k=8: \d+\.\d % at \d\.\d ms", label)
    boxes = opened.evaluate(
        "['#answer table', '#cost'].map((one) => document.querySelector(one).getBoundingClientRect().bottom)"
    )
    assert max(boxes) < 900  # without scrolling


def test_tables_sort(opened):
    def column():
        return texts(opened, "#tasks tbody th")

    assert column() == sorted(column())
    opened.locator("#tasks thead button").first.click()
    opened.locator("#tasks thead button").first.click()
    assert column() == sorted(TASKS, reverse=True)
    assert opened.evaluate("document.querySelector('#tasks th').getAttribute('aria-sort')") == "descending"
    opened.locator("#tasks thead button").nth(1).click()
    rates = [float(text.partition("[")[0]) for text in texts(opened, "#tasks tbody tr > :nth-child(2)")]
    assert rates == sorted(rates, reverse=True)


def test_tasks_of_another_arm(opened):
    choose(opened, "compare with first", "medoid:k=4")
    assert opened.evaluate("document.querySelector('#tasks caption').textContent").startswith(
        "medoid:k=4 against first"
    )


def test_filters(opened):
    def rows():
        return texts(opened, "#list tbody tr")

    changed = rows()
    assert changed
    assert all("gained" in row or "lost" in row for row in changed)
    choose(opened, "show", "all (72)")
    assert len(rows()) == 72
    choose(opened, "arm", "keystone:k=8")
    choose(opened, "task", "pull")
    assert len(rows()) == 8
    choose(opened, "outcome", "error")
    assert rows() == []
    choose(opened, "task", HOSTILE)
    choose(opened, "outcome", "all")
    assert all(HOSTILE in row for row in rows())


def test_an_episode_is_opened_and_scrubbed(opened):
    choose(opened, "show", "all (72)")
    choose(opened, "arm", "keystone:k=8")
    opened.locator("#list .open").nth(2).click()
    expect(opened.locator("#episode-title")).to_be_focused()
    assert opened.evaluate("document.querySelector('#list tr.on .open').textContent") in opened.evaluate(
        "'● ' + document.querySelector('#episode-title').textContent"
    )
    expect(opened.locator("#paths path.path")).not_to_have_count(0)
    assert opened.evaluate("document.querySelectorAll('#paths [data-candidate]').length") == 7  # and the executed one
    assert texts(opened, "#key li")[0].startswith("executed")
    said, drawn = texts(opened, "#now")[0], opened.evaluate("document.querySelector('#chosen').getAttribute('d')")
    assert said.startswith("Round 1 of 6, step 0: candidate 0 of 8 was executed; consensus ")
    opened.keyboard.press("ArrowRight")  # anywhere in the viewer
    assert texts(opened, "#now")[0].startswith("Round 2 of 6, step 8")
    assert opened.evaluate("document.querySelector('#chosen').getAttribute('d')") != drawn
    opened.evaluate("document.querySelector('#slider').focus()")
    opened.keyboard.press("ArrowRight")  # of the slider itself
    opened.keyboard.press("ArrowRight")
    assert texts(opened, "#now")[0].startswith("Round 4 of 6")
    opened.locator("[data-strip=consensus]").first.click()  # in its middle
    assert texts(opened, "#now")[0][:7] in ("Round 3", "Round 4")
    drawn = opened.evaluate("document.querySelector('#chosen').getAttribute('d')")
    choose(opened, "up", "dimension 3")
    assert opened.evaluate("document.querySelector('#chosen').getAttribute('d')") != drawn
    opened.locator(".same button").first.click()
    expect(opened.locator("#episode-title")).to_contain_text("first")


def test_paths_are_where_the_candidates_are(opened, page):
    """The way from the database to the screen, decoded by the browser."""
    choose(opened, "show", "all (72)")
    choose(opened, "arm", "keystone:k=8")
    opened.locator("#list .open").first.click()
    expect(opened.locator("#episode-title")).to_be_focused()
    choose(opened, "across", "step of the chunk")
    points = opened.evaluate("document.querySelector('#chosen').getAttribute('d')")
    shown = np.array([[float(number) for number in point.split()] for point in re.split("[ML]", points)[1:]])
    with Store(page.parent / "run") as store:
        task = sorted(TASKS)[0]
        (first, *_) = store.rounds(("keystone:k=8", task, 0, 0))
    assert len(shown) == 16
    assert np.corrcoef(shown[:, 0], np.arange(16))[0, 1] > 0.999
    assert np.corrcoef(shown[:, 1], first.candidates[0, :, 1])[0, 1] < -0.999  # up is less on a screen


def test_the_list_follows_the_keyboard(opened):
    opened.evaluate("document.querySelector('#list .open').focus()")
    opened.keyboard.press("ArrowDown")
    assert opened.evaluate("document.activeElement == document.querySelectorAll('#list .open')[1]")


def test_what_is_not_there_is_said(opened):
    choose(opened, "show", "all (72)")
    choose(opened, "arm", "medoid:k=4")
    opened.locator("#list .open").first.click()
    expect(opened.locator("#episode-title")).to_contain_text("medoid")
    assert "--keep-rounds" in texts(opened, "#viewer .note")[0]
    choose(opened, "arm", "keystone:k=8")
    choose(opened, "outcome", "error")
    opened.locator("#list .open").first.click()
    expect(opened.locator("#viewer pre")).to_have_text(HOSTILE)


def test_hostile_names_are_text(opened):
    choose(opened, "show", "all (72)")
    assert any(HOSTILE in text for text in texts(opened, "#list tbody tr"))
    assert opened.evaluate("document.title") == opened.evaluate("document.querySelector('h1').textContent") != "broken"
    assert opened.evaluate("[...document.images].map((one) => [one.alt, one.naturalWidth])") == [
        [HOSTILE, 900],
        ["The environment at step 0, replayed", 32],
    ]
    assert opened.evaluate("document.scripts.length") == 2


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


def look(page):
    """(H, W, 3) what is on the screen."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), float)


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
def test_it_looks_right(show, page, dark, width):
    opened = show(page, width, 812, dark)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(CONTRAST) == []
    pixels = look(opened)
    assert pixels.shape == (812, width, 3)
    assert (pixels.mean() < 60) if dark else (pixels.mean() > 200)
    assert (
        0.02 < (np.abs(pixels - np.median(pixels, (0, 1))).max(-1) > 60).mean() < 0.4
    )  # ink: neither blank nor a mess
    opened.evaluate(ONE_LINE)
    thumbnail = HERE / f"{width}-{'dark' if dark else 'light'}.png"
    assert_looks_like(thumbnail, look(opened))
    for part in ("#cost svg", "#answer table"):
        opened.evaluate(f"document.querySelector('{part}').style.display = 'none'")
        with pytest.raises(AssertionError, match="grey levels apart"):
            assert_looks_like(thumbnail, look(opened))
        opened.evaluate(f"document.querySelector('{part}').style.display = ''")
    opened.evaluate("document.getElementById('viewer').scrollIntoView()")
    assert opened.evaluate("document.querySelector('#paths svg').getBoundingClientRect().right") <= width


def test_screen_readers_find_names(opened):
    assert opened.evaluate(
        "[...document.querySelectorAll('table')].every((one) => one.caption && one.querySelector('th[scope=col]'))"
    )
    assert opened.evaluate(
        "[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label') || one.ariaHidden == 'true')"
    )
    tree = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node
        for node in tree
        if node["role"]["value"] in ("button", "combobox", "slider", "checkbox", "table", "image")
        and not node.get("ignored")
        and not node["name"]["value"]
    ]
    assert nameless == []


def test_an_alarm_has_a_strip_with_its_limit(show, tmp_path):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.3, 1), "keystone:k=8": (0.9, 8)})
    alarm = Calibration("dispersion", "high", "constant", (0.05,), 1, 0.05, 19)
    write_page(tmp_path / "page.html", page_data(read_runs([run]), alarm=alarm))
    opened = show(tmp_path / "page.html")
    choose(opened, "arm", "keystone:k=8")
    opened.locator("#list button.open").first.click()
    label = opened.locator('[data-strip^="alarm score"]').get_attribute("aria-label")
    assert "0.00, 0.02, 0.03, 0.05, 0.07, 0.08" in label
    assert opened.evaluate("document.querySelectorAll('[data-strip^=\"alarm score\"] polyline').length") == 2


@pytest.mark.parametrize("width", [1280, 375])
def test_long_names_of_tasks_leave_room_for_the_numbers(show, tmp_path, width):
    """LIBERO's tasks are sentences."""
    arms = {"first": (0.3, None), "core-mean:k=16,steps=2": (0.7, None)}
    tasks = ("put both the alphabet soup and the cream cheese box in the basket", "x" * 300)
    write_page(tmp_path / "page.html", page_data(read_runs([write_run_with_rounds(tmp_path / "run", arms, tasks)])))
    opened = show(tmp_path / "page.html", width)
    hidden = "[...document.querySelectorAll('#tasks .wide, #list')].map((one) => one.scrollWidth - one.clientWidth)"
    assert max(opened.evaluate(hidden)) <= 0


@pytest.mark.parametrize("width", [1280, 375])
def test_labels_of_the_cost_chart_do_not_overlap(show, tmp_path, width):
    """Eight arms with nearly the same rate and latency."""
    arms = {f"{rule}:k={k},temperature=0.6": (0.5, k) for rule in ("medoid", "core-mean") for k in (2, 3, 4, 5)}
    run = write_run_with_rounds(tmp_path / "run", arms, ("push",), rounds=1)
    write_page(tmp_path / "page.html", page_data(read_runs([run])))
    opened = show(tmp_path / "page.html", width)
    boxes = opened.evaluate(
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
    opened.evaluate(
        "window.byId = (id) => document.getElementById(id); window.data = JSON.parse(byId('data').textContent)"
    )
    assert opened.evaluate(colours) == 0  # the filmed episode is open
    opened.evaluate("byId('slider').value = 2; byId('slider').dispatchEvent(new Event('input'))")
    assert opened.evaluate(colours) == 1
    assert opened.evaluate("byId('film').alt") == "The environment at step 10, replayed"
    assert opened.evaluate("document.querySelector('.film figcaption').textContent") == HOSTILE
    opened.evaluate("byId('slider').value = 0; byId('slider').dispatchEvent(new Event('input'))")
    opened.locator("#play").first.click()
    last = opened.evaluate("Object.values(data.films)[0].images[2]")
    expect(opened.locator("#film")).to_have_attribute("src", last, timeout=30_000)
    expect(opened.locator("#play")).to_have_text("Play")
    assert opened.evaluate("byId('slider').value == byId('slider').max")
    opened.locator(".same button").first.click()  # the same episode of another arm, without a film
    expect(opened.locator("#film")).to_have_count(0)
    assert "null" not in opened.evaluate("byId('viewer').textContent")


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """Frames of a policy with two ways, whose dimensions and checkpoint have hostile and long names."""
    random = np.random.default_rng(0)
    way = np.where(np.arange(16) < 10, 1.0, -1.0)[:, None, None]
    frames = []
    for number in range(12):
        candidates = (way * np.linspace(0, 1, 16)[:, None] + 0.05 * random.normal(size=(16, 16, 3))).astype(np.float32)
        frames.append(
            Frame(
                episode=number // 4, frame=10 * (number % 4), candidates=candidates, physical=candidates,
                planned=candidates[0], labels=(way[:, 0, 0] < 0).astype(int), index=0, chunk=candidates[0], consensus=0.625,
                dispersion=0.05 * number, ways=2, spread=candidates.std(0).mean(0), demonstrated=candidates[3, :8],
                distances={"first": 1.0, HOSTILE: random.uniform(0.5, 1)}, images={},
            )
        )  # fmt: skip
    source = {"checkpoint": f"out/{'x' * 90}", "dataset": HOSTILE, "main": HOSTILE}
    path = tmp_path_factory.mktemp("inspected") / "index.html"
    path.write_text(inspection.page(inspection.summarise(frames, ["x", "y", HOSTILE], source), frames))
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (375, True)])
def test_the_page_of_inspect(show, inspected, width, dark):
    opened = show(inspected, width, dark=dark)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(CONTRAST) == []
    assert HOSTILE in opened.title()
    assert [HOSTILE in text for text in texts(opened, "table:first-of-type tbody th[scope=row]")][:2] == [False, True]
    assert opened.evaluate("document.scripts.length") == 0
    worst = opened.locator("details")
    assert worst.count() == inspection.WORST
    assert worst.first.locator("summary").text_content().startswith("Episode 2, frame 30: dispersion 0.55, 2 ways")
    second = worst.nth(1)
    assert not second.locator("svg").first.is_visible()
    second.locator("summary").click()
    assert second.locator("svg").count() == 3
    assert second.locator("svg").first.locator("polyline").count() == 16 + 1 + 1
    box = second.locator("svg").first.bounding_box()
    assert box["x"] + box["width"] <= width
    pixels = look(opened)
    assert (pixels.mean() < 60) if dark else (pixels.mean() > 200)
    assert opened.get_by_role("img").first.get_attribute("aria-label").startswith("Episode 0: dispersion 0.0")
