"""Network namespaces on a bridge, for the parts of an installation, with links that can be cut, slowed down and mended. Needs root.

Everything has the prefix of its network, and is removed by close(). The host is on the bridge too, with the address `host`.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import subprocess

import uma


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=uma.WAIT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def why_not():
    """Why namespaces cannot be made here; empty: they can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    name = f"umatry{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
    except OSError as problem:
        return f"no network namespaces here: {problem}"
    run("ip", "netns", "del", name)
    return ""


def leave_host():
    """Moves this thread, and all that it starts from now on, into a network of its own. Interfaces that come and go there disturb nobody
    else: a browser ends its requests when it sees one."""
    new_network = 0x40000000  # CLONE_NEWNET
    if ctypes.CDLL(None, use_errno=True).unshare(new_network) != 0:
        raise OSError(ctypes.get_errno(), "no network of its own")
    run("ip", "link", "set", "lo", "up")


def can_delay():
    """Whether the kernel can delay packets (sch_netem)."""
    name = f"umatry{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except OSError:
        return False
    finally:
        run("ip", "netns", "del", name)
    return True


def remove_leftovers():
    """Removes the networks of tests that were killed. Those of a prefix that begins with another letter stay."""
    prefixes = set(re.findall(r"^(u[0-9a-f]+)-", run("ip", "netns", "list"), re.MULTILINE))
    for prefix in prefixes:
        if pathlib.Path(f"/proc/{int(prefix[1:], 16)}").exists():
            continue
        for name in re.findall(rf"^({prefix}-\S+)", run("ip", "netns", "list"), re.MULTILINE):
            with contextlib.suppress(OSError):  # Another process removes it, too.
                run("ip", "netns", "del", name)  # And its link.
        with contextlib.suppress(OSError):
            run("ip", "link", "del", f"{prefix}br")


class Network:
    """A bridge. `hosts` get namespaces and addresses, in this order."""

    # No packet finds a machine with this address: what is sent to it is lost without a word.
    NOWHERE = "02:00:00:00:00:01"

    def __init__(self, hosts, prefix=None):
        # One for each process, which remove_leftovers() goes by. Interfaces have at most 15 letters.
        self.prefix = prefix or f"u{os.getpid():x}"
        subnet = int(self.prefix[1:], 16)
        # 198.18.0.0/15 is reserved for tests of networks: 512 subnets.
        self.subnet = f"198.{18 + subnet % 2}.{subnet // 2 % 256}"
        self.host = f"{self.subnet}.1"
        self.addresses = {name: f"{self.subnet}.{number}" for number, name in enumerate(hosts, 10)}

    def open(self):
        remove_leftovers()
        bridge = f"{self.prefix}br"
        run("ip", "link", "add", "name", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.host}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for name, address in self.addresses.items():
            inside, outside = self.namespace(name), self.interface(name)
            run("ip", "netns", "add", inside)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", inside)
            run("ip", "link", "set", outside, "master", bridge, "up")
            run("ip", "-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", inside, "link", "set", "eth0", "up")
            run("ip", "-n", inside, "link", "set", "lo", "up")
        return self

    def close(self):
        """Removes everything, also what an earlier process has made with this prefix."""
        for name in self.addresses:
            with contextlib.suppress(OSError):
                run("ip", "link", "del", self.interface(name))
            with contextlib.suppress(OSError):
                run("ip", "netns", "del", self.namespace(name))
        with contextlib.suppress(OSError):
            run("ip", "link", "del", f"{self.prefix}br")

    def __enter__(self):
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()

    def namespace(self, name):
        return f"{self.prefix}-{name}"

    def interface(self, name):
        """The host's end of the link."""
        return f"{self.prefix}{name}"[:15]

    def inside(self, name):
        """The beginning of a command that runs in the namespace, as the same process."""
        return ["ip", "netns", "exec", self.namespace(name)]

    # Faults. Packets are lost in silence, as on a cable that was pulled out elsewhere: no connection is refused or reset.

    def unplug(self, name):
        """Nothing reaches `name`, and nothing leaves it."""
        run("ip", "link", "set", self.interface(name), "down")

    def plug(self, name):
        run("ip", "link", "set", self.interface(name), "up")
        self._until_port_forwards(name)

    def cut(self, first, second):
        """Neither of the two reaches the other; both reach everybody else."""
        self.cut_one_way(first, second)
        self.cut_one_way(second, first)

    def cut_one_way(self, sender, receiver):
        run("ip", "-n", self.namespace(sender), "neigh", "replace", self.addresses[receiver], "lladdr", self.NOWHERE, "dev", "eth0",
            "nud", "permanent")

    def mend(self, first, second):
        for one, other in ((first, second), (second, first)):
            with contextlib.suppress(OSError):  # It was cut in one direction only.
                run("ip", "-n", self.namespace(one), "neigh", "del", self.addresses[other], "dev", "eth0")

    def slow_down(self, name, rate=None, delay_ms=None):
        """What `name` sends goes at this rate (such as "1mbit"), or comes later; a delay needs can_delay()."""
        self.speed_up(name)
        queue = ["netem", "delay", f"{delay_ms}ms"] if delay_ms else ["tbf", "rate", rate, "burst", "16k", "latency", "2s"]
        run("tc", "-n", self.namespace(name), "qdisc", "add", "dev", "eth0", "root", *queue)

    def speed_up(self, name):
        with contextlib.suppress(OSError):  # It was not slow.
            run("tc", "-n", self.namespace(name), "qdisc", "del", "dev", "eth0", "root")

    def _until_port_forwards(self, name):
        """A bridge's port needs a moment to come up."""
        uma.until(lambda: "state forwarding" in run("bridge", "link", "show", "dev", self.interface(name)), f"the link of {name} is up")
