"""The files of deploy/cluster and deploy/haproxy: what they name exists, and the programs accept them."""

import re
import subprocess
import sys
import unittest

import postgres
import uma

try:
    import yaml
except ImportError:  # script/bootstrap --cluster installs it.
    yaml = None

sys.path.insert(0, str(uma.ROOT / "tests" / "cluster"))
import installation  # noqa: E402

DEPLOY = uma.ROOT / "deploy"
OURS = uma.ROOT / "packaging"


@unittest.skipIf(yaml is None, "Python has no yaml")
class ExampleOfUnits(unittest.TestCase):
    def setUp(self):
        self.machines = yaml.safe_load((DEPLOY / "cluster" / "cluster.yaml").read_text())["machines"]

    def test_what_is_named_exists(self):
        self.assertEqual({"db", "router", "box-1", "box-2", "box-3"}, set(self.machines))
        readme = (DEPLOY / "cluster" / "README.md").read_text()
        for machine in self.machines.values():
            self.assertEqual({"packages", "units", "files"}, set(machine))
            for file, place in machine["files"].items():
                self.assertTrue((DEPLOY / file).is_file(), file)
                self.assertIn(file.rpartition("/")[2], readme)
                self.assertTrue(place.startswith("/etc/"), place)
            for unit in machine["units"]:
                package, = machine["packages"]
                self.assertEqual(unit != "umad.service", package != "uma-serve")
        self.assertTrue((OURS / "systemd" / "umad.service").is_file())

    def test_every_file_is_used(self):
        used = {file for machine in self.machines.values() for file in machine["files"]}
        there = {path.name for path in (DEPLOY / "cluster").iterdir()} - {"README.md", "cluster.yaml"}
        self.assertEqual({f"cluster/{name}" for name in there} | {"haproxy/haproxy.cfg"}, used)

    def test_umad_accepts_its_configuration(self):
        printed = uma.run_umad("--config", DEPLOY / "cluster" / "umad.yaml", "--print-config",
                               environment=uma.clean_environment(UMA_HTTP=None))
        self.assertEqual(0, printed.returncode, printed.stderr)
        self.assertEqual("postgresql://uma@db/uma", yaml.safe_load(printed.stdout)["catalog"])

    def test_the_unit_gives_a_node_the_time_to_end(self):
        settings = yaml.safe_load((DEPLOY / "cluster" / "umad.yaml").read_text())
        self.assertEqual(("3s", "5m"), (settings["drain_delay"], settings["drain_limit"]))
        minutes = int(re.search(r"^TimeoutStopSec=(\d+)min$", (DEPLOY / "cluster" / "umad.service.conf").read_text(), re.MULTILINE)[1])
        self.assertGreater(minutes * 60, 3 + 5 * 60)

    def test_the_router_has_the_nodes_by_their_names(self):
        servers = re.findall(r"^    server (\S+) \S+:8642$", (DEPLOY / "haproxy" / "haproxy.cfg").read_text(), re.MULTILINE)
        self.assertEqual(2 * [name for name in self.machines if name.startswith("box-")], servers)


class Programs(unittest.TestCase):
    @unittest.skipIf(installation.find_haproxy() is None, "HAProxy is not installed")
    def test_haproxy_accepts_its_configuration_without_a_warning(self):
        checked = subprocess.run([installation.find_haproxy(), "-c", "-f", DEPLOY / "haproxy" / "haproxy.cfg"], capture_output=True, text=True,
                                 timeout=uma.WAIT_S, check=False)
        self.assertEqual(0, checked.returncode, checked.stderr)
        self.assertNotIn("[WARNING]", checked.stderr)

    @unittest.skipIf(postgres.programs() is None, "PostgreSQL is not installed")
    def test_postgresql_knows_the_settings(self):
        lines = [line for line in (DEPLOY / "cluster" / "postgresql.conf").read_text().splitlines() if line and not line.startswith("# ")]
        settings = dict(re.match(r"#?(\w+) = '?(.*?)'?$", line).groups() for line in lines)
        self.assertGreater(len(settings), 5)
        with postgres.Postgres() as server:  # It checks the names and the values.
            refused = [name for name, value in settings.items() if server.run_sql(f"ALTER SYSTEM SET {name} = '{value}'") is None]
            self.assertIsNone(server.run_sql("ALTER SYSTEM SET max_connections = 'many'"))
        self.assertEqual([], refused)


if __name__ == "__main__":
    unittest.main()
