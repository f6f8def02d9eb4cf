"""Makes v1 of v2, as docs/formats/checkpoint.md has version 1: parts are rows, all else is as in version 2.

    python3 make_v1.py   (xxhash 3.5 or newer)

Shards and other files are those of v2, and are not stored twice: v1 holds the manifest alone.
"""
import json
import math
import pathlib

import xxhash

here = pathlib.Path(__file__).parent
manifest = json.loads((here / "v2/step-4/manifest.json").read_text())
del manifest["xxh3_128"]
manifest["version"] = 1
for tensor in manifest["tensors"].values():
    row = math.prod(tensor["shape"][1:])
    for part in tensor["parts"]:
        assert part["first"] % row == 0 and part["length"] % row == 0 and "runs" not in part
        part["first_row"] = part.pop("first") // row
        part["rows"] = part.pop("length") // row
text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False)
body = text.removesuffix("\n}")
sealed = f'{body},\n "xxh3_128": "{xxhash.xxh3_128(body.encode()).hexdigest()}"\n}}\n'
(here / "v1").mkdir(exist_ok=True)
(here / "v1/manifest.json").write_text(sealed)
