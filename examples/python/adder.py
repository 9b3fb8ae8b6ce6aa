"""adder.py NAME: registers example.IAdder with the service manager and serves."""

import ctypes
import sys

import gbinder

INTERFACE = "example.IAdder"
ADD = 1
OK, ILLEGAL_ARGUMENT = 0, -3
STATUS_FAILED = -2147483648


def main():
    manager = gbinder.ServiceManager("/dev/binder")

    def on_call(request, code, _flags):
        if code != ADD:
            return None, STATUS_FAILED
        reader = request.init_reader()
        (_, a), (_, b) = reader.read_int32(), reader.read_int32()
        reply = adder.new_reply()
        # The module appends unsigned numbers only.
        if -(2**31) <= a + b < 2**31:
            reply.append_int32(OK)
            reply.append_int32((a + b) & 0xFFFFFFFF)
        else:
            reply.append_int32(ILLEGAL_ARGUMENT & 0xFFFFFFFF)
            reply.append_string16("overflow")
            reply.append_int32(0)  # no stack trace
        return reply, 0

    adder = manager.new_local_object(INTERFACE, on_call)
    status = manager.add_service_sync(sys.argv[1], adder)
    if status != 0:
        sys.exit(f"cannot register {sys.argv[1]}: {status}")
    # Calls arrive in the main loop of GLib.
    glib = ctypes.CDLL("libglib-2.0.so.0")
    glib.g_main_loop_new.restype = ctypes.c_void_p
    glib.g_main_loop_run.argtypes = [ctypes.c_void_p]
    glib.g_main_loop_run(glib.g_main_loop_new(None, False))


if __name__ == "__main__":
    main()
