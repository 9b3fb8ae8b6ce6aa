package headroom.hello;

import headroom.hello.IHelloListener;

/** One method for each way in which a call can go. */
interface IHello {
    /** Says it back; the empty text is an illegal argument. */
    String echo(in String text);
    /** Large replies: the data so many times. */
    byte[] repeat(in byte[] data, int times);
    /** Asks the listener while the caller waits: a nested call. */
    int ask(in IHelloListener listener, int question);
    /** The listener hears of each notify. */
    void subscribe(in IHelloListener listener);
    /** One way; heard in order. */
    oneway void notify(int number);
    /** The service exits. */
    oneway void die();
}
