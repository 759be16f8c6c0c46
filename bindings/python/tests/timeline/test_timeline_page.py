"""The page of a timeline in a browser."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_support import (
    HOSTILE, LIMIT, TENSORS, Writer, api, browser, complaints, environment, proxy, resize, serving, until, without_browser,
)  # fmt: skip

from hvd.timeline.live import Live

pytestmark = pytest.mark.skipif(bool(without_browser()), reason=without_browser())
PICTURE = Path(__file__).resolve().parents[4] / "docs" / "images" / "timeline_page.png"
AHEAD = -600.0  # the age of a job whose last events are ahead of now: it runs, however long the tests take
RUN = (58, 126, 191)  # --run in style.css, in the light


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as one:
        yield one


@pytest.fixture
def driver(chromium: Any) -> Iterator[Any]:
    """A browser whose page asks no more after the test."""
    yield chromium
    chromium.get("about:blank")
    complaints(chromium)


class Page:
    """A page that is open in the browser."""

    def __init__(self, driver: Any, address: str = "", width: int = 1280, height: int = 900, **options: Any) -> None:
        """Without an address the page is there already."""
        self.driver = driver
        if address:
            resize(driver, width, height, **options)
            driver.get(address)
        self.until(lambda: self.text("#state-text") != "opening")

    def until(self, condition: Any, seconds: float = LIMIT) -> Any:
        try:
            return until(condition, seconds)
        except AssertionError:
            raise AssertionError(f"waited in vain; the page shows:\n{self.text('body')}\n{self.shown()}\n{complaints(self.driver)}") from None

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def text(self, selector: str) -> str:
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def shown(self) -> str:
        return str(self.one("#canvas").get_attribute("aria-label"))

    def span(self) -> tuple[float, float]:
        """The seconds from and to which the timeline is shown."""
        found = re.search(r"from (-?[\d.]+) s to (-?[\d.]+) s", self.shown())
        assert found, self.shown()
        return float(found[1]), float(found[2])

    def length(self) -> float:
        begin, end = self.span()
        return end - begin

    def activities(self) -> int:
        found = re.search(r"(\d+) activities", self.shown())
        return int(found[1]) if found else -1

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def find_colour(self, colour: tuple[int, int, int]) -> tuple[int, int]:
        """Where on the page a pixel of the timeline has a colour."""
        place = self.driver.execute_script(
            """const [canvas, colour] = arguments, box = canvas.getBoundingClientRect();
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', {willReadFrequently: true});
            copy.drawImage(canvas, 0, 0);
            const {data, width, height} = copy.getImageData(0, 0, canvas.width, canvas.height);
            for (let at = 0; at < data.length; at += 4) {
              if (colour.every((value, index) => Math.abs(data[at + index] - value) < 3) && data[at + 3] > 250)
                return [box.left + (at / 4 % width + .5) * box.width / width, box.top + (Math.floor(at / 4 / width) + .5) * box.height / height];
            }
            return null;""",
            self.one("#canvas"), list(colour),
        )  # fmt: skip
        assert place, "the timeline has no such pixel"
        return int(place[0]), int(place[1])

    def click_operation(self) -> None:
        """Clicks on one that is drawn, and again where the drawing has moved meanwhile."""

        def told() -> bool:
            if not self.one("#detail").is_displayed():
                self.click_at(*self.find_colour(RUN))
            return bool(self.one("#detail").is_displayed())

        self.until(told)

    def click_at(self, x: int, y: int) -> None:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        pointer = ActionBuilder(self.driver)
        pointer.pointer_action.move_to_location(x, y).click()
        pointer.perform()
        ActionChains(self.driver).reset_actions()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a small job: 4 ranks on 2 hosts, of which rank 1 comes late."""
    writer = Writer(tmp_path_factory.mktemp("job") / "job.json", ranks=4, hosts=2, slow=1, age=AHEAD)
    writer.step(100)
    with serving(writer.path) as address:
        until(lambda: api(address, "answers")["operations"] == 4 * 6 * 100)
        yield address


@pytest.mark.alone
def test_new_events_show_within_two_seconds(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json")
    with serving(tmp_path) as address:
        page = Page(driver, address)
        page.until(lambda: len(page.all("#labels button")) == 2)
        taken = []
        for _ in range(3):
            writer.step(5)
            begin = time.monotonic()
            page.until(lambda: page.activities() == 2 * 2 * 6 * writer.steps and page.span()[1] > writer.steps * 0.08 * 0.95)
            taken.append(time.monotonic() - begin)
            page.find_colour(RUN)
        assert min(taken) < 2  # the others may have met a busy machine
        writer.begin_only(2, [1])
        page.until(lambda: "allreduce of 'conv2.bias': rank 1 waits for rank 0, for " in page.text("#waiting"))
        # The file of another host, of the same job.
        Writer(tmp_path / "other.json", ranks=3).step()
        page.until(lambda: len(page.all("#labels button")) == 3)
        assert page.text("#job") == "job.json, other.json · 3 ranks"
        assert complaints(driver) == []


def test_one_screen_answers_without_a_click(driver: Any, job: str) -> None:
    page = Page(driver, job)
    page.until(lambda: page.activities() > 0)
    assert re.search(r"12\.\d steps/s", page.text("#speed")) and "samples/s" in page.text("#speed")
    assert page.text("#verdict") == "Rank 1 costs 24 % of the speed"
    assert page.texts("article h2") == ["Speed", "Time lost to communication", "Slowest rank", "Stuck right now"]
    assert re.fullmatch(r"Bandwidth [\d.]+ MB/s · [\d.]+ [kM]B a step", page.text("#bus"))
    assert re.search(r"\d+ % of the time", page.text("#exposed")) and TENSORS[-1] in page.text("#exposed")
    assert "Rank 1 on node1" in page.text("#slow") and "later than the others" in page.text("#slow")
    assert page.text("#waiting .big") == "Nothing" and page.text("#waiting .sub") == "no operation takes longer than 1 s"
    bottom = driver.execute_script("return Math.max(...[...document.querySelectorAll('article')].map(a => a.getBoundingClientRect().bottom))")
    assert bottom < 900
    assert page.all("#speed svg[role=img]") and page.all("#exposed svg[role=img]")
    assert complaints(driver) == []


def test_curves_tell_value_and_time_under_the_pointer(driver: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    writer = Writer(tmp_path / "job.json")
    writer.step(100)
    with serving(tmp_path) as address:
        page = Page(driver, address)
        for curve, text in (
            ("#speed .spark", r"1[0-9](\.\d)? steps/s"), ("#speed .bus", r"[\d.]+ MB/s"), ("#exposed .spark", r"[\d.]+ %"),
        ):  # fmt: skip
            page.until(lambda curve=curve: page.all(f"{curve} svg"))
            ActionChains(driver).move_to_element_with_offset(page.one(f"{curve} svg"), -99, 0).perform()
            page.until(lambda text=text: re.fullmatch(rf"{text} at \d\d:\d\d:\d\d", page.text("#tip")))
            assert page.one("#tip").is_displayed()
        # The timeline moves on meanwhile.
        begin = page.span()[1]
        writer.step(20)
        page.until(lambda: page.span()[1] > begin)
        assert page.one("#tip").is_displayed()
        ActionChains(driver).move_to_element(page.one("#job")).perform()
        page.until(lambda: not page.one("#tip").is_displayed())
        assert complaints(driver) == []


def test_names_without_what_all_gradients_have(driver: Any, tmp_path: Path) -> None:
    Writer(tmp_path / "job.json", tensors=("broadcast.w", "allreduce.w", "set 2: allreduce.v")).step(5)
    with serving(tmp_path) as address:
        page = Page(driver, address)
        page.until(lambda: page.activities() > 0)
        page.until(lambda: page.texts("#labels span") == 2 * ["w", "broadcast.w", "set 2: v"])
        assert page.text("#exposed .bars").split("\n")[0] == "set 2: v"
        page.one("#search").send_keys("allreduce.w")  # names are found as the program gives them
        page.until(lambda: page.texts("#found button span") == ["w"])
        assert page.one("#found button").get_attribute("title") == "allreduce.w"
        assert complaints(driver) == []


def test_zoom_by_clicks_wheel_and_drag(driver: Any, job: str) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    page = Page(driver, job)
    page.click("#all")
    page.until(lambda: page.length() > 7.9)
    assert page.span()[0] == pytest.approx(api(job, "answers")["begin_us"] / 1e6, abs=0.002)
    page.click("#in")
    page.until(lambda: 3.9 < page.length() < 4.2)
    page.click("#out")
    page.until(lambda: page.length() > 7.9)
    page.click("#second")
    page.until(lambda: page.length() == pytest.approx(1) and page.activities() > 100)
    canvas = page.one("#canvas")
    ActionChains(driver).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -400).perform()
    page.until(lambda: page.length() < 0.7)
    before = page.span()
    ActionChains(driver).drag_and_drop_by_offset(canvas, 200, 0).perform()
    page.until(lambda: page.span()[0] < before[0] - 0.05)
    assert page.length() == pytest.approx(before[1] - before[0], abs=0.002)
    assert page.one("#follow").get_attribute("aria-pressed") == "false"
    page.click("#follow")
    page.until(lambda: page.span()[1] > 7.9)
    assert complaints(driver) == []


def test_a_click_tells_of_an_operation(driver: Any, job: str) -> None:
    page = Page(driver, job)
    page.click("#second")
    page.until(lambda: page.length() == pytest.approx(1) and page.activities() > 100)
    page.click("#labels button")
    page.until(lambda: len(page.all("#labels span")) == len(TENSORS))
    page.click_operation()
    detail = page.text("#detail")
    assert "SHM_ALLREDUCE" in detail and "duration" in detail and re.search(r"rank\s+0 on node1", detail)
    page.click("#detail button")
    page.until(lambda: page.length() < 0.1)
    page.click("#detail .buttons button:last-child")
    page.until(lambda: not page.one("#detail").is_displayed())
    assert complaints(driver) == []


def test_search_by_clicks(driver: Any, job: str) -> None:
    page = Page(driver, job)
    page.one("#search").send_keys("CONV2")
    page.until(lambda: len(page.all("#found button")) == 2)
    assert page.text("#found-text") == "2 tensors"
    page.all("#found button")[1].click()
    page.until(lambda: page.texts("#labels span.chosen") == ["conv2.weight"])
    assert not page.one("#found").is_displayed() and page.length() < 0.2 and page.activities() > 0
    page.one("#search").clear()
    page.one("#search").send_keys("no such")
    page.until(lambda: page.text("#found-text") == "No tensor has that in its name.")
    assert complaints(driver) == []


def test_with_a_keyboard_alone(driver: Any, job: str) -> None:
    from selenium.webdriver import Keys

    page = Page(driver, job)
    page.keys("/")
    page.until(lambda: driver.switch_to.active_element.get_attribute("id") == "search")
    page.keys("fc.w")
    page.until(lambda: len(page.all("#found button")) == 1)
    page.keys(Keys.ENTER)
    page.until(lambda: driver.switch_to.active_element.get_attribute("id") == "canvas")
    page.until(lambda: page.texts("#labels span.chosen") == ["fc.weight"])
    before = page.length()
    page.keys("+")
    page.until(lambda: page.length() == pytest.approx(before / 2, rel=0.05))
    begin = page.span()[0]
    page.keys(Keys.ARROW_LEFT)
    page.until(lambda: page.span()[0] < begin)
    page.keys("a")
    page.until(lambda: page.length() > 7.9)
    page.keys("f")
    page.until(lambda: page.one("#follow").get_attribute("aria-pressed") == "true")
    page.keys("n", Keys.ENTER)
    page.until(lambda: page.one("#detail").is_displayed())
    # Everything that can be clicked is reached by Tab, and shows where the focus is.
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    seen = set()
    for _ in range(30):
        page.keys(Keys.TAB)
        seen.add(driver.switch_to.active_element.get_attribute("id") or driver.switch_to.active_element.text.split("\n")[0])
    assert {"merged", "search", "follow", "in", "out", "second", "minute", "all", "canvas", "rank 0", "rank 3"} <= seen
    unnamed = driver.execute_script(
        "return [...document.querySelectorAll('button, input, a, canvas[tabindex], [role=button], [role=img]')].filter(e => !e.ariaLabel && !e.innerText"
        " && !e.getAttribute('aria-labelledby') && e.checkVisibility()).map(e => e.outerHTML)"
    )
    assert unnamed == []
    assert complaints(driver) == []


@pytest.mark.parametrize(("width", "height", "scale", "dark"), [(360, 740, 1, False), (1600, 1000, 1, True), (320, 256, 4, False)])
def test_narrow_and_wide_windows(driver: Any, job: str, width: int, height: int, scale: int, dark: bool) -> None:
    """The last is what 400 % of zoom makes of a window of 1280 times 1024."""
    page = Page(driver, job, width, height, dark=dark, scale=scale)
    page.until(lambda: page.activities() > 0)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    beyond = driver.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('svg, .bars, #labels'))"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90))"
    )
    assert beyond == []
    if height == 1000:  # all of the window is used, and no more
        bottom = driver.execute_script("return document.querySelector('#timeline').getBoundingClientRect().bottom")
        assert 980 <= bottom <= 1000
        assert driver.execute_script("return document.documentElement.scrollHeight") == 1000
        rows = driver.execute_script("return [document.querySelector('#rows').clientHeight, document.querySelector('#canvas').clientHeight]")
        assert rows[0] == rows[1] > 400
    page.click("#second")
    page.until(lambda: page.length() == pytest.approx(1))
    assert driver.execute_script(
        "const [legend, view] = ['.legend', '#view'].map(each => document.querySelector(each).getBoundingClientRect());"
        "return legend.bottom <= view.top"
    )
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 21, 23)") == dark
    assert complaints(driver) == []


def test_what_is_missing_is_told_once(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json")
    writer.step(5)
    writer.append([{"ph": "i", "pid": 0, "tid": 0, "name": "DROPPED", "s": "g", "args": {"events": 7, "total": 7}, "ts": 4e5}])
    lines = writer.path.read_bytes().split(b"\n")
    writer.path.write_bytes(b"\n".join([*lines[:-2], b"{broken,", *lines[-2:]]))
    with serving(writer.path) as address:
        page = Page(driver, address)
        page.until(lambda: page.activities() > 0)
        told = api(address, "answers")["notes"]
        assert len(told) >= 2
        page.until(lambda: not any(page.text("#notes").count(note) != 1 for note in told if "7 events" in note or "1 line" in note))
        assert len(page.all("#notes li")) == len(told)
        assert complaints(driver) == []


def test_exposed_communication_that_is_not_known(driver: Any, job: str) -> None:
    page = Page(driver, job)
    page.until(lambda: page.activities() > 0)
    script = """
        const [done, base, query] = [arguments[2], arguments[0], arguments[1]];
        (async () => {
          const cards = await import(`${base}page/cards.js`);
          const answers = await (await fetch(`${base}api/answers?${query}`)).json();
          Object.assign(answers.exposed, { share: null, ms_per_step: null });
          cards.showCards(answers, false, () => {});
          done(document.querySelector("#exposed").innerText);
        })();"""
    base, _, query = job.partition("?")
    shown = [line for line in driver.execute_async_script(script, base, query).split("\n") if line]
    assert shown[1:3] == ["Unknown", "until operations end again"]
    page.until(lambda: "% of the time" in page.text("#exposed"))
    assert complaints(driver) == []


def test_hostile_names_are_texts(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "<b>job'\".json", ranks=1, tensors=HOSTILE)
    writer.step(10)
    writer.append([{"ph": "i", "pid": 0, "tid": 0, "name": "STALL", "s": "g", "args": {"text": HOSTILE[0]}, "ts": 7e5}])
    writer.begin_only(0, [0])
    with serving(tmp_path) as address:
        page = Page(driver, address)
        page.until(lambda: page.activities() > 0 and HOSTILE[0] in page.text("#waiting"))
        if not page.all("#labels span"):
            page.click("#labels button")
        page.until(lambda: len(page.all("#labels span")) == len(HOSTILE))
        page.one("#search").send_keys("e")
        page.until(lambda: len(page.all("#found button")) >= 5)
        page.all("#found button")[0].click()
        page.keys("n", "\ue007")
        page.until(lambda: page.one("#detail").is_displayed())
        assert {"<img src=x onerror=\"document.title='executed'\">", "two⏎lines⇥and a tab"} <= set(page.text("#labels").split("\n"))
        assert driver.execute_script("return document.querySelectorAll('img, b, #labels script').length") == 0
        assert "executed" != driver.title and driver.title.startswith("<b>job'\".json")
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert complaints(driver) == []


def test_many_ranks(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json", ranks=200, hosts=25)
    writer.step(30)
    with serving(tmp_path) as address:
        page = Page(driver, address)
        page.until(lambda: "shares of" in page.shown() or page.activities() > 0)
        # Only what is visible is there.
        assert 5 < len(page.all("#labels button")) < 60
        driver.execute_script("document.querySelector('#rows').scrollTop = 1e6")
        page.until(lambda: any("rank 199" in each for each in page.texts("#labels button")))
        page.click("#in")
        page.find_colour(RUN)
        assert complaints(driver) == []


def test_the_server_ends(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json")
    writer.step(20)
    with serving(tmp_path, "--port", "0") as address:
        page = Page(driver, address)
        page.until(lambda: page.activities() > 0)
        before = page.activities()
        assert complaints(driver) == []
    page.until(lambda: page.text("#state-text") == "server gone")
    assert "has not answered since" in page.text("#gone") and "job.json" in page.text("#gone")
    assert page.activities() == before and "steps/s" in page.text("#speed")
    page.click("#in")  # what is there can still be looked at
    page.until(lambda: page.length() < 1)
    page.find_colour(RUN)
    port = address.split(":")[2].split("/")[0]
    with serving(tmp_path, "--port", port):  # with another token
        page.until(lambda: "The token is wrong" in page.text("body"))
    complaints(driver)  # that the server did not answer


def test_a_file_that_begins_anew(driver: Any, tmp_path: Path) -> None:
    Writer(tmp_path / "job.json", ranks=3).step(20)
    with serving(tmp_path / "job.json") as address:
        page = Page(driver, address)
        page.until(lambda: page.activities() == 3 * 2 * 6 * 20)
        page.click("#in")
        page.click_operation()
        Writer(tmp_path / "job.json", ranks=1, job="1234abcd").step(3)
        page.until(lambda: page.activities() == 2 * 6 * 3 and len(page.all("#labels button")) == 1)
        assert not page.one("#detail").is_displayed() and page.span()[1] < 0.3
        assert complaints(driver) == []


def test_in_a_notebook_behind_a_proxy(driver: Any, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "job.json")
    writer.step(20)
    with serving(tmp_path, "--proxy") as address, proxy(address, "/user/me/proxy/8765/") as notebook:
        driver.get(notebook)
        driver.switch_to.frame(driver.find_element("css selector", "iframe"))
        page = Page(driver)
        page.until(lambda: page.activities() == 2 * 2 * 6 * 20)
        driver.execute_script("document.querySelector('#exposed button').focus()")
        writer.step(3)
        page.until(lambda: page.activities() == 2 * 2 * 6 * 23)
        assert driver.execute_script("return document.activeElement.closest('#exposed') !== null")
        page.one("#search").send_keys("conv2")
        page.until(lambda: len(page.all("#found button")) == 2)
        href = str(page.one("#merged").get_attribute("href"))
        assert "/user/me/proxy/8765/api/merged?token=" in href
        driver.switch_to.default_content()
        driver.get("about:blank")
    assert [each for each in complaints(driver) if "favicon" not in each] == []


def test_no_job_yet(driver: Any, tmp_path: Path) -> None:
    Writer(tmp_path / "job.json", ranks=0)
    with serving(tmp_path) as address:
        page = Page(driver, address)
        assert page.text("#verdict") == "Starting: no rank has joined yet"
        assert page.text("#empty") == "The first operation will show here by itself."
        page.keys("+", "a", "n")
        writer = Writer(tmp_path / "job.json", ranks=1, size=2)
        page.until(lambda: page.text("#verdict") == "Starting: 1 of 2 ranks has joined")
        assert driver.title == "job.json · 2 ranks · starting"
        assert page.texts(".big") == 3 * ["Nothing has run yet"] + ["Nothing"]
        page.until(lambda: page.texts("#labels button") != [])
        assert not page.one("#axis").is_displayed() and page.one("#empty").is_displayed()
        writer.step()
        page.until(lambda: page.one("#axis").is_displayed() and not page.one("#empty").is_displayed())
        page.until(lambda: page.span()[0] == pytest.approx(0.016, abs=0.001))
        driver.get(address.partition("?")[0])
        assert "The token is missing" in page.text("body")
    assert [each for each in complaints(driver) if "403" not in each and "favicon" not in each] == []


WRITES = os.environ.get("HVD_WRITE_PICTURES") == "1"


def test_a_picture_for_the_docs(driver: Any, tmp_path: Path) -> None:
    """Makes the picture; it is written to docs only with HVD_WRITE_PICTURES=1, because it differs from run to run."""
    live = Live(tmp_path / "digits.json", environment(HVD_TIMELINE_STAY="0"), program="torch_digits.py")
    try:
        page = Page(driver, live.address, 1280, 800, scale=1.5)
        assert driver.title == "torch_digits.py · starting"
        # Its last events are ahead of now, so that it runs until the picture is there.
        Writer(tmp_path / "digits.json", ranks=4, hosts=2, slow=1, age=5 if WRITES else AHEAD).step(250)
        page.until(lambda: page.text("#verdict") == "Rank 1 costs 24 % of the speed" and page.activities() > 0)
        assert page.text("#job") == "torch_digits.py · 4 ranks" and driver.title == "torch_digits.py · 4 ranks · running 20 s"
        page.click("#in")
        page.click("#in")
        page.click("#labels button")
        # On a slow machine the span that is shown has less in it.
        wanted = len(TENSORS) if WRITES else 1
        page.until(lambda: page.activities() > 0 and len(page.all("#labels span")) >= wanted)
        page.driver.execute_script("document.activeElement.blur()")
        picture = driver.get_screenshot_as_png()
        driver.get("about:blank")
    finally:
        live.finish()
    assert picture.startswith(b"\x89PNG") and len(picture) > 50_000
    if WRITES:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(picture)
