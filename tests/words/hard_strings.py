"""A thousand texts that tokenizers stumble over."""

# ruff: noqa: RUF001

import random
import unicodedata

SAID = (
    "a photo of a cat",
    "It's TODAY'S 'LL don''t 'D",
    "cafe\u0301 é́ ÅÅ",
    "😀😀 family 👨‍👩‍👧 🇩🇪🏳️‍🌈 1️⃣",
    "你好世界 汉字。、",
    "schÃ¶n â€œquotesâ€\x9d naÃ¯ve",
    "&amp;lt;b&amp;gt; Tom &amp; Jerry &eacute; &#x1F600; &nbsp;&copy",
    "“curly” ‘quotes’ – dash — … ´`",
    "ＦＵＬＬ　ｗｉｄｔｈ １２３ ！",
    "long " * 300,
    "x" * 500,
    "",
    " ",
    "\x00\x01\x07 bell\x1b[0m \x7f\x85",
    "a\tb\nc\r\nd\x0b\x0ce",
    "'ſ it'ſ ﬆ ﬁ ﬀ",
    "١٢٣ ½ ² Ⅷ ⅓ 3rd 2024-11-16",
    "\u200b zero\u200dwidth\ufeff\u00ad",
    "snake_case kebab-case a/b\\c #tag @name",
    "İstanbul ß ẞ ΣΑΣ ǅ",
    "नमस्ते ไทย 한국어 العربية עברית",
    "\u202eright to left",
    "\xa0nbsp\u3000ideographic\u2028line\u2029paragraph",
    "http://example.org/?q=a%20b&c=1",
    "<b>bold</b> <!-- comment --> {json: [1, 2]}",
    "ͅα x\u0345 y",
    "▁ underline ▁x",
)


def hard_strings(num=1000, seed=0):
    draw = random.Random(seed)
    ranges = ((0x20, 0x3000), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xFF00, 0xFFEF), (0x1F300, 0x1F650))
    letters = [chr(code) for first, last in ranges for code in range(first, last)]
    letters = [letter for letter in letters if unicodedata.category(letter) != "Cn"]  # what is assigned varies
    found = list(SAID)
    while len(found) < num:
        length = draw.randint(1, 60)
        found.append("".join(draw.choice(letters if draw.random() < 0.6 else " abcXYZ'1&;.") for _ in range(length)))
    return found
