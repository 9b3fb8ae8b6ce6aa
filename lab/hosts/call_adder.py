"""call_adder.py NAME: calls a service of examples/python, and prints the sum."""

import sys
import time

import gbinder

PATIENCE_S = 30


def main() -> None:
    """Waits until the service has registered."""
    manager = gbinder.ServiceManager("/dev/binder")
    deadline = time.monotonic() + PATIENCE_S
    while (found := manager.get_service_sync(sys.argv[1])[0]) is None:
        if time.monotonic() > deadline:
            sys.exit(f"{sys.argv[1]} does not register")
        time.sleep(0.05)
    client = gbinder.Client(found, "example.IAdder")
    request = client.new_request()
    request.append_int32(40)
    request.append_int32(2)
    reply, status = client.transact_sync_reply(1, request)
    if status != 0:
        sys.exit(f"the call failed: {status}")
    reader = reply.init_reader()
    (_, exception), (_, total) = reader.read_int32(), reader.read_int32()
    print("sum", total if exception == 0 else f"failed: {exception}")


if __name__ == "__main__":
    main()
