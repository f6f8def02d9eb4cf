"""Makes rows.jsonl and statistics.json: a small corpus in many scripts, and what Python counts in it.

Words and scripts come from the package `regex` (its \\w and \\p{Script}); Han, kana, Thai, Lao, Khmer and Burmese
characters are words of their own. Duplicates are documents that are equal after " ".join(text.split()).

Made with Python 3.11, regex 2025.9.18:
    python3 -m venv venv && venv/bin/pip install regex==2025.9.18 && venv/bin/python make_golden.py
"""

import collections
import json
import math
import random
from pathlib import Path

import regex

SAMPLES = [
    "The king asked his council of experts about ships and corn, and the answer was 42.",
    "Über die Straße läuft der Bär; façade, naïve, œuvre, Ærøskøbing.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "いろはにほへと ちりぬるを。カタカナも書く。",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "다람쥐 헌 쳇바퀴에 타고파.",
    "نص حكيم له سر قاطع وذو شأن عظيم.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "ნუ თუ აქ ფსკერი", "Խոշոր գազար", "⠓⠑⠇⠇⠕ 😀😀 ᚠᛇᚻ",
    "print(f'{x_1:.3e}')  # 1e-5\n\tfor _ in range(10): pass\n",
]
SCRIPTS = ("Latin Han Cyrillic Arabic Hangul Hiragana Katakana Devanagari Bengali Greek Hebrew Thai Tamil Telugu Kannada "
           "Malayalam Gujarati Gurmukhi Georgian Armenian Ethiopic Khmer Lao Myanmar Sinhala Tibetan").split()
ALONE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&\w]"
WORD = regex.compile(rf"(?V1){ALONE}|[\w--{ALONE}]+")
SCRIPT = {name: regex.compile(rf"(?V1)[\p{{L}}&&\p{{{name}}}]") for name in SCRIPTS}
LETTER = regex.compile(r"\p{L}")


def make_texts():
    rng = random.Random(5)
    texts = []
    for _ in range(60):
        texts.append(" ".join(rng.choice(SAMPLES) for _ in range(int(math.exp(rng.uniform(0, 4.5))))))
    for i in (3, 17, 17, 40):
        texts.append("  " + texts[i].replace(" ", "\n ") + "\t")
    rng.shuffle(texts)
    return texts


def summary(values):
    ordered = sorted(values)

    def quantile(share):
        return ordered[max(math.ceil(share * len(ordered)), 1) - 1]

    return {"sum": sum(values), "least": ordered[0], "10%": quantile(0.1), "median": quantile(0.5),
            "90%": quantile(0.9), "most": ordered[-1]}


def main():
    folder = Path(__file__).parent
    texts = make_texts()
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
    letters, main_script = collections.Counter(), collections.Counter()
    for text in texts:
        own = {name: len(SCRIPT[name].findall(text)) for name in SCRIPTS}
        own["other"] = len(LETTER.findall(text)) - sum(own.values())
        letters.update(own)
        main_script[max(own, key=own.get)] += 1
    keys = collections.defaultdict(list)
    for text in texts:
        keys[" ".join(text.split())].append(len(text.encode()))
    extra = [size for sizes in keys.values() for size in sorted(sizes)[1:]]
    golden = {"documents": len(texts), "bytes": summary([len(t.encode()) for t in texts]),
              "characters": summary([len(t) for t in texts]), "words": summary([len(WORD.findall(t)) for t in texts]),
              "letters": {k: v for k, v in letters.items() if v}, "main_documents": dict(main_script),
              "duplicate_documents": len(extra), "duplicate_size": sum(extra)}
    (folder / "statistics.json").write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
