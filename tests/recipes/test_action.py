"""action.yml: it satisfies GitHub's schema, and its steps do what they should, run as a runner runs them."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import yaml

TOP = Path(__file__).parents[2]
ACTION = TOP / "action.yml"
HEADROOM = Path(os.environ["HEADROOM"])
CLIENTS = Path(os.environ["CLIENTS"])
ASSET = "headroom-x86_64-linux"
# How a runner starts the shell "bash".
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]


class Job:
    """A job on a runner: a folder, and the state that steps leave to later steps."""

    def __init__(self, folder, **github):
        self.folder = Path(folder)
        self.github = github
        self.path_file = self.folder / "path"
        self.path_file.touch()

    def expand(self, text, inputs):
        """Replaces `${{ inputs.x }}` and `${{ github.x }}`; others are errors."""
        values = {f"inputs.{name}": value for name, value in inputs.items()}
        values |= {f"github.{name}": value for name, value in self.github.items()}
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)

    def use(self, **given):
        """Runs the steps until one fails. Returns the exit code and the output."""
        action = yaml.safe_load(ACTION.read_text())
        names = {name.replace("_", "-"): value for name, value in given.items()}
        unknown = names.keys() - action["inputs"].keys()
        assert not unknown, f"no input {unknown}"
        inputs = {name: names.get(name, its.get("default")) for name, its in action["inputs"].items()}
        output = ""
        for number, step in enumerate(action["runs"]["steps"]):
            # An expression in a script would be code of whoever writes the input.
            assert step["shell"] == "bash" and "${{" not in step["run"], step
            script = self.folder / f"step-{number}.sh"
            script.write_text(step["run"])
            env = {name: self.expand(value, inputs) for name, value in step.get("env", {}).items()}
            path = [*reversed(self.path_file.read_text().split()), os.environ["PATH"]]
            runner = {"RUNNER_TEMP": str(self.folder), "GITHUB_PATH": str(self.path_file), "PATH": ":".join(path)}
            cwd = self.expand(step.get("working-directory", str(self.folder)), inputs)
            done = subprocess.run(
                [*SHELL, script], env=os.environ | runner | env, cwd=self.folder / cwd,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
            )
            output += done.stdout
            if done.returncode != 0:
                return done.returncode, output
        return 0, output


class ActionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.job = Job(folder.name)

    def release(self):
        """A release on a local server: the program and its checksum."""
        folder = self.job.folder / "example/headroom/releases/download/v0.1.0"
        folder.mkdir(parents=True)
        shutil.copy(HEADROOM, folder / ASSET)
        digest = hashlib.sha256(HEADROOM.read_bytes()).hexdigest()
        (folder / f"{ASSET}.sha256").write_text(f"{digest}  {ASSET}\n")
        server = f"file://{self.job.folder}"
        self.job.github = {"server_url": server, "action_repository": "example/headroom", "action_ref": "v0.1.0"}
        return folder

    def without_release(self):
        self.job.github = {"server_url": "file:///nonexistent", "action_repository": "", "action_ref": ""}

    def test_it_satisfies_the_schema_of_github(self):
        checker = Path(sys.executable).with_name("check-jsonschema")
        subprocess.run([checker, "--builtin-schema", "vendor.github-actions", ACTION], check=True)

    def test_the_release_is_downloaded_and_commands_have_a_bus(self):
        self.release()
        code, output = self.job.use(run="test -e /dev/binderfs/binder\nheadroom binder ls")
        self.assertEqual(code, 0, output)
        self.assertIn("binder  no context manager", output)

    def test_the_exit_code_of_a_command_is_that_of_the_step(self):
        self.without_release()
        code, output = self.job.use(binary=str(HEADROOM), run="false | true\necho not reached")
        self.assertEqual(code, 1, output)
        self.assertNotIn("not reached", output)
        code, output = self.job.use(binary=str(HEADROOM), run="exit 7")
        self.assertEqual(code, 7, output)

    def test_inputs_are_not_code(self):
        self.without_release()
        name = "a;touch injected"
        code, output = self.job.use(binary=str(HEADROOM), devices=name, run=f"test -e '/dev/binderfs/{name}'")
        self.assertEqual(code, 0, output)
        self.assertFalse((self.job.folder / "injected").exists())

    def test_cargo_test_runs_with_a_service_manager(self):
        self.without_release()
        env = f"export CARGO_TARGET_DIR={CLIENTS}/build CARGO_PROFILE_DEV_DEBUG=0\n"
        code, output = self.job.use(
            binary=str(HEADROOM),
            service_manager="headroom",
            working_directory=str(TOP / "examples/rsbinder"),
            run=env + "cargo test --locked --test adder",
        )
        self.assertEqual(code, 0, output)
        self.assertIn("test result: ok. 2 passed", output)

    def test_ctest_runs_on_a_bus(self):
        self.without_release()
        (self.job.folder / "CTestTestfile.cmake").write_text("add_test(device test -e /dev/binderfs/binder)\n")
        code, output = self.job.use(binary=str(HEADROOM), run="ctest --output-on-failure")
        self.assertEqual(code, 0, output)
        self.assertIn("100% tests passed, 0 tests failed out of 1", output)

    def test_a_damaged_download_is_refused(self):
        with open(self.release() / ASSET, "ab") as asset:
            asset.write(b"x")
        code, output = self.job.use(run="echo not reached")
        self.assertNotEqual(code, 0)
        self.assertIn(f"{ASSET}: FAILED", output)
        self.assertNotIn("not reached", output)

    def test_a_missing_release_is_an_error_with_a_remedy(self):
        self.without_release()
        code, output = self.job.use(run="echo not reached")
        self.assertEqual(code, 1)
        self.assertIn("cannot be downloaded; use a tag with a release, or set 'binary'", output)


if __name__ == "__main__":
    unittest.main()
