"""examples/kubernetes: the manifests satisfy the API's schemas, in which unknown fields are errors, and fit together."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "examples/kubernetes"
MANIFESTS = [FOLDER / "bus.yaml", FOLDER / "pod.yaml"]
# The oldest and the newest release of which the validator has the schemas.
VERSIONS = ["1.25.0", "1.37.0"]


def validate(version, *files):
    validator = Path(sys.executable).with_name("kubernetes-validate")
    command = [validator, "--strict", "-k", version, *files]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class KubernetesTest(unittest.TestCase):
    def test_manifests_satisfy_the_strict_schemas(self):
        for version in VERSIONS:
            done = validate(version, *MANIFESTS)
            print(f"\n{done.stdout}", end="")
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stdout.count(" passed for resource "), len(MANIFESTS))

    def test_a_misspelled_field_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = Path(folder, "bus.yaml")
            wrong.write_text(MANIFESTS[0].read_text().replace("hostPID:", "hostPid:"))
            done = validate(VERSIONS[-1], wrong)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("'hostPid' was unexpected", done.stdout)

    def test_the_pod_requests_the_bus_of_the_daemon_set(self):
        bus, pod = (yaml.safe_load(path.read_text()) for path in MANIFESTS)
        [container] = bus["spec"]["template"]["spec"]["containers"]
        [name] = [line.split()[-1] for line in container["args"][0].splitlines() if "container cdi" in line]
        [client] = pod["spec"]["containers"]
        annotation = pod["metadata"]["annotations"][f"cdi-devices.nri.io/container.{client['name']}"]
        self.assertEqual(yaml.safe_load(annotation), [f"headroom/binder={name}"])


if __name__ == "__main__":
    unittest.main()
