"""hello_client.py list | ping NAME | call NAME: what Debian's gbinder module for Python does as a client."""

import sys

import gbinder

HELLO = "headroom.hello.IHello"
ECHO, NOTIFY = 1, 5
PING = int.from_bytes(b"_PNG", "big")


def service(manager, name):
    remote, status = manager.get_service_sync(name)
    if remote is None or status != 0:
        sys.exit(f"no service {name}: {status}")
    return gbinder.Client(remote, HELLO)


def ping(manager, name):
    client = service(manager, name)
    _, status = client.transact_sync_reply(PING, client.new_request())
    if status != 0:
        sys.exit(f"{name} does not answer: {status}")
    print(f"{name} is alive")


def call(manager, name):
    client = service(manager, name)
    for text in ["hello", "größe 大 🦀", "x" * 10_000]:
        request = client.new_request()
        request.append_string16(text)
        reply, status = client.transact_sync_reply(ECHO, request)
        if status != 0:
            sys.exit(f"the echo of {len(text)} characters failed: {status}")
        reader = reply.init_reader()
        exception, echo = reader.read_int32()[1], reader.read_string16()
        if exception != 0 or echo != text:
            sys.exit(f"the echo of {len(text)} characters: exception {exception}, {echo[:40]!r}")
        print(f"echo of {len(text)} characters")
    request = client.new_request()
    request.append_string16("")
    reply, status = client.transact_sync_reply(ECHO, request)
    reader = reply.init_reader()
    exception, message = reader.read_int32()[1], reader.read_string16()
    if exception != -3:
        sys.exit(f"the empty echo: exception {exception}, {message!r}")
    print(f"exception {exception}: {message}")
    request = client.new_request()
    request.append_int32(7)
    status = client.transact_sync_oneway(NOTIFY, request)
    if status != 0:
        sys.exit(f"the one-way call failed: {status}")
    print("one-way call")


def main():
    manager = gbinder.ServiceManager("/dev/binder")
    match sys.argv[1:]:
        case ["list"]:
            print("\n".join(manager.list_sync()))
        case ["ping", name]:
            ping(manager, name)
        case ["call", name]:
            call(manager, name)
        case _:
            sys.exit(__doc__)


main()
