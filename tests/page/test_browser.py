"""The page in a real browser, before a stand-in for its server: what it shows, and that it lives.

In the full run only (CAIRN_TEST_FULL); skipped where there is no Chromium.
"""
import os
import time

import pytest

from browser import Browser, missing
from mock import Mock
from world import EVIL

REASON = missing() or ("" if os.environ.get("CAIRN_TEST_FULL") else "in a full run")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

HTML, CSP = os.environ.get("CAIRN_PAGE_HTML", ""), os.environ.get("CAIRN_PAGE_CSP", "")
LIVE_S = 2.0
TABS = ("curves", "time", "workers", "checkpoints", "events", "logs", "file")


@pytest.fixture(name="browser", scope="module")
def one_browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(name="mock")
def one_mock():
    with Mock(HTML, CSP) as mock:
        yield mock


@pytest.fixture(name="page")
def opened_page(browser, mock):
    """Opened on the jobs; at the end: nothing was complained of, and nobody else was asked for anything."""
    browser.size(1280)
    browser.media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    browser.open("about:blank")
    browser.errors.clear()
    browser.asked.clear()
    browser.open(mock.url + "/")
    browser.until("document.querySelectorAll('.jobs tbody tr').length > 100", 20)
    yield browser
    assert browser.errors == []
    others = [url for url in browser.asked if not url.startswith((mock.url + "/api/v1/", "data:")) and url != mock.url + "/"]
    assert others == []
    browser.open("about:blank")


def show(page, mock, route):
    page.eval(f"location.hash = {route!r}")
    page.until(f"location.hash === {route!r}")
    if route.startswith("#/jobs/"):
        page.until("document.querySelector('.jobhead h1').textContent.length > 0 && document.querySelector('.figures dd')")
    return mock.world.live.job["id"]


def live_route(mock, tab=""):
    return f"#/jobs/{mock.world.live.job['id']}{'/' + tab if tab else ''}"


def text(page, selector):
    return page.eval(f"(document.querySelector({selector!r}) || {{}}).innerText || ''")


def chart(page, title):
    """What a screen reader has of a chart."""
    return page.eval(f"""[...document.querySelectorAll('.plot')].map((one) => one.getAttribute('aria-label') || '')
        .find((label) => label.startsWith({title!r})) || ''""")


def click(page, name, scope="document"):
    """The button of that name."""
    assert page.eval(f"""(() => {{
        const found = [...{scope}.querySelectorAll('button, [role=tab], a')].find((one) => one.textContent.trim() === {name!r});
        if (found) {{ found.click(); }}
        return Boolean(found);
    }})()"""), f"no button {name}"


# ---- what it shows ----

def test_each_route_renders(page, mock):
    assert "lenet-live" in text(page, ".jobs tbody")
    show(page, mock, "#/nodes")
    page.until("document.querySelectorAll('.node').length === 4")
    assert "disk is replaced" in text(page, "main") and "61.0 GiB of 80.0 GiB" in text(page, "main")
    show(page, mock, "#/system")
    page.until("document.querySelector('main').innerText.includes('0f19f58')")
    for tab in TABS:
        show(page, mock, live_route(mock, tab if tab != "curves" else ""))
        page.until(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
        page.until("document.getElementById('panel').innerText.length > 40", what=tab)
    ids = [run.job["id"] for run in (mock.world.live, mock.world.done)]
    show(page, mock, "#/compare/" + ",".join(ids))
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    assert "Difference of the job files" in text(page, "main")
    page.eval("location.hash = '#/nowhere'")
    page.until("location.hash === '#/jobs'")


def test_a_job_tells_what_happened_to_it(page, mock):
    done = mock.world.done.job
    show(page, mock, f"#/jobs/{done['id']}/time")
    page.until("document.querySelectorAll('.generation').length > 1")
    count = len(done["recoveries"])
    assert page.eval("document.querySelectorAll('.generation').length") == count + 1
    assert "Lost between generations, by cause" in text(page, "main") and "process gone" in text(page, "main")
    show(page, mock, f"#/jobs/{done['id']}/checkpoints")
    page.until(f"document.querySelectorAll('#panel tbody tr').length === {len(done['checkpoints'])}")
    assert "MiB" in text(page, "#panel") or "KiB" in text(page, "#panel")
    show(page, mock, f"#/jobs/{done['id']}/file")
    page.until("document.querySelector('pre.file').innerText.includes('optimizer')")


def test_what_is_used_and_could_be_done_is_told(page, mock):
    show(page, mock, live_route(mock, "time"))
    page.until("document.getElementById('panel').innerText.includes('37.5 %')")
    said = text(page, "#panel")
    assert "3.35 GFLOP" in said and "428 GFLOP/s" in said, said  # four workers of 107
    show(page, mock, live_route(mock, "workers"))
    page.until("document.getElementById('panel').innerText.includes('123.0 MiB')")
    assert "0.94" in text(page, "#panel tbody") and "5.0 MiB" in text(page, "#panel tbody")
    show(page, mock, "#/nodes")
    page.until("document.querySelectorAll('.node .figures').length === 4")
    said = text(page, "main")
    assert all(words in said for words in ("3.8 of 8", "12.0 GiB of 32.0 GiB", "1.1 MiB/s", "97 % 310 W")), said


def test_saved_events_are_folded_and_logs_are_words(page, mock):
    show(page, mock, live_route(mock, "events"))
    page.until("document.querySelector('.events summary')")
    assert "saved 3 times, from step 200 on" in text(page, ".events summary")
    show(page, mock, live_route(mock, "logs"))
    page.until("document.querySelectorAll('.log .line').length > 3")
    assert "{" not in text(page, ".log") and "loss" in text(page, ".log")
    mock.world.change(lambda: mock.world.live.log("out of paper", "warn", rank=2))
    page.until("document.querySelector('.log').innerText.includes('out of paper')", LIVE_S)
    early = '{"ts":"2026-01-02T03:04:05.678Z","level":"info","rank":1,"msg":"came late"}'  # ranks come one by one
    mock.world.change(lambda: mock.world.live.lines.append(dict(rank=1, attempt=1, line=early)))
    page.until("document.querySelector('.log .line').innerText.includes('came late')", LIVE_S)
    page.eval("""(() => { const level = document.querySelector('.toolbar select');
        level.value = 'warn'; level.dispatchEvent(new Event('change')); })()""")
    page.until("document.querySelectorAll('.log .line').length === 1")
    page.eval("""(() => { const rank = document.querySelectorAll('.choices select')[0];
        rank.value = '1'; rank.dispatchEvent(new Event('change')); })()""")
    page.until("document.querySelectorAll('.log .line').length === 0")
    assert any("rank=1" in url for url in mock.requests)


def test_charts_are_tables_too(page, mock):
    show(page, mock, live_route(mock))
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    page.eval("document.querySelector('.chart [aria-label=\"Loss: as table\"]').click()")
    page.until("document.querySelectorAll('.chart .fallback tbody tr').length === 100")
    heads = page.eval("[...document.querySelectorAll('.chart .fallback th')].map((one) => one.textContent)")
    assert heads == ["step", "generation", "training", "evaluation"]
    assert text(page, ".chart .fallback tbody td") == "620"
    page.eval("document.querySelector('.toolbar input[type=checkbox]').click()")  # log scale
    page.eval("""(() => { const slider = document.querySelector('.toolbar input[type=range]');
        slider.value = 0.9; slider.dispatchEvent(new Event('input')); })()""")
    page.eval("document.querySelector('.chart [aria-label=\"Loss: as table\"]').click()")
    page.until("!document.querySelector('.chart .plot').hidden")


# ---- that it lives ----

def test_a_step_is_seen_within_two_seconds(page, mock):
    show(page, mock, live_route(mock))
    page.until("document.querySelector('.steps b').textContent.includes('620')")
    mock.world.advance(1)
    spent = page.until("document.querySelector('.steps b').textContent.includes('621')", LIVE_S)
    more = page.until("[...document.querySelectorAll('.readout')][0].innerText.includes('621')", LIVE_S)
    print(f"a step was seen after {spent:.2f} s, in the chart after {more:.2f} s more")
    show(page, mock, "#/jobs")
    page.until("document.querySelector('.jobs tbody').innerText.includes('621 of')")
    mock.world.advance(2)
    page.until("document.querySelector('.jobs tbody').innerText.includes('623 of')", LIVE_S)


def test_a_kill_is_a_mark_and_steps_are_made_anew(page, mock):
    show(page, mock, live_route(mock))
    page.until("document.querySelector('.steps b').textContent.includes('620')")
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    assert "restarts" not in chart(page, "Loss")
    mock.world.kill()
    mock.world.advance(3)
    page.until("""[...document.querySelectorAll('.plot')].some((one) =>
        (one.getAttribute('aria-label') || '').includes('restarts at step 614'))""", LIVE_S)
    steps = page.eval("frame.view.curves.points.map((point) => point.step)")
    assert steps == sorted(set(steps)) and steps[-1] == 616
    page.until("document.querySelector('.figures').innerText.includes('Recoveries')")
    page.until("(frame.view.marks().restarts[0].text || '').startsWith('generation 2: ')")


def test_points_stay_bounded(page, mock):
    show(page, mock, live_route(mock))
    page.until("document.querySelector('.steps b').textContent.includes('620')")
    for _ in range(9):
        mock.world.advance(330)
        page.until(f"frame.view.curves.last.step === {len(mock.world.live.rows)}", 10)
    points = page.eval("frame.view.curves.points.map(({step, weight}) => [step, weight])")
    assert len(points) <= 2000 and points[-1][0] == 3590
    assert sum(weight for _, weight in points) == 3590


def test_a_server_that_is_away_is_said_and_found_again(page, mock):
    assert not page.eval("document.getElementById('banner').checkVisibility()")
    mock.world.change(lambda: setattr(mock.world, "down", "connection refused"))
    page.until("document.getElementById('banner').innerText.includes('connection refused')", 5)
    mock.world.change(lambda: setattr(mock.world, "down", None))
    page.until("document.getElementById('banner').hidden", 10)
    port = mock.server.server_port
    mock.close()
    page.until("document.getElementById('banner').innerText.includes(\"can't be reached\")", 10)
    mock.open(port)
    page.until("document.getElementById('banner').hidden", 20)
    mock.world.advance(1)
    page.until("document.querySelector('.jobs tbody').innerText.includes('621 of')", 20)
    page.errors[:] = [error for error in page.errors if "Failed to load resource" not in error]


def test_who_is_signed_out_is_told_how(page, mock):
    mock.signed_in = False
    page.open(mock.url + "/")
    page.until("document.getElementById('sign-in').checkVisibility()")  # a hidden one has its text, too
    assert "cairn open" in text(page, "#sign-in")
    assert not page.eval("document.getElementById('main').checkVisibility()")
    mock.signed_in = True
    page.until("document.querySelectorAll('.jobs tbody tr').length > 100", 20)
    page.errors[:] = [error for error in page.errors if "401" not in error]


def test_who_may_not_look_hears_why(page, mock):
    """As with the certificate of a node: not "Asking for the jobs" for ever, beside a green "live"."""
    mock.signed_in, mock.refusal = False, (403, "a node may not look at jobs")
    page.open(mock.url + "/")
    page.until("document.getElementById('sign-in').checkVisibility()")
    assert "a node may not look at jobs" in text(page, "#refusal") and "signed out" in text(page, "#link")
    mock.refusal = (401, "this certificate has expired")
    page.open(mock.url + "/")
    page.until("document.getElementById('refusal').innerText.includes('has expired')")
    page.errors[:] = [error for error in page.errors if "401" not in error and "403" not in error]


def test_an_old_link_is_told_as_a_page(page, mock):
    mock.signed_in = False
    page.open(mock.url + "/open?code=0")
    page.until("document.getElementById('refusal').innerText.includes('older than a minute')")
    mock.signed_in = True
    page.open(mock.url + "/open?code=0")
    page.until("document.querySelectorAll('.jobs tbody tr').length > 100", 20)
    assert page.eval("location.pathname") == "/"
    page.asked[:] = [url for url in page.asked if "/open?" not in url]
    page.errors[:] = [error for error in page.errors if "401" not in error and "403" not in error]


def test_a_browser_signs_out(page, mock):
    assert not page.eval("document.getElementById('sign-out')?.checkVisibility()")  # a certificate can't be put away
    mock.actor = "operator/session:3f2a9c"
    page.open(mock.url + "/")
    page.until("document.getElementById('sign-out')?.checkVisibility()")
    click(page, "Sign out")
    page.until("document.getElementById('sign-in').checkVisibility()", 20)
    assert mock.posts == [("/api/v1/sign-out", "", "1")]
    page.errors[:] = [error for error in page.errors if "401" not in error]


# ---- what people do ----

def test_actions_are_confirmed_and_sent(page, mock):
    job = show(page, mock, live_route(mock))
    page.until("document.querySelectorAll('.actions button').length === 3")
    click(page, "Pause…")
    page.until("document.querySelector('dialog[open]')")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    assert mock.posts == []
    click(page, "Pause…")
    click(page, "Pause", "document.querySelector('dialog')")
    page.until("document.getElementById('notices').innerText.includes('paused')")
    assert mock.posts == [(f"/api/v1/jobs/{job}/pause", "", "1")]
    page.until("[...document.querySelectorAll('.actions button')].some((one) => one.textContent === 'Resume…')", 5)
    show(page, mock, "#/nodes")
    page.until("document.querySelectorAll('.node').length === 4")
    click(page, "Drain…")
    page.until("document.activeElement.id === 'answer' || document.getElementById('answer')")
    page.eval("document.getElementById('answer').focus()")
    page.type("new disk")
    page.press("Enter")
    page.until("document.querySelector('.node').innerText.includes('new disk')", 8)
    assert mock.posts[1] == ("/api/v1/nodes/node-a/drain", '{"reason":"new disk"}', "1")


def test_a_refused_action_says_why(page, mock):
    show(page, mock, live_route(mock))
    page.until("document.querySelectorAll('.actions button').length === 3")
    mock.role = "viewer"  # since the page asked
    click(page, "Stop…")
    click(page, "Stop", "document.querySelector('dialog')")
    page.until("document.querySelector('[role=alert].notice')")
    assert "you may look, not act" in text(page, "#notices")
    page.errors[:] = [error for error in page.errors if "403" not in error]


def test_a_viewer_has_no_actions(page, mock):
    mock.role = "viewer"
    page.open("about:blank")
    page.open(mock.url + "/" + live_route(mock))
    page.until("document.querySelector('.steps b') && document.querySelector('.steps b').textContent.includes('620')")
    page.until("store.session !== null")
    time.sleep(0.5)
    assert page.eval("document.querySelectorAll('.actions button').length") == 0
    show(page, mock, "#/nodes")
    page.until("document.querySelectorAll('.node').length === 4")
    assert page.eval("document.querySelectorAll('.node button').length") == 0


FOCUS_SHOWS = """(() => { const at = document.activeElement, style = getComputedStyle(at);
    return at === document.body || at.matches('main') || style.outlineStyle !== 'none' || style.boxShadow !== 'none'; })()"""


def test_all_of_it_by_keyboard(page, mock):
    page.press("j")
    page.until("document.activeElement.tagName === 'TR'")
    first = page.eval("document.activeElement.row.name")
    page.press("ArrowDown")
    assert page.eval("document.activeElement.row.name") != first
    page.press("x")
    page.press("k")
    page.press("x")
    page.until("document.querySelector('.selected').innerText.includes('Compare 2 jobs')")
    page.press("c")
    page.until("location.hash.startsWith('#/compare/')")
    page.press("1")
    page.until("location.hash === '#/jobs'")
    page.press("/")
    page.until("document.activeElement.type === 'search'")
    page.type("lenet-live")
    page.until("document.querySelectorAll('.jobs tbody tr').length === 1")
    page.press("Escape")
    page.press("j")
    page.press("Enter")
    page.until(f"location.hash === {live_route(mock)!r}")
    page.press("]")
    page.until(f"location.hash === {live_route(mock, 'time')!r}")
    page.press("?")
    page.until("document.querySelector('dialog[open] .keys')")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    # Tab reaches every control; each shows that it has the focus.
    seen = set()
    for _ in range(60):
        page.press("Tab")
        seen.add(page.eval("(document.activeElement.textContent || document.activeElement.type || '').trim().slice(0, 20)"))
        assert page.eval(FOCUS_SHOWS), seen
    assert {"Jobs", "Nodes", "?", "Pause…", "Stop…", "Time"} <= seen, seen
    page.eval("jobList.text = ''; jobList.selection.clear()")


def test_keys_rest_where_a_control_has_the_focus_and_where_they_are_off(page):
    page.eval("document.querySelector('.jobs input[type=checkbox]').focus()")
    page.press("2")
    assert page.eval("location.hash") in ("", "#/jobs")
    page.eval("document.activeElement.blur(); localStorage.setItem('cairn-keys', 'off')")
    page.press("2")
    assert page.eval("location.hash") in ("", "#/jobs")
    page.eval("document.getElementById('help').click()")
    page.eval("document.querySelector('dialog input[type=checkbox]').click()")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    page.eval("document.activeElement.blur()")
    page.press("2")
    page.until("location.hash === '#/nodes'")


def test_a_phone_sorts_reads_and_labels(page, mock):
    assert not page.eval("document.querySelector('.order').checkVisibility()")
    page.size(390)
    page.until("document.querySelector('.order').checkVisibility()")
    page.eval("""(() => { const order = document.querySelector('.order select');
        order.value = 'name down'; order.dispatchEvent(new Event('change')); })()""")
    names = page.eval("[...document.querySelectorAll('.jobs tbody td.title .name')].slice(0, 20).map((one) => one.textContent)")
    assert names == sorted(names, reverse=True)
    show(page, mock, live_route(mock))
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    labels = page.eval("[...document.querySelector('.plot').querySelectorAll('.dygraph-axis-label-x')].map((one) => one.innerText)")
    assert len(labels) >= 3, labels
    before = text(page, ".readout")
    page.eval("""(() => { const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
        const canvas = plot.querySelector('canvas:last-of-type');
        const touch = new Touch({identifier: 1, target: canvas, clientX: box.left + 100, clientY: box.top + 50});
        canvas.dispatchEvent(new TouchEvent('touchstart', {touches: [touch], bubbles: true, cancelable: true})); })()""")
    assert text(page, ".readout") != before
    small = page.eval("""[...document.querySelectorAll('button, input[type=checkbox], select')].filter((one) => one.checkVisibility())
        .filter((one) => one.getBoundingClientRect().height < 23.9).map((one) => one.outerHTML.slice(0, 80))""")
    assert small == []


def test_a_job_of_any_name_is_compared(page, mock):
    """As of one that is what each object of JavaScript has."""
    jobs = [run.job for run in (mock.world.live, mock.world.done)]
    mock.world.change(lambda: [job.update(name=name) for job, name in zip(jobs, ("hasOwnProperty", "__proto__"))])
    show(page, mock, "#/compare/" + ",".join(job["id"] for job in jobs))
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    page.until("[...document.querySelectorAll('.plot')].some((one) => (one.getAttribute('aria-label') || '').includes('hasOwnProperty'))")
    assert page.eval("Object.keys(frame.view).length") > 0


def test_sorting_and_filtering(page):
    count = page.eval("document.querySelectorAll('.jobs tbody tr').length")
    click(page, "Loss")
    losses = page.eval("[...document.querySelectorAll('.jobs tbody tr')].map((tr) => tr.row.loss)")
    known = [loss for loss in losses if loss is not None]
    assert len(known) > 150 and losses[:len(known)] == sorted(known, reverse=True)  # what isn't known comes last
    assert page.eval("document.querySelectorAll('[aria-sort=descending]').length") == 1
    page.eval("[...document.querySelectorAll('.chip')].find((one) => one.textContent.startsWith('Failed')).click()")
    page.until("document.querySelectorAll('.jobs tbody tr').length < 60")
    assert page.eval("[...document.querySelectorAll('.jobs tbody tr')].every((tr) => tr.row.state === 'FAILED')")
    assert count == 200


# ---- for everybody ----

ROUTES = ("#/jobs", "#/nodes", "#/system", "live", "live/time", "live/workers", "live/checkpoints", "live/events", "live/logs",
          "live/file", "compare")


def routes(mock):
    ids = ",".join(run.job["id"] for run in (mock.world.live, mock.world.evil))
    for route in ROUTES:
        yield "#/compare/" + ids if route == "compare" else route.replace("live", live_route(mock)) if "live" in route else route


def test_nothing_is_wider_than_a_phone(page, mock):
    page.size(380, 800)
    for route in routes(mock):
        show(page, mock, route)
        time.sleep(0.7)
        wide = page.eval("document.documentElement.scrollWidth")
        assert wide <= 380, f"{route}: {wide} pixels"
    show(page, mock, "#/jobs")
    assert page.eval("[...document.querySelectorAll('.jobs th')].every((head) => !head.checkVisibility())")  # cards, no heads


def test_dark_is_dark(page, mock):
    page.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    for route in routes(mock):
        show(page, mock, route)
    ground, ink = page.eval("""['backgroundColor', 'color'].map((name) =>
        getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0))""")
    assert ground < 150 < 500 < ink
    assert page.eval("matchMedia('(prefers-reduced-motion: reduce)').matches")
    assert page.eval("getComputedStyle(document.createElement('div')).transitionDuration") in ("", "0s")


CONTRAST = """(() => {
    const parts = (color) => { const all = color.match(/[\\d.]+/g).map(Number); return all.length > 3 && all[3] < 1 ? null : all; };
    const light = (color) => parts(color).slice(0, 3).map((v) => v / 255).map((v) =>
        v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (node) => { for (; node; node = node.parentElement) {
        const color = getComputedStyle(node).backgroundColor; if (parts(color)) { return color; } } return 'rgb(255, 255, 255)'; };
    const found = [];
    document.querySelectorAll('main *, header *').forEach((node) => {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility() || node.closest('[aria-disabled=true], [aria-hidden=true]') || node.tagName === 'OPTION') { return; }
        const ink = getComputedStyle(node).color;
        if (!parts(ink)) { return; }
        const [a, b] = [light(ink), light(ground(node))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) { found.push(`${node.tagName}.${node.className} ${ratio.toFixed(2)} ${node.textContent.slice(0, 30)}`); }
    });
    return [...new Set(found)].slice(0, 10);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(page, mock, scheme):
    """WCAG AA: 4.5 to 1."""
    page.media(prefers_color_scheme=scheme)
    for route in routes(mock):
        show(page, mock, route)
        time.sleep(0.6)
        assert page.eval(CONTRAST) == [], route


UNNAMED = """[...document.querySelectorAll('button, a, input, select, [role=img], [role=progressbar], [tabindex="0"]')].filter((one) =>
    one.checkVisibility() && !(one.textContent.trim() || one.getAttribute('aria-label') || one.closest('label') ||
        one.getAttribute('title'))).map((one) => one.outerHTML.slice(0, 120))"""


def test_everything_has_a_name(page, mock):
    for route in routes(mock):
        show(page, mock, route)
        time.sleep(0.6)
        assert page.eval(UNNAMED) == [], route


def test_what_others_wrote_stays_text(page, mock):
    evil = mock.world.evil.job["id"]
    assert EVIL in text(page, ".jobs tbody")
    for tab in TABS:
        show(page, mock, f"#/jobs/{evil}/{tab}")
        page.until(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
        time.sleep(0.5)
        assert EVIL in text(page, ".jobhead h1")
    assert EVIL in text(page, "pre.file")
    show(page, mock, f"#/jobs/{evil}/logs")
    page.until("document.querySelectorAll('.log .line').length > 1")
    show(page, mock, f"#/compare/{evil},{mock.world.live.job['id']}")
    page.until("document.querySelectorAll('.plot canvas').length > 0")
    show(page, mock, "#/nodes")
    page.until("document.querySelectorAll('.node').length === 4")
    assert EVIL in text(page, "main")
    assert page.eval("document.querySelectorAll('main img').length") == 0 and page.eval("document.title") != "pwned"
