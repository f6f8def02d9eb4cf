"""Makes chat.json, the golden file of tests/tokenizer/chat/chat_template_test.cpp, with Jinja, the reference, set up as Hugging Face's
apply_chat_template sets it up.

Made with Python 3.11, jinja2 3.1.6:
    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 && venv/bin/python make_golden.py

The templates here are our own, in the forms that models use. `make_golden.py FOLDER FILE` writes the same of the templates
(*.jinja) in a folder, such as llama.cpp's models/templates, which WITAN_CHAT_GOLDEN=FILE lets the test compare too.
"""

import datetime
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

GENERATION = """{%- for message in messages -%}
<|{{ message.role }}|>
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}

{% else %}{{ message.content }}<|end|>
{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}\
{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must take turns') }}{% endif %}\
{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date is defined %}
    {%- if strftime_now is defined %}
        {%- set date = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- the system message is said even when it is empty -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- set system = none %}
{%- set rest = messages %}
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in rest %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == users[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system is defined and system is not none %}
            {{- "[INST]" + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS][" }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function|tojson %}
            {{- out[:-1] }}
            {%- if call.id is not defined or call.id|length != 9 %}
                {{- raise_exception("ids have nine characters") }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS]{"content": ' + content|string + ', ' }}
        {{- '"call_id": "' + message.tool_call_id|default('none') + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("unknown role") }}
    {%- endif %}
{%- endfor %}
"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system}}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}\
{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}\
{{'<｜Assistant｜><｜calls｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```'}}\
{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['type'] + '<｜sep｜>' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<｜end｜>'}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}\
{{'<｜outputs end｜>' + message['content'] + eos_token}}{%- set ns.is_tool = false -%}{%- else %}\
{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<｜Assistant｜>' + content + eos_token}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜outputs｜>' + message['content']}}\
{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}\
{%- endfor -%}{% if ns.is_tool %}{{'<｜outputs end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

HARMONY = """{#- macros that write the types of tools -#}
{%- macro typescript(spec, required=[], nullable=spec.nullable) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {{- typescript(spec['items']) + "[]" }}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {{- "{\\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name }}{{ "?" if name not in (spec.required or []) }}{{ ": " + typescript(inner, spec.required) }}
            {%- if not loop.last %}{{ ", " }}{% endif -%}
        {%- endfor -%}
        {{- "}" -}}
    {%- else -%}
        {{- {"string": "string", "integer": "number", "boolean": "boolean"}.get(spec.type, "any") -}}
    {%- endif -%}
    {%- if nullable %}{{ " | null" }}{% endif -%}
{%- endmacro -%}
{%- macro tool_namespace(name, tools) -%}
    {{- "## " + name + "\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\n" }}
        {{- "type "+ tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: " + typescript(tool.parameters) + ") => any;\\n" }}
        {%- else %}
            {{- "() => any;\\n" }}
        {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{%- macro system() -%}
    {%- if effort is not defined %}{%- set effort = "medium" %}{%- endif %}
    {{- "Date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + effort }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}
{{- system() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer %}{{- developer }}{%- endif %}
    {%- if tools -%}{{- tool_namespace("functions", tools) }}{%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and message.content is string and "<|channel|>" in message.content %}
            {{- raise_exception("no channels in content") }}
        {%- endif %}
        {%- if "tool_calls" in message and message.tool_calls is not none %}
            {%- set call = message.tool_calls[0].function %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments|tojson + "<|call|>" }}
            {%- set last_call.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
            {%- set last_call.name = none %}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_call.name is none %}{{- raise_exception("no call before") }}{%- endif %}
        {{- "<|start|>functions." + last_call.name + " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

TEMPLATES = {"chatml": CHATML, "generation": GENERATION, "llama2": LLAMA2, "llama3": LLAMA3, "mistral": MISTRAL,
             "deepseek": DEEPSEEK, "qwen3": QWEN3, "harmony": HARMONY}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a place & day, for <you>",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "Größe – 城市"}, "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer"}}, "exact": {"type": ["boolean", "null"]},
        "limit": {"type": "number", "default": 1.5, "maximum": 1e22}}}}}
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": {"place": "Åre \"N\"", "days": [1, -2], "exact": None, "t": 0.1}}}
CONVERSATIONS = [
    [say("user", "Hello")],
    [say("user", "Hello"), say("assistant", "Hi! \n")],
    [say("system", " Be brief.\n"), say("user", "  What is 2+2?\n"), say("assistant", "4")],
    [say("user", "a"), say("assistant", "b"), say("user", "c"), say("assistant", "d"), say("user", "e")],
    [say("user", ""), say("assistant", ""), say("user", " "), say("assistant", "\n")],
    [say("system", "Ты помощник."), say("user", "Wie groß? 多大？ 👩‍👩‍👧 é\u00a0"), say("assistant", "½ \"quoted\" <b>&amp;</b> {{ x }} {% y %}")],
    [say("user", "Think"), say("assistant", "<think>\nhm\n</think>\n\nyes"), say("user", "More"),
     say("assistant", "<think>\nhm, more\n</think>\n\nno")],
    [say("user", "one"), say("user", "two")],
    [say("assistant", "I begin")],
]
TOOL_CONVERSATIONS = [
    [say("user", "Weather?")],
    [say("system", "S"), say("user", "Weather?"), say("assistant", None, tool_calls=[CALL]),
     say("tool", "{\"t\": 3}", tool_call_id="abcdefghi", name="weather"), say("assistant", "Cold.")],
]

VARIABLES = {"text": " Ünï <b>\tçode \n", "words": ["b", "A", "c", "a"], "n": 7, "x": 2.5, "yes": True, "nothing": None,
             "d": {"k": 1, "items": [1, 2], "z": {"deep": "er"}, "a": None}, "empty": "", "nil": [],
             "people": [{"name": "Ann", "age": 3, "on": True}, {"name": "bob", "age": 41, "on": False}, {"name": "Cy", "on": True}]}
EXPRESSIONS = """
1 + 2 * 3 - 4 // 3|7 % 3 ~ -7 % 3 ~ -7 // 2|2 ** 3 ** 2|7 / 2|6 / 3|1e3|1.5e-7|1e16|123456789.125|1e22|0.1 + 0.2|100 * 1.0|-0.0
n + x|n * 'ab'|[1, 2] + [3]|[1, 2] * 2|'a' 'b' ~ 1 ~ none ~ true ~ 1.0|'a' + 'b'|yes + 1|not yes|not missing|-n|- n + 10|+n
n < 8 < 9|n < 8 < 3|'a' < 'b'|'B' < 'a'|[1, 2] < [1, 3]|1 == 1.0|true == 1|'1' == 1|none == false|missing == missing|[1] == [1]|(1, 2) == [1, 2]
'x' in 'xyz'|'k' in d|3 in [1, 2]|3 not in [1, 2]|'a' in missing|not 3 in [1, 2]|none in [none]
yes and n|nothing or 'x'|empty or nil or 0|1 and 2 and 3|0 or none|'a' if yes else 'b'|'a' if nothing|'a' if nothing else 'b' if yes else 'c'
text|trim|text.strip()|text.strip().lower()|text|upper|text|lower|text|title|text|capitalize|text|length|text[1:4]|text[-3:]|text[::-1]|text[::2]|text[100]|text[3]|text[-2]
'abcabc'|replace('a', 'x')|'abcabc'|replace('a', 'x', 1)|'abc'.replace('', '-')|'abcabc'.replace('b', '')|'a,b,c'.split(',')|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)|' a  b '.split()|' a  b c '.split(none, 1)|'xxaxx'.strip('x')|'xxaxx'.lstrip('x')|'xxaxx'.rstrip('x')|'abc'.startswith('ab')|'abc'.startswith(('x', 'a'))|'abc'.endswith('bc')|'a-b'.join(['1', '2'])|'Hello World'.title()|'hELLO'.capitalize()|'abcb'.find('b')|'abcb'.rfind('b')|'abc'.find('z')|'abcb'.count('b')|'12'.isdigit()|'a1'.isalpha()|'a1'.isalnum()|'ab'.removeprefix('a')|'ab'.removesuffix('b')|'a\\nb\\r\\nc'.splitlines()
words|join|words|join(', ')|words|sort|words|sort(reverse=true)|words|sort(case_sensitive=true)|words|reverse|list|words|first|words|last|words|unique|list|nil|first|nil|last|words[1:]|words[-1]|words[5]|words[:-2]|words[::-1]|words|length|words|list|'héy'|list|words|map('upper')|list|words|map('upper')|join|words|reject('equalto', 'b')|list|words|select('in', ['a', 'b'])|list|[1, 2, 3]|select('odd')|list|[0, 1, '']|select|list|[0, 1, '']|reject|list
people|map(attribute='name')|list|people|map(attribute='age', default=0)|list|people|selectattr('on')|map(attribute='name')|join(',')|people|selectattr('age', 'defined')|list|length|people|rejectattr('age', 'defined')|list|people|selectattr('name', 'equalto', 'bob')|list|people|selectattr('name', 'in', ['Ann', 'Cy'])|list|length|people|join(', ', attribute='name')|people|sort(attribute='name')|map(attribute='name')|list
d|d.k|d['k']|d.missing|d['missing']|d.z.deep|d['items']|d.items()|list|d.keys()|list|d.values()|list|d.get('k')|d.get('q')|d.get('q', 5)|d|items|list|d|length|d|list|d|dictsort|d.z['deep'][0]|d|string|{'a': 1, 'b': [true, none]}|{}|{'a': 1}.a|[]|()|(1,)|(1, 2)|[1, 'a', "it's", 'say "x"', none, 1.5, {'k': 'v'}]|'a\\tb\\n\\'\\u00e9\\x41\\q'|['a\\tb\\n']
d|tojson|d|tojson(indent=2)|text|tojson|'</script>\\u2028é'|tojson|[]|tojson(indent=2)|{}|tojson(indent=2)|[[], {}, [1]]|tojson(indent=1)|1.0|tojson|none|tojson|'a/b"\\\\'|tojson|d|tojson(sort_keys=true)|'é😀'|tojson(ensure_ascii=true)|'\\x7f\\x01'|tojson
missing|default('x')|nothing|default('x')|nothing|default('x', true)|empty|d('y', boolean=true)|missing|d|missing is defined|missing is undefined|n is defined|nothing is none|n is not none|n is number|yes is number|x is integer|n is integer|yes is integer|x is float|yes is boolean|n is boolean|yes is true|n is true|yes is sameas true|1 is sameas true|text is string|d is mapping|words is iterable|n is iterable|text is iterable|missing is iterable|words is sequence|d is sequence|n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|n is eq 7|n is gt 3|'a' is in 'abc'|n is in [7]|'abc' is lower|'ABC' is upper|raise_exception is callable|n is not divisibleby 2 and yes
'5'|int|'x'|int|' 7 '|int + 1|3.9|int|'3.9'|int|'x'|int(4)|none|int|'1.5'|float|'x'|float|n|float|n|string + 'a'|true|string|none|string|1.0|string|'a\\nb\\n\\nc'|indent(2)|'a\\nb'|indent(2, true)|'a\\nb\\n'|indent|'a\\n\\nb'|indent(1, blank=true)|'<b>'|safe
range(3)|list|range(1, 7, 2)|list|range(3, 0, -1)|list|dict(a=1, b='x')|dict({'a': 1}, a=2)|namespace(a=1).a|namespace(a=1).b is defined|loop is defined|strftime_now('%Y-%m-%d %H')|(strftime_now is defined)|words|length > 3 and n|-n|string|(-n)|string|1|string|length|n.x is defined|'%'|length|missing|length|missing|list|missing ~ 'a'|(none)|string|'a'|trim('a')|'xax'|trim('x')
missing.x|missing['x']|missing + 1|1 + 'a'|'a' + 1|none + 'a'|missing()|n()|[1] < 'a'|'a' in 5|1 in 'abc'|n|length|none|length|range(3.5)|1 // 0|'a'.join(5)|d.items|string is defined and raise_exception('x')|raise_exception('bad')|words.append('x')|d.update({})|n|join|n.strip()|none.x|'abc'|first.y.z
""".strip().split("\n")

BLOCKS = [
    "{% for w in words %}{{ loop.index }}/{{ loop.length }}:{{ w }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for w in words if w != 'A' %}{{ loop.index0 }}{{ w }}{{ loop.revindex }}{% else %}none{% endfor %}",
    "{% for w in nil %}x{% else %}none{% endfor %}|{% for w in missing %}x{% else %}none{% endfor %}",
    "{% for w in words %}{{ loop.previtem }}<{{ w }}>{{ loop.nextitem }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in 'hé' %}[{{ c }}]{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [1, 2] %}{{ a }}{{ b }}{{ loop.depth }}{{ loop.cycle('x', 'y') }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% set a = 1 %}{% for i in [1, 2, 3] %}{{ a }}{% set a = a + i %}{{ a }};{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in [1, 2, 3] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% if missing %}a{% elif n > 5 %}{% set q = 4 %}b{% else %}c{% endif %}{{ q }}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set t %} x {{ n }} {% endset %}[{{ t }}]{% set u | trim | upper %} abc {% endset %}[{{ u }}]",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 3) }}|{{ f(1, c='z') }}|{{ f() }}|{{ f(a=words) }}",
    "{% macro down(i) %}{{ i }}{% if i > 0 %}{{ down(i - 1) }}{% endif %}{% endmacro %}{{ down(5) }}",
    "{% set g = 5 %}{% macro f() %}{{ g }}{{ i }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}{% set g = 6 %}{{ f() }}",
    "{% filter upper %}abc {{ text }}{% endfilter %}|{% filter trim | replace('b', 'x') %} abc {% endfilter %}",
    "  {% if yes %}  \n  a\n  {% endif %}  \n b\n",
    "a \n  {%- if yes -%} \n b \n {%- endif +%}\n c",
    "x\n  {%+ if yes %}y{% endif %}\nz\n\n",
    "a {# comment #} b\n{# line #}\nc {#- strip -#} \n d",
    "a\n  {# one #}{% if yes %}b{% endif %}\n  {{ n }}  \n{{- n -}}\n c",
    "{{ n }}\n{% if yes %}\n  {% set a = 1 %}\n  {{ a }}\n{% endif %}\n\n{% for i in [1] %}\n- {{ i }}\n{% endfor %}\n",
    "a\r\nb\rc\n",
    "{% if yes %}x{% endif %}   {% if yes %}y{% endif %}\n   {% if yes %}z{% endif %}",
    "{{ '{{' }} {{ '%}' }} { % {a} {{ {'a': {'b': 1}}.a.b }}",
    "{% set messages = words[1:] %}{% for m in messages %}{{ m }}{% endfor %}{{ words | length }}",
    "{% generation %}abc{% endgeneration %} é{% for w in words %}{% generation %}{{ w }}{% endgeneration %},{% endfor %}",
    "{% for i in [1, 2] %}{% set x = 1 %}{% endfor %}{{ x is defined }}{% if yes %}{% set y = 1 %}{% endif %}{{ y }}",
    "{% for i in [3, 1] %}{{ i }}{% for i in [7] %}{{ i }}{{ loop.first }}{% endfor %}{{ i }}{{ loop.first }}{% endfor %}{{ i is defined }}",
    "{% set d2 = dict(d, extra=1) %}{{ d2 | tojson }}{{ d == dict(d) }}{{ d.z == {'deep': 'er'} }}",
]


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
    golden["variables"] = VARIABLES
    golden["snippets"] = [{"source": s, "expected": rendered(s, **VARIABLES)} for s in sources]
    out.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    print(len(golden["templates"]), "templates,", len(sources), "snippets,", out.stat().st_size, "bytes")


main()
