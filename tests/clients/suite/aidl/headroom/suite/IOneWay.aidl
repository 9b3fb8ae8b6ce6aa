package headroom.suite;

/** Nobody waits for any of its methods. */
oneway interface IOneWay {
    void put(int number);
}
