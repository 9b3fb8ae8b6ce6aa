"""hello_service.py NAME: headroom.hello.IHello in Python, on Debian's gbinder module.

Registers with the service manager and serves until it is requested to exit.
"""

import ctypes
import os
import sys

import gbinder

HELLO = "headroom.hello.IHello"
LISTENER = "headroom.hello.IHelloListener"
ECHO, REPEAT, QUERY, SUBSCRIBE, NOTIFY, DIE = range(1, 7)
ANSWER, RECEIVED = 1, 2
ILLEGAL_ARGUMENT = -3


def unsigned(number):
    """What the module's appenders take for a negative number."""
    return number & 0xFFFFFFFF


class Hello:
    def __init__(self, manager):
        self.object = manager.new_local_object(HELLO, self.call)
        self.listener = None

    def call(self, request, code, _flags):
        methods = {
            ECHO: self.echo,
            REPEAT: self.repeat,
            QUERY: self.query,
            SUBSCRIBE: self.subscribe,
            NOTIFY: self.notify,
            DIE: lambda _: os._exit(0),
        }
        if code not in methods:
            return None, -1
        try:
            return methods[code](request.init_reader()), 0
        except Exception as error:  # The module would drop it without a word.
            print(error, flush=True)
            return None, -1

    def reply(self, exception=0):
        reply = self.object.new_reply()
        reply.append_int32(unsigned(exception))
        return reply

    def echo(self, reader):
        text = reader.read_string16()
        if text:
            reply = self.reply()
            reply.append_string16(text)
        else:
            reply = self.reply(ILLEGAL_ARGUMENT)
            reply.append_string16("empty text")
            reply.append_int32(0)  # no stack trace
        return reply

    def repeat(self, reader):
        # The module hands byte arrays out as objects, which they are not: read and written word by word.
        _, length = reader.read_int32()
        words = b"".join(reader.read_uint32()[1].to_bytes(4, "little") for _ in range((length + 3) // 4))
        _, times = reader.read_int32()
        data = words[:length] * times
        reply = self.reply()
        writer = reply.init_writer()
        writer.append_int32(len(data))
        for at in range(0, len(data), 4):
            writer.append_int32(int.from_bytes(data[at : at + 4], "little"))
        return reply

    def query(self, reader):
        listener = gbinder.Client(reader.read_object(), LISTENER)
        _, question = reader.read_int32()
        request = listener.new_request()
        request.append_int32(unsigned(question))
        answered, status = listener.transact_sync_reply(ANSWER, request)
        if status != 0:
            raise RuntimeError(f"the listener does not answer: {status}")
        answer = answered.init_reader()
        exception, number = answer.read_int32()[1], answer.read_int32()[1]
        reply = self.reply(exception)
        reply.append_int32(unsigned(number))
        return reply

    def subscribe(self, reader):
        self.listener = gbinder.Client(reader.read_object(), LISTENER)
        return self.reply()

    def notify(self, reader):
        _, number = reader.read_int32()
        request = self.listener.new_request()
        request.append_int32(unsigned(number))
        status = self.listener.transact_sync_oneway(RECEIVED, request)
        if status != 0:
            raise RuntimeError(f"the listener cannot be notified: {status}")


def main():
    name = sys.argv[1]
    manager = gbinder.ServiceManager("/dev/binder")
    hello = Hello(manager)
    status = manager.add_service_sync(name, hello.object)
    if status != 0:
        sys.exit(f"{name} cannot be registered: {status}")
    print(f"serving {name}", flush=True)
    # Calls come in GLib's main loop.
    glib = ctypes.CDLL("libglib-2.0.so.0")
    glib.g_main_loop_new.restype = ctypes.c_void_p
    glib.g_main_loop_run.argtypes = [ctypes.c_void_p]
    glib.g_main_loop_run(glib.g_main_loop_new(None, False))


main()
