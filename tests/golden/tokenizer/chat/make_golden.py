"""Makes chat.json, the golden file of tests/tokenizer/chat/chat_template_test.cpp, with Jinja, the reference, set up as
Hugging Face's apply_chat_template sets it up.

Made with Python 3.11, jinja2 3.1.6:
    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 && venv/bin/python make_golden.py

Its templates are those of templates.py. `make_golden.py FOLDER FILE` writes the same of the templates (*.jinja) in a
folder, such as llama.cpp's models/templates, which WITAN_CHAT_GOLDEN=FILE lets the test compare too.
"""

import datetime
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cases import BLOCKS, CONVERSATIONS, EXPRESSIONS, MORE_BLOCKS, MORE_EXPRESSIONS, TOOL_CONVERSATIONS, VARIABLES, WEATHER
from templates import TEMPLATES

HERE = Path(__file__).parent
NOW = 1_721_952_000  # 26 July 2024, UTC


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: remembers what the block writes, by marks that are taken out again."""
    tags = {"generation"}
    BEGIN, END = "\ue000", "\ue001"

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return self.BEGIN + caller() + self.END


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)
    return env


def rendered(source, **variables):
    """The text and the bytes of it in generation blocks, or what the template raised."""
    try:
        marked = environment().from_string(source).render(**variables)
    except jinja2.exceptions.UndefinedError as error:
        return {"error": str(error)}
    except jinja2.exceptions.TemplateError as error:
        return {"raised": str(error)}
    except Exception as error:
        return {"error": str(error)}
    text, spans = "", []
    for c in marked:
        if c == Generation.BEGIN:
            spans.append([len(text.encode())])
        elif c == Generation.END:
            spans[-1].append(len(text.encode()))
        else:
            text += c
    return {"text": text, "generated": spans} if spans else {"text": text}


def split_expressions(line):
    """Bars part expressions where one may end; those before a filter's name belong to it."""
    env, parts = environment(), []
    for piece in line.split("|"):
        parts.append(piece)
    names = set(env.filters)
    joined = []
    for piece in parts:
        word = piece.strip().split("(")[0].split(" ")[0].split(".")[0]
        if joined and word in names and word not in ("d", "x"):
            joined[-1] += "|" + piece
        elif joined and (word == "d" and (piece.startswith("d(") or joined[-1] == "missing")):
            joined[-1] += "|" + piece
        else:
            joined.append(piece)
    return joined


def cases_of(source):
    cases = []
    options = {"bos_token": "<s>", "eos_token": "</s>"}
    for prompt in (False, True):
        for messages in CONVERSATIONS:
            cases.append({"messages": messages, "tools": None, "add_generation_prompt": prompt})
        for messages in TOOL_CONVERSATIONS:
            cases.append({"messages": messages, "tools": [WEATHER], "add_generation_prompt": prompt})
    cases.append({"messages": CONVERSATIONS[0], "tools": None, "add_generation_prompt": True, "enable_thinking": False})
    for case in cases:
        case["expected"] = rendered(source, documents=None, **options, **case)
    # Conversations are the same for all templates: by number.
    return cases


def main():
    if len(sys.argv) > 2:
        templates = {p.name: p.read_text() for p in sorted(Path(sys.argv[1]).glob("*.jinja"))}
        out = Path(sys.argv[2])
    else:
        templates, out = TEMPLATES, HERE / "chat.json"
    golden = {"templates": [{"name": name, "source": source, "cases": cases_of(source)} for name, source in templates.items()]}
    sources = BLOCKS + ["{{ " + e + " }}" for line in EXPRESSIONS for e in split_expressions(line)]
    sources += MORE_BLOCKS + ["{{ " + e + " }}" for e in MORE_EXPRESSIONS]
    golden["variables"] = json.dumps(VARIABLES, ensure_ascii=False)  # in a string, which keeps integers of any size
    golden["snippets"] = [{"source": s, "expected": rendered(s, **VARIABLES)} for s in sources]
    out.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    print(len(golden["templates"]), "templates,", len(sources), "snippets,", out.stat().st_size, "bytes")


main()
