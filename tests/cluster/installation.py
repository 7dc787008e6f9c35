#!/usr/bin/env python3
"""An installation of several umads on one machine: PostgreSQL, redis-server where it is installed, HAProxy, and the nodes. Tests
use it as a context manager:

    with installation.Installation(folder) as cluster:
        cluster.call("POST", "/v1/chat/completions", {"messages": […]})
        cluster.kill("box-1")

From the command line it stays, until it is ended:

    tests/cluster/installation.py [--folder FOLDER] up [--namespaces] [--model FILE]    prints the address and a command that works
    tests/cluster/installation.py [--folder FOLDER] down

Everything is in the folder (on the command line build/cluster): settings, data, logs, and cluster.json with the processes. The
database has a folder of its own below /tmp, because PostgreSQL refuses to run as root and may not be able to enter the other one.
Without namespaces all parts listen on the loopback, each at a free port. With them each has an address of its own at its usual
port, and links can be cut: see network.py.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
import network  # noqa: E402
import postgres  # noqa: E402
import uma  # noqa: E402
from processes import Process  # noqa: E402

HAPROXY_CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
MODEL = ROOT / "models" / "uma-tiny.gguf"
NODES = ("box-1", "box-2", "box-3")
# In the example time for HAProxy to see that a node goes: a check every second, and two more a fifth of a second apart.
DRAIN_DELAY_MS = 2500


def why_not():
    """Why an installation cannot be started here; empty: it can."""
    if postgres.programs() is None:
        return "PostgreSQL is not installed"
    if find_haproxy() is None:
        return "HAProxy is not installed"
    return ""


def find_haproxy():
    return shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    """The answer to a request. `body`: the object of its JSON, or the text of others."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.node = response.headers.get("x-uma-node")
        self.session = response.headers.get("x-uma-session")
        text = response.read().decode("utf-8", "replace")
        is_json = response.headers.get("content-type", "").startswith("application/json")
        self.body = json.loads(text) if is_json else text

    def __repr__(self):
        return f"{self.status} by {self.node}: {self.body}"


class Installation:
    """`settings`: those of all nodes, beside the ones that node_settings() names, as umad's configuration file has them.
    `outlives`: it goes on when this process ends, until another one calls load() and stop()."""

    def __init__(self, folder, with_namespaces=False, nodes=NODES, model=MODEL, settings=None, outlives=False):
        self.folder = pathlib.Path(folder).resolve()
        self.nodes = tuple(nodes)
        self.model = str(model)
        self.settings = dict(settings or {})
        self.outlives = outlives
        prefix = f"v{os.getpid():x}" if outlives else None
        self.network = network.Network(["db", "store", "router", *self.nodes], prefix) if with_namespaces else None
        self.ports = {}
        self.processes = {}  # By name: "db", "store", "router" and those of the nodes.
        self.database_folder = None
        self.key = None  # Of the API, for all nodes.

    # Life

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind, *_):
        if kind is not None:
            for name in ("router", *self.nodes):
                sys.stderr.write(f"\nlog of {name}:\n{self.log(name)[-3000:]}\n")
        self.stop()

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = ("db", "store", "router", *self.nodes)
        usual = {"db": 5432, "store": 6379, "router": 8640}
        self.ports = {name: usual.get(name, 8642) if self.network else free_port() for name in parts}
        if self.network:
            self.network.open()
        self.save()
        self._make_keys()
        self.start_database()
        if shutil.which("redis-server"):
            self.start_store()
        for name in self.nodes:
            self.start_node(name)
        self.start_router()
        for name in self.nodes:
            self.wait_ready(name)
        self.wait_routed(*self.nodes)
        return self

    def stop(self):
        """Ends everything that this installation has started, and removes its network and the database."""
        self._end("router")
        # Each node gets two signals, because the second one makes it give up what runs.
        for name in self.nodes:
            if name in self.processes:
                self.processes[name].send(signal.SIGCONT)
                self.terminate(name)
        for name in (*self.nodes, "store"):
            self._end(name)
        self._end("db", signal.SIGINT)
        if self.network:
            self.network.close()
        if self.database_folder:
            shutil.rmtree(self.database_folder, ignore_errors=True)
        (self.folder / "cluster.json").unlink(missing_ok=True)

    def save(self):
        """Writes down what a later process needs to go on with the installation, or to end it."""
        state = {
            "nodes": self.nodes, "model": self.model, "settings": self.settings, "ports": self.ports, "key": self.key,
            "network": self.network.prefix if self.network else None, "database_folder": self.database_folder,
            "processes": {name: (process.pid, process.started) for name, process in self.processes.items()}}
        path = self.folder / "cluster.json"
        path.with_suffix(".new").write_text(json.dumps(state, indent=2) + "\n")
        path.with_suffix(".new").replace(path)

    @classmethod
    def load(cls, folder):
        """The installation that another process has started in this folder."""
        state = json.loads((pathlib.Path(folder) / "cluster.json").read_text())
        made = cls(folder, False, state["nodes"], state["model"], state["settings"])
        if state["network"]:
            made.network = network.Network(["db", "store", "router", *made.nodes], state["network"])
        made.ports, made.key, made.database_folder = state["ports"], state["key"], state["database_folder"]
        made.processes = {name: Process(*numbers) for name, numbers in state["processes"].items()}
        return made

    # Parts

    def address(self, name):
        """Where the part listens: a numeric address and a port."""
        return (self.network.addresses[name] if self.network else "127.0.0.1"), self.ports[name]

    def at(self, name):
        return "%s:%d" % self.address(name)

    def database_address(self):
        return f"postgresql://postgres@{self.at('db')}/uma"

    def store_address(self):
        """Of the redis-server; None: none is installed."""
        return f"redis://{self.at('store')}" if "store" in self.processes else None

    def node_settings(self, name):
        """The settings of a node, as in docs/CLUSTER.md. Those that are the same on every node stand first."""
        store = self.store_address()
        return {
            "model": self.model,
            "catalog": self.database_address(),
            **({"shared_states": store} if store else {}),
            "drain_delay": f"{DRAIN_DELAY_MS}ms",
            # A real installation has TLS, or a network of its own.
            "http": {"address": self.at(name), "keys_file": str(self.folder / "keys"), "insecure": True, "metrics_without_key": True},
            **self.settings,
            "node": name,
            "data_dir": str(self.folder / name / "data"),
            "ipc": {"uds_path": str(self.folder / name / "s")},
        }

    def start_database(self):
        """PostgreSQL; at the first time with a new, empty database."""
        bin_folder = postgres.programs()
        user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        is_new = self.database_folder is None
        if is_new:
            self.database_folder = tempfile.mkdtemp(prefix="uma-cluster-db-")
            if user:
                shutil.chown(self.database_folder, "postgres", "postgres")
            subprocess.run([bin_folder / "initdb", "-D", f"{self.database_folder}/data", "-A", "trust", "-U", "postgres", "--no-sync",
                            "-E", "UTF8", "--locale=C"], stdout=subprocess.DEVNULL, check=True, timeout=2 * uma.WAIT_S, cwd=self.database_folder, **user)
            if self.network:
                with open(f"{self.database_folder}/data/pg_hba.conf", "a", encoding="utf-8") as rules:
                    rules.write(f"host all all {self.network.subnet}.0/24 trust\n")
        host, port = self.address("db")
        # fsync is off because nobody turns the power off here. An installation that counts leaves it on.
        command = [bin_folder / "postgres", "-D", f"{self.database_folder}/data", "-k", self.database_folder, "-p", port,
                   "-c", f"listen_addresses={host}", "-c", "fsync=off"]
        if user and self.network:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--", *command]
            user = {}
        self._start("db", command, cwd=self.database_folder, **user)
        uma.until(lambda: self.run_sql("SELECT 1", "postgres") is not None or self._check_runs("db"), "PostgreSQL answers")
        if is_new:
            assert self.run_sql("CREATE DATABASE uma", "postgres") is not None

    def stop_database(self):
        """As a fast shutdown does: connections are closed. start_database() goes on with its data."""
        self._end("db", signal.SIGINT)

    def run_sql(self, sql, database="uma"):
        """The rows as text, a line each; None: it failed. Goes over the database's own socket, which no partition cuts."""
        done = subprocess.run([postgres.programs() / "psql", "-h", self.database_folder, "-p", str(self.ports["db"]), "-U", "postgres",
                               "-d", database, "-v", "ON_ERROR_STOP=1", "-qAtc", sql],
                              capture_output=True, text=True, timeout=uma.WAIT_S, check=False, cwd=self.database_folder)
        return done.stdout.strip() if done.returncode == 0 else None

    def start_store(self):
        host, port = self.address("store")
        folder = self.folder / "store"
        folder.mkdir(exist_ok=True)
        self._start("store", ["redis-server", "--bind", host, "--port", port, "--dir", folder, "--save", "", "--appendonly", "no",
                              "--protected-mode", "no"])

    def start_node(self, name):
        """Starts the node without waiting for it: see wait_ready()."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        # JSON is YAML.
        (folder / "umad.yaml").write_text(json.dumps(self.node_settings(name), indent=2) + "\n")
        self._start(name, [uma.UMAD, "--config", folder / "umad.yaml"], env=uma.clean_environment(UMA_HTTP=None))

    def start_router(self):
        """HAProxy with the configuration of deploy/haproxy, and the addresses of this installation in it."""
        text = HAPROXY_CONFIG.read_text()
        servers = "\n".join(f"    server {name} {self.at(name)}" for name in self.nodes)
        text, binds = re.subn(r"(?m)^    bind .*$", f"    bind {self.at('router')}", text)
        text, count = re.subn(r"(?m)(^    server .*\n)+", servers + "\n", text)
        text, globals_count = re.subn(r"(?m)^global$", f"global\n    stats socket {self.folder}/router.sock mode 600 level admin", text)
        assert (binds, count, globals_count) == (1, 2, 1), "deploy/haproxy/haproxy.cfg has another form"
        config = self.folder / "haproxy.cfg"
        config.write_text(text)
        self._start("router", [find_haproxy(), "-db", "-f", config])

    def wait_ready(self, name):
        def is_ready():
            self._check_runs(name)
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.call("GET", "/ready", at=name).status == 200
            return False
        uma.until(is_ready, f"{name} is ready")

    def router_states(self):
        """What HAProxy thinks of each node: "UP", "DOWN" or something between."""
        rows = [line.split(",") for line in self.ask_router("show stat").splitlines() if line.startswith("nodes,")]
        return {row[1]: row[17] for row in rows if row[1] in self.nodes}

    def wait_routed(self, *names):
        """Waits until HAProxy sends requests to exactly these nodes."""
        def is_so():
            self._check_runs("router")
            with contextlib.suppress(OSError):
                return {name for name, state in self.router_states().items() if state.split()[0] == "UP"} == set(names)
            return False
        uma.until(is_so, f"HAProxy uses {names}")

    def ask_router(self, command):
        """Runs a command of HAProxy's own socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(uma.WAIT_S)
            connection.connect(str(self.folder / "router.sock"))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while data := connection.recv(1 << 16):
                answer += data
        return answer.decode()

    # Faults

    def is_running(self, name):
        return self.processes[name].is_running()

    def terminate(self, name):
        """Asks a part to end (SIGTERM), without waiting for it."""
        self.processes[name].send(signal.SIGTERM)

    def wait_ended(self, name):
        return self.processes[name].wait(uma.WAIT_S)

    def kill(self, name):
        """kill -9."""
        self.processes[name].end(signal.SIGKILL)

    def pause(self, name):
        """Stops the process, as a machine that hangs: its connections stay."""
        self.processes[name].send(signal.SIGSTOP)

    def resume(self, name):
        self.processes[name].send(signal.SIGCONT)

    # For faults of the network see self.network: cut(), mend(), unplug(), plug(), slow_down(), speed_up().

    # Requests

    def connect(self, at="router", timeout_s=uma.WAIT_S):
        return http.client.HTTPConnection(*self.address(at), timeout=timeout_s)

    def headers(self, more=None):
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(more or {})}

    def call(self, method, path, body=None, headers=None, at="router", timeout_s=uma.WAIT_S):
        """One request on a connection of its own, through HAProxy or to a node; returns an Answer."""
        with contextlib.closing(self.connect(at, timeout_s)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), self.headers(headers))
            return Answer(connection.getresponse())

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Within

    def _make_keys(self):
        made = uma.run_umad("key", "new", "team")
        self.key = re.search(r"^key +(\S+)$", made.stdout, re.MULTILINE)[1]
        line = re.search(r"^line +(.+)$", made.stdout, re.MULTILINE)[1]
        keys = self.folder / "keys"
        keys.write_text(f"{line} admin=true\n")
        keys.chmod(0o600)

    def _start(self, name, command, **options):
        assert name not in self.processes or not self.is_running(name), f"{name} runs"
        beginning = self.network.inside(name) if self.network else []
        self.processes[name] = Process.start([*beginning, *command], self.folder / f"{name}.log", self.outlives, **options)
        self.save()

    def _end(self, name, number=signal.SIGTERM):
        if name in self.processes:
            self.processes[name].end(number)

    def _check_runs(self, name):
        if not self.is_running(name):
            raise AssertionError(f"{name} ended:\n{self.log(name)[-4000:]}")


# The command line

FOLDER = ROOT / "build" / "cluster"


def up(options):
    if (options.folder / "cluster.json").exists():
        sys.exit("cluster: there is one already: script/cluster down ends it")
    problem = why_not() or (network.why_not() if options.namespaces else "")
    if problem:
        sys.exit(f"cluster: {problem}")
    cluster = Installation(options.folder, options.namespaces, model=options.model or MODEL, outlives=True)
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    curl = f"""curl http://{cluster.at("router")}/v1/chat/completions -H 'Authorization: Bearer {cluster.key}' \\
       -d '{{"messages":[{{"role":"user","content":"What is uma-serve?"}}]}}' -i"""
    print(f"address   http://{cluster.at('router')}/v1\nkey       {cluster.key}")
    for name in cluster.nodes:
        print(f"{name:<9} http://{cluster.at(name)}/v1, process {cluster.processes[name].pid}")
    print(f"database  {cluster.database_address()}")
    if cluster.store_address():
        print(f"store     {cluster.store_address()} (runs; umad does not use it)")
    print(f"\nTry it; the header x-uma-node says who answers:\n  {curl}\n\nLogs are in {options.folder}. To end it: script/cluster down")
    return 0


def down(options):
    if not (options.folder / "cluster.json").exists():
        print("cluster: none is running")
        return 0
    Installation.load(options.folder).stop()
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="where the installation is (default: build/cluster)")
    commands = parser.add_subparsers(required=True, metavar="up|down")
    command = commands.add_parser("up", help="start the installation and leave it running")
    command.add_argument("--namespaces", action="store_true", help="give each part a network namespace (as root)")
    command.add_argument("--model", metavar="FILE", help="GGUF file of a chat model (default: uma-tiny)")
    command.set_defaults(action=up)
    commands.add_parser("down", help="end it").set_defaults(action=down)
    options = parser.parse_args()
    return options.action(options)


if __name__ == "__main__":
    sys.exit(main())
