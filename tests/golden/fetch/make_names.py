#!/usr/bin/env python3
"""Writes names.json: addresses of files, and files that patterns choose, as huggingface_hub has them.

Made with huggingface_hub 2.4.0: python3 make_names.py > names.json
"""
import json

from huggingface_hub import __version__, hf_hub_url
from huggingface_hub.utils import filter_repo_objects

FILES = ["README.md", "data/a.jsonl", "data/b/c.jsonl", "data/[x].txt", "data/shard_07.zst", ".gitattributes"]
PATTERNS = ["*", "*.jsonl", "data/*", "data/", "data/shard_0[0-8].zst", "data/shard_0[!0-8].zst", "data/[[]x].txt", "*/c*",
            "[!dR]*", "?ata/a.jsonl", ".*", "**/a.jsonl", "data/**", "README", "*.JSONL", "", "data"]
PLACES = [("dataset", "owner/corpus", "refs/pr/1", "data/deep er/ü%.jsonl"),
          ("model", "Qwen/Qwen3-0.6B", "main", "a+b&c?d#e.json"),
          ("model", "gpt2", "v1.0", "x=~'(1)!*.json"),
          ("dataset", "a/b", "main", "-_.~/0:@,;$.txt")]

urls = [{"kind": kind, "name": name, "revision": revision, "path": path,
         "url": hf_hub_url(name, path, repo_type=kind, revision=revision, endpoint="https://huggingface.co")}
        for kind, name, revision, path in PLACES]
chosen = [{"pattern": p, "chosen": list(filter_repo_objects(FILES, allow_patterns=p))} for p in PATTERNS]
print(json.dumps({"huggingface_hub": __version__, "files": FILES, "urls": urls, "chosen": chosen}, indent=1,
                 ensure_ascii=False))
