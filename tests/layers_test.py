#!/usr/bin/env python3
"""Reads the #includes of src/ and apps/ and reports each one that crosses a layer (ARCHITECTURE.md, "Layers").

Rules: (1) a module includes modules of lower layers and itself; `pool` may also include `engine`. (2) Only `llm` includes the headers
of libllama, ggml and libmtmd. (3) uma-cli and uma-bench are clients of the daemon, so they include base, core, json and wire
only. (4) Only tests and `testing` itself include `testing`. (5) Apps do not include each other. (6) Every module here has a
layer.

Run: python3 tests/layers_test.py
"""

import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

LAYERS = {
    "base": 0,
    "core": 1,
    "json": 2, "sched": 2, "kv": 2, "fetch": 2,
    "wire": 3, "grammar": 3, "jinja": 3,
    "llm": 4,
    "image": 5,
    "chat": 6,
    "engine": 7, "pool": 7, "server": 7,
}
TESTING_MAY_INCLUDE = {"base", "core", "llm", "kv"}
APPS = {
    "umad": set(LAYERS),
    "uma-cli": {"base", "core", "json", "wire"},
    "uma-bench": {"base", "core", "json", "wire"},
}
SIDEWAYS = {("pool", "engine")}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
LIBRARY_HEADER = re.compile(r"^(llama|ggml|gguf|mtmd)[a-z-]*\.h$")
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".inc"}


def module_may_include(module, target, is_test):
    """Whether a file of src/`module` may include a header of src/`target`."""
    if target == module:
        return True
    if target == "testing":
        return is_test
    if module == "testing":
        return target in TESTING_MAY_INCLUDE
    return LAYERS[target] < LAYERS[module] or (module, target) in SIDEWAYS


def app_may_include(app, target, is_test):
    if target == "testing":
        return is_test and "engine" in APPS[app]
    return target == app or target in APPS[app]


def includes_of(path):
    """Yields (line number, header) of each #include of a file, in quotes or angle brackets."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1) or found.group(2)


def check_file(path, place, unit, is_app):
    is_test = path.stem.endswith(("_test", "_test_support"))
    for number, header in includes_of(path):
        where = f"{place}:{number}"
        if LIBRARY_HEADER.match(header.rsplit("/", 1)[-1]) and header.count("/") == 0:
            if is_app or unit != "llm":
                yield f"{where}: {header}: only src/llm may include headers of libllama, ggml and libmtmd"
            continue
        if header.startswith("../") or "/../" in header:
            yield f"{where}: {header}: write the path from src/ or apps/"
            continue
        target = header.split("/", 1)[0] if "/" in header else None
        if target not in LAYERS and target != "testing" and target not in APPS:
            continue  # the standard library, the system, other libraries
        if not is_app and target in APPS:
            yield f"{where}: {unit} includes {header}: modules may not include apps"
        elif not (app_may_include if is_app else module_may_include)(unit, target, is_test):
            yield f"{where}: {unit} may not include {header}"


def documented_layers(page):
    """Returns module -> layer from the drawing of ARCHITECTURE.md. A line without a number belongs to the layer above it."""
    layers, layer = {}, None
    for line in page.split("```")[1].splitlines():
        layer = int(line[0]) if line[:1].isdigit() else layer
        layers.update({module: layer for module in re.findall(r"src/(\w+)", line) if module != "testing"})
    return layers


def violations(root):
    """Returns all crossings below `root`, as text with file and line."""
    found = []
    for folder, is_app in (("src", False), ("apps", True)):
        known = set(APPS) if is_app else set(LAYERS) | {"testing"}
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            place = path.relative_to(root)
            unit = place.parts[1]
            if unit not in known:
                found.append(f"{place}: {folder}/{unit} has no layer: give it one in tests/layers_test.py and ARCHITECTURE.md")
                continue
            found.extend(check_file(path, place, unit, is_app))
    return found


class Layers(unittest.TestCase):
    def test_this_tree_crosses_none(self):
        self.assertEqual([], violations(ROOT))

    def test_the_drawing_has_the_same_layers(self):
        self.assertEqual(LAYERS, documented_layers((ROOT / "ARCHITECTURE.md").read_text()))

    def test_this_tree_was_read(self):
        """Otherwise a test that finds no files would always pass."""
        counted = sum(1 for path in (ROOT / "src").rglob("*.h") for _ in includes_of(path))
        self.assertGreater(counted, 20)


class PlantedCrossings(unittest.TestCase):
    """Tests the checker itself: it must find a planted crossing, and must not report an allowed #include."""

    def found(self, name, *includes):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text("// a file\n" + "".join(f"#include {header}\n" for header in includes))
            return violations(pathlib.Path(folder))

    def assert_crossing(self, name, include, *parts):
        found = self.found(name, include)
        self.assertEqual(1, len(found), found)
        for part in (f"{name}:2", *parts):
            self.assertIn(part, found[0])

    def test_upward(self):
        self.assert_crossing("src/core/x.h", '"engine/engine.h"', "core may not include engine/engine.h")
        self.assert_crossing("src/base/x.h", '"core/ids.h"')
        self.assert_crossing("src/chat/x.cpp", '  "server/listener.h"')

    def test_sideways(self):
        self.assert_crossing("src/kv/x.cpp", '"sched/plan_batch.h"')
        self.assert_crossing("src/server/x.cpp", '"engine/engine.h"')
        self.assert_crossing("src/engine/x.cpp", '"pool/pool.h"')
        self.assertEqual([], self.found("src/pool/x.cpp", '"engine/model/worker_source.h"'))

    def test_angle_brackets_do_not_hide_it(self):
        self.assert_crossing("src/core/x.h", "<engine/engine.h>")

    def test_library_headers(self):
        for header in ("<llama.h>", "<ggml.h>", "<ggml-backend.h>", "<gguf.h>", "<mtmd-helper.h>", '"llama-cpp.h"'):
            self.assert_crossing("src/engine/x.cpp", header, "only src/llm")
            self.assert_crossing("apps/umad/main.cpp", header, "only src/llm")
        self.assertEqual([], self.found("src/llm/x.cpp", "<llama.h>", "<ggml-cpu.h>", '"llm/llama_model.h"'))
        self.assertEqual([], self.found("src/engine/x.cpp", '"llm/llama_model.h"'))

    def test_clients(self):
        for app in ("uma-cli", "uma-bench"):
            for module in ("engine", "llm", "server", "kv", "sched", "chat", "testing"):
                self.assert_crossing(f"apps/{app}/main.cpp", f'"{module}/x.h"')
            self.assertEqual([], self.found(f"apps/{app}/main.cpp", '"wire/frame.h"', '"base/log.h"', f'"{app}/own.h"'))
        self.assert_crossing("apps/uma-cli/main.cpp", '"umad/config.h"')

    def test_testing(self):
        self.assert_crossing("src/engine/lane.cpp", '"testing/fake_model.h"')
        self.assert_crossing("apps/umad/main.cpp", '"testing/fake_model.h"')
        self.assert_crossing("src/testing/x.h", '"engine/lane.h"')
        self.assertEqual([], self.found("src/engine/lane_test.cpp", '"testing/fake_model.h"'))
        self.assertEqual([], self.found("src/engine/lane_test_support.h", '"testing/fake_model.h"'))
        self.assertEqual([], self.found("src/testing/x.h", '"llm/model.h"', '"testing/sim_clock.h"'))

    def test_unknown_modules_and_ways_around(self):
        self.assertEqual(1, len(self.found("src/cellar/x.h", "<string>")))
        self.assert_crossing("src/core/x.h", '"../engine/engine.h"', "write the path from")
        self.assert_crossing("src/engine/x.h", '"umad/config.h"', "modules may not include apps")

    def test_what_is_allowed(self):
        self.assertEqual([], self.found("src/engine/x.cpp", "<vector>", "<boost/asio.hpp>", "<sys/un.h>", '"kv/catalog.h"',
                                        '"core/service.h"', '"engine/lane.h"'))
        self.assertEqual([], self.found("apps/umad/main.cpp", '"server/unix_listener.h"', '"umad/config.h"', '"engine/engine.h"'))


if __name__ == "__main__":
    unittest.main()
