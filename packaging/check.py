#!/usr/bin/env python3
"""Tries the packages as a user would, in a fresh tree of a Debian suite with systemd as process 1: check.py TREE DEB...

Installs them with apt, lets the first client start the daemon through its units, as the system's and as a user's, checks who may
connect, restarts and upgrades while sessions are kept, removes and purges. Root only; nothing outside of TREE is changed, and the
system in it has a network of its own, without a way out.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WAIT_S = 120
UNITS = "umad.service umad.socket umad-http.socket"
EXPOSURE_MAX = 2.0
# What a removal may leave: what the daemon keeps, the configuration, of which the enabled units are a part, and what the system
# itself notes.
KEPT = re.compile(r"/(var/lib/uma-serve|etc/uma-serve)(/|$)|/etc/systemd/(system|user)/sockets\.target\.wants(/umad.*)?$")
NOTED = re.compile(r"/(proc|sys|dev|run|tmp|var/(cache|log|tmp)|var/lib/(apt|dpkg|systemd)|home|root|packages)(/|$)"
                   r"|^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|^/etc/(ld\.so\.cache|\.pwd\.lock|machine-id)$"
                   r"|^/var/lib/(dbus|pam|private)(/|$)|^/etc/rc[0-9S]\.d/|__pycache__")


def fail(message):
    sys.exit(f"check: FAILED: {message}")


def say(message):
    print(f"check: {message}", flush=True)


def expect(is_true, message):
    if not is_true:
        fail(message)
    say(message)


def until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            fail(f"never happened within {WAIT_S} s: {what}")
        time.sleep(0.2)


def name_of_process(number):
    """Empty where it has ended."""
    try:
        return pathlib.Path(f"/proc/{number}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class System:
    """The system in the tree. As a context manager it is booted inside, and gone after."""

    def __init__(self, tree):
        self.tree = pathlib.Path(tree).resolve()
        self.group = f"uma-check-{os.getpid()}"
        self.starter = None
        self.init = None  # process 1, as this machine numbers it

    def chroot(self, *command):
        """Before the boot: a command in the tree, with this machine's network."""
        subprocess.run(["chroot", str(self.tree), *command], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def __enter__(self):
        namespaces = ["--mount", "--pid", "--ipc", "--uts", "--net", "--propagation", "private"]
        self.starter = subprocess.Popen(["unshare", *namespaces, "--fork", "--kill-child", HERE / "boot.sh", self.tree, self.group],
                                        stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + WAIT_S
        try:
            is_up, state = self.wait_for_boot(deadline)
        except BaseException:
            self.__exit__()
            raise
        if is_up:
            return self
        self.__exit__()
        fail(f"systemd did not boot in the tree (\"{state}\"): this needs root, and a kernel that mounts cgroup2")

    def wait_for_boot(self, deadline):
        """Whether the system is up by then, and what it says of itself."""
        state = ""
        while time.monotonic() < deadline and self.starter.poll() is None:
            children = pathlib.Path(f"/proc/{self.starter.pid}/task/{self.starter.pid}/children").read_text().split()
            # Before boot.sh has become it, the child still has this machine's root.
            if children and name_of_process(children[0]) == "systemd":
                self.init = children[0]
                state = self.run("systemctl", "is-system-running", checked=False).stdout.strip()
                if state in ("running", "degraded"):
                    return True, state
            time.sleep(0.2)
        return False, state

    def __exit__(self, *_):
        self.starter.kill()  # and with it, by --kill-child, process 1 and all others
        self.starter.wait()
        remove = 'mount --bind "$(findmnt -n -o TARGET -t cgroup2 | head -1)" "$1/mnt" && find "$1/mnt/$2" -depth -type d -exec rmdir {} +'
        until(lambda: subprocess.run(["unshare", "--mount", "sh", "-c", remove, "sh", self.tree, self.group], check=False,
                                     stderr=subprocess.DEVNULL).returncode == 0, "the cgroup of the tree is empty")

    def run(self, *command, user=None, checked=True, given=None):
        """A command in the booted system."""
        enter = ["nsenter", "--target", self.init, "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--root", "--wd=/"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        if user is not None:
            uid = self.run("id", "-u", user).stdout.strip()
            environment |= {"HOME": f"/home/{user}", "XDG_RUNTIME_DIR": f"/run/user/{uid}"}
            command = ["runuser", "-u", user, "--", *command]
        result = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment,
                                input=given)
        if checked and result.returncode != 0:
            said = (result.stdout + result.stderr).strip()
            log = self.run("journalctl", "-b", "--no-pager", "-n", "30", "-u", "umad.service", "-u", "umad.socket", checked=False).stdout
            fail(f"{' '.join(map(str, command))}: status {result.returncode}\n{said}\n{log}")
        return result

    def ask(self, user, *arguments):
        return self.run("uma-cli", *arguments, user=user, checked=False)

    def state_of(self, unit):
        return self.run("systemctl", "is-active", unit, checked=False).stdout.strip()

    def files(self):
        listed = self.run("find", "/", "-xdev", "-print").stdout.splitlines()
        return {path for path in listed if not NOTED.search(path)}


def next_version(package, folder):
    """The same package under a higher version, for an upgrade."""
    tree = pathlib.Path(folder) / "next"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: (.*)$", r"Version: \1+next", control.read_text(), flags=re.MULTILINE))
    made = pathlib.Path(folder) / "next.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, made], check=True, stdout=subprocess.DEVNULL)
    return made


def exposure_of(system, unit):
    text = system.run("systemd-analyze", "security", "--offline=true", unit).stdout
    return float(re.search(r"Overall exposure level for \S+ ([\d.]+)", text).group(1))


def check_units(system):
    system.run("systemd-analyze", "verify", "--man=no", *(f"/usr/lib/systemd/system/{unit}" for unit in UNITS.split()))
    say("systemd-analyze verify finds nothing in the system's units")
    exposure = exposure_of(system, "/usr/lib/systemd/system/umad.service")
    expect(exposure <= EXPOSURE_MAX, f"systemd-analyze security: the system's service has {exposure}, at most {EXPOSURE_MAX} is wanted")
    say(f"a user's has {exposure_of(system, '/usr/lib/systemd/user/umad.service')}")


def check_programs(system):
    for program in ("umad", "uma-cli"):
        system.run("test", "-s", f"/usr/share/man/man1/{program}.1.gz")
        system.run("bash", "-c", f"source /usr/share/bash-completion/completions/{program} && complete -p {program}")
    for document in ("copyright", "README.md", "NOTICE.gz", "changelog.gz"):
        if system.run("test", "-s", f"/usr/share/doc/uma-serve/{document}", checked=False).returncode != 0:
            system.run("test", "-s", f"/usr/share/doc/uma-serve/{document.removesuffix('.gz')}")
    say("manual pages, completions and licences are there")


def check_system_service(system):
    expect(system.state_of("umad.socket") == "active", "the installation opened the system's socket")
    expect(system.state_of("umad.service") == "inactive", "and started no daemon")
    expect(system.state_of("umad-http.socket") == "inactive", "nor HTTP")
    begin = time.monotonic()
    answer = system.ask("member", "--prompt", "Who are you?", "--socket", "/run/uma-serve/umad.sock")
    took_ms = (time.monotonic() - begin) * 1000
    expect(answer.returncode == 0 and "uma" in answer.stdout.lower(),
           f"the first client of the system's socket is answered after {took_ms:.0f} ms, start of the daemon included: "
           f"{answer.stdout.strip()!r} {answer.stderr.strip()}")
    begin = time.monotonic()
    system.run("uma-cli", "--prompt", "What is 7 + 5?")
    say(f"root without a flag is answered after {(time.monotonic() - begin) * 1000:.0f} ms")
    process = system.run("systemctl", "show", "-P", "MainPID", "umad.service").stdout.strip()
    owner = system.run("stat", "-c", "%U", f"/proc/{process}").stdout.strip()
    system.run("systemctl", "reload", "umad.service")
    expect(owner == "uma-serve", "the daemon runs as uma-serve, and reloads")
    refused = system.ask("stranger", "ping", "--socket", "/run/uma-serve/umad.sock")
    expect(refused.returncode == 2 and "only members of the group uma-serve" in refused.stderr,
           f"who is not in the group is told so: {refused.stderr.strip()}")
    system.run("uma-cli", "--socket", "/run/uma-serve/umad.sock", "--session", "private", "--prompt", "My name is Ada.", user="member")
    others = system.run("uma-cli", "sessions", "--json", "--socket", "/run/uma-serve/umad.sock", user="other")
    expect("private" not in others.stdout, "another member of the group does not see the session")
    system.run("uma-cli", "sessions", "show", "private", "--socket", "/run/uma-serve/umad.sock", user="member")
    facts = system.run("stat", "-c", "%U:%G %a", "/run/uma-serve", "/run/uma-serve/umad.sock", "/var/lib/uma-serve/data").stdout.split("\n")
    expect(facts[:3] == ["root:root 755", "root:uma-serve 660", "uma-serve:uma-serve 700"], f"owners and modes: {facts[:3]}")


def check_restart(system):
    system.run("systemctl", "restart", "umad.service")
    system.run("uma-cli", "sessions", "show", "private", "--socket", "/run/uma-serve/umad.sock", user="member")
    say("the session outlives a restart")
    system.run("systemctl", "stop", "umad.service")
    system.run("uma-cli", "ping", "--socket", "/run/uma-serve/umad.sock", user="member")
    say("a client after `systemctl stop` starts it again")


def check_http(system):
    system.run("systemctl", "stop", "umad.service")
    system.run("systemctl", "enable", "--now", "umad-http.socket")
    models = system.run("curl", "-sSf", "http://127.0.0.1:8642/v1/models").stdout
    expect("uma-tiny" in models, "HTTP answers root where its socket unit is enabled")
    page = system.run("curl", "-sSf", "-H", "Accept: text/html", "http://127.0.0.1:8642/").stdout
    expect('<div id="page">' in page, "a browser gets the page")
    refused = system.run("curl", "-s", "http://127.0.0.1:8642/v1/models", user="stranger").stdout
    expect("http.local_users" in refused, "and tells another user why he is not served")
    system.run("systemctl", "disable", "--now", "umad-http.socket")


def check_user_service(system):
    system.run("loginctl", "enable-linger", "stranger")
    until(lambda: system.run("systemctl", "--user", "is-active", "umad.socket", user="stranger",
                             checked=False).stdout.strip() == "active", "the user's manager has opened its socket")
    system.run("systemd-analyze", "verify", "--man=no", "--user", "/usr/lib/systemd/user/umad.service",
               "/usr/lib/systemd/user/umad.socket", user="stranger")
    say("nor in the user's")
    begin = time.monotonic()
    answer = system.ask("stranger", "--prompt", "Who are you?")
    took_ms = (time.monotonic() - begin) * 1000
    expect(answer.returncode == 0, f"a user who logged in is answered by a daemon of his own after {took_ms:.0f} ms, without a flag: "
                                   f"{answer.stdout.strip()!r} {answer.stderr.strip()}")
    system.run("test", "-e", "/home/stranger/.local/state/uma/catalog.db")
    system.run("systemctl", "--user", "stop", "umad.socket", "umad.service", user="stranger")


def check_upgrade(system, package, folder):
    made = next_version(package, folder)
    (system.tree / "packages" / "next.deb").write_bytes(made.read_bytes())
    system.run("uma-cli", "ping", "--socket", "/run/uma-serve/umad.sock", user="member")
    before = system.run("systemctl", "show", "-P", "MainPID", "umad.service").stdout
    system.run("bash", "-c", "echo '# changed here' >> /etc/uma-serve/umad.yaml")
    system.run("apt-get", "install", "-y", "-qq", "/packages/next.deb")
    expect(system.run("dpkg-query", "-W", "-f", "${Version}", "uma-serve").stdout.endswith("+next"), "apt upgrades the package")
    system.run("uma-cli", "sessions", "show", "private", "--socket", "/run/uma-serve/umad.sock", user="member")
    after = system.run("systemctl", "show", "-P", "MainPID", "umad.service").stdout
    expect(before != after, "the running daemon was replaced, and the session is there")
    expect("# changed here" in system.run("cat", "/etc/uma-serve/umad.yaml").stdout, "a changed configuration stays")
    expect(system.run("stat", "-c", "%U", "/var/lib/uma-serve/data/catalog.db").stdout.strip() == "uma-serve", "the data keeps its owner")


def check_removal(system, before):
    system.run("apt-get", "remove", "-y", "-qq", "uma-serve", "uma-serve-bench")
    left = system.files() - before
    strange = sorted(path for path in left if not KEPT.match(path) and system.run("dpkg", "-S", path, checked=False).returncode != 0)
    expect(not strange, f"a removal leaves data and configuration only {strange[:20] or ''}".rstrip())
    expect(any(path.endswith("catalog.db") for path in left), "the sessions are among what it leaves")
    system.run("apt-get", "purge", "-y", "-qq", "uma-serve", "uma-serve-bench")
    left = {path for path in system.files() - before if KEPT.match(path) or "uma" in os.path.basename(path)}
    expect(not left, f"a purge leaves nothing {sorted(left) or ''}".rstrip())


def main(tree, packages):
    system = System(tree)
    (system.tree / "packages").mkdir()
    for package in packages:
        (system.tree / "packages" / os.path.basename(package)).write_bytes(pathlib.Path(package).read_bytes())
    inside = [f"/packages/{os.path.basename(package)}" for package in packages]
    # Nothing that is needed besides the suite's own packages: these are fetched while there is a network.
    system.chroot("apt-get", "update", "-qq")
    system.chroot("apt-get", "install", "-y", "-qq", "--download-only", *inside)
    for user in ("member", "other", "stranger"):
        system.chroot("useradd", "--create-home", user)
    with system, tempfile.TemporaryDirectory() as folder:
        before = system.files()
        system.run("apt-get", "install", "-y", "-qq", *inside)
        say("apt installs " + ", ".join(map(os.path.basename, packages)))
        for user in ("member", "other"):
            system.run("usermod", "--append", "--groups", "uma-serve", user)
        check_units(system)
        check_programs(system)
        check_system_service(system)
        check_restart(system)
        check_http(system)
        check_user_service(system)
        check_upgrade(system, packages[0], folder)
        check_removal(system, before)
    say("all passed")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.splitlines()[0])
    main(sys.argv[1], sys.argv[2:])
