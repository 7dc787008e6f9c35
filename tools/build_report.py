#!/usr/bin/env python3
"""Says what a build spent its time on: its slowest objects, and the headers that cost most.

An object's time is what Ninja wrote down when it was last compiled; a hit of ccache is as short as it was, so build an empty folder
with CCACHE_DISABLE=1 first. A header costs its size times the objects that read it. System headers are summed by library.

Run: script/build --report [PRESET]
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = 30
BATCHED = re.compile(r'#include "([^"]+)"')
SYSTEM = re.compile(r"/usr/include/(?:c\+\+/\d+|boost/\w+|[\w.+-]+)")


def objects(folder):
    """Returns (seconds, object) of each compiled object, the slowest first."""
    times = {}
    for line in (folder / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            times[output] = (int(end) - int(begin)) / 1000
    return sorted(((seconds, output) for output, seconds in times.items()), reverse=True)


def sources(folder, output):
    """Returns what an object is made of: the names of the sources of its batch, or its own."""
    batch = folder / output.removesuffix(".o")
    if "/Unity/" not in output:
        return output.partition(".dir/")[2].removesuffix(".o")
    return " ".join(pathlib.Path(path).stem for path in BATCHED.findall(batch.read_text()))


def headers(folder):
    """Returns (bytes read in all, objects, name) of each header of the project and each library, the costliest first."""
    sizes, objects_of, bytes_of = {}, collections.defaultdict(set), collections.Counter()
    listing = subprocess.run(["ninja", "-C", folder, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    output = ""
    for line in listing.splitlines():
        if not line.startswith("    "):
            output = line.partition(":")[0]
            continue
        path = folder / line.strip()
        if path not in sizes:
            sizes[path] = path.stat().st_size if path.exists() else 0
        absolute = path.resolve()
        if absolute.is_relative_to(ROOT):
            if absolute.suffix != ".h":
                continue
            name = str(absolute.relative_to(ROOT))
        else:
            found = SYSTEM.match(str(absolute))
            name = found[0] if found else str(absolute.parent)
        objects_of[name].add(output)
        bytes_of[name] += sizes[path]
    return sorted(((count, len(objects_of[name]), name) for name, count in bytes_of.items()), reverse=True)


def main():
    folder = ROOT / "build" / (sys.argv[1] if len(sys.argv) > 1 else "release")
    if not (folder / ".ninja_log").exists():
        sys.exit(f"build: nothing was built in {folder.relative_to(ROOT)}")
    compiled = objects(folder)
    print(f"{len(compiled)} objects took {sum(seconds for seconds, _ in compiled):.0f} s, one beside the other. The slowest {ROWS}:")
    for seconds, output in compiled[:ROWS]:
        print(f"{seconds:7.1f} s  {output.rpartition('/CMakeFiles/')[2].partition('.dir/')[0].removeprefix('CMakeFiles/')}: {sources(folder, output)}")
    print(f"\nThe {ROWS} headers and libraries of which most was read:")
    for count, number, name in headers(folder)[:ROWS]:
        print(f"{count / 1e6:7.1f} MB  {number:4} objects  {name}")


if __name__ == "__main__":
    main()
