"""Makes unicode_tables.inc: what Hugging Face tokenizers knows of every character.

Its wheels link an Oniguruma with tables of Unicode 16.0, and normalise with tables of Unicode 9.0. The library itself is
asked, so the table is what it does and not what a standard says. Perl lends the names of scripts and the characters of
Unicode 9.0.

Made with Python 3.11, tokenizers 0.23.3, Perl 5.36 (Unicode 14.0):
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 && venv/bin/python make_unicode_tables.py
"""

import subprocess
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
FLAGS = ("Alpha Lower Upper Graph Print Punct Space Word Blank XDigit Emoji Emoji_Presentation Emoji_Modifier "
         "Emoji_Modifier_Base Emoji_Component Extended_Pictographic").split()
# Scripts that Unicode added after Perl's version.
NEW_SCRIPTS = {"Kawi": "Kawi", "Nag_Mundari": "Nagm", "Garay": "Gara", "Gurung_Khema": "Gukh", "Kirat_Rai": "Krai",
               "Ol_Onal": "Onao", "Sunuwar": "Sunu", "Todhri": "Todr", "Tulu_Tigalari": "Tutg"}
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(CHARACTERS)


def perl(program):
    return subprocess.run(["perl", "-e", program], check=True, capture_output=True, text=True).stdout.split()


def members(name, text=TEXT):
    """The characters of a property, from the engine's own mouth."""
    found = set()
    splitter = pre_tokenizers.Split(Regex(r"\p{%s}" % name), behavior="removed", invert=True)
    for piece, _ in splitter.pre_tokenize_str(text):
        found.update(map(ord, piece))
    return found


def is_known(name):
    try:
        Regex(r"\p{%s}" % name)
        return True
    except Exception:
        return False


def scripts():
    """Names of each script: the long one first."""
    lines = perl('use Unicode::UCD qw(prop_values prop_value_aliases);'
                 'for (prop_values("sc")) { my ($s, @l) = prop_value_aliases("sc", $_); print join(",", $l[0], $s, @l[1..$#l]), "\\n" }')
    named = [line.split(",") for line in lines] + [[long, short] for long, short in NEW_SCRIPTS.items()]
    named = [list(dict.fromkeys(filter(is_known, names))) for names in named]
    return sorted(names for names in named if names)


def normalised(name):
    return "".join(c for c in name.lower() if c not in " -_")


def wrapped(items, separator=", "):
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 2 > 118:
            lines.append(line.rstrip())
            line = ""
        line += item + separator
    return "\n".join("  " + each for each in lines + [line.rstrip()])


def main():
    category = ["Cn"] * 0x110000
    for name in CATEGORIES:
        for c in members(name):
            category[c] = name
    category[0xD800:0xE000] = ["Cs"] * 0x800
    script_names = scripts()
    script = [script_names.index(["Unknown", "Zzzz"])] * 0x110000
    for index, names in enumerate(script_names):
        for c in members(names[0]):
            script[c] = index
    flags = [0] * 0x110000
    for bit, name in enumerate(FLAGS):
        for c in members(name):
            flags[c] |= 1 << bit
    old = len(FLAGS)
    for c in map(int, perl('for my $c (0..0x10FFFF) { next if $c >= 0xD800 && $c < 0xE000; no warnings;'
                           'print "$c\\n" if chr($c) =~ /\\p{Present_In=9.0}/ }')):
        flags[c] |= 1 << old
    kinds, runs, last = {}, [], None
    for c in range(0x110000):
        kind = (category[c], script[c], flags[c])
        if kind != last:
            runs.append((c, kinds.setdefault(kind, len(kinds))))
            last = kind

    out = ["// Made by make_unicode_tables.py, which says from what; do not edit.", "// clang-format off", "",
           "enum class Category : uint8_t {", wrapped(["k" + name for name in CATEGORIES]), "};", "",
           "enum Flag : uint32_t {"]
    out.append(wrapped([f"k{name.replace('_', '')} = {1 << bit}" for bit, name in enumerate(FLAGS)] +
                       [f"kInUnicode9 = {1 << old}"]))
    out += ["};", "", "// Names as property names are compared: without spaces, hyphens and underscores, in lower case.",
            "struct Name { std::string_view name; int32_t value; };", "constexpr Name kScriptNames[] = {"]
    names = sorted({(normalised(name), index) for index, each in enumerate(script_names) for name in each})
    out += [wrapped([f'{{"{name}", {index}}}' for name, index in names]), "};", "", "constexpr Name kFlagNames[] = {"]
    out += [wrapped([f'{{"{normalised(name)}", {1 << bit}}}' for bit, name in enumerate(FLAGS)]), "};", "",
            "struct Kind { Category category; uint8_t script; uint32_t flags; };", "constexpr Kind kKinds[] = {"]
    out += [wrapped([f"{{Category::k{kind[0]}, {kind[1]}, {kind[2]}}}" for kind in kinds]), "};", "",
            "// Runs of characters of one kind, up to the next run or U+10FFFF.",
            "struct Run { int32_t first; uint16_t kind; };", "constexpr Run kRuns[] = {"]
    out += [wrapped([f"{{{first},{kind}}}" for first, kind in runs], ","), "};", ""]
    (Path(__file__).parent / "unicode_tables.inc").write_text("\n".join(out))
    print(len(runs), "runs,", len(kinds), "kinds,", len(script_names), "scripts")


if __name__ == "__main__":
    main()
