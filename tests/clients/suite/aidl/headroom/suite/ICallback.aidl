package headroom.suite;

import headroom.suite.ISuite;

/** What a client offers. */
interface ICallback {
    /** Called while its own call is under way; calls back so many times. */
    int bounce(in ISuite suite, int times);
    oneway void received(int number);
}
