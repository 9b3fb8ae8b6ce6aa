"""Calls the service from another process. Needs a bus with a service manager, see README.md."""

import subprocess
import sys
import time
import unittest
from pathlib import Path

import gbinder

from adder import ADD, ILLEGAL_ARGUMENT, INTERFACE, OK

SERVICE = f"{INTERFACE}/test"
PATIENCE_S = 10


class AdderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        program = Path(__file__).with_name("adder.py")
        cls.service = subprocess.Popen([sys.executable, program, SERVICE])
        cls.addClassCleanup(cls.service.wait)
        cls.addClassCleanup(cls.service.kill)
        cls.manager = gbinder.ServiceManager("/dev/binder")
        deadline = time.monotonic() + PATIENCE_S
        while (found := cls.manager.get_service_sync(SERVICE)[0]) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{SERVICE} does not register")
            time.sleep(0.05)
        cls.client = gbinder.Client(found, INTERFACE)

    def add(self, a, b):
        """The reply, and its exception."""
        request = self.client.new_request()
        request.append_int32(a)
        request.append_int32(b)
        reply, status = self.client.transact_sync_reply(ADD, request)
        self.assertEqual(status, 0)
        reader = reply.init_reader()
        return reader, reader.read_int32()[1]

    def test_numbers_are_added(self):
        reader, exception = self.add(2, 3)
        self.assertEqual((exception, reader.read_int32()[1]), (OK, 5))

    def test_an_overflow_is_an_illegal_argument(self):
        _, exception = self.add(2**31 - 1, 1)
        self.assertEqual(exception, ILLEGAL_ARGUMENT)


if __name__ == "__main__":
    unittest.main()
