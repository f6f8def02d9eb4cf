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
             "d": {"k": 1, "items": [1, 2], "z": {"deep": "er"}, "a": None}, "empty": "", "nil": [], "big": 18446744073709551615, "huge": 12345678901234567890123,
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

# One expression a line, with bars as they stand: rare functions, numbers beyond 64 bits, repr, escapes and formats.
MORE_EXPRESSIONS = r"""
18446744073709551615
[big, -big, huge]
big|tojson
huge|tojson
huge == 12345678901234567890123 and huge > big and big > n and not huge < 1.5
huge < 1e30 and huge > 1e22 and huge == huge and huge != big
-9223372036854775808
9223372036854775807 == 9223372036854775807.0
9007199254740993 == 9007199254740992.0
'18446744073709551616'|int + 0.0
'123456789012345678901234567890'|int
1e30|int
'1_000'|int
'1__0'|int
'_1'|int
'0x1A'|int(base=16)
'ff'|int(0, 16)
'+5'|int
' -7 '|int
'1_0.5'|float
'1e400'|float
'-inf'|float
'nan'|float|string
0x1F + 0b11 + 0o17
1_000 + 1
['\xa0\u200b\u2028\u00ad\ufeff\U000e0001\x7f\x85']
["it's", 'say "x"', "it's \"x\"", '\\', '\n\r\t\x00']
['é', '你', '😀', '\u0378', '\ue000', '\u3000']
{'k\u200b': '\u200b'}|string
'\1|\101|\s|\d|\0|\12x|\400|\08'
'\é|\你|\😀'
'a\\b\'c'
'\x41\u00e9\U0001F600'
'hello wORLD-foo (bar)'|title
"it's o'neil [x]{y}<z>"|title
"it's".title()
'éCOLE x'|capitalize
'ßtraße'|capitalize
'ǆ'|capitalize
'straße'|upper
'ŉﬁ'|upper
'ŉﬁ x'.title()
'İI'|lower
'ΑΣ ΑΣΑ Σ ΑΣ.'|lower
'ΑΣ'.capitalize()
'straße ΑΣ'.swapcase()
'ÀÉ'.lower() ~ 'àé'.upper()
'a1b c2d'.title()
1000.4|round
2.5|round
3.5|round|int
2.675|round(2)
1234|round(-2)
1250|round(-2)
1350|round(-2)
42.55|round(1, 'floor')
42.51|round(1, 'ceil')
7|round
7|round(0, 'ceil')
-2.5|round
[-3|abs, -3.5|abs, n|abs, (-big)|abs]
'<b>&"\''|e
'<b>'|e|e
'<b>'|e|forceescape
('<'|safe) + '<b>'
'<b>' + ('<'|safe)
('<'|safe) ~ '<b>'
[('<'|safe)]
('<a>'|safe).upper() + '<'
('<a>'|safe)|upper + '<'
('<a>'|safe)|title + '<'
('<a>'|safe)[1:] + '<'
('<'|safe) * 2 + '>'
('<a> '|safe)|trim + '<'
'<'|safe is escaped
'<' is escaped
('&'|safe).join(['<', '>'])
[1, 2, 3]|sum
[0.5, 1]|sum
people|sum(attribute='on')
words|min
words|max
words|max(true)
people|max(attribute='name')|tojson
people|min(attribute='name')
nil|max
[3, 1, 2]|min ~ [3, 1, 2]|max
d|dictsort(by='value')
{'b': 1, 'a': 2, 'C': 0}|dictsort
{'b': 1, 'a': 2, 'C': 0}|dictsort(true)
{'b': 1, 'a': 2, 'C': 0}|dictsort(by='value')
{'b': 1, 'a': 2, 'C': 0}|dictsort(by='value', reverse=true)
{'b': 1, 'a': 2}|dictsort(reverse=true)
{0: 10, 512: 20, 1024: 30}
{0: 10, 512: 20, 1024: 30}|dictsort
{0: 10, 512: 20}[512]
{0: 10}[1] is defined
{1: 'a', 1.0: 'b', true: 'c'}
{none: 1, true: 2, 1.5: 3, (1, 2): 4}
{none: 1, true: 2, 1.5: 3, 7: 4}|tojson
{2: 'b', 1: 'a'}|tojson(sort_keys=true)
{(1, 2): 3}|tojson
{[1]: 2}
{1: 2}.get(1)
{1: 2}.get(3, 'x')
{1: 2}.keys()|list + {1: 2}.values()|list
1 in {1: 2}
'1' in {1: 2}
{1: 2} == {1.0: 2}
d|tojson(separators=(',', ':'))
d|tojson(indent=2, separators=(', ', ' : '))
d|tojson(separators=[';', '='])
d|tojson(indent='--')
d|tojson(indent=0)
[]|tojson(indent=0)
1e400|tojson
[1e400, -1e400]|string
'%s-%d' % ('a', 3)
'%s' % 'x'
'%d%%' % 3
'%5d|%-5d|%05d|%+d' % (3, 3, 3, 3)
'%.2f %e %g' % (3.14159, 31415.9, 0.0001)
'%x %X %o %#x' % (255, 255, 8, 255)
'%r %s' % ('é\u200b', [1, 'a'])
'%5s|%-5s|%.2s' % ('abc', 'abc', 'abc')
'%(a)s %(b)d' % {'a': 1, 'b': 2}
'%s' % none
'%d' % 3.9
'%d' % 'x'
'%s %s' % ('a',)
'%s' % ('a', 'b')
'%s %s'|format('a', 2)
'%(x)s'|format(x=4)
'x{}y{}'.format(1, 'b')
'{a}'.format(a=2)
'{0}{1}{0}'.format('a', 'b')
'{{}} {}'.format(3)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('ab', 'ab', 'ab', 'ab')
'{:5}|{:05d}|{:+}|{:,}|{:_}'.format(42, 42, 42, 1234567, 1234567)
'{:.2f} {:.3e} {:g} {:.1%}'.format(3.14159, 31415.9, 0.5, 0.256)
'{:x} {:#b} {:o}'.format(255, 5, 8)
'{!r} {!s}'.format('a', 'a')
'{0[k]} {0[z]} {1[0]}'.format(d, words)
'{:.2}'.format('abc')
'{:5}'.format(true)
'{}'.format(none)
'{} {}'.format(1)
'{'.format(1)
'a.b.c'.partition('.')
'a.b.c'.rpartition('.')
'abc'.partition('x')
'abc'.rpartition('x')
'7'.zfill(3) ~ '-7'.zfill(4)
'ab'.ljust(4) ~ '|' ~ 'ab'.rjust(4, '.')
'abcb'.index('b') ~ 'abcb'.rindex('b')
'abc'.index('x')
words|sort(attribute='0')|list
people|sort(attribute='on,name')|map(attribute='name')|list
people|unique(attribute='on')|list|length
[[1, 'a'], [0, 'b']]|map(attribute=1)|list
[[1, 'a'], [0, 'b']]|map(attribute='0')|list
[1] + [2] == [1, 2]
[1] + (2,)
""".strip().split("\n")

MORE_BLOCKS = [
    "{% for (k, v) in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for i, (k, v) in [(1, ('a', 'b')), (2, ('c', 'd'))] %}{{ i }}{{ k }}{{ v }}{% endfor %}",
    "{% for [a, b] in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, in [(1,), (2,)] %}{{ a }}{% endfor %}",
    "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}{% set a, (b, c) = [1, [2, 3]] %}{{ a }}{{ b }}{{ c }}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% raw %}{{ not }} {% this %}{% endraw %}Y",
    "a\n  {% raw %}\n {{ x }} \n  {% endraw %}\nb",
    "a  {%- raw -%}  {{ x }}  {%- endraw -%}  b",
    "a\n  {%+ raw %}x{% endraw +%}\nb{% raw %}{% endraw %}c",
    "{% raw %}{% endraw",
    "{% set b = {0: 10, 512: 20, 1024: 30} %}{% for k, v in b | dictsort %}{{ k }}={{ v }};{% endfor %}{{ b[512] }}",
    "{% for k in {1: 2, 'a': 3} %}{{ k }},{% endfor %}",
    "{% set s %}<b>{% endset %}{{ s + ('<'|safe) }}",
    "{% macro m() %}<b>{% endmacro %}{{ m() + ('<'|safe) }}",
]

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
