#!/usr/bin/env python3
"""Reads src/ and apps/, and reports each #include that crosses a layer (ARCHITECTURE.md, "Layers") and each use of what only
some systems have.

Rules: (1) a module includes modules of lower layers and itself; `pool` may also include `engine`. (2) Only `llm` includes the headers
of libllama, ggml and libmtmd. (3) uma-cli and uma-bench are clients of the daemon, so they include base, core, json and wire
only. (4) Only tests and `testing` itself include `testing`. (5) Apps do not include each other. (6) Every module here has a
layer. (7) What only Linux has is used in *_linux.cpp, what only another system has in *_portable.cpp (docs/decisions/0072). Tests
may use both, as they run on Linux. (8) What libc++ lacks is used by the files of src/base that stand in for it.

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
# Rule 7, with the headers and words that were met so far. `script/build portable` finds others, but only for libc++ and Linux.
PLATFORM_HEADER = re.compile(
    r"^(linux/.*|mach/.*|mach-o/.*|malloc/.*|malloc\.h|sched\.h|execinfo\.h|link\.h|features\.h|pthread/qos\.h|systemd/.*"
    r"|sys/(epoll|event|eventfd|fanotify|fsuid|inotify|prctl|signalfd|syscall|sysctl|sysinfo|sysmacros|timerfd|vfs|xattr)\.h)$")
PLATFORM_WORD = re.compile(
    r"\b(__linux__|__gnu_linux__|__GLIBC__|__APPLE__|__\w+BSD__|accept4|pipe2|dup3|ppoll|SOCK_CLOEXEC|SOCK_NONBLOCK|MSG_NOSIGNAL"
    r"|MSG_CMSG_CLOEXEC|SO_PEERCRED|LOCAL_PEER\w+|getpeereid|ucred|O_PATH|O_DIRECT|O_TMPFILE|O_NOATIME|RWF_\w+|preadv2?|pwritev2?"
    r"|renameat2|renamex_np|copy_file_range|sendfile|fallocate|posix_fadvise|readahead|fdatasync|sync_file_range|syncfs|F_FULLFSYNC"
    r"|statx|name_to_handle_at|getrandom|memfd_create|gettid|prctl|sched_\w*affinity|CPU_SET\w*|pthread_\w+_np|posix_spawn_\w+_np"
    r"|malloc_trim|mallopt|mallinfo2?|madvise|MADV_\w+|MAP_POPULATE|mremap|sigwaitinfo|sigtimedwait|signalfd|eventfd|timerfd_\w+"
    r"|epoll_\w+|kqueue|kevent|sysctlbyname|st_[amc]tim|st_[amc]timespec|sd_notify|sd_listen_fds\w*|GOMP_\w+|omp_\w+"
    r"|program_invocation\w*|close_range|closefrom)\b"
    r'|"/(proc|sys)\b')
# Rule 8.
MISSING_WORD = re.compile(r"\bstd::(move_only_function|chrono::parse|chrono::from_stream|stacktrace|generator)\b")
STAND_INS = {"src/base/move_only_function.h"}
# Headers of tests whose names do not say so.
TEST_HEADERS = {"apps/uma-cli/fake_daemon.h", "apps/uma-bench/test_server.h"}

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


def check_portable(path, place):
    """Reports what rules (7) and (8) forbid in a file. Comments may name it."""
    is_test = path.stem.endswith(("_test", "_test_support")) or place.as_posix() in TEST_HEADERS
    if is_test or path.stem.endswith(("_linux", "_portable")):
        return
    for number, header in includes_of(path):
        if PLATFORM_HEADER.match(header):
            yield f"{place}:{number}: {header}: only *_linux.cpp and *_portable.cpp may include headers of one system"
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        code = "" if INCLUDE.match(line) else line.split("//", 1)[0]
        for found in PLATFORM_WORD.finditer(code):
            yield f"{place}:{number}: {found.group()}: only *_linux.cpp and *_portable.cpp may use what one system has"
        for found in MISSING_WORD.finditer(code) if place.as_posix() not in STAND_INS else ():
            yield f"{place}:{number}: {found.group()}: libc++ does not have it"


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
            found.extend(check_portable(path, place))
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

    def test_every_portable_file_has_a_twin(self):
        for folder in ("src", "apps"):
            for path in sorted((ROOT / folder).rglob("*_portable.cpp")):
                self.assertTrue(path.with_name(path.name.replace("_portable", "_linux")).exists(), path)


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

    def found_in(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return violations(pathlib.Path(folder))

    def test_what_only_one_system_has(self):
        for header in ("<linux/netlink.h>", "<malloc.h>", "<systemd/sd-daemon.h>", "<sys/prctl.h>", "<mach/mach.h>"):
            self.assert_crossing("src/base/x.cpp", header, "headers of one system")
            self.assertEqual([], self.found("src/base/x_linux.cpp", header))
            self.assertEqual([], self.found("src/base/x_portable.cpp", header))
            self.assertEqual([], self.found("src/base/x_test.cpp", header))
        for line in ("::pipe2(ends, O_CLOEXEC);", 'std::ifstream file("/proc/stat");', "#ifdef __APPLE__", "facts.st_mtim.tv_sec",
                     "socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)"):
            self.assertEqual(1, len(self.found_in("apps/umad/x.cpp", line)), line)
            self.assertEqual([], self.found_in("apps/umad/x_linux.cpp", line))
            self.assertEqual([], self.found_in("apps/umad/x.cpp", "// " + line))
        self.assertEqual([], self.found_in("src/base/x.cpp", "::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); ::fsync(file);"))

    def test_what_libcxx_lacks(self):
        self.assertEqual(1, len(self.found_in("src/core/x.h", "std::move_only_function<void()> then;")))
        self.assertEqual([], self.found_in("src/base/move_only_function.h", "using F = std::move_only_function<S>;"))

    def test_upward(self):
        self.assert_crossing("src/core/x.h", '"engine/engine.h"', "core may not include engine/engine.h")
        self.assert_crossing("src/base/x.h", '"core/ids.h"')
        self.assert_crossing("src/chat/x.cpp", '  "server/listener.h"')

    def test_sideways(self):
        self.assert_crossing("src/kv/x.cpp", '"sched/plan_batch.h"')
        self.assert_crossing("src/server/x.cpp", '"engine/engine.h"')
        self.assert_crossing("src/engine/x.cpp", '"pool/pool.h"')
        self.assertEqual([], self.found("src/pool/x.cpp", '"engine/model/model_loader.h"'))

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
            self.assertEqual([], self.found(f"apps/{app}/main.cpp", '"wire/own/frame.h"', '"base/log.h"', f'"{app}/own.h"'))
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
        self.assertEqual([], self.found("src/engine/x.cpp", "<vector>", "<boost/asio.hpp>", "<sys/un.h>", '"kv/catalog/catalog.h"',
                                        '"core/service.h"', '"engine/lane.h"'))
        self.assertEqual([], self.found("apps/umad/main.cpp", '"server/unix_listener.h"', '"umad/config.h"', '"engine/engine.h"'))


if __name__ == "__main__":
    unittest.main()
