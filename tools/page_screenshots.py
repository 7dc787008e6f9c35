#!/usr/bin/env python3
"""Makes the pictures of the page in docs/img: page_talk.png, page_see.png, page_manage.png and page_phone.png, from a daemon that it
starts. Needs a release build, and the browser of script/bootstrap --browser.

  tools/page_screenshots.py [--out FOLDER]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import browser  # noqa: E402 - it is beside the tests
import played  # noqa: E402
import uma  # noqa: E402

BYTES_MAX = 200_000
PREFIX = """\
## How a prefix is found
A session's tokens are compared **one by one** with those that are stored:

| Tier | Where | Ready after |
|---|---|---:|
| hot | in a context | 0 ms |
| warm | in memory | 3 ms |
| cold | on disk | 40 ms |

```python
def shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
```

Of $n$ tokens, the first $k$ stay, so $n - k$ are computed.
"""
REPLIES = {"a prefix?": PREFIX,
           "short.": "What two prompts have in common is computed **once**: *n − k* tokens remain.",
           "on disk?": "1. The KV cells are written to a file.\n2. The session stays in the list.\n3. Its next message reads them back, `31 ms` later.\n",
           "hello!": "Hello. Ask me about sessions, prefixes or tiers."}
TALKS = [{"title": "What happens on disk", "tags": "tiers", "messages": ["What happens to an idle session on disk?"]},
         {"title": "First words", "tags": "", "messages": ["hello!"]},
         {"title": "Finding prefixes", "tags": "kv,work", "messages": ["How does umad find a prefix?", "Again, but short."],
          "edit": "And what is on disk?"}]


def write_models(folder):
    played.write_model(folder / "demo.gguf", REPLIES)
    subprocess.run([uma.MAKE_MODEL, "--preset", "tiny-chat", "--layers", "8", "--width", "256", "--heads", "8", "--kv-heads", "2", "--ff", "512",
                    "--n-ctx", "32768", "--out", folder / "storyteller.gguf"], check=True, timeout=uma.WAIT_S)
    (folder / "models.yaml").write_text("storyteller: {path: storyteller.gguf, temperature: 0}\n")
    return f"models_dirs: [{folder}]\nmodels: {{file: {folder}/models.yaml}}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "img", help="folder of the pictures (default: docs/img)")
    out = parser.parse_args().out.resolve()
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="uma-screenshots-") as folder:
        config = write_models(pathlib.Path(folder))
        flags = ("--http", "127.0.0.1:0", "--kv-cells", "32768", "--slots", "4", "--threads", "1")
        with uma.Daemon("demo", *flags, config=config) as daemon:
            driver = browser.Browser()
            try:
                url = browser.PageTest.url_of(daemon)
                options = {"folder": str(out), "model": "demo", "storyteller": "storyteller", "talks": TALKS}
                seen = driver.run("screenshots.all", url, options, [], {})
            finally:
                driver.close()
    if "error" in seen or seen["faults"]:
        sys.exit(f"page_screenshots: {seen.get('error', '')} {seen['faults']}")
    for path in sorted(out.glob("page_*.png")):
        size = path.stat().st_size
        print(f"{path}: {size} bytes")
        if size > BYTES_MAX:
            sys.exit(f"page_screenshots: {path.name} has {size} bytes, at most {BYTES_MAX} are wanted")


if __name__ == "__main__":
    main()
