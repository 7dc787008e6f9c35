"""The manifests of deploy/kubernetes: their fields against tests/cluster/kubernetes.schema.json, their references to one another, and
what they say about umad against a umad with their settings."""

import copy
import http.client
import json
import pathlib
import re
import tempfile
import unittest

import uma

try:
    import jsonschema
    import yaml
except ImportError:  # script/bootstrap --cluster installs them.
    jsonschema = yaml = None

FOLDER = uma.ROOT / "deploy" / "kubernetes"
needed = unittest.skipIf(yaml is None or jsonschema is None, "Python has no yaml or jsonschema")


def of_kind(objects, kind, name=None):
    return next(one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"]))


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = [one for path in sorted(FOLDER.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]
        cls.schema = json.loads((uma.ROOT / "tests" / "cluster" / "kubernetes.schema.json").read_text())
        cls.pods = of_kind(cls.objects, "StatefulSet")["spec"]["template"]
        cls.container = cls.pods["spec"]["containers"][0]
        cls.settings = of_kind(cls.objects, "ConfigMap", "umad")["data"]["umad.yaml"]
        cls.picker = yaml.safe_load(of_kind(cls.objects, "ConfigMap", "umad-picker")["data"]["plugins.yaml"])

    def problems(self, value, kind):
        """Why a value is not of this kind: the first problem of each place."""
        validator = jsonschema.Draft202012Validator({**self.schema, "oneOf": [{"$ref": f"#/$defs/{kind}"}]})
        deepest = [jsonschema.exceptions.best_match([error]) for error in validator.iter_errors(value)]
        return [f"{kind} {error.json_path}: {error.message[:200]}" for error in deepest]


@needed
class Fields(Manifests):
    def test_every_object_has_the_fields_of_its_kind(self):
        self.assertGreater(len(self.objects), 12)
        self.assertEqual([], [problem for one in self.objects for problem in self.problems(one, one["kind"])])

    def test_the_pickers_configuration_has_known_fields(self):
        self.assertEqual([], self.problems(self.picker, "EndpointPickerConfig"))
        extractor = next(plugin for plugin in self.picker["plugins"] if plugin["type"] == "core-metrics-extractor")
        self.assertEqual([], self.problems(extractor["parameters"], "CoreMetricsExtractor"))
        plugins = {plugin.get("name", plugin["type"]) for plugin in self.picker["plugins"]}
        for profile in self.picker["schedulingProfiles"]:
            self.assertLessEqual({plugin["pluginRef"] for plugin in profile["plugins"]}, plugins)

    def test_a_mistake_is_found(self):
        """Otherwise a schema that accepts everything would pass."""
        for kind, spoil in {
                "StatefulSet": lambda one: one["spec"]["template"]["spec"]["containers"][0].update(readynessProbe={}),
                "InferencePool": lambda one: one["spec"].update(targetPortNumber=8642),
                "InferenceObjective": lambda one: one["spec"].pop("poolRef"),
                "HTTPRoute": lambda one: one["spec"]["rules"][0].update(timeouts={"request": "forever"}),
                "PodDisruptionBudget": lambda one: one.update(apiVersion="policy/v1beta1")}.items():
            one = copy.deepcopy(of_kind(self.objects, kind))
            self.assertEqual([], self.problems(one, kind))
            spoil(one)
            self.assertEqual(1, len(self.problems(one, kind)), kind)


@needed
class References(Manifests):
    def test_names_meet(self):
        names = {(one["kind"], one["metadata"]["name"]) for one in self.objects}
        self.assertEqual(len(self.objects), len(names))
        named = [("InferencePool", of_kind(self.objects, "InferenceObjective")["spec"]["poolRef"]["name"]),
                 ("Service", of_kind(self.objects, "InferencePool")["spec"]["endpointPickerRef"]["name"]),
                 ("Service", of_kind(self.objects, "StatefulSet")["spec"]["serviceName"])]
        for rule in of_kind(self.objects, "HTTPRoute")["spec"]["rules"]:
            named += [(backend.get("kind", "Service"), backend["name"]) for backend in rule["backendRefs"]]
        for kind in ("StatefulSet", "Deployment"):
            pods = of_kind(self.objects, kind)["spec"]["template"]["spec"]
            named += [("ConfigMap", volume["configMap"]["name"]) for volume in pods.get("volumes", []) if "configMap" in volume]
        self.assertEqual([], [name for name in named if name not in names])

    def test_selectors_find_the_pods(self):
        for kind, name in (("StatefulSet", "umad"), ("Deployment", "umad-picker")):
            spec = of_kind(self.objects, kind)["spec"]
            self.assertEqual(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"])
            self.assertEqual({"app.kubernetes.io/name": name}, spec["selector"]["matchLabels"])
        for one in self.objects:
            if one["kind"] in ("Service", "InferencePool", "PodDisruptionBudget"):
                selector = one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
                self.assertIn(selector["app.kubernetes.io/name"], ("umad", "umad-picker"))

    def test_containers_are_confined(self):
        for kind in ("StatefulSet", "Deployment"):
            for container in of_kind(self.objects, kind)["spec"]["template"]["spec"]["containers"]:
                context = container["securityContext"]
                self.assertEqual((False, ["ALL"]), (context["allowPrivilegeEscalation"], context["capabilities"]["drop"]))
        self.assertFalse(self.pods["spec"]["automountServiceAccountToken"])
        self.assertTrue(self.container["securityContext"]["readOnlyRootFilesystem"])
        self.assertIn("memory", self.container["resources"]["limits"])

    def test_volumes_are_there(self):
        for kind in ("StatefulSet", "Deployment"):
            spec = of_kind(self.objects, kind)["spec"]
            volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
            volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            for container in spec["template"]["spec"]["containers"]:
                self.assertEqual(volumes, {mount["name"] for mount in container["volumeMounts"]})


@needed
class Umad(Manifests):
    """A daemon with the settings of the manifests, but for its paths and its address."""

    def start(self):
        folder = tempfile.TemporaryDirectory(prefix="uma-kubernetes-")
        self.addCleanup(folder.cleanup)
        settings = yaml.safe_load(self.settings)
        keys = pathlib.Path(folder.name) / "keys"
        keys.write_text(re.search(r"^line +(.+)$", uma.run_umad("key", "new", "team").stdout, re.MULTILINE)[1] + "\n")
        keys.chmod(0o600)
        settings["http"].update(address="127.0.0.1:0", keys_file=str(keys))
        settings.update(drain_delay="1h", model=str(uma.TINY))
        del settings["data_dir"], settings["ipc"]
        daemon = uma.Daemon(None, config=json.dumps(settings), environment={"UMA_HTTP": None})
        self.addCleanup(daemon.kill)
        daemon.start().wait_ready()
        self.port = int(re.search(r"http +http://127\.0\.0\.1:(\d+)/v1", daemon.log())[1])
        return daemon

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=uma.WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", path, headers={"Host": "10.1.2.3:8642"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def test_the_settings_are_read_as_they_are(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(self.settings)
            file.flush()
            printed = uma.run_umad("--config", file.name, "--print-config", environment=uma.clean_environment(UMA_HTTP=None))
        self.assertEqual(0, printed.returncode, printed.stderr)
        values = yaml.safe_load(printed.stdout)
        port = of_kind(self.objects, "InferencePool")["spec"]["targetPorts"][0]["number"]
        self.assertEqual(f"0.0.0.0:{port}", values["http"]["address"])
        self.assertEqual({port}, {entry["containerPort"] for entry in self.container["ports"]})

    def test_variables_are_umads(self):
        text = (uma.ROOT / "docs" / "CONFIGURATION.md").read_text()
        variables = {one["name"] for one in self.container["env"]}
        self.assertEqual({"UMA_NODE", "UMA_CATALOG", "PGPASSWORD"}, variables)
        for name in variables:
            self.assertIn(f"`{name}`", text)

    def test_a_pod_has_the_time_that_its_daemon_takes_to_end(self):
        seconds = {"s": 1, "m": 60}
        took = sum(int(value[:-1]) * seconds[value[-1]]
                   for name, value in yaml.safe_load(self.settings).items() if name in ("drain_delay", "drain_limit"))
        self.assertLess(took, self.pods["spec"]["terminationGracePeriodSeconds"])

    def test_the_picker_finds_its_metrics(self):
        source, extractor = (next(plugin["parameters"] for plugin in self.picker["plugins"] if plugin["type"] == kind)
                             for kind in ("metrics-data-source", "core-metrics-extractor"))
        self.start()
        status, text = self.get(source["path"])
        self.assertEqual(200, status)
        engine = next(one for one in extractor["engineConfigs"] if one["name"] == extractor["defaultEngine"])
        for field, name in engine.items():
            if field != "name":
                self.assertRegex(text, rf"(?m)^# TYPE {name} gauge$")
                self.assertRegex(text, rf"(?m)^{name} [0-9.]+$")
        table = (uma.ROOT / "docs" / "METRICS.md").read_text()
        for field, name in (("queuedRequestsSpec", "TotalQueuedRequests"), ("runningRequestsSpec", "TotalRunningRequests"),
                            ("kvUsageSpec", "KVCacheUtilization")):
            self.assertIn(f"| {name} | `{engine[field]}`", table)

    def test_probes_answer_and_say_when_the_daemon_goes(self):
        daemon = self.start()
        probes = {name: self.container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
        self.assertEqual({name: 200 for name in probes}, {name: self.get(path)[0] for name, path in probes.items()})
        daemon.signal(uma.signal.SIGTERM)
        uma.until(lambda: self.get(probes["readinessProbe"])[0] == 503, "it is not ready")
        self.assertEqual(200, self.get(probes["livenessProbe"])[0])
        self.assertTrue(daemon.is_running(), "requests are served for the drain delay")
        daemon.signal(uma.signal.SIGTERM)
        self.assertEqual(0, daemon.wait())

    def test_the_route_has_paths_of_umad(self):
        routes = (uma.ROOT / "src" / "server" / "http" / "routes.cpp").read_text()
        rules = of_kind(self.objects, "HTTPRoute")["spec"]["rules"]
        exact = [match["path"]["value"] for rule in rules for match in rule["matches"] if match["path"]["type"] == "Exact"]
        self.assertEqual(4, len(exact))
        for path in exact:
            self.assertIn(f'HttpRoute{{post, "{path}"', routes)


if __name__ == "__main__":
    unittest.main()
