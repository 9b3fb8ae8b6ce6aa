"""echo_times.py NAME: the client for benchmarks that hello's echo_times is, on Debian's gbinder module.

The times are those of the transactions: building requests and reading replies in Python is not part of them.
"""

import sys
import time

import gbinder

HELLO = "headroom.hello.IHello"
ECHO = 1


def echo(client, calls, text):
    """Nanoseconds of each call."""
    request = client.new_request()
    request.append_string16(text)
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        reply, status = client.transact_sync_reply(ECHO, request)
        times.append(time.perf_counter_ns() - start)
        if status != 0:
            sys.exit(f"a call failed: {status}")
    reader = reply.init_reader()
    exception, received = reader.read_int32()[1], reader.read_string16()
    if exception != 0 or received != text:
        sys.exit(f"the echo differs: exception {exception}, {received[:40]!r}")
    return times


def main():
    name = sys.argv[1]
    remote, status = gbinder.ServiceManager("/dev/binder").get_service_sync(name)
    if remote is None or status != 0:
        sys.exit(f"no service {name}: {status}")
    client = gbinder.Client(remote, HELLO)
    print("ready", flush=True)
    for line in sys.stdin:
        calls, length = map(int, line.split())
        print(*echo(client, calls, "x" * length), flush=True)


main()
