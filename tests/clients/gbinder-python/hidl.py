"""hidl.py: a HIDL service and its client by Debian's gbinder module, and the names that the manager has of it."""

import ctypes
import subprocess
import sys

import gbinder

RADIO = "headroom.radio@1.0::IRadio"
NAME = f"{RADIO}/slot1"
ADD_ONE = 1


def serve():
    manager = gbinder.ServiceManager("/dev/hwbinder")

    def call(request, code, _flags):
        if code != ADD_ONE:
            return None, -1
        _, number = request.init_reader().read_int32()
        reply = radio.new_reply()
        reply.append_int32(0)
        reply.append_int32(number + 1)
        return reply, 0

    radio = manager.new_local_object(RADIO, call)
    if manager.add_service_sync("slot1", radio) != 0:
        sys.exit(f"{NAME} is not registered")
    print(f"serving {NAME}", flush=True)
    glib = ctypes.CDLL("libglib-2.0.so.0")
    glib.g_main_loop_new.restype = ctypes.c_void_p
    glib.g_main_loop_run(ctypes.c_void_p(glib.g_main_loop_new(None, 0)))


def use():
    manager = gbinder.ServiceManager("/dev/hwbinder")
    remote, status = manager.get_service_sync(NAME)
    if remote is None:
        sys.exit(f"no service {NAME}: {status}")
    if manager.get_service_sync(f"{RADIO}/slot2")[0] is not None:
        sys.exit("an instance that nobody has registered is there")
    client = gbinder.Client(remote, RADIO)
    request = client.new_request()
    request.append_int32(41)
    reply, status = client.transact_sync_reply(ADD_ONE, request)
    reader = reply.init_reader()
    numbers = [reader.read_int32()[1], reader.read_int32()[1]]
    if status != 0 or numbers != [0, 42]:
        sys.exit(f"the call failed: {status}, {numbers}")
    names = manager.list_sync()
    if names != [NAME]:
        sys.exit(f"the manager lists {names}")
    print("found, called, listed")


def main():
    if sys.argv[1:] == ["serve"]:
        serve()
        return
    with subprocess.Popen([sys.executable, "-B", __file__, "serve"], stdout=subprocess.PIPE) as service:
        try:
            service.stdout.readline()
            use()
        finally:
            service.kill()


main()
