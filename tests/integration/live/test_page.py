"""The page in a real browser, on a real service that reads a real archive."""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from shared.instants import HOUR, MINUTE, SECOND
from shared.policy import CancelMaintenance, DeclareMaintenance, Scope
from tests.integration.live.test_facts import sample
from tests.integration.live.test_operate import TOKEN, with_policy
from tests.support.lakehouse.hub import Block, Hub, said
from tests.support.live.live_service import LiveService, serving
from tests.support.live.pages import DEADLINE, HubBesideBrowser, Reader, browser
from tests.support.nats.free_ports import free_ports

SETTINGS = 'unknown_after = "30m"\n[live.incidents]\nopen_after = "1s"\nunknown_after = "1s"\nclose_after = "1s"\n'
HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u202egnp.exe", "a\x1b[2J\n\tb", "\u200bb", "..", ".",
    "x" * 1024, "%2e%2e/a?b#c", "a/b", "'\"&amp;", "{{7*7}}", "javascript:alert(1)", " ",
)  # fmt: skip
VIEWS = (
    "/", "/sites/eu-west/dub1", "/sender?region=eu-west&site=dub1&block=nodes&sender=web1", "/sites", "/incidents",
    "/sites/ap/tyo1", "/sites/us-east/nyc1", "/senders", "/advisories", "/login",
)  # fmt: skip
HOW = """() => new Promise((resolve) => {
  const asking = new BroadcastChannel("muster-events");
  const said = [];
  asking.onmessage = ({ data }) => {
    if (data.kind !== "connected" && data.kind !== "lost") return;
    said.push(data.kind);
    setTimeout(() => resolve(said), 500);
  };
  asking.postMessage({ kind: "how" });
})"""
expect.set_options(timeout=DEADLINE)


def now() -> int:
    return time.time_ns() // 1_000


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with HubBesideBrowser(tmp_path / "hub") as running_hub:
        yield running_hub


@contextmanager
def reading(started: Browser, service: LiveService, **options: object) -> Iterator[Reader]:
    """Open pages, and hold what they complain of against them."""
    reader = Reader(started, service.port, **options)
    try:
        yield reader
        assert reader.complaints == []
    finally:
        reader.context.close()


def fleet(hub: Hub, at: int) -> dict[str, Block]:
    """Publish two sites that are up, and one that is silent since twenty minutes before all that is known."""
    blocks = {"dub1": Block("eu-west", "dub1"), "ber1": Block("eu-west", "ber1"), "nyc1": Block("us-east", "nyc1")}
    messages = [block.new(f"web{number}", at) for block in blocks.values() for number in range(20)]
    hub.publish([*messages, *(block.watermark(at, now()) for block in blocks.values())])
    return blocks


def test_an_open_page_follows_what_happens(hub: Hub, started: Browser, tmp_path: Path) -> None:
    at = now() - 2 * HOUR
    blocks = fleet(hub, at)
    dub1 = blocks["dub1"]
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        page = reader.open("/")
        expect(page.locator("h1")).to_have_text("All 60 senders are up.")
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#wrong")).to_have_text("No open incident")
        expect(page.locator("#open")).to_be_hidden()
        tile = page.locator('[data-site="eu-west/dub1"]')
        expect(tile).to_contain_text("20 up")

        silent_at = now() - 13 * MINUTE
        hub.publish([*(dub1.stale(f"web{number}", silent_at) for number in range(12)), dub1.watermark(at, now())])
        expect(page.locator("h1")).to_have_text("12 stale of 60 senders.")
        expect(tile).to_contain_text("12 of 20 stale")
        expect(tile.locator("svg.shape.is-stale")).to_have_count(1)
        expect(page.locator(".incident")).to_contain_text("eu-west.dub1: 12 of 20 stale")
        expect(page.locator(".incident")).to_contain_text("web0, web1")
        expect(page.locator("#open")).to_have_text("1")
        expect(page).to_have_title("12 stale of 60 senders. · Muster")
        # The reader's clock shows Berlin's time, and UTC beside it: each with its day where that is another.
        instant = r"since (\d+ \w+, )?\d\d:\d\d:\d\d (\d+ \w+, )?\d\d:\d\d:\d\d UTC"
        assert re.search(instant, page.locator(".incident").inner_text())

        planned = DeclareMaintenance(started_at_us=now() - MINUTE, ended_at_us=now() + HOUR, reason="new switches")
        hub.publish([said(Scope("us-east", "nyc1"), 1, now(), planned)])
        expect(page.locator("h1")).to_have_text("12 stale, 20 in maintenance of 60 senders.")

        recovered = [dub1.recovered(f"web{number}", now()) for number in range(12)]
        hub.publish([*recovered, dub1.watermark(at, now())])
        expect(page.locator("h1")).to_have_text("40 of 60 senders up, 20 in maintenance.")
        expect(page.locator(".incident")).to_contain_text("eu-west.dub1: 12 of 20 stale")
        expect(page.locator(".incident")).to_contain_text("unless it returns")
        ends_at = time.monotonic() + DEADLINE / 1_000
        while page.locator("#wrong").inner_text() != "No open incident":
            # Its time of being clear is that of its own watermarks.
            hub.publish([dub1.watermark(at, now())])
            assert time.monotonic() < ends_at, page.locator("#wrong").inner_text()
        page.get_by_role("link", name="Incidents").click()
        expect(page.locator(".incident")).to_contain_text("over")
        assert page.url.endswith("/incidents")
        page.go_back()
        expect(page.locator("h1")).to_have_text("40 of 60 senders up, 20 in maintenance.")


def test_the_first_page_tells_of_now_what_no_incident_and_no_record_tells(
    hub: Hub, started: Browser, tmp_path: Path
) -> None:
    at = now() - 2 * HOUR
    dub1 = fleet(hub, at)["dub1"]
    hub.publish([dub1.stale("web1", now() - 13 * MINUTE), dub1.watermark(at, now())])
    counts = {"up": 57, "stale": 3, "unknown": 0, "maintenance": 0, "retired": 0}
    settings = SETTINGS + "least_senders = 2\n"
    with serving(tmp_path, hub.connection, settings) as service, reading(started, service) as reader:
        recorded = [{"at_us": now() - MINUTE, "counts": counts}]
        reader.context.route("**/api/v1/history*", lambda route: route.fulfill(json=recorded))
        page = reader.open("/")
        expect(page.locator("h1")).to_have_text("1 stale of 60 senders.")
        expect(page.locator("section.calm")).to_contain_text("No open incidentOne begins where many")
        # The curve goes on from what was recorded last.
        expect(page.locator(".curve .band.is-stale").first).to_be_attached()


def test_a_site_that_nobody_sees_is_unknown_with_its_reason_and_never_down(
    hub: Hub, started: Browser, tmp_path: Path
) -> None:
    at = now() - 2 * HOUR
    dub1, ber1 = Block("eu-west", "dub1"), Block("eu-west", "ber1")
    messages = [block.new(f"web{number}", at) for block in (dub1, ber1) for number in range(5)]
    rack9 = Block("eu-west", "ber1", "rack9")
    silent = [dub1.watermark(at, now() - HOUR), rack9.new("pdu1", at), rack9.watermark(at, now() - HOUR)]
    hub.publish([*messages, *silent, ber1.watermark(at, now())])
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        page = reader.open("/")
        expect(page.locator("h1")).to_have_text("6 unknown of 11 senders.")
        shown = page.locator(".incident h3")
        expect(shown.filter(has_text="dub1")).to_have_text("eu-west.dub1: unknown, agent catching up")
        expect(shown.filter(has_text="ber1")).to_have_text("eu-west.ber1: unknown, agent catching up, 1 of 6 senders")
        page.locator('[data-site="eu-west/dub1"]').click()
        expect(page.locator(".note.is-unknown")).to_contain_text("agent catching up")
        expect(page.locator(".rows tbody tr[aria-rowindex]").first).to_contain_text("was up")
        # The hub does not hear every word of one that is up: when it came is not when it was heard last.
        expect(page.locator(".rows tbody time")).to_have_count(5)
        hub.publish([dub1.watermark(at, now())])
        expect(page.locator("h1")).to_contain_text("All 5 senders are up.")
        expect(page.locator(".note.is-unknown")).to_have_count(0)


def test_names_that_would_do_harm_are_shown_and_not_obeyed(hub: Hub, started: Browser, tmp_path: Path) -> None:
    at = now() - 10 * MINUTE
    dub1 = Block("eu-west", "dub1")
    harm = sample(dub1, HOSTILE[0], 1, b'{"data": "{\\"os\\": \\"<img src=x onerror=alert(1)>\xe2\x80\xae\\"}"}')
    hub.publish([*(dub1.new(name, at) for name in HOSTILE), harm, dub1.watermark(at, now())])
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        page = reader.open("/sites/eu-west/dub1")
        rows = page.locator(".rows tbody tr[aria-rowindex]")
        expect(rows).to_have_count(len(HOSTILE))
        expect(rows.first.locator("a")).not_to_have_count(0)
        shown = page.locator(".rows .name").all_inner_texts()
        assert "\\u202egnp.exe" in shown
        assert "a\\x1b[2J\\x0a\\x09b" in shown
        assert "<script>alert(1)</script>" in shown
        assert "\\u0020" in shown
        assert max(map(len, shown)) <= 96
        assert page.locator("main img, main script").count() == 0
        for name in HOSTILE:
            place = {"region": "eu-west", "site": "dub1", "block": "nodes", "sender": name}
            page.goto(f"{reader.root}/sender?{urlencode(place)}")
            expect(page.locator("h1")).to_contain_text(": up")
            expect(page.locator(".told li")).to_have_count(1)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        place = {"region": "eu-west", "site": "dub1", "block": "nodes", "sender": HOSTILE[0]}
        page.goto(f"{reader.root}/sender?{urlencode(place)}")
        # Its time is drawn from when it came, not as a sliver of an hour.
        expect(page.locator(".strip .band").first).to_have_attribute("x", "0.0")
        page.get_by_role("button", name="Show the last sample").click()
        expect(page.locator("pre.sample")).to_contain_text('"os": "<img src=x onerror=alert(1)>\\u202e"')
        assert page.locator("main img").count() == 0


def test_an_outage_is_drawn_from_the_last_word_on_as_tables_and_lists_count_it(
    hub: Hub, started: Browser, tmp_path: Path
) -> None:
    at, silent_at, over_at = (now() // SECOND * SECOND - ago * MINUTE for ago in (120, 60, 20))
    dub1 = Block("eu-west", "dub1")
    told = [dub1.new("web1", at), dub1.stale("web1", silent_at), dub1.recovered("web1", silent_at + 30 * MINUTE)]
    gone = dub1.retired_by_operator("web1", over_at + 5 * MINUTE, over_at)
    hub.publish([*told, gone, dub1.watermark(at, now())])
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        page = reader.open("/sender?region=eu-west&site=dub1&block=nodes&sender=web1")
        expect(page.locator(".strip .band")).to_have_count(4)
        titles = page.locator(".strip .band title").all_text_contents()
        changes = [datetime.fromisoformat(title.split(" from ")[1].split(" to ")[0]).timestamp() for title in titles]
        assert changes == [each / SECOND for each in (at, silent_at, silent_at + 30 * MINUTE, over_at)]


def test_an_address_that_is_no_view_is_said_to_be_none(hub: Hub, started: Browser, tmp_path: Path) -> None:
    fleet(hub, now() - 2 * HOUR)
    with serving(tmp_path, hub.connection, SETTINGS) as service:
        answer = service.request("/no/such", headers={"Accept": "text/html"})
        assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert service.request("/incidents/", headers={"Accept": "text/html"}).status == 307
        assert service.request("/no/such").json == service.request("/api/v1/no").json == {"error": "Not Found"}
        reader = Reader(started, service.port)
        page = reader.open("/no/such")
        expect(page.locator("h1")).to_have_text("There is no such page")
        reader.context.close()


def test_a_page_says_that_it_is_cut_off_and_takes_up_again(hub: Hub, started: Browser, tmp_path: Path) -> None:
    at = now() - 2 * HOUR
    dub1 = fleet(hub, at)["dub1"]
    (port,) = free_ports(1)
    with serving(tmp_path, hub.connection, SETTINGS, port) as service:
        reader = Reader(started, service.port)
        page = reader.open("/")
        expect(page.locator("#live")).to_have_text("live")
        service.stop()
        expect(page.locator("#lost")).to_contain_text("Connection lost")
        expect(page.locator("#live")).to_have_text("not live")
        page.get_by_role("button", name="try now").click()
    last = hub.publish([dub1.stale("web1", now() - 13 * MINUTE), dub1.watermark(at, now())])
    with serving(tmp_path, hub.connection, SETTINGS, port) as service:
        service.wait_through(last)
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.locator("h1")).to_have_text("1 stale of 60 senders.")
        reader.context.close()


def test_pages_of_one_browser_share_one_stream_of_events(hub: Hub, started: Browser, tmp_path: Path) -> None:
    at = now() - 2 * HOUR
    dub1 = fleet(hub, at)["dub1"]

    def listeners(service: LiveService) -> bytes:
        found = re.search(rb"^muster_live_listeners (\S+)", service.request("/metrics").body, re.MULTILINE)
        assert found is not None
        return found[1]

    def await_one_listener(service: LiveService) -> None:
        # Whose stream has ended is known a moment later.
        ends_at = time.monotonic() + DEADLINE / 1_000
        while (found := listeners(service)) != b"1.0":
            assert time.monotonic() < ends_at, found

    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        pages = [reader.open(address) for address in ("/", "/incidents", "/sites/eu-west/dub1")]
        for page in pages:
            expect(page.locator("#live")).to_have_text("live")
        await_one_listener(service)
        # Only the page that reads says how it goes: one that was just opened would call the stream lost for all.
        assert pages[1].evaluate(HOW) == ["connected"]
        pages[0].close()
        last = hub.publish([dub1.stale("web1", now() - 13 * MINUTE), dub1.watermark(at, now())])
        service.wait_through(last)
        expect(pages[1].locator(".incident")).to_contain_text("eu-west.dub1: 1 of 20 stale")
        expect(pages[2].locator("h1")).to_contain_text("1 stale of 20 senders.")
        await_one_listener(service)


def test_an_operator_closes_a_site_from_its_page_on_the_readers_clock(
    hub: Hub, started: Browser, tmp_path: Path
) -> None:
    with_policy(hub)
    hub.publish([(dub1 := Block("eu-west", "dub1")).new("web1", now() - HOUR), dub1.watermark(now() - HOUR, now())])
    (tmp_path / "operators").write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    lines = f'operate_token_file = "operators"\n{SETTINGS}'
    with serving(tmp_path, hub.connection, lines) as service, reading(started, service) as reader:
        page = reader.open("/login")
        page.get_by_label("Your token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Its one sender is up.")
        page.goto(f"{reader.root}/sites/eu-west/dub1")
        page.get_by_text("Operate on this site").click()
        page.get_by_label("What").select_option("close")
        expect(page.get_by_label("to (Europe/Berlin)")).to_be_hidden()
        page.get_by_label("from (Europe/Berlin)").fill("2026-07-01T14:00")
        expect(page.locator(".span small").first).to_contain_text("12:00:00 UTC")
        page.get_by_label("Who you are").fill("ann")
        page.get_by_label("Why").fill("data centre given up")
        page.get_by_role("button", name="Order it").click()
        expect(page.locator("h1")).to_have_text("dub1: No sender is expected: all are retired.")
        expect(page.locator(".note").first).to_contain_text("nodes is closed since 1 Jul, 14:00:00 1")
        expect(page.locator(".note").first).to_contain_text("data centre given up (ann). Nobody is expected there.")
        page.get_by_role("button", name="take it back").click()
        expect(page.locator("h1")).to_have_text("dub1: Its one sender is up.")


def test_maintenance_that_was_cancelled_is_past_on_a_senders_page(hub: Hub, started: Browser, tmp_path: Path) -> None:
    dub1 = fleet(hub, now() - 2 * HOUR)["dub1"]
    planned = DeclareMaintenance(now() - HOUR, now() + HOUR, "new disk", ("web1",))
    hub.publish([said(Scope("eu-west", "dub1"), 1, now(), planned)])
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        page = reader.open("/sender?region=eu-west&site=dub1&block=nodes&sender=web1")
        expect(page.locator("h1")).to_have_text("web1: maintenance")
        expect(page.get_by_role("button", name="take it back")).to_have_count(1)
        last = hub.publish([said(Scope("eu-west", "dub1"), 2, now(), CancelMaintenance(1)), dub1.watermark(0, now())])
        service.wait_through(last)
        expect(page.locator("h1")).to_have_text("web1: up")
        expect(page.get_by_role("button", name="take it back")).to_have_count(0)
        expect(page.locator(".told")).to_contain_text(re.compile("new disk .ann@ops1.; cancelled .* by ann@ops1"))


@pytest.mark.parametrize(
    ("address", "shown"),
    [("/", "All 60 senders are up."), ("/sites", "Sites"), ("/senders", "Senders"), ("/incidents", "Incidents"),
     ("/sites/eu-west/dub1", "dub1: All 20 senders are up."), ("/advisories", "Advisories"),
     ("/sender?region=eu-west&site=dub1&block=nodes&sender=web1", "web1: up")],
)  # fmt: skip
def test_a_view_that_failed_to_load_is_asked_for_again(
    hub: Hub, started: Browser, tmp_path: Path, address: str, shown: str
) -> None:
    fleet(hub, now() - 2 * HOUR)
    with serving(tmp_path, hub.connection, SETTINGS) as service:
        service.wait_through(1)
        reader = Reader(started, service.port)
        questions, asked = re.compile("/api/v1/(?!events)"), Counter[str]()

        def fail(route: Route) -> None:
            asked[route.request.url] += 1
            route.fulfill(status=503, json={"error": "busy"})

        reader.context.route(questions, fail)
        page = reader.open(address)
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator(".failed")).to_have_text(" Not loaded: busy. Trying again.")
        page.wait_for_timeout(1_500)
        assert max(asked.values()) <= 12, asked
        reader.context.unroute(questions)
        expect(page.locator(".failed")).to_have_count(0)
        expect(page.locator("h1")).to_have_text(shown)
        expect(page.locator("main")).to_contain_text(re.compile("dub1|No open incident"))
        reader.context.close()


def test_who_may_not_operate_is_led_to_the_page_for_signing_in(hub: Hub, started: Browser, tmp_path: Path) -> None:
    with_policy(hub)
    hub.publish([(dub1 := Block("eu-west", "dub1")).new("web1", now() - HOUR), dub1.watermark(now() - HOUR, now())])
    (tmp_path / "operators").write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    with serving(tmp_path, hub.connection, f'operate_token_file = "operators"\n{SETTINGS}') as service:
        reader = Reader(started, service.port)
        page = reader.open("/sites/eu-west/dub1")
        page.get_by_text("Operate on this site").click()
        page.get_by_label("Who you are").fill("ann")
        page.get_by_label("Why").fill("new disk")
        page.get_by_role("button", name="Order it").click()
        page.get_by_role("link", name="Sign in with a token that may operate").click()
        page.get_by_label("Your token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{reader.root}/sites/eu-west/dub1")
        expect(page.locator("h1")).to_have_text("dub1: Its one sender is up.")
        reader.context.close()


def test_a_hundred_thousand_rows_scroll_through_a_window(hub: Hub, started: Browser, tmp_path: Path) -> None:
    at, count = now() - 2 * HOUR, 100_000
    dub1 = Block("eu-west", "dub1")
    last = hub.publish([*(dub1.new(f"web{number:06}", at) for number in range(count)), dub1.watermark(at, now())])
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service) as reader:
        service.wait_through(last)
        page = reader.open("/sites/eu-west/dub1")
        table, window = page.locator("table.rows"), page.locator(".window")
        expect(table).to_have_attribute("aria-rowcount", str(count + 1))
        row = table.locator("tbody tr[aria-rowindex]")
        expect(row.first).to_contain_text("web000000")
        window.evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
        expect(row.nth(20)).to_contain_text(re.compile("web0(49|50)"))
        window.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        expect(row.last).to_contain_text("web099999")
        expect(row.last).to_have_attribute("aria-rowindex", str(count + 1))
        assert row.count() < 100
        # The keyboard scrolls it too.
        window.focus()
        page.keyboard.press("Home")
        expect(row.first).to_contain_text("web000000")
        page.keyboard.press("/")
        page.keyboard.type("web077777")
        expect(row).to_have_count(1)
        expect(row.first).to_contain_text("web077777")
        expect(page).to_have_url(re.compile("search=web077777"))
        page.reload()
        expect(row.first).to_contain_text("web077777")


@pytest.mark.parametrize(
    ("colours", "width", "views"),
    [("light", 1280, VIEWS), ("dark", 1280, VIEWS[:3]), ("light", 360, VIEWS[:4])],
    ids=["light", "dark", "phone"],
)
def test_every_view_is_accessible_and_fits(
    hub: Hub, started: Browser, tmp_path: Path, colours: str, width: int, views: tuple[str, ...]
) -> None:
    at = now() - 2 * HOUR
    dub1 = fleet(hub, at)["dub1"]
    planned = DeclareMaintenance(started_at_us=now() - MINUTE, ended_at_us=now() + HOUR, reason="new switches")
    silent = Block("ap", "tyo1")
    stale = [dub1.stale(f"web{number}", now() - 13 * MINUTE) for number in range(5)]
    far = Block("ap", "a-rather-long-name-of-a-site-which-others-share-up-to-number-7")
    messages = [said(Scope("us-east", "nyc1"), 1, now(), planned), silent.new("web1", at), far.new("web1", at)]
    hub.publish([*stale, *messages, silent.watermark(at, now() - HOUR), dub1.watermark(at, now())])
    # The checks are put into the page from here: the page's own policy would refuse them.
    options = {"color_scheme": colours, "viewport": {"width": width, "height": 900}, "bypass_csp": True}
    # Instants are longest where the reader's day is another than that of UTC.
    options["timezone_id"] = "Pacific/Kiritimati" if datetime.now(UTC).hour >= 12 else "Pacific/Pago_Pago"
    with serving(tmp_path, hub.connection, SETTINGS) as service, reading(started, service, **options) as reader:
        for view in views:
            page = reader.open(view)
            if view != "/login":
                expect(page.locator("#live")).to_have_text("live")
                _settled(page)
            found = Axe().run(page, options={"resultTypes": ["violations"]})
            assert found.violations_count == 0, (view, found.generate_report())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            whole = "[...document.querySelectorAll('.tile b')].every((each) => each.scrollWidth <= each.clientWidth)"
            assert page.evaluate(whole), "names of sites that differ at their end are told apart"
            if view != "/login":
                assert page.evaluate("(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('nav'))"), view
            page.close()


def _settled(page: Page) -> None:
    expect(page.locator("main h1")).not_to_have_text("…")
    page.wait_for_load_state("load")


def test_a_reader_signs_in_with_a_token(hub: Hub, started: Browser, tmp_path: Path) -> None:
    fleet(hub, now() - 2 * HOUR)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'open sesame').hexdigest()}\n")
    settings = f'read_token_file = "{tokens}"\n{SETTINGS}'
    with serving(tmp_path, hub.connection, settings) as service:
        reader = Reader(started, service.port)
        page = reader.open("/sites?region=eu-west")
        expect(page).to_have_url(f"{reader.root}/login?next=%2Fsites%3Fregion%3Deu-west")
        page.get_by_label("Your token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#said")).to_have_text("This service does not know that token.")
        for leads_to in ("/sites?region=eu-west", "/"):
            page.get_by_label("Your token").fill("open sesame")
            page.get_by_role("button", name="Sign in").click()
            expect(page).to_have_url(f"{reader.root}{leads_to}")
            page.goto(f"{reader.root}/login?next=//evil.example/x")
        reader.context.close()
