"""What templates are tried on: conversations, and expressions and blocks with their variables."""


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
