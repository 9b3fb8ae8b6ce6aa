package headroom.hello;

import headroom.hello.IHelloListener;

/** One method for each way in which a call can go. */
interface IHello {
    /** Returns the text; the empty text is an illegal argument. */
    String echo(in String text);
    /** Large replies: the data so many times. */
    byte[] repeat(in byte[] data, int times);
    /** Calls the listener while the caller waits: a nested call. */
    int query(in IHelloListener listener, int question);
    /** The listener receives each notify. */
    void subscribe(in IHelloListener listener);
    /** One way; received in order. */
    oneway void notify(int number);
    /** The service exits. */
    oneway void die();
}
