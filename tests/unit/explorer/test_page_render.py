"""How the page renders numbers, times, addresses and texts; text of strangers is always escaped."""

from __future__ import annotations

import re
import unicodedata
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer import render
from explorer.courtroom import CaseRow, CaseView, charge
from explorer.site import PAGES
from explorer.words import SECTIONS, WORDS, anchor_of
from muster.constants import TOKEN
from muster.runtime.printable import BLANKS

ADDRESS = "0x00000000000000000000000000000000000000A1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1234567, "1,234,567"),
        (12.0, "12"),
        (0.123456, "0.1235"),
        (-2.5, "-2.5"),
        (12345.6, "12,346"),
        (0.00001234, "0.000012"),
        (1e-9, "1e-09"),
        (1.7e308, "1.7e+308"),
        (-1e15, "-1e+15"),
        (999_999_999_999_999.0, "999,999,999,999,999"),
    ],
)
def test_numbers_are_short_and_exact_enough(value: float | None, text: str) -> None:
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("wei", "text"),
    [
        (None, "–"),
        (0, "0 MUST"),
        (1, "< 0.0001 MUST"),
        (TOKEN, "1 MUST"),
        (TOKEN // 4, "0.25 MUST"),
        (1234 * TOKEN + TOKEN // 10, "1,234.1 MUST"),
        (-TOKEN // 2, "-0.5 MUST"),
        (TOKEN // 3, "0.3333 MUST"),
    ],
)
def test_token_wei_are_shown_as_tokens(wei: int | None, text: str) -> None:
    assert render.amount(wei) == text


def test_sizes_shares_and_lengths_of_time() -> None:
    assert [render.size(value) for value in (None, 0, 999, 1000, 269_000_000, 5 * 10**12)] == [
        "–",
        "0 B",
        "999 B",
        "1 kB",
        "269 MB",
        "5 TB",
    ]
    assert [render.percent(value) for value in (None, 0.0, 0.931, 1.0)] == ["–", "0 %", "93.1 %", "100 %"]
    assert [render.span(value) for value in (None, 0, 59, 3_661, 90_000)] == [
        "–",
        "0 s",
        "59 s",
        "1 h 1 min",
        "1 d 1 h",
    ]
    assert [render.counted(count, "case") for count in (0, 1, 1_200)] == ["0 cases", "1 case", "1,200 cases"]
    assert render.counted(2, "entry", "entries") == "2 entries"
    assert render.short(ADDRESS) == "0x0000…00A1"
    assert (render.short(None), render.short("v1")) == ("–", "v1")
    assert render.hour(490_000) == "Nov 24, 16:00"


def test_times_are_elements_that_scripts_find() -> None:
    assert render.moment(None) == "–"
    exact = '<time datetime="2025-11-25T16:00:00Z" data-moment="1764086400">2025-11-25 16:00 UTC</time>'
    assert render.moment(1_764_086_400.4) == exact
    assert render.countdown(7_300, 100) == '<span class="countdown" data-until="7300">in 2 h</span>'
    assert render.countdown(100, 100) == '<span class="countdown" data-until="100">now</span>'


def test_a_picture_follows_from_the_address_alone() -> None:
    assert render.mark(ADDRESS) == render.mark(ADDRESS.lower())
    assert render.mark(ADDRESS) != render.mark("0x" + "11" * 20)
    cells = {(int(x), int(y)) for x, y in re.findall(r"M(\d) (\d)", render.mark(ADDRESS))}
    assert cells == {(4 - x, y) for x, y in cells}, "it is symmetrical"


def test_a_bar_has_a_part_for_each_count_and_none_for_zero() -> None:
    drawn = render.bars([("accepted", 3), ("pending", 0), ("rejected", 1)], 4)
    assert re.findall(r'is-(\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', drawn) == [
        ("accepted", "0.00", "75.00"),
        ("rejected", "75.00", "25.00"),
    ]
    assert "<rect" not in render.bars([("accepted", 0)], 0)


def test_timeline_stacks_outcomes_of_each_hour() -> None:
    drawn = render.strip([(490_000, {"accepted": 2, "rejected": 1}), (490_002, {"accepted": 6})])
    assert "<title>Nov 24, 16:00: 2 accepted, 1 rejected</title>" in drawn
    rects = re.findall(r'is-(\w+)" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    assert rects == [
        ("accepted", "0.00", "48.00", "24.00"),
        ("rejected", "0.00", "36.00", "12.00"),
        ("accepted", "480.00", "0.00", "72.00"),
    ], "the hour between has nothing; heights are shares of the most, six"
    assert "<figcaption><span>Nov 24, 16:00</span><span>Nov 24, 18:00</span></figcaption>" in drawn
    assert render.strip([]) == ""


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202etxt\u200b\x00&\"'"


def test_hostile_text_stays_visible_text() -> None:
    assert render.shown(HOSTILE) == "<script>alert(1)</script>\\x1b[31m\\u202etxt\\u200b\\x00&\"'"
    assert render.shown("two\nlines\tand\r\nthree") == "two\nlines\tand\nthree"
    assert render.shown("x" * 401) == "x" * 400 + "…"
    assert len(render.shown("x" * 1_000_000, 4_000)) == 4_001


@given(st.text(max_size=200))
def test_shown_text_has_no_invisible_characters(text: str) -> None:
    """Blanks and joiners that scripts need are the exception."""
    left = [letter for letter in render.shown(text) if unicodedata.category(letter)[0] in "CZ"]
    assert set(left) <= {*BLANKS, *"\n\t\u200c\u200d"}


def test_special_tokens_are_elements_and_the_rest_is_text() -> None:
    written = render.written("<|user|>a <b>\u202e<|end|>", ["<|user|>", "<|end|>"])
    assert written == ('<i class="special">&lt;|user|&gt;</i>a &lt;b&gt;\\u202e<i class="special">&lt;|end|&gt;</i>')
    assert render.written("<|user|>abc", ["<|user|>"], 9) == '<i class="special">&lt;|user|&gt;</i>a…'
    assert render.written("<|user|>", []) == "&lt;|user|&gt;"


class Seen(HTMLParser):
    """Collect the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(max_size=80))
def test_templates_escape_node_names(name: str) -> None:
    source = '{% import "macros.html" as ui %}{{ ui.node(address, name) }}'
    seen = Seen()
    seen.feed(render.environment().from_string(source).render(address=ADDRESS, name=name))
    assert seen.elements == (["a", "svg", "path", "bdi", "code"] if name else ["a", "svg", "path", "code"])
    if name:
        assert render.shown(name) in seen.text


SITE = {
    **{"run": 1, "chain_id": 31337, "title": "Sums", "url": "http://run.example", "static": "/static/1"},
    **{"api": "/v1/runs/1", "pages": PAGES, "here": "/court", "refresh": 8, "made": 0.0, "chain_time": 5},
    **{"stale_since": None, "explorer": ""},
}


def test_an_explorer_makes_links_of_transactions_and_whole_addresses() -> None:
    source = '{% import "macros.html" as ui with context %}{{ ui.transaction(hash) }}{{ ui.address(one, whole=True) }}'
    template, values = render.environment().from_string(source), {"hash": "0x" + "33" * 32, "one": ADDRESS}
    assert "href" not in template.render(site=SITE, **values)
    made = template.render(site={**SITE, "explorer": "https://scan.example"}, **values)
    assert f'href="https://scan.example/tx/{values["hash"]}"' in made
    assert f'href="https://scan.example/address/{ADDRESS}"' in made


def lead_of(template: str, **values: object) -> tuple[str, str]:
    """Return the leading sentence of a page and the text after it, up to the end of the main part."""
    page = render.environment().get_template(template).render(site=SITE, **values)
    lead, _, rest = page.partition('<p class="lead">')[2].partition("</p>")
    seen = Seen()
    seen.feed(rest.partition("</main>")[0])
    return unescape(lead), seen.text


def test_the_page_of_a_case_begins_with_its_charge() -> None:
    case = CaseRow(
        id=7, node=ADDRESS, name="Ann", index=5, step=3, kind="wrong_reward", challenger=ADDRESS,
        challenger_name="Bob", outcome="open", jury=4, commits=1, reveals=0, guilty_votes=0, opened_at=1,
        commit_ends=10, reveal_ends=20, evidence="0x" + "22" * 32, opened_in="0x" + "33" * 32, resolved_in=None,
    )  # fmt: skip
    said = charge(case, None)
    view = CaseView(
        run=1, case=case, charge=said, state="Judges vote.", block_time=5, position=3, root="0x", measured=None,
        threshold=None,
    )  # fmt: skip
    lead, rest = lead_of("case.html", page=view)
    assert lead == said
    assert said.startswith("Bob says of commitment 5 of Ann, made at step 3: ")
    assert "Judges vote." in rest


def test_the_page_of_a_refusal_has_its_next_step() -> None:
    lead, rest = lead_of("problem.html", title="Not found", detail="run 1 has no case 9", hint="muster slash list")
    assert (lead, "Next: muster slash list." in rest) == ("run 1 has no case 9.", True)
    _, rest = lead_of("problem.html", title="Not found", detail="run 1 has no case 9", hint="")
    assert "Next" not in rest


def test_every_word_has_a_unique_anchor() -> None:
    assert len({anchor_of(word) for word in WORDS}) == len(WORDS) == sum(len(words) for words in SECTIONS.values())
    assert anchor_of("measured, limit") == "measured-limit"
    link = render.word("step", "Steps")
    assert link.startswith('<a class="word" href="/explain#step" title="A published state of the model.')
    assert link.endswith(">Steps</a>")
