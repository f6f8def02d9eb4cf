"""Makes case_tables.inc: the characters that become several in another case, as Python's str has them.

Made with Python 3.11 (Unicode 14.0), which needs nothing else:
    python3 make_case_tables.py
"""

from pathlib import Path

LINES = ["// Made by make_case_tables.py: characters that become several when they are upper, title or lower case.",
         "constexpr CaseEntry kSeveral[] = {"]
for code in range(0x110000):
    if 0xD800 <= code < 0xE000:
        continue
    c = chr(code)
    forms = [c.upper(), c.title(), c.lower()]
    if any(len(form) > 1 for form in forms):
        LINES.append("    {0x%X, %s}," % (code, ", ".join('"%s"' % form for form in forms)))
LINES.append("};")
Path(__file__).with_name("case_tables.inc").write_text("\n".join(LINES) + "\n")
