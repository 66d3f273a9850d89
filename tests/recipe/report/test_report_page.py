"""The report in a real browser, by clicking through it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.generated_rollouts import HOSTILE_TEXT

READY = "html[data-state=ready]"


@dataclass
class Visit:
    """A page that was opened, and what the browser had to say."""

    page: Page
    path: Path
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, link: str = "") -> Page:
        """Load it, at a link."""
        self.page.goto("about:blank")
        self.page.goto(self.path.as_uri() + link)
        self.page.wait_for_selector(READY)
        return self.page


@pytest.fixture
def visit(browser: Browser, page_path: Path) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme="light")
    visit = Visit(context.new_page(), page_path)
    visit.page.on("console", lambda message: visit.messages.append(message.text))
    visit.page.on("pageerror", lambda error: visit.messages.append(str(error)))
    visit.page.on("dialog", lambda dialog: visit.messages.append(f"dialog {dialog.message}"))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.set_default_timeout(20_000)
    yield visit
    assert visit.messages == [], "the console stays empty whatever is done"
    outside = [
        url for url in visit.requests if url != "about:blank" and not url.startswith((page_path.as_uri(), "data:"))
    ]
    assert outside == [], "the page asks for nothing but itself"
    context.close()


def listed(page: Page) -> int:
    """How many rollouts the list says it has."""
    return int(page.locator("#list-status").inner_text().split(" ")[0].replace(",", ""))


def test_every_section_is_there_and_says_what_the_run_did(visit: Visit) -> None:
    page = visit.open()
    names = page.locator("#section-links a").all_inner_texts()
    assert names == ["Overview", "Curves", "Preference model", "KL and reward", "Rollouts"]
    overview = page.locator("#overview")
    expect(overview).to_contain_text("95.1 %")
    expect(overview.locator("#gates")).to_contain_text("1 of 7 failed")
    expect(overview.locator("#gates")).to_contain_text("raise rl.kl_penalty_coef")
    expect(overview).to_contain_text("mint://c41d/sampler_weights/final")
    expect(page.locator("#report-card")).to_contain_text("prompt echo")
    expect(page.locator("#divergence")).to_contain_text("raised its alarm at steps 45, 48")


def test_charts_read_out_zoom_and_change_scale(visit: Visit) -> None:
    page = visit.open("#curves")
    chart = page.locator("#curves .chart", has_text="NLL per token")
    plot, readout = chart.locator("svg.plot"), chart.locator(".readout")
    expect(readout).to_contain_text("last")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80)
    expect(readout).to_contain_text(re.compile(r"step \d+\s*train 0\.\d+\s*held-out"))
    linear = chart.locator("path.line").first.get_attribute("d")
    page.get_by_role("button", name="log", exact=True).click()
    expect(chart.locator("path.line").first).not_to_have_attribute("d", linear or "")
    page.get_by_role("button", name="linear", exact=True).click()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 80, steps=4)
    page.mouse.up()
    expect(chart.locator("path.line").first).not_to_have_attribute("d", linear or "")
    page.get_by_role("button", name="Zoom out").click()
    expect(chart.locator("path.line").first).to_have_attribute("d", linear or "")
    page.get_by_label("Smoothing").fill("0.9")
    expect(chart.locator("path.is-raw").first).to_be_attached()
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("step 1")


def test_any_metrics_can_be_drawn_together(visit: Visit) -> None:
    page = visit.open("#curves")
    picker = page.locator(".stage-curves").last.locator("details")
    picker.locator("summary").click()
    picker.get_by_label("entropy", exact=True).check()
    picker.get_by_label("env/all/gold", exact=True).check()
    expect(picker.locator(".legend")).to_contain_text("env/all/gold")


def test_a_click_on_a_step_opens_its_rollouts(visit: Visit) -> None:
    page = visit.open("#curves")
    plot = page.locator("#curves .chart", has_text="Entropy").locator("svg.plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + 90)
    expect(page.locator("#list-status")).to_contain_text("12 of")
    assert (
        page.locator("[data-filter=fromStep]").input_value() == page.locator("[data-filter=toStep]").input_value() != ""
    )


def test_filters_and_search_change_the_list(visit: Visit) -> None:
    page = visit.open("#rollouts")
    everything = listed(page)
    assert everything == 60 * 4 * 3 + 1
    page.locator("[data-filter=minReward]").fill("1.5")
    high = listed(page)
    assert 0 < high < everything
    page.locator("[data-filter=onlyCut]").check()
    assert listed(page) < high
    page.locator("#clear-filters").click()
    assert listed(page) == everything
    page.locator("[data-filter=onlyFault]").check()
    assert listed(page) == 1
    expect(page.locator("#rollout-detail")).to_contain_text("no such topic")
    page.locator("#clear-filters").click()
    page.locator("[data-filter=fromStep]").fill("10")
    page.locator("[data-filter=toStep]").fill("11")
    assert listed(page) == 24
    page.locator("#clear-filters").click()
    page.locator("#rollout-search").fill("NAÏVE café")
    expect(page.locator("#list-status")).to_contain_text(re.compile(r"^[1-9]\d? of"))
    expect(page.locator("#rollout-detail .is-match, #rollout-detail mark").first).to_be_visible()
    page.locator("#rollout-search").fill("no reply says this")
    expect(page.locator(".empty-list")).to_be_visible()


def test_the_list_holds_only_the_rows_in_view_and_moves_by_keys(visit: Visit) -> None:
    page = visit.open("#rollouts")
    assert page.locator(".row").count() < 40
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("data-episode", "2")
    page.locator("#rollout-list").focus()
    page.keyboard.press("End")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("data-episode", str(listed(page) - 1))
    page.keyboard.press("/")
    expect(page.locator("#rollout-search")).to_be_focused()


def test_members_stand_side_by_side_with_their_rewards_and_tokens_change_colour(visit: Visit) -> None:
    page = visit.open("#rollouts?e=train.7.2.1")
    cards = page.locator(".episode")
    expect(cards).to_have_count(3)
    tops = {round(card.bounding_box()["y"]) for card in cards.all()[:2] if card.bounding_box()}  # pyright: ignore
    assert len(tops) == 1, "two members in one row"
    expect(page.locator(".episode.is-chosen")).to_contain_text("member 1")
    expect(cards.first).to_contain_text("gold")
    token = cards.first.locator(".token").nth(3)
    colours = {}
    for mode in ("plain", "advantage", "logprob", "ratio"):
        page.get_by_role("button", name=mode, exact=True).click()
        page.wait_for_selector(f"button[data-value={mode}][aria-pressed=true]")
        colours[mode] = [
            one.evaluate("node => getComputedStyle(node).backgroundColor")
            for one in cards.first.locator(".token").all()[:20]
        ]
    assert len({str(colour) for colour in colours.values()}) == 4
    assert set(colours["plain"]) == {"rgba(0, 0, 0, 0)"}
    token.hover()
    for text in ("id", "sampler", "trainer", "ratio", "advantage"):
        expect(page.locator("#tooltip")).to_contain_text(text)
    expect(page.locator("#tooltip")).not_to_contain_text("not recorded")


def test_the_same_prompt_at_other_steps(visit: Visit) -> None:
    page = visit.open("#rollouts?e=train.0.0.0")
    prompt = page.locator(".prompt-text").inner_text()
    chips = page.locator(".step-chip")
    assert chips.count() == 5
    chips.nth(2).click()
    expect(page.locator("#detail-title")).to_contain_text("Step 24")
    assert page.locator(".prompt-text").inner_text() == prompt
    page.keyboard.press("]")
    expect(page.locator("#detail-title")).to_contain_text("Step 36")
    page.locator("#across-button").click()
    expect(page.locator(".step-block")).to_have_count(5)
    assert page.locator(".episode").count() == 15


def test_a_link_leads_back_to_the_same_view(visit: Visit) -> None:
    page = visit.open("#rollouts?e=train.12.1.2&colour=logprob&from=12&to=13&sort=-reward")
    expect(page.locator("#detail-title")).to_contain_text("Step 12, group 1")
    expect(page.locator("button[data-value=logprob]")).to_have_attribute("aria-pressed", "true")
    assert listed(page) == 24
    expect(page.locator(".episode.is-chosen")).to_contain_text("member 2")
    page.keyboard.press("j")
    chosen = page.locator(".row[aria-selected=true]").get_attribute("data-episode")
    link = page.evaluate("location.hash")
    again = visit.open(link)
    expect(again.locator(".row[aria-selected=true]")).to_have_attribute("data-episode", chosen or "")
    assert again.evaluate("location.hash") == link


def test_what_a_model_wrote_stays_text(visit: Visit) -> None:
    page = visit.open("#rollouts")
    page.locator("#rollout-search").fill("onerror=alert")
    expect(page.locator("#list-status")).to_contain_text(re.compile(r"^[1-9]\d* of"))
    expect(page.locator(".episode.is-chosen .response")).to_contain_text(HOSTILE_TEXT)
    assert page.locator("main script, main img").count() == 0


def test_dark_mode_follows_the_system_and_the_button(visit: Visit) -> None:
    page = visit.open()
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert light == "rgb(250, 249, 246)" and dark == "rgb(20, 22, 24)"
    button = page.locator("#theme-button")
    button.click()
    assert page.evaluate(paper) == light and button.inner_text() == "Light"
    page.emulate_media(color_scheme="light")
    button.click()
    assert page.evaluate(paper) == dark


def test_a_phone_needs_no_scrolling_sideways(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    page = visit.open("#rollouts?e=train.7.2.1")
    page.wait_for_selector(".episode")
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".row").nth(1).click()
    expect(page.locator(".row[aria-selected=true]")).to_have_count(1)


def test_everything_that_can_be_operated_has_a_name(visit: Visit) -> None:
    page = visit.open("#rollouts?e=train.7.2.1")
    page.wait_for_selector(".episode")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, [role=img], [role=listbox]")]
        .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
        .map((node) => node.outerHTML.slice(0, 100))"""
    )
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit: Visit, scheme: str) -> None:
    """Contrast of at least 4.5 between the colours of text and the grounds it stands on (WCAG 2, AA)."""
    page = visit.open()
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    colours = page.evaluate(
        """() => Object.fromEntries(["paper", "surface", "raised", "accent-soft", "good-soft", "bad-soft", "warn-soft",
        "text", "muted", "accent", "good", "bad", "warn"].map((name) => {
          const probe = document.createElement("i");
          document.body.append(probe);
          probe.style.color = `var(--${name})`;
          return [name, getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number)];
        }))"""
    )

    def luminance(rgb: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    pairs = [(text, ground) for text in ("text", "muted", "accent") for ground in ("paper", "surface", "raised")]
    pairs += [
        ("accent", "accent-soft"),
        ("good", "good-soft"),
        ("bad", "bad-soft"),
        ("warn", "warn-soft"),
        ("bad", "surface"),
    ]
    too_weak = {pair: round(contrast(*pair), 2) for pair in pairs if contrast(*pair) < 4.5}
    assert too_weak == {}


def test_keys_are_listed_on_request_and_paper_gets_no_controls(visit: Visit) -> None:
    page = visit.open()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("search prompts and replies")
    page.get_by_role("button", name="Close").click()
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#theme-button").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
