"""Somebody at the page, in a real browser, before a real server."""

WAIT_MS = 30_000
ALL_SHOWN = """() => {
    const panels = [...document.querySelectorAll(".panel")];
    return panels.length && panels.every(panel => !panel.hidden && !panel.classList.contains("stale"));
}"""
TOKEN = "a-token-of-many-letters"


class Person:
    """What somebody does on the page, and what they see of one model."""

    def __init__(self, opened, panel: int = 0) -> None:
        self.opened, self.page = opened, opened.page
        self.page.set_default_timeout(WAIT_MS)
        self.panel = self.page.locator(".panel").nth(panel)

    def part(self, name: str):
        return self.panel.locator(f'[data-at="{name}"]')

    def canvas(self, name: str) -> str:
        return self.part(name).evaluate("canvas => canvas.toDataURL()")

    def text(self, name: str) -> str:
        return self.part(name).text_content().replace("\N{NO-BREAK SPACE}", " ")

    def problem(self) -> str:
        self.page.locator("#problem").wait_for()
        return self.page.locator("#problem-text").text_content()

    def wait_for_attention(self, doing=lambda: None) -> None:
        """After something was done: until another answer, its attention and the end of the flight are there."""
        self.page.evaluate("document.querySelectorAll('.panel').forEach(panel => panel.classList.add('stale'))")
        doing()
        self.page.wait_for_function(ALL_SHOWN)
        self.wait_for_landing()

    def wait_for_landing(self) -> None:
        self.page.wait_for_function("() => [...document.querySelectorAll('.flight')].every(canvas => canvas.hidden)")

    def drop(self, name: str, data: bytes, kind: str = "image/png") -> None:
        self.page.evaluate(
            """([name, bytes, type]) => {
                const held = new DataTransfer();
                held.items.add(new File([new Uint8Array(bytes)], name, {type}));
                const how = {dataTransfer: held, bubbles: true, cancelable: true};
                document.body.dispatchEvent(new DragEvent("drop", how));
            }""",
            [name, list(data), kind],
        )


def visit(chromium_page, server, **options) -> Person:
    """At the page, once the first example is shown; without motion, but where it is looked at."""
    options.setdefault("reduced_motion", "reduce")
    person = Person(chromium_page(server.url, **options))
    if "authorization" in server.client.headers:
        person.page.get_by_label("This server asks for a token").fill(TOKEN)
        person.page.get_by_role("button", name="Enter").click()
        person.page.locator("#token").wait_for(state="hidden")
        assert [problem for problem in person.opened.problems if "401" not in problem] == []
        person.opened.problems.clear()
    person.page.wait_for_function(ALL_SHOWN)
    return person
